"""What can be wrong with the input, found before the work starts or at the batch where it shows."""

import warnings
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from rarefish.descriptors import Descriptors
from rarefish.errors import (
    ArgumentError,
    DataError,
    LabelError,
    NotFiniteError,
    UnstableDataWarning,
    list_some,
    nearest,
)
from rarefish.kernels import KERNELS, needs_scores
from rarefish.pseudo_labels import LabelRule, MonteCarlo, label_rule
from rarefish.reading import Batch, Data, image_of, label_of


def check_data(data: object, name: str) -> None:
    """Complains about a data set that cannot be read by position, or has nothing in it."""
    if not isinstance(data, Data):
        raise DataError(
            f"The {name} is a {type(data).__name__} without a length or positions; give a map-style data set, such "
            "as a TensorDataset or an ImageFolder."
        )
    if len(data) == 0:
        raise DataError(f"The {name} is empty. Give it at least one image.")


def warn_if_unstable(data: Data, index: Sequence[int], name: str) -> None:
    """Warns when an image is another one on the second read: random augmentation has been left on."""
    for i in index[:2]:
        first, second = (torch.as_tensor(image_of(data[i])) for _ in range(2))
        if first.shape != second.shape or not torch.equal(first, second):
            message = (
                f"Image {i} of the {name} was not the same on a second read. Random augmentation is on; descriptors "
                "will differ from pass to pass. Give the data set without it."
            )
            warnings.warn(message, UnstableDataWarning, stacklevel=3)
            return


def check_pool(pool: object, validation: object, budget: int, exclude: Iterable[int] | Tensor) -> list[int]:
    """Pool indices that may be chosen; complains where the budget cannot be met."""
    check_data(pool, "pool")
    check_data(validation, "validation set")
    assert isinstance(pool, Data)
    excluded = {int(i) for i in exclude}
    outside = sorted(i for i in excluded if not 0 <= i < len(pool))
    if outside:
        raise ArgumentError(f"exclude names {list_some(outside)}; the pool's indices are 0 to {len(pool) - 1}.")
    left = [i for i in range(len(pool)) if i not in excluded]
    if budget < 1:
        raise ArgumentError(f"Cannot choose {budget} images. Give a budget of at least 1.")
    if budget > len(left):
        taken = f" ({len(excluded)} of {len(pool)} are excluded)" if excluded else ""
        raise ArgumentError(
            f"Cannot choose {budget} images: the pool has {len(left)} left{taken}. Lower the budget or add images."
        )
    return left


def check_rule(
    labels: str | MonteCarlo,
    kernel: str,
    failures: Tensor | Sequence[bool] | None,
    pool: Data,
    validation: Data,
    generator: torch.Generator,
) -> LabelRule:
    """The label rule; complains before the work starts where a label it needs is not there."""
    check_kernel(kernel)
    rule = label_rule(labels, seed=int(torch.randint(2**62, (), generator=generator)))
    # Without scores nothing depends on a label: the model's own answer is shown for what it is.
    rule = rule if needs_scores(kernel) else label_rule("prediction")
    if failures is not None and len(failures) != len(validation):
        raise ArgumentError(
            f"failures has {len(failures)} flags for {len(validation)} validation images. Give one each."
        )
    if label_of(validation[0]) is None:
        weak = "prediction, trace or mutual_information"
        if rule.needs_validation_labels:
            raise LabelError(f"labels={labels!r} needs validation labels. Give (image, label) items, or use {weak}.")
        if failures is None:
            raise LabelError(f"The validation set has no labels. Give (image, label) items, or failures= with {weak}.")
    if rule.needs_pool_labels and label_of(pool[0]) is None:
        raise LabelError(f"labels={labels!r} needs the pool's true labels, and its items have none. Use 'density'.")
    return rule


def check_kernel(kernel: str) -> None:
    if kernel not in KERNELS:
        raise ArgumentError(f"There is no kernel {kernel!r}. {nearest(str(kernel), KERNELS)}")


def check_labels(batch: Batch, num_classes: int) -> None:
    if batch.labels is None:
        return
    is_wrong = (batch.labels < 0) | (batch.labels >= num_classes)
    if is_wrong.any():
        values, index = (list_some(t[is_wrong].tolist()) for t in (batch.labels, batch.index))
        raise LabelError(
            f"The model has {num_classes} classes, so labels must be 0 to {num_classes - 1}; found {values} at index "
            f"{index}. Number the classes from 0, or give the model more outputs."
        )


def check_finite(described: Descriptors) -> None:
    for name, values in (("logits", described.margin), ("features", described.features), ("scores", described.scores)):
        is_bad = ~torch.isfinite(values.reshape(len(described), -1)).all(dim=1).cpu()
        if is_bad.any():
            raise NotFiniteError(
                f"NaN or infinity in the {name} of {int(is_bad.sum())} of {len(is_bad)} images of a batch: index "
                f"{list_some(described.index[is_bad].tolist())}. Look at these images and at the model's weights, or "
                "use precision='float32'."
            )
