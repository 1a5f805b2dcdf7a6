"""A vote that was taken back stays so, and what we exported ourselves is nobody's vote when it comes home."""

from pathlib import Path

import pytest

from rarefish.exchange.export import FORMATS, export
from rarefish.exchange.import_labels import Imported, import_labels
from rarefish.workspace.answers import answer, settled, undo
from rarefish.workspace.store import Store
from tests.exchange.labeled_workspaces import answers, asked, make_labeled, rows
from tests.workspaces import make_workspace


@pytest.fixture
def labeled(tmp_path: Path) -> Store:
    return make_labeled(tmp_path / "a")


def take_csv(store: Store, text: str, who: str | None = None) -> Imported:
    source = store.folder.parent / "labels.csv"
    source.write_text(text)
    return import_labels(store, "csv", source, who)


def test_what_was_taken_back_stays_so(labeled: Store, tmp_path: Path) -> None:
    made = export(labeled, "labels", "csv", tmp_path / "made.csv")
    task = undo(labeled, "ann", "undo")
    assert task is not None
    before = rows(labeled)
    done = import_labels(labeled, "csv", made)
    assert (done.count, len(done.conflicts), rows(labeled)) == (0, 1, before)
    assert "ann undid this answer at 20" in done.conflicts[0]
    later = take_csv(labeled, f"image,class,who,time\n{task.image},owl,ann,2999-01-01\n")
    assert later.count == 1 and (task.image, "ann", "class", 2) in answers(labeled)


def test_an_undo_gives_the_answer_before_it_back(tmp_path: Path) -> None:
    store = make_workspace(tmp_path / "a", pool=6, trusted=1, picks=3)
    image = asked(store)[0]
    answer(store, image, "ann", "class", 0, "cat")
    answer(store, image, "ann", "class", 1, "dog")
    made = export(store, "labels", "csv", tmp_path / "made.csv")
    undo(store, "ann", "undo")
    done = import_labels(store, "csv", made)
    assert done.count == 0 and len(done.conflicts) == 1 and settled(store) == {image: 0}


def test_without_a_time_what_was_taken_back_is_the_same(tmp_path: Path) -> None:
    store = make_workspace(tmp_path / "a", pool=6, trusted=1, picks=3)
    image = asked(store)[0]
    answer(store, image, "ann", "class", 0, "cat")
    undo(store, "ann", "undo")
    done = take_csv(store, f"image,class\n{image},cat\n", "ann")
    assert done.count == 0 and "undid this answer" in done.conflicts[0]
    assert take_csv(store, f"image,class\n{image},dog\n", "ann").count == 1


@pytest.mark.parametrize("format", FORMATS)
def test_what_we_exported_is_no_second_vote(labeled: Store, tmp_path: Path, format: str) -> None:
    made, before = export(labeled, "labels", format, tmp_path / "made"), rows(labeled)
    done = import_labels(labeled, format, made)
    assert (done.count, done.unknown, done.conflicts, rows(labeled)) == (0, (), (), before)
    assert done.already >= len(settled(labeled))


@pytest.mark.parametrize("format", ["imagefolder", "coco", "cvat", "fiftyone", "huggingface"])
def test_a_person_who_is_named_has_a_vote(labeled: Store, tmp_path: Path, format: str) -> None:
    made = export(labeled, "labels", format, tmp_path / "made")
    assert import_labels(labeled, format, made, "carl").count == len(settled(labeled))


def test_what_differs_or_is_of_others_is_a_vote(labeled: Store) -> None:
    image = asked(labeled)[0]
    assert settled(labeled)[image] == 0
    assert take_csv(labeled, f"image,class\n{image},cat\n").count == 1
    assert (image, "imported", "class", 0) in answers(labeled)
    with labeled.reading() as connection:
        (hash_,) = connection.execute("SELECT hash FROM image WHERE id = ?", (image,)).fetchone()
    assert take_csv(labeled, f"image,hash,class\n{image},{hash_},owl\n").count == 1
    assert (image, "imported", "class", 2) in answers(labeled)


def test_a_skip_takes_no_answer_back(labeled: Store) -> None:
    first, second = asked(labeled)[:2]
    text = f"image,answer,class,who\n{first},skip,,ann\n{second},class,owl,carl\n"
    done = take_csv(labeled, text)
    assert done.count == 1 and "a skip does not undo an answer" in done.conflicts[0]
    assert (first, "ann", "class", 0) in answers(labeled)
