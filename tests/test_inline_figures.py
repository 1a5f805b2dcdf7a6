"""Figures in sentences: computed from the tables, and none is left that is not."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import make_results
import pytest
from inline_figures import fill_figures
from record_tables import write_passes

from rarefish.active_learning.records import COLUMNS, Record, to_csv
from tests.test_make_charts import FIRST

LETS = """<!-- let ours = some.csv; method=ours -->
<!-- let other = some.csv; method=other -->
<!-- let alone = some.csv; method=alone -->
<!-- let theirs = paper; paper=mnist; imbalance=100; method=varR K128 -->
"""


def rounds(method: str, *accuracies: float, seed: int = 0) -> list[Record]:
    return [
        replace(
            *(FIRST,),
            **{"method": method, "seed": seed, "round": number, "labels_spent": 10 * number, "accuracy": accuracy},
            **{
                "rare_recall": accuracy / 2,
                "rare_labeled_so_far": 3 * number + seed,
                "commit": f"abc{seed}",
                "best_accuracy": accuracy + number / 100,
            },
        )
        for number, accuracy in enumerate(accuracies, 1)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    alone = [replace(FIRST, method="alone", seed=seed, round=0, labels_spent=0, accuracy=0.65) for seed in (0, 1)]
    records = [r for seed in (0, 1) for r in rounds("ours", 0.5, 0.6 + 0.02 * seed, 0.7, seed=seed)]
    records += [r for seed in (0, 1) for r in rounds("other", 0.4, 0.5, 0.6, seed=seed)]
    (tmp_path / "some.csv").write_text(to_csv([*records, *alone], [*COLUMNS, "best_accuracy"]))
    write_passes({}, tmp_path / "some.csv")
    (tmp_path / "paper_curves.csv").write_text((make_results.FOLDER / "paper_curves.csv").read_text())
    return tmp_path


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("ours(2)", "61.0"),
        ("ours(2) - other(2)", "11.0"),
        ("other(2) - ours(2); +.0f", "-11"),
        ("ours(1) - alone(0); +.1f", "-15.0"),
        ('ours(2, "rare_recall")', "30.5"),
        ('ours(2, "rare_labeled_so_far"); .0f', "6"),  # the mean of 6 and 7, rounded to even
        ("ours.lead(other)", "+10.3"),
        ("ours.lead(other, 1)", "+10.0"),
        ("ours.lead(alone)", "-4.7"),
        ("ours.interval(other)", "too few seeds"),
        ("ours.saved(other)", "42 %"),
        ("ours.reach(65)", "24"),
        ("ours.reach(80)", "not reached"),
        ("ours.least(other)", "10.0"),
        ("ours.most(other)", "11.0"),
        ("ours.most(other, 3)", "10.0"),
        ("ours.below(theirs)", "3"),  # 50, 61 and 70 for 51.5, 62.0 and 75.2
        ("ours.best.least(ours)", "1.0"),
        ("ours.best.most(ours)", "3.0"),
        ("ours.seeds; .0f", "2"),
        ("ours.commit", "abc0 and abc1"),
        ("100 * (ours(2) - other(2)) / (theirs(2) - 51); .0f", "100"),
    ],
)
def test_figures_are_computed_from_the_table(folder: Path, expression: str, text: str) -> None:
    page = f"{LETS}Text <!--= {expression} -->old, 3<!--/--> % and more."
    assert fill_figures(page, folder) == f"{LETS}Text <!--= {expression} -->{text}<!--/--> % and more."


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("<!--= nobody(1) --><!--/-->", "does not say what nobody is"),
        (f"{LETS}<!--= ours(9) --><!--/-->", "ours has no accuracy after round 9"),
        (f'{LETS}<!--= ours(1, "pseudo_accuracy") --><!--/-->', "no pseudo_accuracy after round 1"),
        (f"{LETS}<!--= [ours] --><!--/-->", "have no List"),
        ("<!-- let a = some.csv; mehtod=ours -->", "give method= and columns, not .'mehtod'"),
        ("<!-- let a = some.csv; method=nothing -->", "has 0 settings"),
        ("<!-- let a = paper; paper=mnist; imbalance=100; method=BADGE -->", "no curve"),
    ],
)
def test_what_cannot_be_computed_is_said(folder: Path, page: str, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        fill_figures(page, folder)


def test_a_name_stands_for_one_setting(folder: Path) -> None:
    path = folder / "some.csv"
    more = to_csv([replace(r, validation_size=300) for r in rounds("ours", 0.5)], [*COLUMNS, "best_accuracy"])
    path.write_text(path.read_text() + more.partition("\n")[2])
    with pytest.raises(SystemExit, match="has 2 settings"):
        fill_figures("<!-- let a = some.csv; method=ours -->", folder)


NOT_RESULTS = {
    "README.md": ("Python 3.11", "Apache-2.0", "CC BY-SA 3.0"),
    "mnist.md": (),
    "paper.md": ("82.0, 82.6 and 81.6 %",),
    "posterior.md": (),
    "rivals.md": (),
    "svhn.md": (
        *("learning rate 0.1", "is 0.9. Training", "no more than 0.5 points", "agreed within 0.1 points"),
        "VAAL (up to 2.3 points",
    ),
    "tiny-imagenet.md": ("2 points ahead of random", "does not win 2 points"),
    "validation-size.md": ("74.9, 76.0 and 78.4 %",),
}
"""Text with figures that no table of records holds: settings, and results whose records are gone, as the page says."""


@pytest.mark.parametrize("name", sorted(NOT_RESULTS))
def test_no_result_is_typed_by_hand(name: str) -> None:
    """Every accuracy, share and difference in a sentence is computed; all other figures are settings."""
    page = make_results.FOLDER.parents[1] / name if name == "README.md" else make_results.FOLDER / name
    text = page.read_text(encoding="utf-8")
    for allowed in NOT_RESULTS[name]:
        assert allowed in re.sub(r"\s+", " ", text), f"{name} no longer says {allowed!r}: remove it from NOT_RESULTS"
    assert typed_figures(text, NOT_RESULTS[name]) == []


def typed_figures(text: str, allowed: Sequence[str] = ()) -> list[str]:
    """Returns the figures of a page that look like results and are neither generated nor allowed."""
    for generated in (r"```.*?```", r"<!--=.*?<!--/-->", r"<!-- \w+: (?:(?!-->).)*-->(?=\s*\|).*?<!-- end -->"):
        text = re.sub(generated, " ", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->|`[^`]*`|\]\([^)]*\)", " ", text, flags=re.DOTALL)
    text = re.sub(r"\s+", " ", text).replace("95 % interval", "interval")
    for part in allowed:
        text = text.replace(part, " ")
    return re.findall(r"\d[\d,]*\.\d+|\d[\d,.]*(?= (?:%|points?\b))", text)


def test_figures_typed_by_hand_are_found() -> None:
    text = (
        "Ours has 72.5, 3 points and 64 % after 500 labels; `lr=0.1`, [a](b_1.5.md) and <!--= a(1) -->7.5<!--/--> not."
    )
    assert typed_figures(text) == ["72.5", "3", "64"]
    assert typed_figures(text, ["72.5, 3 points"]) == ["64"]
    assert typed_figures("<!-- table: a.csv -->\n\n| a | 1.5 |\n\n<!-- end -->\n\n1.25 %") == ["1.25"]
