"""Prefetching changes neither batches nor their order."""

from collections.abc import Iterator

import pytest
import torch

from rarefish.data.reader import Batch
from rarefish.ops.prefetch import CopyToHost, delay_by_one, prefetch

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


@pytest.mark.parametrize("device", DEVICES)
def test_prefetch_yields_the_same_batches_in_order(device: str) -> None:
    batches = [Batch(torch.tensor([i]), torch.full((1, 2), float(i)), None) for i in range(4)]
    found = list(prefetch(batches, torch.device(device)))
    assert [batch.index.tolist() for batch in found] == [[0], [1], [2], [3]]
    assert [batch.images.tolist() for batch in found] == [batch.images.tolist() for batch in batches]
    assert {batch.images.device.type for batch in found} == {device}


@pytest.mark.parametrize("device", DEVICES)
def test_a_copy_to_the_host_has_the_values(device: str) -> None:
    values = torch.arange(5.0)
    found = CopyToHost(values.to(device)).wait()
    assert not found.is_cuda and torch.equal(found, values)


def test_delay_by_one_yields_all_in_order_each_after_the_next_has_begun() -> None:
    begun: list[int] = []

    def work() -> Iterator[int]:
        for number in range(4):
            begun.append(number)
            yield number

    seen = [(item, len(begun)) for item in delay_by_one(work())]
    assert seen == [(0, 2), (1, 3), (2, 4), (3, 4)]
    assert not list(delay_by_one(()))
