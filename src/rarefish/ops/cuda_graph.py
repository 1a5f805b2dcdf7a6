"""A step taken many times: on a GPU it is recorded once and replayed, for a little network's kernels end before the
next can be launched."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from warnings import warn

import torch
from torch import Tensor

WARM_UP = 3
"""Steps before the recording, in which libraries choose their kernels and optimizers make their state."""


class RecordedStep:
    """A step that reads tensors of always the same shapes and changes others in place; called as it is on a CPU.

    All the chance in it must come from PyTorch's own generator; what changes from step to step must be a tensor.
    """

    def __init__(self, step: Callable[..., None], stream: torch.cuda.Stream | None = None) -> None:
        """`stream`: all steps are taken there, and nobody waits for them; the step then reads nothing from outside."""
        self.step, self.stream = step, stream
        self.calls = 0
        self.is_recordable = True
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, ...] = ()

    def __call__(self, *inputs: Tensor) -> None:
        self.calls += 1
        devices = [self.stream.device] if self.stream else [value.device for value in inputs if value.is_cuda]
        if devices:
            with torch.cuda.device(devices[0]), torch.cuda.stream(self.stream):  # None: as it is
                self._on_gpu(inputs)
        else:
            self.step(*inputs)

    def _on_gpu(self, inputs: tuple[Tensor, ...]) -> None:
        if not self.is_recordable:
            self.step(*inputs)
        elif self.calls <= WARM_UP:
            self._warm_up(inputs)
        elif self.graph is None:
            self._record(inputs)
        else:
            for own, value in zip(self.inputs, inputs, strict=True):
                own.copy_(value)
            self.graph.replay()

    def _warm_up(self, inputs: tuple[Tensor, ...]) -> None:
        usual = torch.cuda.current_stream()
        side = self.stream or torch.cuda.Stream(inputs[0].device)
        side.wait_stream(usual)
        with torch.cuda.stream(side):
            self.step(*inputs)
        usual.wait_stream(side)

    def _record(self, inputs: tuple[Tensor, ...]) -> None:
        """Recording takes no step by itself: the replay after it does."""
        self.inputs = tuple(value.clone() for value in inputs)
        graph = torch.cuda.CUDAGraph()
        try:
            with no_collecting(), torch.cuda.graph(graph, stream=self.stream):
                self.step(*self.inputs)
        except RuntimeError as error:  # a network may look at its own numbers, which no recording can
            warn(f"This step cannot be recorded and is taken slowly: {str(error).splitlines()[0]}", stacklevel=3)
            self.is_recordable = False
            self.step(*inputs)
        else:
            self.graph = graph
            graph.replay()


@contextmanager
def no_collecting() -> Iterator[None]:
    """A recording that an earlier `RecordedStep` left behind must not be freed in the middle of this one."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
