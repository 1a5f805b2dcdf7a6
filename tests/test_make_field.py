"""The page of the field test: its table, and what is computed from it, on curves that can be checked by looking."""

import csv
from pathlib import Path

import make_field
import numpy as np
import pytest
from make_field import COLUMNS, Field, Row, fields_of, join, make_page, rows_of, to_csv

from rarefish.experiments.frozen_features import prepare, run_field
from tests.experiments.vectors import METHODS, TRAINED, WITHHELD, load_vectors

NOISE = (0.0, 0.01, -0.01, 0.02, -0.02)


def made(method: str, *recall: float, noise: float = 1.0, **changes: str) -> list[Row]:
    """Returns the rows of five seeds with these means per round."""
    plain = {"dataset": "svhn", "imbalance": "100", "per_class": "3", "trusted": "trained", "commit": "abc"}
    return [
        plain
        | {
            **{"method": method, "ours": str(method == "coverage"), "limit": str(method == "coverage_true")},
            **{"seed": str(seed), "round": str(number), "labels_spent": str(50 * number), "accuracy": "0.5"},
            **{"macro_recall": str(value + noise * offset), "rare_recall": "0.5", "select_s": "1"},
        }
        | changes
        for seed, offset in enumerate(NOISE)
        for number, value in enumerate(recall, start=1)
    ]


ROWS = [
    *made("coverage", 0.5, 0.6, 0.7),
    *made("badge", 0.4, 0.5, 0.6, noise=0.5),
    *made("random", 0.3, 0.3, 0.3, noise=2.0),
    *made("coverage_true", 0.6, 0.7, 0.8),
    *made("fisher_posterior", 0.5, 0.61, 0.7, noise=1.5),
    *({**row, "round": "0", "labels_spent": "0"} for row in made("trusted_only", 0.35)),
]


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()[2:]]


def test_the_table_of_a_run_has_all_rounds_in_the_columns_of_the_issue(tmp_path: Path) -> None:
    run_field([WITHHELD, TRAINED], METHODS, tmp_path / "run", seeds=range(2), rounds=3, load=load_vectors)
    rows = join([rows_of(tmp_path / "run")])
    table = tmp_path / "field.csv"
    table.write_text(to_csv(rows))
    assert table.read_text().splitlines()[0] == (
        "dataset,imbalance,per_class,trusted,method,ours,limit,seed,round,labels_spent,accuracy,macro_recall,"
        "rare_recall,select_s,commit"
    )
    assert rows_of(table) == rows and len(rows) == 2 * 2 * (3 * 3 + 1)
    assert {row["trusted"] for row in rows} == {"withheld", "trained"} and {row["imbalance"] for row in rows} == {"5"}
    assert {(row["method"], row["round"]) for row in rows} == {
        ("trusted_only", "0"),
        *((m.name, str(r)) for m in METHODS for r in (1, 2, 3)),
    }
    (first,) = prepare(*load_vectors("vectors"), TRAINED, 1).baseline()
    (row,) = [r for r in rows if r["method"] == "trusted_only" and r["seed"] == "1" and r["trusted"] == "trained"]
    assert float(row["macro_recall"]) == pytest.approx(np.mean(first.recall), rel=1e-5)
    assert float(row["accuracy"]) == pytest.approx(first.accuracy, rel=1e-5) and row["labels_spent"] == "0"
    assert {(row["ours"], row["limit"]) for row in rows} == {("False", "False")}
    found = fields_of(rows)
    assert [field.key.trusted for field in found] == ["trained", "withheld"]
    assert all(set(field.curves) == {m.name for m in METHODS} and field.baseline > 0 for field in found)


def test_names_of_ours_and_the_limit_are_marked(tmp_path: Path) -> None:
    names = ("random", "coverage", "coverage_true")
    methods = [METHODS[0].__class__(name=name, acquisition="random") for name in names]
    run_field([WITHHELD], methods, tmp_path, seeds=[0], rounds=1, load=load_vectors)
    marks = {row["method"]: (row["ours"], row["limit"]) for row in rows_of(tmp_path) if row["round"] == "1"}
    assert marks == {
        "random": ("False", "False"),
        "coverage": ("True", "False"),
        "coverage_true": ("False", "True"),
    }


def test_the_first_source_of_a_cell_counts_and_rows_are_in_order() -> None:
    older = [{**row, "macro_recall": "0.9"} for row in ROWS if row["method"] in ("badge", "random")]
    newer = [row for row in reversed(ROWS) if row["method"] == "badge"]
    joined = join([newer, older])
    assert {row["macro_recall"] for row in joined if row["method"] == "random"} == {"0.9"}
    assert [row for row in joined if row["method"] == "badge"] == [row for row in ROWS if row["method"] == "badge"]


def only(rows: list[Row]) -> Field:
    (field,) = fields_of(rows)
    return field


