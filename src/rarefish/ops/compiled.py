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
"""On a CPU it is done when asked for."""
COMPILING = 60.0
"""Seconds that compiling a large model may take."""
SAVED = 0.2
"""Share of the time of a pass that compiled code surely saves."""
WARM, TIMED = 3, 10
"""Batches before the clock starts, and while it runs."""
ALIKE = 0.99
"""Correlation of a row with what plain code finds, at least: in 16 bits the two round differently."""


@dataclass
class AdaptivePass:
    """A watch that turns to compiled code once that pays; where it fails it stays as it is, after one line."""

    watcher: Watcher
    wish: bool | None = None
    """Whether to compile; None: where it pays."""
    to_come: int = 0
    """Images still expected."""
    quick: "CompiledPass | None" = None
    is_settled: bool = False
    clock: list[float] = field(default_factory=list)

    def __call__(self, images: Tensor) -> View:
        self.to_come -= len(images)
        if not torch.is_grad_enabled():
            return self.watcher(images)
        if self.quick and images.shape == self.quick.shape:
            return self.quick(images)
        view = self.watcher(images)
        if not self.is_settled and (self.wish or (self.wish is None and self._pays(len(images)))):
            self.is_settled = True
            self.quick = attempt(self.watcher, view)
            return self.watcher(images)  # the graph of the first view is spent
        return view

    def _pays(self, batch_size: int) -> bool:
        """Whether the images to come are worth the wait, by the time that the first batches took."""
        if self.watcher.device.type != WORTH_IT_ON:
            return False
        if len(self.clock) in (WARM, WARM + TIMED):
            torch.cuda.synchronize(self.watcher.device)
        self.clock.append(time.monotonic())
        if len(self.clock) <= WARM + TIMED:
            return False
        self.is_settled = True
        per_image = (self.clock[-1] - self.clock[WARM]) / (TIMED * batch_size)
        return SAVED * per_image * self.to_come > COMPILING


@dataclass(frozen=True)
class CompiledPass:
    """The pass as one compiled function, for batches of one shape."""

    watcher: Watcher
    shape: tuple[int, ...]
    nudges: tuple[Tensor, ...]
    """One to each channel of each layer, of size 0."""
    compiled: Any

    def __call__(self, images: Tensor) -> View:
        images = self.watcher.fetch(images)
        with torch.compiler.set_stance("default"):
            logits_NC, means_ND = self.compiled(images, self.nudges)
        return View(images, logits_NC, self.nudges, means_ND)


def attempt(watcher: Watcher, plain: View) -> CompiledPass | None:
    """Compiled code that gives what plain code gave; None, after a word, where there is none."""

    def run(images: Tensor, nudges: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        watcher.taps.nudges.update(zip(watcher.layers, nudges, strict=True))
        logits_NC = watcher.run(images)
        means_ND = torch.cat([spatial_mean(watcher.taps.maps[name].detach()) for name in watcher.layers], dim=1)
        # What is left in the taps would leave the compiled function, whole maps and their gradients.
        watcher.taps.nudges.clear()
        watcher.taps.maps.clear()
        return logits_NC, means_ND

    try:
        zeros = torch.zeros_like(plain.features_ND).split(plain.widths, dim=1)
        nudges = tuple(zero.clone().requires_grad_() for zero in zeros)
        quick = CompiledPass(watcher, tuple(plain.images.shape), nudges, torch.compile(run, dynamic=False))
        mine, theirs = _summary(quick(plain.images)), _summary(plain)
        worst = min(_likeness(a, b) for a, b in zip(mine, theirs, strict=True))
        if worst > ALIKE:
            return quick
        why = f"what it finds is correlated with what plain code finds by {worst:.3f} only"
    except Exception as error:  # whatever a compiler may say about a model we have not seen
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
    finally:
        watcher.taps.nudges.clear()
    warn(f"The model runs without torch.compile: {why}", stacklevel=2)
    return None


def _summary(view: View) -> tuple[Tensor, ...]:
    """Features, and the gradients of the largest logit, layer by layer."""
    gradients = pull_back(view.logits_NC.amax(dim=1).sum(), view.maps)
    return (*view.features_ND.split(view.widths, dim=1), *map(spatial_mean, gradients))


def _likeness(one_NL: Tensor, other_NL: Tensor) -> float:
    """Correlation of most rows; a head of zeros has no gradients, and rows of zeros are alike."""
    is_flat = ~(one_NL.any(dim=1) | other_NL.any(dim=1))
    return float(functional.cosine_similarity(one_NL, other_NL).where(~is_flat, 1.0).median())
