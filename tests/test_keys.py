"""Numbers that sort as similarity, then index."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from rarefish.keys import first_occurrences, pack, unpack_index, unpack_similarity


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20), st.integers(0, 2**32 - 1))
def test_keys_hold_similarity_and_index(values: list[float], index: int) -> None:
    similarity_1N = torch.tensor([values])
    key = pack(similarity_1N, torch.full((len(values),), index))
    assert torch.equal(unpack_similarity(key), similarity_1N)
    assert (unpack_index(key) == index).all()
    assert key[0].argsort(stable=True).tolist() == similarity_1N[0].double().argsort(stable=True).tolist()


def test_equal_similarities_go_by_index() -> None:
    key = pack(torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([5, 2, 9]))
    assert key[0].argsort(descending=True).tolist() == [1, 0, 2]


@given(st.lists(st.integers(0, 5), max_size=30))
def test_first_occurrences(values: list[int]) -> None:
    rows = first_occurrences(torch.tensor(values, dtype=torch.long)).tolist()
    assert [values[row] for row in rows] == list(dict.fromkeys(values))
    assert rows == sorted(rows)
