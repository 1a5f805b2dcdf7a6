"""Descriptors of images: one forward pass and the shortest possible backward pass."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional

from rarefish.checks import are_finite, check_data, check_finite, check_own_labels, settle_precision
from rarefish.data.reader import Batch, Data, Reader, check_labels
from rarefish.descriptors import Descriptors, concatenate
from rarefish.errors import ArgumentError
from rarefish.features import View, pull_back, spatial_mean, watched
from rarefish.models.layers import choose_layers, find_layers
from rarefish.ops.compiled import AdaptivePass
from rarefish.ops.prefetch import CopyToHost, delay_by_one, prefetch
from rarefish.pseudo_labels.monte_carlo import MonteCarlo
from rarefish.pseudo_labels.rules import Estimator, as_labels, given, label_rule, predicted


def describe(
    model: nn.Module,
    data: Data,
    *,
    layers: Sequence[str] | None = None,
    labels: "str | MonteCarlo | Int[Tensor, ' N'] | None" = "prediction",
    batch_size: int = 256,
    device: torch.device | str | None = None,
    precision: str = "auto",
    num_workers: int = 0,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    progress: bool = True,
    compile: bool | None = None,
) -> Descriptors:
    """Returns features and Fisher scores of every image of a data set, kept in memory.

    `labels`: the name of an estimator (`true`: the data set's own labels), one label per image, or None for no scores.
    `compile`: whether to use torch.compile; None: on a GPU, if the data set is large enough to make it pay.
    """
    reader = Reader(batch_size=batch_size, num_workers=num_workers, collate_fn=collate_fn, progress=progress)
    check_data(data, "data set")
    estimate, precision = _estimator_for_one(labels, precision)
    own_labels = check_own_labels(labels, len(data)) if isinstance(labels, Tensor) else None
    names = find_layers(model, choose_layers(model, reader.first_images(data)) if layers is None else layers)
    config = DescriberConfig(model, tuple(names), reader, device, precision)
    with config.open(compile, len(data)) as describer:
        how = {"with_scores": labels is not None, "own_labels": own_labels, "title": "describing"}
        return concatenate(describer.batches(data, None, estimate, **how))


@dataclass(frozen=True)
class DescriberConfig:
    """How to describe images: the model, its layers, and how to read and compute."""

    model: nn.Module
    layers: tuple[str, ...]
    reader: Reader
    device: torch.device | str | None = None
    precision: str = "auto"

    @contextmanager
    def open(self, compile: bool | None = None, num_images: int = 0) -> Iterator["Describer"]:
        """A describer; until it is closed the model is in evaluation mode, on the device and hooked.

        `num_images`: how many images it will describe in all, which decides whether compiling pays.
        """
        with ExitStack() as open_readers, watched(self.model, self.layers, self.device, self.precision) as watcher:
            yield Describer(AdaptivePass(watcher, compile, num_images), self.layers, self.reader, open_readers)


@dataclass(frozen=True)
class Describer:
    """Describes data sets batch by batch with one model, until its config closes it."""

    watch: AdaptivePass
    layers: tuple[str, ...]
    reader: Reader
    open_readers: ExitStack

    def batches(
        self,
        data: Data,
        index: Sequence[int] | None,
        estimate: Estimator,
        *,
        with_scores: bool = True,
        own_labels: Tensor | None = None,
        title: str = "",
        unreadable: dict[int, str] | None = None,
    ) -> Iterator[Descriptors]:
        """Descriptors of the images at `index` (None: all), read in one pass.

        `own_labels`: one label per image of the data set, in place of the data set's own. Images that cannot be read
        are added to `unreadable` and left out; without it they raise an error.
        """
        needed: bool | Tensor = estimate is given if own_labels is None else own_labels
        batches = self.reader.read(data, index, title=title, labels=needed, unreadable=unreadable)
        self.open_readers.callback(batches.close)  # after an error no progress bar and no worker process may stay
        return describe_batches(self.watch, batches, self.layers, estimate, with_scores)


def describe_batches(
    watch: AdaptivePass,
    batches: Iterable[Batch],
    layers: tuple[str, ...],
    estimate: Estimator,
    with_scores: bool = True,
) -> Iterator[Descriptors]:
    """Descriptors batch by batch, on the model's device; only the latest batch is kept in memory."""

    def describe_batch(batch: Batch) -> tuple[Descriptors, CopyToHost]:
        with torch.set_grad_enabled(with_scores):
            view = watch(batch.images)
            features_ND = view.features_ND
            check_labels(batch, view.logits_NC.shape[1])
            label_N, posterior_NC = as_labels(estimate(view, batch.labels, watch.watcher))
            scores_ND = scores(view, label_N) if with_scores else features_ND.new_empty(len(label_N), 0)
        described = Descriptors(
            index=batch.index,
            features=features_ND,
            scores=scores_ND,
            prediction=view.logits_NC.argmax(dim=1),
            margin=view.logits_NC.detach().float().topk(2, dim=1).values.diff(dim=1).neg().squeeze(1),
            label=label_N,
            posterior=posterior_NC,
            layers=layers,
            widths=view.widths,
        )
        return described, CopyToHost(are_finite(view.logits_NC, features_ND, scores_ND))

    for described, finite in delay_by_one(map(describe_batch, prefetch(batches, watch.watcher.device))):
        check_finite(described.index, ("logits", "features", "scores"), finite.wait())
        yield described


def scores(view: View, label_N: Tensor) -> Tensor:
    """Fisher scores: the gradient of each image's own loss at each tapped layer.

    The loss is summed, not averaged, so that no image's gradient depends on the others in its batch.
    """
    loss = functional.cross_entropy(view.logits_NC, label_N, reduction="sum")
    return torch.cat([spatial_mean(gradient) for gradient in pull_back(loss, view.maps)], dim=1)


def _estimator_for_one(labels: "str | MonteCarlo | Tensor | None", precision: str) -> tuple[Estimator, str]:
    """The estimator for a single data set, and the precision it needs."""
    if labels is None:
        return predicted, precision
    if isinstance(labels, Tensor):
        return given, precision
    if labels == "density":
        raise ArgumentError(
            "'density' needs a validation set in addition to the pool: use select(), or pass the labels."
        )
    rule = label_rule(labels)
    if rule.learn:
        raise ArgumentError("A posterior is learned for a pool: use select(), or pass the labels.")
    return rule.on_validation, settle_precision(precision, rule)
