"""Datasets that cannot work; the checks of select() as a whole are in test_selection.py."""

from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from rarefish.checks import are_finite, check_data, warn_if_unstable
from rarefish.data.reader import Reader
from rarefish.errors import DataError, UnstableDataWarning
from tests.cases import images, labeled


def test_data_sets_that_cannot_be_read_by_position() -> None:
    class Stream(IterableDataset):
        def __iter__(self):
            yield images(1)[0]

    with pytest.raises(DataError, match="is a Stream without a length or indexing"):
        check_data(Stream(), "pool")
    with pytest.raises(DataError, match="The pool is empty"):
        check_data([], "pool")


def test_random_augmentation_is_noticed() -> None:
    class Augmented(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            return torch.rand(1, 2, 2)

    with pytest.warns(UnstableDataWarning, match="Image 7 of the pool differed on a second read"):
        warn_if_unstable(Augmented([0] * 9), [7, 8], "pool", Reader())
    warn_if_unstable(labeled(3), [0, 1], "pool", Reader())


def test_rows_with_any_value_that_is_not_finite() -> None:
    values = torch.randn(5, 4)
    values[1, 2], values[2, 0], values[3, 3] = torch.nan, torch.inf, -torch.inf
    expected = [True, False, False, False, True]
    assert are_finite(values, values.bfloat16(), values[:, :0]).tolist() == [expected, expected, [True] * 5]
