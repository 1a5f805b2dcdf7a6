"""A few seconds of the soak; `python -m tests.soak --minutes 30` takes its time."""

import csv
import random
import sys
from pathlib import Path
from typing import cast

import pytest

from rarefish.workspace.answers import answer
from tests.labeling.serving import Running
from tests.soak import Annotator, Sample, find_growth, find_wrong, soak
from tests.workspaces import make_workspace


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_work_beside_a_flood_loses_nothing(tmp_path: Path) -> None:
    line = soak(tmp_path, seconds=8, pace_s=0.1, every_s=0.5, output=tmp_path / "samples.csv")
    assert "none lost, none double" in line
    with open(tmp_path / "samples.csv") as file:
        samples = list(csv.DictReader(file))
    assert len(samples) > 5 and int(samples[-1]["answers"]) > 20 and int(samples[-1]["flood"]) > 100


def test_memory_that_grows_is_found() -> None:
    def samples(*memory: float) -> list[Sample]:
        return [Sample(10.0 * at, one, 30, 10, 0, 0, 0) for at, one in enumerate(memory)]

    assert find_growth(samples(60, 80, 100, 100, 101, 100, 101, 102)) == []
    (said,) = find_growth(samples(60, 80, 100, 110, 120, 130, 140, 150))
    assert said == "memory grew from 105.0 MB in the second quarter to 145.0 MB in the last"


def test_lost_and_foreign_answers_are_found(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=3, picks=3)
    with store.reading() as connection:
        images = [row["image"] for row in connection.execute("SELECT image FROM pick ORDER BY rank")]
    person = Annotator(cast(Running, None), "Ann", 0.1, random.Random(0))
    for number, image in enumerate(images[:2]):
        row = answer(store, image, "Ann", "class", number, f"ticket-{number:04d}")
        person.given.append((row, image, number))
        person.rows[f"ticket-{number:04d}"] = (image, "class")
    assert find_wrong(store, [person]) == []
    person.rows["ticket-0002"] = (images[2], "class")
    assert find_wrong(store, [person]) == ["ticket-0002 was acknowledged and is not there"]
    del person.rows["ticket-0002"], person.rows["ticket-0001"]
    assert find_wrong(store, [person]) == ["ticket-0001 is there and was not acknowledged"]
    person.given[0] = (person.given[0][0], images[0], 2)
    assert "the current answers differ" in find_wrong(store, [person])[1]
