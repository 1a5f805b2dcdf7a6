"""Computes the figures in the sentences of a page from the tables of records beside it.

A page names a method of a table once, `<!-- let ours = svhn.csv; method=fisher posterior L768; imbalance=100 -->`, with
columns as in `make_results.py`, or a curve of the paper, `<!-- let theirs = paper; paper=mnist; imbalance=100;
method=fisher density L80 -->`. A sentence then contains `<!--= ours(3) -->66.4<!--/--> %`, and `make_results.py`
replaces the text between the marks. Expressions are arithmetic with these names: `ours(3) - theirs(3)`, in percent or
points; `ours(3, "rare_recall")`; `ours(3, "rare_labeled_so_far")`, a number; `ours.lead(random)`,
`ours.interval(random)`, `ours.saved(random)`, `ours.reach(random(10))`; `ours.least(random)` and `ours.most(random)`,
the smallest and largest differences of all rounds, and `ours.below(random)`, a number of rounds; `ours.best`, the best
epochs; `ours.seeds`, `ours.commit`. A format follows a semicolon, `; +.0f`.
"""

import ast
import csv
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from record_tables import collect

from rarefish.active_learning.records import COLUMNS, Record
from rarefish.report.curves import Curve, complete, constant, curve, labels_to_reach, split_baselines
from rarefish.report.run_data import PAPER_NAMES, PAPER_SETS
from rarefish.report.statistics import Comparison, compare, compare_labels, needed_text

COUNTS = ("rare_labeled", "rare_labeled_so_far")
"""Columns that are numbers of images; the other ones are fractions, shown in percent."""
OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class Rounds:
    """Accuracies in percent after each round, and their differences from others."""

    @property
    def by_round(self) -> Mapping[int, float]:
        raise NotImplementedError

    def differences(self, other: "Rounds", first: int = 1) -> list[float]:
        """Returns the differences in points after each round that both have, from round `first` on."""
        own, its = self.by_round, other.by_round
        return [own[number] - its[number] for number in own if number in its and number >= first]

    def least(self, other: "Rounds", first: int = 1) -> float:
        return min(self.differences(other, first))

    def most(self, other: "Rounds", first: int = 1) -> float:
        return max(self.differences(other, first))

    def below(self, other: "Rounds", first: int = 1) -> str:
        """Returns the number of rounds in which this is less than the other."""
        return str(sum(difference < 0 for difference in self.differences(other, first)))


@dataclass(frozen=True)
class Series(Rounds):
    """A method or a baseline in a table: its records under one setting."""

    name: str
    records: list[Record]

    def __call__(self, number: int, figure: str = "accuracy") -> float:
        """Returns the mean over seeds after a round: a number of images, or percent."""
        values = [getattr(record, figure) for record in self.records if record.round == number]
        if not values or None in values:
            raise SystemExit(f"{self.name} has no {figure} after round {number}.")
        return mean(values) * (1 if figure in COUNTS else 100)

    @property
    def by_round(self) -> Mapping[int, float]:
        return {number: self(number) for number in sorted({record.round for record in self.records})}

    @property
    def best(self) -> "Series":
        """The same with the accuracy of the best epoch, chosen on the test set, in place of the last one."""
        found = [replace(r, accuracy=r.best_accuracy) for r in self.records if r.best_accuracy is not None]
        return Series(f"{self.name}, best epoch", found)

    @property
    def curve(self) -> Curve:
        return curve(self.records, self.records[0].method, "accuracy")

    def against(self, rival: "Series", num_rounds: int | None = None) -> Comparison:
        ours, its = self.curve, rival.curve
        if rival.records[0].round == 0:
            its = constant(rival.records, rival.records[0].method, "accuracy", ours.labels_spent)
        return compare(ours, [its], num_rounds)[0]

    def lead(self, rival: "Series", num_rounds: int | None = None) -> str:
        """Returns the difference of the means over rounds, paired by seed."""
        return self.against(rival, num_rounds).points

    def interval(self, rival: "Series", num_rounds: int | None = None) -> str:
        """Returns the 95 % interval of `lead`."""
        return self.against(rival, num_rounds).interval

    def saved(self, rival: "Series") -> str:
        """Returns the labels saved against the rival alone."""
        found = compare_labels(self.curve, [rival.curve])
        return found[0].share if found else "none"

    def reach(self, percent: float) -> str:
        """Returns the labels after which the mean curve has this accuracy."""
        return needed_text(labels_to_reach(percent / 100, self.curve))

    @property
    def seeds(self) -> float:
        return len({record.seed for record in self.records})

    @property
    def commit(self) -> str:
        return " and ".join(sorted({record.commit or "not recorded" for record in self.records}))


