"""Oracles: functions that return the labels of pool images."""

import csv
import random
from collections.abc import Sequence
from pathlib import Path

from rarefish.acquisitions.interface import Oracle
from rarefish.errors import ArgumentError, DataError, LabelError, list_some


def known_labels(labels: Sequence[int]) -> Oracle:
    """Returns an oracle that knows all labels, for experiments. It gives no answer for negative labels (no class)."""
    return lambda indices: [int(labels[i]) if labels[i] >= 0 else None for i in indices]


def noisy(oracle: Oracle, rate: float | int, num_classes: int, seed: int = 0) -> Oracle:
    """Returns the oracle with label noise: for a fraction `rate` of the images, it returns another class.

    Repeated questions about an image get the same answer.
    """
    _check_rate(rate)

    def answer(indices: Sequence[int]) -> list[int | None]:
        return [_add_noise(i, label) for i, label in zip(indices, oracle(indices), strict=True)]

    def _add_noise(index: int, label: int | None) -> int | None:
        rng = random.Random(f"{seed}:{index}")
        if label is None or rng.random() >= rate:
            return label
        return (label + rng.randrange(1, num_classes)) % num_classes

    return answer


def refusing(oracle: Oracle, rate: float | int, seed: int = 0) -> Oracle:
    """Returns the oracle with no answer for a fraction `rate` of the images."""
    _check_rate(rate)

    def answer(indices: Sequence[int]) -> list[int | None]:
        is_refused = [random.Random(f"{seed}:{i}").random() < rate for i in indices]
        return [None if refused else label for refused, label in zip(is_refused, oracle(indices), strict=True)]

    return answer


def label_file(path: Path) -> Oracle:
    """Returns an oracle that reads a CSV file with the columns index and label; an empty label means no answer."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if not {"index", "label"} <= set(reader.fieldnames or ()):
            raise DataError(f"{path} has the columns {list_some(reader.fieldnames or ())}, but needs index and label.")
        try:
            known = {int(row["index"]): int(row["label"]) if row["label"] else None for row in reader}
        except ValueError as error:
            raise LabelError(f"{path}, line {reader.line_num}: {error}. Index and label must be integers.") from None

    def answer(indices: Sequence[int]) -> list[int | None]:
        missing = [i for i in indices if i not in known]
        if missing:
            raise LabelError(
                f"{path} has no line for {len(missing)} of the requested images: {list_some(missing)}. "
                "Add them to the file."
            )
        return [known[i] for i in indices]

    return answer


def _check_rate(rate: float | int) -> None:
    if not 0 <= rate <= 1:
        raise ArgumentError(f"The rate must be a fraction from 0 to 1, not {rate}.")
