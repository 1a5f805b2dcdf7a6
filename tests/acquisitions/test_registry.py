"""The table of acquisitions."""

from pathlib import Path

import pytest

from rarefish.acquisitions import ACQUISITIONS, find_acquisition
from rarefish.errors import ArgumentError


def test_unknown_names_get_a_hint() -> None:
    assert find_acquisition("random") is ACQUISITIONS["random"]
    with pytest.raises(ArgumentError, match="no acquisition 'entopy'. Did you mean entropy"):
        find_acquisition("entopy")


def test_the_guide_names_every_acquisition() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/experiments.md").read_text()
    assert [name for name in ACQUISITIONS if f"`{name}`" not in guide] == []
