"""Near-copies: equal to a comparison of all pairs, and independent of blocks."""

import numpy as np
import pytest
import torch
from torch import Tensor

from rarefish.data import near_copies
from rarefish.data.near_copies import group_pairs, near_copy_pairs
from rarefish.errors import DataError


def find_near_copies(values: Tensor | np.ndarray, threshold: float) -> list[list[int]]:
    return group_pairs(near_copy_pairs(values, threshold))


def all_pairs(values: Tensor, threshold: float) -> list[list[int]]:
    """The same by the matrix of all cosines, and by merging sets until nothing changes."""
    values = values.float()
    mean = values[values.abs().sum(dim=1) > 0].mean(dim=0)
    unit = torch.nn.functional.normalize((values - mean) * (values.abs().sum(dim=1, keepdim=True) > 0), dim=1)
    groups = [{int(a), int(b)} for a, b in (unit @ unit.T >= threshold).nonzero() if a < b]
    merged = True
    while merged:
        merged = False
        for one in groups:
            for other in groups:
                if one is not other and one & other:
                    one |= other
                    groups.remove(other)
                    merged = True
                    break
            if merged:
                break
    return sorted(sorted(group) for group in groups)


def rows(count: int, width: int, copies: int, noise: float = 0.05) -> Tensor:
    """Rows of which some repeat others with a different length and a little noise."""
    generator = torch.Generator().manual_seed(count)
    values = torch.rand(count, width, generator=generator) ** 3
    for row in range(copies):
        values[count - 1 - row] = (1 + row) * values[row // 2] + noise * torch.rand(width, generator=generator)
    return values


@pytest.mark.parametrize("width", [8, 200])
@pytest.mark.parametrize("threshold", [0.9, 0.97, 0.999])
def test_the_groups_are_those_of_all_pairs(width: int, threshold: float, monkeypatch: pytest.MonkeyPatch) -> None:
    values = rows(60, width, 9)
    expected = all_pairs(values, threshold)
    assert expected, "the test needs some near-copies"
    for block in (7, 60, 1000):
        monkeypatch.setattr(near_copies, "BLOCK", block)
        assert find_near_copies(values, threshold) == expected


def test_half_precision_from_a_map_and_rows_of_zeros(tmp_path) -> None:
    values = rows(40, 32, 6)
    values[3] = values[11] = 0
    np.save(tmp_path / "values.npy", values.half().numpy())
    mapped = np.load(tmp_path / "values.npy", mmap_mode="r")
    found = find_near_copies(np.array(mapped), 0.99)
    assert found == all_pairs(values.half(), 0.99) and not {3, 11} & {row for group in found for row in group}


def test_without_near_copies_there_are_no_groups() -> None:
    for values in (torch.eye(5), torch.zeros(3, 4), torch.empty(0, 4), torch.ones(1, 4)):
        assert len(near_copy_pairs(values, 0.9)) == 0


def test_a_direction_that_all_embeddings_share_makes_no_near_copies() -> None:
    values = rows(40, 32, 3)
    assert find_near_copies(values + 100, 0.95) == find_near_copies(values, 0.95)


def test_embeddings_that_do_not_tell_images_apart_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_copies, "MOST_PAIRS", 3)
    values = torch.cat([torch.rand(1, 8).expand(30, 8), -torch.rand(1, 8)])
    with pytest.raises(DataError, match="do not tell the images apart"):
        near_copy_pairs(values, 0.9)
