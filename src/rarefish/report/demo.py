"""The demo: run its recipe on the bundled digits and write a report that works without a network connection."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path

import torch

from rarefish import __version__
from rarefish.active_learning.records import Record, write_records
from rarefish.data.digits import load_digits
from rarefish.data.visualize import to_picture
from rarefish.experiments.recipes import demo_recipe
from rarefish.experiments.runner import Tell, run_experiment
from rarefish.io import write_whole
from rarefish.report.charts import draw_curves, draw_recall, save_figure, to_svg
from rarefish.report.curves import Curve, curve, labels_saved, labels_to_reach, methods_of
from rarefish.report.statistics import compare
from rarefish.report.templates import load_template


@dataclass(frozen=True)
class Outcome:
    """The path of the report and a text about the gain."""

    page: Path
    sentence: str


@dataclass(frozen=True)
class Thumbnail:
    """A chosen image and the validation failure that it was matched to; pictures are data URLs."""

    picture: str
    center_picture: str
    label: int
    """The label from the oracle."""
    center_label: int
    is_rare: bool


def run_demo(output: Path, num_seeds: int, num_rounds: int, tell: Tell = lambda *_: None) -> Outcome:
    """Runs the recipe in the folder and writes report.html, curves.png and records.jsonl there."""
    recipe, splits = demo_recipe(num_seeds, num_rounds), load_digits()
    run_folder = run_experiment(recipe, output, tell=tell)
    records = [record for cell in recipe.cells() for record in run_folder.records(cell)[:num_rounds]]
    baselines = [record for cell in recipe.baseline_cells() for record in run_folder.records(cell)]
    write_records([*baselines, *records], output / "records.jsonl")
    save_figure(draw_curves(records, baselines), output / "curves.png")
    page = demo_page(
        records,
        [thumbnails_of(record) for record in records if record.method == "fisher" and record.seed == 0],
        baselines=baselines,
        rare=splits.rare,
        class_names=[str(c) for c in range(splits.num_classes)],
        pool_size=len(splits.pool),
        command=f"rarefish demo --seeds {num_seeds} --rounds {num_rounds}",
        version=__version__,
    )
    write_whole(output / "report.html", page)
    return Outcome(output / "report.html", gain(records).sentence)


def thumbnails_of(record: Record) -> Sequence[Thumbnail]:
    """Returns the chosen images of a round, each with the validation failure that it was matched to."""
    splits, thumbnails = load_digits(), []
    for index, center, label in zip(record.indices, record.centers, record.new_labels, strict=True):
        center_picture, center_label = splits.validation[center]
        thumbnails.append(
            Thumbnail(
                to_data_address(splits.pool[index][0]),
                to_data_address(center_picture),
                label,
                int(center_label),
                is_rare=label in splits.rare,
            )
        )
    return thumbnails


def to_data_address(image: torch.Tensor) -> str:
    """Returns the image as a data URL to embed in a page."""
    buffer = io.BytesIO()
    to_picture(image).convert("L").save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


@dataclass(frozen=True)
class Gain:
    """The gain of our method over the best other method, computed on mean curves over seeds."""

    ours: Curve
    rivals: tuple[Curve, ...]

    @property
    def best(self) -> Curve:
        return max(self.rivals, key=lambda rival: rival.mean[-1])

    @property
    def sentence(self) -> str:
        """Returns the rare-class recall of all methods, our lead over the best other method, and labels saved."""
        spent = int(self.ours.labels_spent[-1])
        others = " and ".join(f"{rival.mean[-1]:.0%} with {rival.method}" for rival in self.rivals)
        needed = labels_to_reach(float(self.best.mean[-1]), self.ours)
        if needed > spent:
            saving = f"{self.best.method} is better here; {self.ours.method} does not reach its recall"
        else:
            saved = labels_saved(self.ours, self.best)
            saving = (
                f"{self.ours.method} needs {needed:.0f} labels to reach what {self.best.method} reaches with {spent} "
                f"({saved:.0%} saved)"
            )
        own = f"{self.ours.mean[-1]:.0%} with {self.ours.method}"
        return f"Rare-class recall after {spent} labels: {own}, {others}. {self.lead} At equal recall: {saving}."

    @property
    def lead(self) -> str:
        """Returns a sentence with the mean difference from the best other method over all rounds, and its interval."""
        (found,) = compare(self.ours, [self.best])
        side = "ahead of" if found.difference >= 0 else "behind"
        interval = "too few seeds for an interval" if isnan(found.low) else f"95 % interval {found.interval}"
        points = f"{100 * abs(found.difference):.1f} points"
        return f"Mean over rounds: {points} {side} {self.best.method} ({interval})."


def gain(records: Sequence[Record], ours: str = "fisher") -> Gain:
    """Returns the gain in rare-class recall of our method over the others."""
    rivals = (method for method in methods_of(records) if method != ours)
    return Gain(curve(records, ours, "rare_recall"), tuple(curve(records, m, "rare_recall") for m in rivals))


def demo_page(
    records: Sequence[Record],
    thumbnails: Sequence[Sequence[Thumbnail]],
    *,
    baselines: Sequence[Record] = (),
    rare: Sequence[int],
    class_names: Sequence[str],
    pool_size: int,
    command: str,
    version: str,
) -> str:
    """Returns the HTML of the demo's report; `thumbnails` has one list per round."""
    methods, seeds = methods_of(records), sorted({record.seed for record in records})
    return load_template("demo.html").render(
        sentence=gain(records).sentence,
        baselines=[
            (method, *(f"{curve(baselines, method, figure).mean[0]:.0%}" for figure in ("rare_recall", "accuracy")))
            for method in methods_of(baselines)
        ],
        curves=to_svg(draw_curves(records, baselines)),
        recall=to_svg(draw_recall(records, rare, class_names)),
        table=[_table_row(records, method) for method in methods],
        labels_spent=curve(records, methods[0], "accuracy").labels_spent.tolist(),
        rare_counts=[[method, _rare_counts(records, method, rare)] for method in methods],
        thumbnails=thumbnails,
        rare=", ".join(class_names[c] for c in rare),
        num_seeds=len(seeds),
        pool_size=f"{pool_size:,}",
        command=command,
        version=version,
    )


def _table_row(records: Sequence[Record], method: str) -> tuple[str, list[str], list[str]]:
    def cells(figure: str) -> list[str]:
        drawn = curve(records, method, figure)
        return [f"{100 * mean:.1f} ± {100 * std:.1f}" for mean, std in zip(drawn.mean, drawn.std, strict=True)]

    return method, cells("rare_recall"), cells("accuracy")


def _rare_counts(records: Sequence[Record], method: str, rare: Sequence[int]) -> list[str]:
    """Returns the number of rare images labeled in each round, averaged over seeds."""
    rounds = sorted({record.round for record in records})
    own = [[r for r in records if r.method == method and r.round == number] for number in rounds]
    counts = [[sum(label in rare for label in r.new_labels) for r in of_round] for of_round in own]
    return [f"{sum(count) / len(count):.1f}" for count in counts]
