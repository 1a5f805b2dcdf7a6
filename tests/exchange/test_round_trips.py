"""Every format gives back what was exported, and adds nothing when imported twice."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rarefish.exchange.exporter import FORMATS, export
from rarefish.exchange.importer import READERS, import_labels
from rarefish.workspace.answers import answer, settled
from rarefish.workspace.store import Store
from tests.exchange.labeled_workspaces import answers, asked, make_labeled, make_picked, rows
from tests.workspaces import draw, make_workspace

KEEP_ALL = ("csv", "label-studio")
"""Forms that hold every person's answer; the others have one class an image."""


@pytest.fixture
def labeled(tmp_path: Path) -> Store:
    return make_labeled(tmp_path / "a")


@pytest.fixture
def twin(tmp_path: Path) -> Store:
    """The same images and picks, nothing answered."""
    return make_workspace(tmp_path / "b", pool=12, trusted=2, picks=8)


def test_every_form_goes_both_ways() -> None:
    assert FORMATS.keys() == READERS.keys()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("what", ["labels", "picks"])
def test_labels_come_back_equal_and_once(labeled: Store, twin: Store, tmp_path: Path, format: str, what: str) -> None:
    made = export(labeled, what, format, tmp_path / "made")
    first = import_labels(twin, format, made, "import")
    assert first.count > 0 and first.already == 0 and not first.unknown and not first.conflicts
    assert settled(twin) == settled(labeled)
    if format in KEEP_ALL:
        assert answers(twin) == answers(labeled)
    before = rows(twin)
    again = import_labels(twin, format, made, "import")
    assert (again.count, again.already, rows(twin)) == (0, first.count, before)


@pytest.mark.parametrize("format", KEEP_ALL)
def test_own_answers_come_home_without_a_trace(labeled: Store, tmp_path: Path, format: str) -> None:
    before = rows(labeled)
    done = import_labels(labeled, format, export(labeled, "labels", format, tmp_path / "made"), "import")
    assert done.count == 0 and not done.conflicts and rows(labeled) == before


NAMES = (
    st.binary(min_size=1, max_size=40).map(lambda name: name.translate(None, b"/\0")).filter(lambda n: n.strip(b"."))
)


PLAIN = st.text(min_size=1, max_size=30).filter(lambda name: name == name.strip() and name.isprintable())


CLASSES = st.lists(PLAIN, min_size=2, max_size=4, unique_by=str.casefold)


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(NAMES, min_size=2, max_size=3, unique=True), classes=CLASSES)
def test_odd_names_of_files_and_classes(
    tmp_path_factory: pytest.TempPathFactory, format: str, names: list[bytes], classes: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("odd")
    (folder / "pool").mkdir()
    for seed, name in enumerate(names):
        draw(folder / "one.png", seed % 3, seed)
        os.rename(folder / "one.png", os.path.join(os.fsencode(folder / "pool"), name + b".png"))
    first, second = (make_picked(folder, place, classes) for place in ("a", "b"))
    for place, image in enumerate(asked(first)):
        answer(first, image, "ann\u00e9", "class", place % len(classes), str(place))
    made = export(first, "labels", format, folder / "made")
    done = import_labels(second, format, made, "ann\u00e9")
    assert not done.unknown and not done.conflicts, done
    assert answers(second) == answers(first)
