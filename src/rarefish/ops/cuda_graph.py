"""Record a repeated step as a CUDA graph and replay it.

The kernels of a small network finish before the CPU can launch the next ones.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from warnings import warn

import torch
from torch import Tensor

WARM_UP = 3
"""Number of steps before recording, in which libraries choose kernels and optimizers create their state."""


class RecordedStep:
    """A function that is replayed as a CUDA graph on a GPU and called directly on a CPU.

    The function reads tensors of constant shapes and changes others in place. Everything that varies between steps must
    be a tensor, and random numbers must come from PyTorch's global generator.
    """

    def __init__(self, step: Callable[..., None], stream: torch.cuda.Stream | None = None) -> None:
        """With `stream`, all steps run there without synchronizing; the step must then take no inputs."""
        self.step, self.stream = step, stream
        self.calls = 0
        self.is_recordable = True
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, ...] = ()

    def __call__(self, *inputs: Tensor) -> None:
        self.calls += 1
        devices = [self.stream.device] if self.stream else [value.device for value in inputs if value.is_cuda]
        if devices:
            with torch.cuda.device(devices[0]), torch.cuda.stream(self.stream):  # None changes nothing
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
        current = torch.cuda.current_stream()
        side = self.stream or torch.cuda.Stream(inputs[0].device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            self.step(*inputs)
        current.wait_stream(side)

    def _record(self, inputs: tuple[Tensor, ...]) -> None:
        """Records the graph and replays it once, because recording alone does not run the step."""
        self.inputs = tuple(value.clone() for value in inputs)
        graph = torch.cuda.CUDAGraph()
        try:
            with no_garbage_collection(), torch.cuda.graph(graph, stream=self.stream):
                self.step(*self.inputs)
        except RuntimeError as error:  # a network may read values on the CPU, which a graph cannot do
            warn(
                f"Cannot record this step as a CUDA graph, so it runs without one: {str(error).splitlines()[0]}",
                stacklevel=3,
            )
            self.is_recordable = False
            self.step(*inputs)
        else:
            self.graph = graph
            graph.replay()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Pauses garbage collection, because freeing an older CUDA graph would break the recording of a new one."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
