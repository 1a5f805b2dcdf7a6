"""Optional torch.compile for the descriptor pass, used if it saves time and gives the same results."""

import time
from dataclasses import dataclass, field
from typing import Any
from warnings import warn

import torch
from torch import Tensor
from torch.nn import functional

from rarefish.features import View, Watcher, pull_back, spatial_mean

WORTH_IT_ON = "cuda"
"""Device type on which compiling may save time; on a CPU, the model is compiled only on request."""
COMPILING = 60.0
"""Upper estimate of the seconds that compiling a large model takes."""
SAVED = 0.2
"""Lower estimate of the fraction of the time per image that compiled code saves."""
WARM_UP, TIMED = 3, 10
"""Number of batches before and during the measurement of speed."""
MIN_CORRELATION = 0.99
"""Minimum correlation with the results of plain code, which rounds differently in 16 bits."""


@dataclass
class AdaptivePass:
    """A forward pass that switches to compiled code once that saves time; it warns if compiling fails."""

    watcher: Watcher
    compile: bool | None = None
    """Whether to compile; None means if it saves time."""
    to_come: int = 0
    """Estimated number of remaining images, which compiling could speed up."""
    compiled: "CompiledPass | None" = None
    is_settled: bool = False
    clock: list[float] = field(default_factory=list)

    def __call__(self, images: Tensor) -> View:
        self.to_come -= len(images)
        if not torch.is_grad_enabled():
            return self.watcher(images)
        if self.compiled and images.shape == self.compiled.shape:
            return self.compiled(images)
        view = self.watcher(images)
        if not self.is_settled and (self.compile or (self.compile is None and self._pays(len(images)))):
            self.is_settled = True
            self.compiled = try_compile(self.watcher, view)
            return self.watcher(images)  # the autograd graph of the first view is used up
        return view

    def _pays(self, batch_size: int) -> bool:
        """Returns whether compiling would save more time than it takes, judged by the speed of the first batches."""
        if self.watcher.device.type != WORTH_IT_ON:
            return False
        if len(self.clock) in (WARM_UP, WARM_UP + TIMED):
            torch.cuda.synchronize(self.watcher.device)
        self.clock.append(time.monotonic())
        if len(self.clock) <= WARM_UP + TIMED:
            return False
        self.is_settled = True
        per_image = (self.clock[-1] - self.clock[WARM_UP]) / (TIMED * batch_size)
        return SAVED * per_image * self.to_come > COMPILING


@dataclass(frozen=True)
class CompiledPass:
    """The forward pass as one compiled function, for batches of one shape."""

    watcher: Watcher
    shape: tuple[int, ...]
    nudges: tuple[Tensor, ...]
    """Zeros added to each channel of each layer; their gradient is the spatial mean of the map's gradient."""
    function: Any

    def __call__(self, images: Tensor) -> View:
        images = self.watcher.fetch(images)
        with torch.compiler.set_stance("default"):
            logits_NC, means_ND = self.function(images, self.nudges)
        return View(images, logits_NC, self.nudges, means_ND)


def try_compile(watcher: Watcher, plain: View) -> CompiledPass | None:
    """Returns the compiled pass, or warns and returns None if compiling fails or changes the results."""

    def run(images: Tensor, nudges: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        watcher.taps.nudges.update(zip(watcher.layers, nudges, strict=True))
        logits_NC = watcher.run(images)
        means_ND = torch.cat([spatial_mean(watcher.taps.maps[name].detach()) for name in watcher.layers], dim=1)
        # Maps left in the taps, with their gradients, would become outputs of the compiled function.
        watcher.taps.nudges.clear()
        watcher.taps.maps.clear()
        return logits_NC, means_ND

    try:
        zeros = torch.zeros_like(plain.features_ND).split(plain.widths, dim=1)
        nudges = tuple(zero.clone().requires_grad_() for zero in zeros)
        compiled_pass = CompiledPass(watcher, tuple(plain.images.shape), nudges, torch.compile(run, dynamic=False))
        compiled, expected = _summary(compiled_pass(plain.images)), _summary(plain)
        worst = min(_correlation(a, b) for a, b in zip(compiled, expected, strict=True))
        if worst > MIN_CORRELATION:
            return compiled_pass
        why = f"the correlation of its results with those of plain code is only {worst:.3f}"
    except Exception as error:  # compilers can raise any exception for unsupported models
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
    finally:
        watcher.taps.nudges.clear()
    warn(f"The model runs without torch.compile: {why}", stacklevel=2)
    return None


def _summary(view: View) -> tuple[Tensor, ...]:
    """Returns the features and the gradients of the largest logit, layer by layer."""
    gradients = pull_back(view.logits_NC.amax(dim=1).sum(), view.maps)
    return (*view.features_ND.split(view.widths, dim=1), *map(spatial_mean, gradients))


def _correlation(one_NL: Tensor, other_NL: Tensor) -> float:
    """Returns the median correlation of the rows; rows of zeros (from a head of zeros) count as equal."""
    is_flat = ~(one_NL.any(dim=1) | other_NL.any(dim=1))
    return float(functional.cosine_similarity(one_NL, other_NL).where(~is_flat, 1.0).median())
