"""Checks of arguments and data, before the work starts or for each batch."""

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import index
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rarefish.data.embeddings import Embeddings
from rarefish.data.reader import UNREADABLE, Data, Reader, label_of
from rarefish.data.remaining_indices import all_but
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
from rarefish.pseudo_labels.monte_carlo import STATISTICS, MonteCarlo
from rarefish.pseudo_labels.posterior import FEWEST, Posterior
from rarefish.pseudo_labels.rules import LabelRule, label_rule


def check_data(data: object, name: str) -> None:
    """Raises DataError if a dataset is empty or cannot be indexed."""
    if isinstance(data, (str, Path)):
        raise DataError(
            f"The {name} is a path, {str(data)!r}. Give a dataset, such as rarefish.data.image_files.read_folder(…)."
        )
    if not isinstance(data, Data):
        raise DataError(
            f"The {name} is a {type(data).__name__} without a length or indexing. Give a map-style dataset, such as a "
            "TensorDataset or an ImageFolder."
        )
    if len(data) == 0:
        raise DataError(f"The {name} is empty. Add at least one image.")


def warn_if_unstable(data: Data, index: Sequence[int], name: str, reader: Reader) -> None:
    """Warns if an image differs on a second read, which means that random augmentation is active."""
    for number, i in enumerate(index[:8]):
        try:
            items = [data[i] for _ in range(2)]
        except UNREADABLE:
            continue  # reported when the image is needed
        first, second = (reader.batch_of(i, item) for item in items)
        if number == 0:
            warn_of_integers(first, name)
        first, second = first.double(), second.double()
        if first.shape != second.shape or not torch.allclose(first, second, rtol=0, atol=0, equal_nan=True):
            message = (
                f"Image {i} of the {name} differed on a second read: random augmentation is active, so descriptors "
                "will change from pass to pass. Turn it off in the dataset."
            )
            warnings.warn(message, UnstableDataWarning, stacklevel=3)
            return


def warn_of_integers(images: Tensor, name: str) -> None:
    """Warns if images are integers, since most models were trained on scaled floats."""
    if not images.is_floating_point():
        message = (
            f"The images of the {name} are {str(images.dtype).removeprefix('torch.')}, not floats. Unless the model "
            "scales them itself, add the transform with which it was trained."
        )
        warnings.warn(message, IntegerImagesWarning, stacklevel=4)


def check_pool(
    pool: object,
    validation: object,
    budget: int,
    exclude: "Iterable[int] | Tensor | None",
    labeled: Mapping[int, int] | None = None,
    groups: Tensor | None = None,
) -> Sequence[int]:
    """Returns the pool indices that may be chosen; raises an error if there are fewer than the budget.

    `groups`: the group of each pool image; the budget then counts groups, and an excluded image excludes its group.
    """
    check_data(pool, "pool")
    check_data(validation, "validation set")
    assert isinstance(pool, Data)
    excluded = _to_indices(() if exclude is None else exclude) | _to_indices(labeled or ())
    outside = sorted(i for i in excluded if not 0 <= i < len(pool))
    if outside:
        raise ArgumentError(
            f"exclude or labeled contains {list_some(outside)}, but the pool's indices are 0 to {len(pool) - 1}."
        )
    excluded = of_same_groups(excluded, groups)
    left = all_but(excluded, len(pool))
    if isinstance(budget, bool) or not hasattr(budget, "__index__"):
        raise ArgumentError(f"The budget must be an integer, not {budget!r}.")
    if budget < 1:
        raise ArgumentError(f"Cannot choose {budget} images. The budget must be at least 1.")
    if groups is not None and budget > (count := len(groups.unique()) - len(groups[list(excluded)].unique())):
        raise ArgumentError(
            f"Cannot choose {budget} groups: the pool has {count} left. Lower the budget or add images of other groups."
        )
    if budget > len(left):
        taken = f" ({len(excluded)} of {len(pool)} are excluded)" if excluded else ""
        raise ArgumentError(
            f"Cannot choose {budget} images: the pool has {len(left)} left{taken}. Lower the budget or add images."
        )
    return left


def check_groups(groups: Sequence[object] | np.ndarray | Tensor | None, pool: object) -> Tensor | None:
    """Returns a number for the group of each pool image, given any ids; raises ArgumentError for a wrong number."""
    if groups is None:
        return None
    ids = groups.cpu().numpy() if isinstance(groups, Tensor) else np.asarray(groups)
    if not isinstance(pool, Data) or ids.shape != (len(pool),):
        count = len(pool) if isinstance(pool, Data) else 0
        raise ArgumentError(f"groups has the shape {ids.shape} for {count} pool images. Give one id per image.")
    try:
        return torch.from_numpy(np.unique(ids, return_inverse=True)[1].reshape(-1).astype(np.int64))
    except TypeError as error:
        raise ArgumentError(f"groups must be integers or strings, not a mixture: {error}.") from error


