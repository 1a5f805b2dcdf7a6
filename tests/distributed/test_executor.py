"""The executor of one process: nothing but plain calls, in the order in which select() asks for them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from rarefish import select
from rarefish.distributed.executor import Executor, ShardMatcher, ShardMatches, SingleProcess
from rarefish.distributed.torchrun import TorchrunExecutor
from rarefish.errors import ArgumentError
from rarefish.matching import Matches, merge
from tests.cases import Plain, labeled


@pytest.mark.parametrize("executor", [SingleProcess(), TorchrunExecutor()])
def test_one_process_runs_the_work_itself(executor: Executor) -> None:
    assert executor.size == 1
    assert executor.everywhere(lambda: 3) == executor.once(lambda: 3) == executor.agree(3) == 3
    assert executor.for_run(lambda: pytest.fail("nobody to compare the inputs with")) is executor
    for run in (executor.everywhere, executor.once):
        with pytest.raises(ArgumentError, match="no such thing"):
            run(fail)


def fail() -> None:
    raise ArgumentError("no such thing")


def test_one_process_matches_the_pool_as_one_shard() -> None:
    table = Matches(torch.arange(4)[None], torch.zeros(1, 4, dtype=torch.long))
    calls: list[tuple[Sequence[int], int]] = []

    def match_shard(index: Sequence[int], depth: int) -> ShardMatches:
        calls.append((index, depth))
        return ShardMatches(table, {7: "truncated"})

    found = SingleProcess().map_shards(match_shard, [3, 5, 7], 4)
    assert calls == [([3, 5, 7], 4)]
    assert found.matches is table and found.unreadable == {7: "truncated"}


@pytest.mark.parametrize("executor", [SingleProcess(), TorchrunExecutor()])
def test_one_process_has_one_part(executor: Executor) -> None:
    assert executor.map_parts(sorted, [7, 3, 5]) == [[3, 5, 7]]


class InHalves(SingleProcess):
    """An executor of the user's own: it matches two shards, one after the other."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def for_run(self, inputs: Callable[[], Mapping[str, str]]) -> "InHalves":
        self.calls.append("for_run")
        return self

    def once(self, work: Callable[[], Any]) -> Any:
        self.calls.append("once")
        return work()

    def map_parts(self, work: Callable[[Sequence[int]], Any], index: Sequence[int]) -> list[Any]:
        return [work(part) for part in (index[:1], [], index[1:])]

    def map_shards(self, match: ShardMatcher, index: Sequence[int], depth: int) -> ShardMatches:
        self.calls.append("map_shards")
        parts = [match(index[: len(index) // 2], depth), match(index[len(index) // 2 :], depth)]
        unreadable = {i: why for part in parts for i, why in part.unreadable.items()}
        return ShardMatches(merge((part.matches for part in parts), depth), unreadable)


def test_an_executor_of_the_users_own_chooses_the_same() -> None:
    torch.manual_seed(0)
    model, executor = Plain().double(), InHalves()
    assert isinstance(executor, Executor)
    how = {"budget": 9, "labels": "density", "layers": ("conv1", "conv2"), "exclude": [0, 4]}
    alone = select(model, labeled(30, 1), labeled(12, 2), **how)
    halves = select(model, labeled(30, 1), labeled(12, 2), executor=executor, **how)
    assert halves.rows() == alone.rows()
    torch.testing.assert_close(halves.class_probabilities, alone.class_probabilities)
    assert executor.calls == ["for_run", "once", "map_shards"]
