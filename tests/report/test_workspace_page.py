"""The report of a workspace."""

from pathlib import Path

import pytest

from rarefish.errors import WorkspaceError
from rarefish.report.workspace_page import headline, rare_of, write_work_report
from rarefish.workspace.answers import answer, take
from rarefish.workspace.round_history import add_training
from rarefish.workspace.summary import summarize
from tests.browser import open_page
from tests.workspaces import make_workspace


@pytest.mark.browser
def test_it_shows_the_labeled_images_and_the_gain(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=12, trusted=4, picks=6)
    with pytest.raises(WorkspaceError, match="nothing to report before the first training run"):
        write_work_report(store, tmp_path / "report", "x")
    for task in take(store, "ann", 5):
        answer(store, task.image, "ann", "class", task.rank % 3, f"t{task.rank}")
    for spent, owl in ((2, 0.0), (5, 0.75)):
        recall = [1.0, 0.5, owl]
        add_training(store, labels_spent=spent, weights="w", how={}, accuracy=0.6, recall=recall, counts=[4, 4, 4])
    (tmp_path / "pool" / "image 00000.png").unlink()
    path = write_work_report(store, tmp_path / "report", "rarefish report <work>")
    with open_page(path.as_uri()) as (page, asked, complaints):
        text = page.inner_text("body")
        assert page.locator("svg").count() >= 2 and page.locator("figure").count() == 5
        assert page.locator("figure.rare").count() == 1, "one owl was labeled, the class that failed at first"
    assert "classes that failed most at first rose from 0% to 75%" in text and "rarefish report <work>" in text
    assert asked == [path.as_uri()] and not complaints


def test_classes_that_matter_are_those_rare_in_the_pool(tmp_path: Path) -> None:
    store = make_workspace(tmp_path, pool=3, trusted=2)
    for spent, recall in ((2, [0.9, 0.1, 0.2]), (5, [0.9, 0.1, 0.6])):
        add_training(store, labels_spent=spent, weights="w", how={}, accuracy=0.5, recall=recall, counts=[2, 2, 2])
    found = summarize(store)
    assert rare_of(found) == ("classes that failed most at first", [1, 2])
    found["mix"]["pool"] = [0.5, 0.45, 0.05]
    assert rare_of(found) == ("classes rare in the pool", [2])
    assert "recall on the classes rare in the pool rose from 20% to 60%" in headline(found, *rare_of(found))