@dataclass(frozen=True)
class PaperSeries(Rounds):
    """A curve of the paper."""

    name: str
    accuracy: Mapping[int, float]

    def __call__(self, number: int) -> float:
        return self.accuracy[number]

    @property
    def by_round(self) -> Mapping[int, float]:
        return self.accuracy


def fill_figures(text: str, folder: Path) -> str:
    """Returns the page with all figures in its sentences updated."""
    names = {match[1]: read_series(match[2], folder) for match in re.finditer(r"<!-- let (\w+) = (.*?) -->", text)}

    def fill(match: re.Match[str]) -> str:
        expression, _, style = (part.strip() for part in match[1].partition(";"))
        return f"<!--={match[1]}-->{evaluate(expression, names, style or '.1f')}<!--/-->"

    return re.sub(r"<!--=(.*?)-->.*?<!--/-->", fill, text, flags=re.DOTALL)


def evaluate(expression: str, names: Mapping[str, Series | PaperSeries], style: str) -> str:
    """Returns the value of an expression as text."""
    value = _value(ast.parse(expression, mode="eval").body, names)
    return value if isinstance(value, str) else f"{round(value, 9) + 0:{style}}"


def _value(node: ast.expr, names: Mapping[str, Series | PaperSeries]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            if name not in names:
                raise SystemExit(f"The page does not say what {name} is. Add <!-- let {name} = FILE.csv; … -->.")
            return names[name]
        case ast.BinOp(left=left, op=op, right=right):
            return OPERATORS[type(op)](_value(left, names), _value(right, names))
        case ast.Call(func=function, args=arguments):
            return _value(function, names)(*(_value(argument, names) for argument in arguments))
        case ast.Attribute(value=value, attr=attribute) if not attribute.startswith("_"):
            return getattr(_value(value, names), attribute)
        case _:
            raise SystemExit(f"Figures have no {type(node).__name__}: {ast.unparse(node)}")


def read_series(asked: str, folder: Path) -> Series | PaperSeries:
    """Returns the series that `FILE.csv; column=value; …` selects, or `paper; …`."""
    file, *wishes = [part.strip() for part in asked.split(";")]
    wish = {part.partition("=")[0]: part.partition("=")[2] for part in wishes}
    if file == "paper":
        return read_paper_series(wish, folder)
    unknown = set(wish) - set(COLUMNS)
    if unknown or "method" not in wish:
        raise SystemExit(f"{asked}: give method= and columns, not {sorted(unknown)}.")
    records, _ = collect(folder / name for name in file.split("+"))
    own = [r for r in records if all(str(getattr(r, name)) == value for name, value in wish.items())]
    settings = {(r.validation_size, r.imbalance, r.start, r.restart) for r in own}
    if len(settings) != 1:
        raise SystemExit(f"{asked} has {len(settings)} settings: {sorted(settings)}. Select one.")
    rounds, baselines = split_baselines(own)
    return Series(wish["method"], complete(rounds) or baselines)


def read_paper_series(wish: dict[str, str], folder: Path) -> PaperSeries:
    """Returns a curve of the paper, in percent, from the pretrained start."""
    with (folder / "paper_curves.csv").open(newline="", encoding="utf-8") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row["dataset"] == PAPER_SETS[wish["paper"]]
            and row["imbalance"] == wish["imbalance"]
            and PAPER_NAMES.get(f"{row['method']} {row['param']}".strip()) == wish["method"]
        ]
    if not rows:
        raise SystemExit(f"The paper has no curve of {wish}.")
    return PaperSeries(wish["method"], {int(row["round"]): float(row["accuracy"]) for row in rows})
