"""Optional torch.compile for the descriptor pass, used where it pays and gives the same results."""

import time
from dataclasses import dataclass, field
from typing import Any
from warnings import warn

import torch
from torch import Tensor
from torch.nn import functional

from rarefish.features import View, Watcher, pull_back, spatial_mean

WORTH_IT_ON = "cuda"
"""Device type on which compiling may pay; on a CPU the model is only compiled on request."""
COMPILING = 60.0
"""Seconds that compiling a large model may take, an upper estimate."""
SAVED = 0.2
"""Fraction of the time per image that compiled code saves, a lower estimate."""
WARM_UP, TIMED = 3, 10
"""Batches before the measurement of speed and during it."""
MIN_CORRELATION = 0.99
"""Minimum correlation with the result of plain code; in 16 bits the two round differently."""


@dataclass
class AdaptivePass:
    """A forward pass that switches to compiled code once that pays; if compiling fails, it warns and stays as it is."""

    watcher: Watcher
    compile: bool | None = None
    """Whether to compile; None: if it pays."""
    to_come: int = 0
    """Images still expected, an estimate of the work that compiling could speed up."""
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
            return self.watcher(images)  # the autograd graph of the first view has been used
        return view

    def _pays(self, batch_size: int) -> bool:
        """Whether compiling would save more time than it takes, judged by the speed of the first batches."""
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
    """Forward pass as one compiled function, for batches of one shape."""

    watcher: Watcher
    shape: tuple[int, ...]
    nudges: tuple[Tensor, ...]
    """Zeros added to each channel of each layer; the gradient at them is the spatial mean of the map's gradient."""
    function: Any

    def __call__(self, images: Tensor) -> View:
        images = self.watcher.fetch(images)
        with torch.compiler.set_stance("default"):
            logits_NC, means_ND = self.function(images, self.nudges)
        return View(images, logits_NC, self.nudges, means_ND)


def try_compile(watcher: Watcher, plain: View) -> CompiledPass | None:
    """Compiles the pass; returns None, after a warning, if that fails or gives other results than plain code."""

    def run(images: Tensor, nudges: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        watcher.taps.nudges.update(zip(watcher.layers, nudges, strict=True))
        logits_NC = watcher.run(images)
        means_ND = torch.cat([spatial_mean(watcher.taps.maps[name].detach()) for name in watcher.layers], dim=1)
        # Maps left in the taps would become outputs of the compiled function, with their gradients.
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
        why = f"its results are correlated with those of plain code by only {worst:.3f}"
    except Exception as error:  # compilers raise errors of any kind on models they do not support
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
    finally:
        watcher.taps.nudges.clear()
    warn(f"The model runs without torch.compile: {why}", stacklevel=2)
    return None


def _summary(view: View) -> tuple[Tensor, ...]:
    """Returns features and gradients of the largest logit, layer by layer."""
    gradients = pull_back(view.logits_NC.amax(dim=1).sum(), view.maps)
    return (*view.features_ND.split(view.widths, dim=1), *map(spatial_mean, gradients))


def _correlation(one_NL: Tensor, other_NL: Tensor) -> float:
    """Returns the median correlation of the rows; rows of zeros count as equal, as a head of zeros has no gradients."""
    is_flat = ~(one_NL.any(dim=1) | other_NL.any(dim=1))
    return float(functional.cosine_similarity(one_NL, other_NL).where(~is_flat, 1.0).median())
