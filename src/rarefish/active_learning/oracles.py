"""Who answers "what is image i?"."""

import csv
import random
from collections.abc import Sequence
from pathlib import Path

from rarefish.acquisitions.interface import Oracle
from rarefish.errors import ArgumentError, DataError, LabelError, list_some


def known_labels(labels: Sequence[int]) -> Oracle:
    """An oracle that has the labels already, for experiments; a negative one is no class, and gets no answer."""
    return lambda indices: [int(labels[i]) if labels[i] >= 0 else None for i in indices]


def noisy(oracle: Oracle, rate: float | int, num_classes: int, seed: int = 0) -> Oracle:
    """The same oracle, wrong about a share `rate` of the images: there it names another class, always the same one."""
    _check_rate(rate)

    def answer(indices: Sequence[int]) -> list[int | None]:
        return [_mistake(i, label) for i, label in zip(indices, oracle(indices), strict=True)]

    def _mistake(index: int, label: int | None) -> int | None:
        chance = random.Random(f"{seed}:{index}")
        if label is None or chance.random() >= rate:
            return label
        return (label + chance.randrange(1, num_classes)) % num_classes

    return answer


def refusing(oracle: Oracle, rate: float | int, seed: int = 0) -> Oracle:
    """The same oracle, silent about a share `rate` of the images."""
    _check_rate(rate)

    def answer(indices: Sequence[int]) -> list[int | None]:
        silent = [random.Random(f"{seed}:{i}").random() < rate for i in indices]
        return [None if no else label for no, label in zip(silent, oracle(indices), strict=True)]

    return answer


def label_file(path: Path) -> Oracle:
    """Answers from a CSV file with the columns index and label; an empty label is a refusal."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if not {"index", "label"} <= set(reader.fieldnames or ()):
            raise DataError(f"{path} has the columns {list_some(reader.fieldnames or ())}; it needs index and label.")
        try:
            known = {int(row["index"]): int(row["label"]) if row["label"] else None for row in reader}
        except ValueError as error:
            raise LabelError(
                f"{path}, line {reader.line_num}: {error}. Index and label must be whole numbers."
            ) from None

    def answer(indices: Sequence[int]) -> list[int | None]:
        missing = [i for i in indices if i not in known]
        if missing:
            raise LabelError(f"{path} has no line for {len(missing)} images that were asked for: {list_some(missing)}.")
        return [known[i] for i in indices]

    return answer


def _check_rate(rate: float | int) -> None:
    if not 0 <= rate <= 1:
        raise ArgumentError(f"A rate is a share from 0 to 1, not {rate}.")
