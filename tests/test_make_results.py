"""Tables of the results pages, on curves whose figures can be told by looking."""

from dataclasses import replace

import make_results

from rarefish.active_learning.records import Record
from tests.test_make_charts import FIRST


def rounds(method: str, *accuracies: float, seed: int = 0) -> list[Record]:
    return [
        replace(FIRST, method=method, seed=seed, round=number, labels_spent=10 * number, accuracy=accuracy)
        for number, accuracy in enumerate(accuracies, 1)
    ]


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


RECORDS = [
    *(r for seed in (0, 1) for r in rounds("ours", 0.5, 0.6 + 0.02 * seed, 0.7, seed=seed)),
    *(r for seed in (0, 1) for r in rounds("a", 0.4, 0.5, 0.6, seed=seed)),
    *(r for seed in (0, 1) for r in rounds("b", 0.55, 0.58, 0.75, seed=seed)),
]


def test_ours_beside_the_best_of_each_round() -> None:
    found = cells(make_results.best_table(RECORDS, {"ours": "ours"}))
    assert found == [
        ["1", "50.0", "b", "55.0", "-5.0", "0.0"],
        ["2", "61.0", "b", "58.0", "3.0", "1.0"],
        ["3", "70.0", "b", "75.0", "-5.0", "0.0"],
    ]
    (_, second, _) = cells(make_results.best_table(RECORDS, {"ours": "ours", "methods": "a|ours"}))
    assert second[2:5] == ["a", "50.0", "11.0"]


def test_labels_saved_to_end_where_a_rival_ends() -> None:
    found = {line[0]: line[4] for line in cells(make_results.saved_table(RECORDS, {"ours": "ours"}))}
    assert found == {"a": "36 %", "b": "not reached"}  # 0.6 after 19.09 of 30 labels


def test_rounds_are_left_out_unless_all_are_asked_for() -> None:
    records = rounds("ours", *(0.1 * number for number in range(1, 9)))
    assert [len(cells(make_results.accuracy_table(records, wish))[0]) - 2 for wish in ({}, {"all_rounds": ""})] == [
        7,
        8,
    ]
