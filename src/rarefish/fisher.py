"""Descriptors of images: one forward pass and the shortest possible backward pass."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from rarefish.checks import are_finite, check_data, check_distortable, check_finite, check_own_labels, settle_precision
from rarefish.data.embeddings import Embeddings
from rarefish.data.reader import Batch, Data, Reader, check_labels
from rarefish.descriptors import Descriptors, concatenate
from rarefish.errors import ArgumentError
from rarefish.features import Pass, watched
from rarefish.models.layer_selection import choose_layers, find_layers
from rarefish.ops.closed_forms import LAYER, LinearPass, linear_layer
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
    """Returns the features and Fisher scores of every image of a dataset, in memory.

    `labels`: the name of an estimator (`true` for the dataset's labels), one label per image, or None for no scores.
    `compile`: whether to use torch.compile; None means on a GPU, if the dataset is large enough to save time.
    """
    reader = Reader(batch_size=batch_size, num_workers=num_workers, collate_fn=collate_fn, progress=progress)
    check_data(data, "dataset")
    check_distortable(data, labels)
    estimate, precision = _estimator_for_one(labels, precision)
    own_labels = check_own_labels(labels, len(data)) if isinstance(labels, Tensor) else None
    config = configure(model, layers, data, reader, device, precision)
    with config.open(compile, len(data)) as describer:
        how = {"with_scores": labels is not None, "own_labels": own_labels, "title": "describing"}
        return concatenate(describer.batches(data, None, estimate, **how))


def settle_layers(model: nn.Module, layers: Sequence[str] | None, data: Data, reader: Reader) -> tuple[str, ...]:
    """Returns the names of the layers that describe images; if `layers` is None, `choose_layers` chooses them."""
    names = choose_layers(model, reader.first_images(data)) if layers is None else layers
    return tuple(find_layers(model, names))


def configure(
    model: nn.Module,
    layers: Sequence[str] | None,
    data: Data,
    reader: Reader,
    device: torch.device | str | None,
    precision: str,
    *,
    reduce: bool = False,
) -> "DescriberConfig":
    """Returns how to describe datasets like `data`: in closed form, if they are embeddings and the head is linear."""
    if isinstance(data, Embeddings) and layers is None and linear_layer(model) is not None:
        reader = replace(reader, batch_size=max(reader.batch_size, EMBEDDINGS_AT_ONCE))
        return DescriberConfig(model, (LAYER,), reader, device, precision, True, reduce)
    return DescriberConfig(model, settle_layers(model, layers, data, reader), reader, device, precision)


EMBEDDINGS_AT_ONCE = 1024
"""Minimum number of embeddings per batch."""


@dataclass(frozen=True)
class DescriberConfig:
    """How to describe images: the model, its layers, and how to read and compute."""

    model: nn.Module
    layers: tuple[str, ...]
    reader: Reader
    device: torch.device | str | None = None
    precision: str = "auto"
    is_closed_form: bool = False
    """Whether the model is a linear head on embeddings, whose descriptors need no autograd."""
    reduce: bool = False
    """Whether scores may be replaced by shorter vectors with the same inner products after standardization."""

    @contextmanager
    def watching(self, compile: bool | None = None, num_images: int = 0) -> Iterator[Pass]:
        """Yields the forward pass; until it is closed, the model is hooked, in evaluation mode and on the device."""
        head = linear_layer(self.model) if self.is_closed_form else None
        if head is not None:
            yield LinearPass.of(head, self.device, reduce=self.reduce)
            return
        with watched(self.model, self.layers, self.device, self.precision) as watcher:
            yield AdaptivePass(watcher, compile, num_images)

    @contextmanager
    def open(self, compile: bool | None = None, num_images: int = 0) -> Iterator["Describer"]:
        """Yields a describer that works until it is closed.

        `num_images`: how many images it will describe in total, which determines whether compiling saves time.
        """
        with ExitStack() as open_readers, self.watching(compile, num_images) as watch:
            yield Describer(watch, self.layers, self.reader, open_readers)


@dataclass(frozen=True)
class Describer:
    """Describes datasets batch by batch with one model until its config closes it."""

    watch: Pass
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
        """Returns an iterator over descriptors of the images at `index` (all if None), read in one pass.

        `own_labels`: one label per image, instead of the dataset's labels. Images that cannot be read are added to
        `unreadable` and left out; if it is None, they raise an error.
        """
        uses_labels = estimate is given or getattr(estimate, "needs_labels", False)
        needed: bool | Tensor = uses_labels if own_labels is None else own_labels
        batches = self.reader.read(data, index, title=title, labels=needed, unreadable=unreadable)
        self.open_readers.callback(batches.close)  # after an error, no progress bar or worker process may remain
        return describe_batches(self.watch, batches, self.layers, estimate, with_scores)


def describe_batches(
    watch: Pass,
    batches: Iterable[Batch],
    layers: tuple[str, ...],
    estimate: Estimator,
    with_scores: bool = True,
) -> Iterator[Descriptors]:
    """Yields descriptors batch by batch, on the model's device; only the latest batch is kept in memory."""

    def describe_batch(batch: Batch) -> tuple[Descriptors, CopyToHost]:
        with torch.set_grad_enabled(with_scores):
            view = watch(batch.images)
            features_ND = view.features_ND
            check_labels(batch, view.logits_NC.shape[1])
            label_N, posterior_NC = as_labels(estimate(view, batch.labels, watch.watcher))
            scores_ND = view.scores(label_N) if with_scores else features_ND.new_empty(len(label_N), 0)
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
            score_widths=view.score_widths,
        )
        return described, CopyToHost(are_finite(view.logits_NC, features_ND, scores_ND))

    for described, finite in delay_by_one(map(describe_batch, prefetch(batches, watch.watcher.device))):
        check_finite(described.index, ("logits", "features", "scores"), finite.wait())
        yield described


def _estimator_for_one(labels: "str | MonteCarlo | Tensor | None", precision: str) -> tuple[Estimator, str]:
    """Returns the estimator for a single dataset, and the precision that it needs."""
    if labels is None:
        return predicted, precision
    if isinstance(labels, Tensor):
        return given, precision
    if labels == "density":
        raise ArgumentError(
            "labels='density' needs a validation set in addition to the pool. Use select(), or pass the labels."
        )
    rule = label_rule(labels)
    if rule.learn:
        raise ArgumentError("A posterior is trained for a pool. Use select(), or pass the labels.")
    return rule.on_validation, settle_precision(precision, rule)
