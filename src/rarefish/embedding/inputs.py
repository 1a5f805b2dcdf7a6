"""Embeddings as arguments of select(): open and compare them, and fit a head if there is no model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from rarefish.data.embeddings import Embeddings, are_embeddings, open_embeddings
from rarefish.data.reader import Data
from rarefish.errors import ArgumentError, DataError, LabelError, ModelError, list_some
from rarefish.ops.closed_forms import linear_layer
from rarefish.training.linear_head import LinearHead, fit_linear_head

Source = Data | np.ndarray | Tensor | tuple[Any, Any] | str | Path
"""A dataset of images, or embeddings in any form that `open_embeddings` accepts."""


def open_sources(pool: Source, validation: Source) -> tuple[Any, Any]:
    """Returns both datasets, with embeddings opened; raises an error unless both can be described by one model."""
    is_pool, is_validation = are_embeddings(pool), are_embeddings(validation)
    if not is_pool and not is_validation:
        return pool, validation
    if is_pool != is_validation:
        names = ("pool", "validation set") if is_pool else ("validation set", "pool")
        raise DataError(
            f"The {names[0]} consists of embeddings, but the {names[1]} does not. Compute the embeddings of both with "
            "rarefish.embed() and the same model."
        )
    opened, trusted = open_embeddings(pool), open_embeddings(validation)  # pyright: ignore[reportArgumentType]
    if opened.width != trusted.width:
        raise DataError(
            f"The embeddings of the pool have {opened.width} channels, but those of the validation set have "
            f"{trusted.width}. Compute both with the same model and layer."
        )
    if differ(opened.model, trusted.model):
        raise DataError(
            "The embeddings of the pool and the validation set were computed by different models, layers or "
            "preprocessing. Compute both again with rarefish.embed() and the same model."
        )
    return opened, trusted


def differ(one: str, other: str) -> bool:
    """Returns whether two keys of models differ in a part that both contain."""
    return any(a and b and a != b for a, b in zip(one.split("-"), other.split("-"), strict=False))


@dataclass(frozen=True)
class SettledModel:
    """The model to use, and its predictions for the validation set if it was fitted to it."""

    model: nn.Module
    out_of_fold: Float[Tensor, "M C"] | None = None
    """Probabilities of the validation rows from heads that were fitted without them."""


def settle_model(
    model: nn.Module | LinearHead | None,
    pool: Any,
    validation: Any,
    labeled: Mapping[int, int],
    fit: "Callable[[Embeddings, Embeddings, Mapping[int, int]], SettledModel] | None" = None,
) -> SettledModel:
    """Returns the model or, if there is none, the head that `fit` returns, by default `fit_to_known`."""
    if isinstance(model, LinearHead):
        model = model.module()
    if model is None:
        if not isinstance(pool, Embeddings):
            raise ModelError(
                "There is no model, and a head can be fitted only to embeddings. Give a model, or compute embeddings "
                "with rarefish.embed()."
            )
        return (fit or fit_to_known)(pool, validation, labeled)
    head = linear_layer(model) if isinstance(model, nn.Module) else None
    if isinstance(pool, Embeddings) and head is not None and head.in_features != pool.width:
        raise ArgumentError(
            f"The head needs embeddings with {head.in_features} channels, but they have {pool.width}. Give the head "
            "that was trained on these embeddings, or None to fit one."
        )
    return SettledModel(model)


def fit_to_known(pool: Embeddings, validation: Embeddings, labeled: Mapping[int, int]) -> SettledModel:
    """Returns a head fitted to the validation set and the labeled rows, with its out-of-fold probabilities."""
    own, labels = known_labels(pool, validation, labeled)
    num_trusted = len(validation)
    rows = torch.cat([validation.take(torch.arange(num_trusted)), pool.take(own)])
    head = fit_linear_head(rows, labels, int(labels.max()) + 1)
    probabilities_MC = head.out_of_fold_probabilities[:num_trusted].clone()
    unknown = (~probabilities_MC.isfinite().all(dim=1)).nonzero()[:, 0]
    # A head that has not seen the only row of a class takes it for another class.
    probabilities_MC[unknown] = head.probabilities(rows[unknown])
    probabilities_MC[unknown, labels[unknown]] = 0
    return SettledModel(head.module(), probabilities_MC)


def fit_to_labeled(pool: Embeddings, validation: Embeddings, labeled: Mapping[int, int]) -> SettledModel:
    """Returns a head fitted to the labeled rows of the pool only; untrained if they have fewer than two classes."""
    own, labels = known_labels(pool, validation, labeled)
    own_labels = labels[len(validation) :]
    if len(own_labels.unique()) < 2:
        return untrained(pool, validation, labeled)
    return SettledModel(fit_linear_head(pool.take(own), own_labels, int(labels.max()) + 1).module())


def untrained(pool: Embeddings, validation: Embeddings, labeled: Mapping[int, int]) -> SettledModel:
    """Returns a head that gives all classes the same probability."""
    _, labels = known_labels(pool, validation, labeled)
    head = nn.Linear(pool.width, int(labels.max()) + 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return SettledModel(head)


def known_labels(pool: Embeddings, validation: Embeddings, labeled: Mapping[int, int]) -> tuple[Tensor, Tensor]:
    """Returns the labeled rows of the pool, and the labels of the validation set followed by those of these rows."""
    if validation.labels is None:
        raise LabelError("The validation set has no labels. Give (embeddings, labels), or a head.")
    own = [row for row in labeled if 0 <= row < len(pool) and row not in pool.unreadable]
    labels = torch.tensor([*validation.labels.tolist(), *(int(labeled[row]) for row in own)])
    if (labels < 0).any():
        wrong = list_some((labels < 0).nonzero()[:, 0].tolist())
        raise LabelError(f"Labels must be class numbers from 0, but those in the rows {wrong} are negative.")
    return torch.tensor(own, dtype=torch.long), labels
