"""Checks of arguments and data, made before the work starts or on the batch concerned."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import index
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rarefish.data.index_set import all_but
from rarefish.data.reader import UNREADABLE, Data, Reader, label_of
from rarefish.errors import (
    ArgumentError,
    DataError,
    IntegerImagesWarning,
    LabelError,
    NotFiniteError,
    UnstableDataWarning,
    list_some,
    nearest,
)
from rarefish.kernels import KERNELS, needs_scores
from rarefish.pseudo_labels.monte_carlo import MonteCarlo
from rarefish.pseudo_labels.posterior import FEWEST, Posterior
from rarefish.pseudo_labels.rules import LabelRule, label_rule


def check_data(data: object, name: str) -> None:
    """Raises if a data set cannot be read by position or is empty."""
    if isinstance(data, (str, Path)):
        raise DataError(
            f"The {name} is a path, {str(data)!r}; give a data set, such as datasets.files.read_folder makes."
        )
    if not isinstance(data, Data):
        raise DataError(
            f"The {name} is a {type(data).__name__} without a length or positions; give a map-style data set, such "
            "as a TensorDataset or an ImageFolder."
        )
    if len(data) == 0:
        raise DataError(f"The {name} is empty. Give it at least one image.")


def warn_if_unstable(data: Data, index: Sequence[int], name: str, reader: Reader) -> None:
    """Warns if an image differs on a second read, which means that random augmentation is on."""
    for number, i in enumerate(index[:8]):
        try:
            items = [data[i] for _ in range(2)]
        except UNREADABLE:
            continue  # said where it is needed
        first, second = (reader.batch_of(i, item) for item in items)
        if number == 0:
            warn_of_integers(first, name)
        first, second = first.double(), second.double()
        if first.shape != second.shape or not torch.allclose(first, second, rtol=0, atol=0, equal_nan=True):
            message = (
                f"Image {i} of the {name} was not the same on a second read. Random augmentation is on; descriptors "
                "will differ from pass to pass. Give the data set without it."
            )
            warnings.warn(message, UnstableDataWarning, stacklevel=3)
            return


def warn_of_integers(images: Tensor, name: str) -> None:
    """Warns if images are integers, since most models were trained on scaled floats."""
    if not images.is_floating_point():
        message = (
            f"The images of the {name} are {str(images.dtype).removeprefix('torch.')}, not floats. Unless the model "
            "scales them itself, add the transform it was trained with."
        )
        warnings.warn(message, IntegerImagesWarning, stacklevel=4)


def check_pool(
    pool: object,
    validation: object,
    budget: int,
    exclude: "Iterable[int] | Tensor | None",
    labeled: Mapping[int, int] | None = None,
) -> Sequence[int]:
    """Returns the pool indices that may be chosen; raises if there are fewer than the budget."""
    check_data(pool, "pool")
    check_data(validation, "validation set")
    assert isinstance(pool, Data)
    excluded = _to_indices(() if exclude is None else exclude) | _to_indices(labeled or ())
    outside = sorted(i for i in excluded if not 0 <= i < len(pool))
    if outside:
        raise ArgumentError(
            f"exclude or labeled names {list_some(outside)}; the pool's indices are 0 to {len(pool) - 1}."
        )
    left = all_but(excluded, len(pool))
    if isinstance(budget, bool) or not hasattr(budget, "__index__"):
        raise ArgumentError(f"The budget is {budget!r}; give a whole number.")
    if budget < 1:
        raise ArgumentError(f"Cannot choose {budget} images. Give a budget of at least 1.")
    if budget > len(left):
        taken = f" ({len(excluded)} of {len(pool)} are excluded)" if excluded else ""
        raise ArgumentError(
            f"Cannot choose {budget} images: the pool has {len(left)} left{taken}. Lower the budget or add images."
        )
    return left


def _to_indices(exclude: "Iterable[int] | Tensor") -> set[int]:
    if "bool" in str(getattr(exclude, "dtype", "")):
        raise ArgumentError("exclude is a mask of True and False; give indices, such as mask.nonzero().")
    values = exclude.tolist() if isinstance(exclude, (Tensor, np.ndarray)) else list(exclude)
    odd = [value for value in values if isinstance(value, bool) or not hasattr(value, "__index__")]
    if odd:
        raise ArgumentError(f"exclude must hold pool indices, whole numbers; found {list_some(odd)}.")
    return {index(value) for value in values}


def check_rule(
    labels: str | MonteCarlo | Posterior,
    kernel: str,
    failures: Tensor | Sequence[bool] | None,
    pool: Data,
    validation: Data,
    generator: torch.Generator,
    collate_fn: object = None,
) -> LabelRule:
    """Returns the label rule; raises if labels that it needs are missing."""
    check_kernel(kernel)
    rule = label_rule(labels, seed=int(torch.randint(2**62, (), generator=generator, device=generator.device)))
    # Without scores nothing depends on a label: the prediction is used.
    rule = rule if needs_scores(kernel) else label_rule("prediction")
    if rule.learn and len(validation) < FEWEST:
        note = f"{len(validation)} validation images are too few to learn a posterior from: labels='density' is used."
        rule = replace(label_rule("density"), notes=(note,))
    if failures is not None and len(failures) != len(validation):
        raise ArgumentError(
            f"failures has {len(failures)} flags for {len(validation)} validation images. Give one each."
        )
    if collate_fn is not None:
        return rule  # only the caller knows where its items have their labels
    if label_of(validation[0]) is None:
        weak = "prediction, trace or mutual_information"
        if rule.needs_validation_labels:
            raise LabelError(f"labels={labels!r} needs validation labels. Give (image, label) items, or use {weak}.")
        if failures is None:
            raise LabelError(f"The validation set has no labels. Give (image, label) items, or failures= with {weak}.")
    if rule.needs_pool_labels and _lacks_labels(pool):
        raise LabelError(f"labels={labels!r} needs the pool's true labels, and its items have none. Use 'density'.")
    return rule


def _lacks_labels(pool: Data) -> bool:
    """Whether the first readable image has no label."""
    for i in range(len(pool)):
        try:
            return label_of(pool[i]) is None
        except UNREADABLE:
            continue
    return False


def check_kernel(kernel: str) -> None:
    if not isinstance(kernel, str) or kernel not in KERNELS:
        raise ArgumentError(f"There is no kernel {kernel!r}. {nearest(str(kernel), KERNELS)}")


def check_own_labels(labels: Tensor, count: int) -> Tensor:
    if labels.shape != (count,) or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ArgumentError(f"labels must be {count} whole numbers, one per image, not {tuple(labels.shape)}.")
    return labels.cpu().long()


def settle_precision(precision: str, rule: LabelRule) -> str:
    """Returns float32 for `auto` if the rule needs it."""
    return "float32" if precision == "auto" and rule.needs_float32 else precision


def are_finite(*values: Tensor) -> Tensor:
    """Returns whether each tensor (rows) is finite for each image (columns)."""
    return torch.stack([torch.isfinite(value.detach()).all(dim=1) for value in values])


def check_finite(index: Tensor, names: Sequence[str], is_finite: Tensor) -> None:
    """Raises for the first of the named values that is not finite for some image."""
    for name, is_bad in zip(names, ~is_finite, strict=True):
        if is_bad.any():
            raise NotFiniteError(
                f"NaN or infinity in the {name} of {int(is_bad.sum())} of {len(is_bad)} images of a batch: index "
                f"{list_some(index[is_bad].tolist())}. Look at these images and at the model's weights; in "
                "bfloat16 (the default on a GPU) try precision='float32'."
            )


def note_unreadable(unreadable: Mapping[int, str], num_left: int) -> tuple[str, ...]:
    """Returns a note on unreadable pool images; raises if none can be read."""
    if not unreadable:
        return ()
    first, why = next(iter(unreadable.items()))
    if len(unreadable) == num_left:
        raise DataError(f"None of the pool's {num_left} images can be read, such as {first}: {why}")
    return (f"{len(unreadable)} pool images cannot be read and were left out, such as {first}: {why}",)
