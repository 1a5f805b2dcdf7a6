"""Descriptors of images: one forward pass and the shortest possible way back."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
from rarefish.ops.compiled import Arriving, Hurried, ahead, one_behind
from rarefish.pseudo_labels.monte_carlo import MonteCarlo
from rarefish.pseudo_labels.rules import Estimator, as_labels, given, label_rule, predicted

Describe = Callable[..., Iterator[Descriptors]]
"""(data set, index or None for all, estimator, with_scores=, title=) -> its descriptors, batch by batch."""


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
    """Features and Fisher scores of every image of a data set, kept in memory.

    `labels` names the estimator (`true` takes the data set's own), or is one label per image, or None: no scores.
    `compile`: whether to use torch.compile; None: on a GPU, where so many images are to come that it pays.
    """
    reader = Reader(batch_size=batch_size, num_workers=num_workers, collate_fn=collate_fn, progress=progress)
    check_data(data, "data set")
    estimate, precision = _estimator_for_one(labels, precision)
    own_labels = check_own_labels(labels, len(data)) if isinstance(labels, Tensor) else None
    names = find_layers(model, choose_layers(model, reader.first_images(data)) if layers is None else layers)
    with describing(model, names, reader, device, precision, compile, len(data)) as run:
        how = {"with_scores": labels is not None, "own_labels": own_labels, "title": "describing"}
        return concatenate(run(data, None, estimate, **how))


@contextmanager
def describing(
    model: nn.Module,
    layers: Iterable[str],
    reader: Reader,
    device: torch.device | str | None = None,
    precision: str = "auto",
    compile: bool | None = None,
    to_come: int = 0,
) -> Iterator[Describe]:
    """A function that describes data sets, one pass a call, while the model is held in evaluation mode.

    `to_come`: how many images it will be shown in all, which tells whether compiling pays.
    """
    layers = tuple(layers)
    with ExitStack() as readers, watched(model, layers, device, precision) as watcher:
        watch = Hurried(watcher, compile, to_come)

        def run(
            data: Data,
            index: Sequence[int] | None,
            estimate: Estimator,
            *,
            with_scores: bool = True,
            own_labels: Tensor | None = None,
            title: str = "",
            unreadable: dict[int, str] | None = None,
        ) -> Iterator[Descriptors]:
            needed: bool | Tensor = estimate is given if own_labels is None else own_labels
            batches = reader.read(data, index, title=title, labels=needed, unreadable=unreadable)
            readers.callback(batches.close)  # an error must not leave a progress bar or workers behind
            return describe_batches(watch, batches, layers, estimate, with_scores)

        yield run


def describe_batches(
    watch: Hurried, batches: Iterable[Batch], layers: tuple[str, ...], estimate: Estimator, with_scores: bool = True
) -> Iterator[Descriptors]:
    """Descriptors batch by batch, on the model's device; of an earlier batch nothing is kept but the latest one's."""

    def one(batch: Batch) -> tuple[Descriptors, Arriving]:
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
        return described, Arriving(are_finite(view.logits_NC, features_ND, scores_ND))

    for described, finite in one_behind(map(one, ahead(batches, watch.watcher.device))):
        check_finite(described.index, ("logits", "features", "scores"), finite.wait())
        yield described


def scores(view: View, label_N: Tensor) -> Tensor:
    """Fisher scores: the gradient, at each tapped layer, of each image's own loss.

    The loss is summed, not averaged: then no image's gradient depends on the others of its batch.
    """
    loss = functional.cross_entropy(view.logits_NC, label_N, reduction="sum")
    return torch.cat([spatial_mean(gradient) for gradient in pull_back(loss, view.maps)], dim=1)


def _estimator_for_one(labels: "str | MonteCarlo | Tensor | None", precision: str) -> tuple[Estimator, str]:
    """The estimator for one data set alone, and the precision it needs."""
    if labels is None:
        return predicted, precision
    if isinstance(labels, Tensor):
        return given, precision
    if labels == "density":
        raise ArgumentError("'density' needs a validation set beside the pool: use select(), or give the labels.")
    rule = label_rule(labels)
    if rule.learn:
        raise ArgumentError("A posterior is learned for a pool: use select(), or give the labels.")
    return rule.on_validation, settle_precision(precision, rule)
