"""A task reads its data sets in batches of bounded size."""

import pytest

from tests.active_learning.tasks import task


@pytest.mark.parametrize(("batch_size", "read"), [(1000, 1000), (50, 50), (20_000, 1000)])
def test_the_reader_follows_the_batch_size_up_to_a_thousand(batch_size: int, read: int) -> None:
    reader = task(batch_size=batch_size, workers=3).reader
    assert (reader.batch_size, reader.num_workers, reader.progress) == (read, 3, False)