def test_a_setting_is_compared_over_the_seeds_with_all_rounds() -> None:
    field = only(ROWS)
    assert field.baseline == pytest.approx(0.35)
    best, *others = field.compared()
    assert best.rival == "fisher_posterior" and best.difference == pytest.approx(-0.01 / 3)
    assert [one.rival for one in others] == ["badge", "random"] and others[0].difference == pytest.approx(0.1)
    assert field.labels_needed() == pytest.approx(100 / 150)
    assert field.gap("coverage") == pytest.approx(0.1) and field.gap("fisher_posterior") == pytest.approx(0.29 / 3)
    cut = [row for row in ROWS if not (row["method"] == "badge" and row["seed"] == "4" and row["round"] == "3")]
    badge = only(cut).curves["badge"]
    assert badge.seeds == (0, 1, 2, 3) and only(cut).compared()[1].num_seeds == 4
    nobody = only([row for row in ROWS if row["method"] == "random"])
    assert nobody.compared() == [] and np.isnan(nobody.labels_needed()) and np.isnan(nobody.gap("coverage"))


def test_the_tables() -> None:
    balanced = [{**row, "imbalance": "1", "trusted": "withheld"} for row in ROWS if row["method"] != "fisher_posterior"]
    natural = [{**row, "dataset": "caltech_100", "imbalance": "1"} for row in ROWS]
    slow = [
        {**row, "dataset": "fashion"}
        for row in [*made("coverage", 0.2, 0.2, 0.2), *made("badge", 0.4, 0.5, 0.6, noise=0.5)]
    ]
    fields = fields_of([*ROWS, *balanced, *natural, *slow])
    trained, withheld = cells(make_field.summary(fields))
    assert trained == ["trained on", "other", "3", "0", "2", "1", "-30.0", "not reached in 1", "+10.0", "+9.7"]
    assert withheld == ["withheld", "balanced", "1", "1", "0", "0", "+10.0", "67 %", "+10.0", "–"]
    by_pool = {(row[0], row[2]): row for row in cells(make_field.settings_table(fields))}
    assert by_pool["svhn 100×", "trained"] == [
        *("svhn 100×", "3", "trained", "35.0", "60.0", "5", "fisher_posterior", "-0.3 (-1.3 to +0.6)", "0.399"),
        *("level", "50.0", "67 %", "+10.0", "+9.7"),
    ]
    assert by_pool["fashion 100×", "trained"][9:] == ["behind", "50.0", "not reached", "–", "–"]
    assert by_pool["svhn 1×", "withheld"][9] == "ahead"
    few = [row for row in ROWS if row["seed"] != "0"]
    assert cells(make_field.summary(fields_of(few))) == []
    assert cells(make_field.short_table(fields_of([*({**row, "dataset": "fashion"} for row in few), *ROWS]))) == [
        ["svhn 100×", "3", "trained", "35.0", "60.0", "fisher_posterior", "-0.3 (-1.3 to +0.6)", "0.399"]
    ]
    text = make_field.methods_tables(fields_of(ROWS))
    assert text.startswith("### svhn 100×, trusted set trained on\n\n| method | M = 3 |")
    limit, earlier, ours, badge, random = cells(text[text.index("| method") :])
    assert [row[0] for row in (limit, earlier, ours)] == ["coverage_true", "fisher_posterior", "coverage"]
    assert limit[1:] == ["70.0"] and ours[1:] == ["60.0"] and earlier[2] == "-0.3 (-1.3 to +0.6)"
    assert badge[:3] == ["badge", "50.0", "+10.0 (+9.0 to +11.0)"] and random[3] == "< 0.001"


def test_the_page_is_made_from_the_table() -> None:
    page = "before\n<!-- field: summary -->\nold\n<!-- end -->\nbetween\n<!-- field: methods --><!-- end -->\nafter\n"
    made_of = make_page(page, fields_of(ROWS))
    assert "old" not in made_of and make_field.summary(fields_of(ROWS)) in made_of
    assert make_page(made_of, fields_of(ROWS)) == made_of
    assert make_page(page, []).count("Not run yet.") == 2


def test_the_chart_has_a_panel_per_setting() -> None:
    other = [{**row, "trusted": "withheld", "dataset": "fashion"} for row in ROWS]
    figure = make_field.draw(fields_of([*ROWS, *other]))
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert len(figure.axes) == 4 and [axes.get_title(loc="left") for axes in panels] == [
        "fashion 100×, M = 3, withheld",
        "svhn 100×, M = 3, trained on",
    ]
    lines = {line.get_label(): line for line in panels[1].lines}
    assert set(lines) == {"coverage", "coverage_true", "badge", "random", "fisher_posterior", "trusted only"}
    assert np.asarray(lines["badge"].get_xydata()) == pytest.approx(np.array([[50, 0.4], [100, 0.5], [150, 0.6]]))
    assert lines["coverage"].get_linewidth() == max(line.get_linewidth() for line in panels[1].lines)


def test_the_page_in_the_documentation_is_that_of_its_table() -> None:
    table = make_field.FOLDER / "field.csv"
    rows = rows_of(table) if table.exists() else []
    assert all(tuple(row) == COLUMNS for row in rows)
    for page in make_field.PAGES:
        assert make_page(page.read_text(), fields_of(rows)) == page.read_text(), "run tools/make_field.py"
        assert "<!-- field: " in page.read_text()
    if rows:
        with table.open(newline="") as file:
            assert next(csv.reader(file)) == list(COLUMNS)
