"""Tiles are tried once for each shape; what does not fit the GPU is passed over."""

import pytest
import torch

from rarefish.ops import autotune
from rarefish.ops.autotune import CANDIDATES, Tiles, tuned


def test_the_fastest_that_works_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "CHOSEN", {})
    tried: list[Tiles] = []

    def take_time(work: object, tiles: Tiles, device: torch.device) -> float | Exception:
        tried.append(tiles)
        return MemoryError("too much shared memory") if tiles == CANDIDATES[0] else 10.0 - CANDIDATES.index(tiles)

    monkeypatch.setattr(autotune, "_milliseconds", take_time)
    device = torch.device("cpu")
    assert tuned("a shape", lambda _: None, device) == CANDIDATES[-1] and tried == list(CANDIDATES)
    assert tuned("a shape", lambda _: None, device) == CANDIDATES[-1] and len(tried) == len(CANDIDATES)
    tuned("another shape", lambda _: None, device)
    assert len(tried) == 2 * len(CANDIDATES)


def test_where_nothing_works_the_first_error_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "CHOSEN", {})
    monkeypatch.setattr(autotune, "_milliseconds", lambda *_: RuntimeError("no such instruction"))
    with pytest.raises(RuntimeError, match="no such instruction"):
        tuned("a shape", lambda _: None, torch.device("cpu"))


def test_tiles_divide_what_they_cut() -> None:
    from rarefish.ops.fused_matching import CHANNEL_MULTIPLE, GROUP

    assert all(CHANNEL_MULTIPLE % tiles.channels == 0 and tiles.images % GROUP == 0 for tiles in CANDIDATES)
