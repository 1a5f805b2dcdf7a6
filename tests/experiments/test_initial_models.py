"""The networks that all methods of a seed start from."""

from pathlib import Path

import pytest

from rarefish.experiments.initial_models import starts_of
from tests.experiments.small import few

pytestmark = [pytest.mark.usefixtures("few_images"), pytest.mark.xdist_group("runner")]  # `whole` is made only once


def test_every_start_is_wanted_once_though_an_ensemble_shares_its_first(whole: Path) -> None:
    wanted = starts_of(few().cells())
    assert sorted(wanted) == [f"pretrained-s{seed}-i60-m{member}" for seed in (0, 1) for member in (0, 1)]
    assert {path.stem for path in (whole / "starts").glob("*.pt")} == set(wanted)