def of_same_groups(indices: Collection[int], groups: Tensor | None) -> Collection[int]:
    """Returns all pool indices in the groups of these; the indices themselves if there are no groups."""
    if groups is None or not indices:
        return indices
    return torch.isin(groups, groups[list(indices)].unique()).nonzero()[:, 0].tolist()


def _to_indices(exclude: "Iterable[int] | Tensor") -> set[int]:
    if "bool" in str(getattr(exclude, "dtype", "")):
        raise ArgumentError("exclude is a boolean mask. Give indices, such as mask.nonzero().")
    values = exclude.tolist() if isinstance(exclude, (Tensor, np.ndarray)) else list(exclude)
    odd = [value for value in values if isinstance(value, bool) or not hasattr(value, "__index__")]
    if odd:
        raise ArgumentError(f"exclude must contain pool indices, which are integers, but found {list_some(odd)}.")
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
    """Returns the label rule; raises LabelError if labels that it needs are missing."""
    check_kernel(kernel)
    check_distortable(pool, labels)
    rule = label_rule(labels, seed=int(torch.randint(2**62, (), generator=generator, device=generator.device)))
    used = labels
    if rule.learn and len(validation) < FEWEST:
        note = f"{len(validation)} validation images are too few to train a posterior, so labels='density' is used."
        used, rule = "density", replace(label_rule("density"), notes=(note,))
    if not needs_scores(kernel) and not rule.learn and used != "prediction":
        # Only a posterior has an effect on such a kernel, as its weight.
        note = f"kernel={kernel!r} does not use labels={used!r}. The pseudo-labels shown are predictions."
        rule = replace(label_rule("prediction"), notes=(*rule.notes, note))
    if failures is not None and len(failures) != len(validation):
        raise ArgumentError(
            f"failures has {len(failures)} flags for {len(validation)} validation images. Give one flag per image."
        )
    if collate_fn is not None:
        return rule  # only the caller knows where the labels are in its items
    if label_of(validation[0]) is None:
        weak = "prediction, trace or mutual_information"
        if rule.needs_validation_labels:
            raise LabelError(f"labels={labels!r} needs validation labels. Give (image, label) items, or use {weak}.")
        if failures is None:
            raise LabelError(f"The validation set has no labels. Give (image, label) items, or failures= with {weak}.")
    if rule.needs_pool_labels and _lacks_labels(pool):
        raise LabelError(f"labels={labels!r} needs the pool's true labels, but its items have none. Use 'density'.")
    return rule


def check_distortable(data: Data, labels: object) -> None:
    """Raises ArgumentError for Monte Carlo labels of embeddings."""
    if isinstance(data, Embeddings) and (
        isinstance(labels, MonteCarlo) or (isinstance(labels, str) and labels in STATISTICS)
    ):
        raise ArgumentError(
            f"labels={labels!r} distorts images, but there are only embeddings. Use posterior, density, prediction or "
            "true."
        )


def _lacks_labels(pool: Data) -> bool:
    """Returns whether the first readable image has no label."""
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
        raise ArgumentError(
            f"labels must be {count} integers, one per image, not {labels.dtype} values of shape {tuple(labels.shape)}."
        )
    return labels.cpu().long()


def settle_precision(precision: str, rule: LabelRule) -> str:
    """Returns the precision, replacing `auto` by float32 if the rule needs it."""
    return "float32" if precision == "auto" and rule.needs_float32 else precision


def are_finite(*values: Tensor) -> Tensor:
    """Returns whether each tensor (rows) is finite for each image (columns)."""
    return torch.stack([_are_rows_finite(value.detach()) for value in values])


def _are_rows_finite(value: Tensor) -> Tensor:
    """Returns the same as `value.isfinite().all(dim=1)`, which takes many times as long on a CPU."""
    if not value.shape[1]:
        return torch.ones(len(value), dtype=torch.bool, device=value.device)
    return value.amax(dim=1).isfinite() & value.amin(dim=1).isfinite()  # NaN propagates


def check_finite(index: Tensor, names: Sequence[str], is_finite: Tensor) -> None:
    """Raises NotFiniteError for the first of the named values that is not finite for some image."""
    for name, is_bad in zip(names, ~is_finite, strict=True):
        if is_bad.any():
            raise NotFiniteError(
                f"NaN or infinity in the {name} of {int(is_bad.sum())} of {len(is_bad)} images of a batch: index "
                f"{list_some(index[is_bad].tolist())}. Check these images and the model's weights; in bfloat16 (the "
                "default on a GPU), try precision='float32'."
            )


def note_unreadable(unreadable: Mapping[int, str], num_left: int) -> tuple[str, ...]:
    """Returns a note on unreadable pool images; raises DataError if none can be read."""
    if not unreadable:
        return ()
    first, why = next(iter(unreadable.items()))
    if len(unreadable) == num_left:
        raise DataError(f"None of the pool's {num_left} images can be read. Image {first}: {why}")
    return (f"{len(unreadable)} pool images could not be read and were left out, such as {first}: {why}",)
