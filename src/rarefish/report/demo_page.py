"""The report of the demo: one HTML file with embedded charts and images, which needs no network."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment

from rarefish.active_learning.records import Record
from rarefish.report.charts import draw_curves, draw_recall, to_svg
from rarefish.report.curves import Curve, curve, labels_saved, labels_to_reach, methods_of


@dataclass(frozen=True)
class Thumbnail:
    """A chosen image and the validation failure that it was matched to; images are data URLs."""

    picture: str
    center_picture: str
    label: int
    """The label from the oracle."""
    pseudo_label: int
    """The pseudo-label with which the image was described."""
    center_label: int
    is_rare: bool


@dataclass(frozen=True)
class Gain:
    """The gain of our method over its best rival, on the mean curves over seeds."""

    ours: Curve
    rivals: tuple[Curve, ...]

    @property
    def best(self) -> Curve:
        return max(self.rivals, key=lambda rival: rival.mean[-1])

    @property
    def sentence(self) -> str:
        """Returns the rare-class recall of all methods, and the labels saved against the best other method."""
        spent = int(self.ours.labels_spent[-1])
        others = " and ".join(f"{rival.mean[-1]:.0%} with {rival.method}" for rival in self.rivals)
        needed = labels_to_reach(float(self.best.mean[-1]), self.ours)
        if needed > spent:
            saving = f"{self.best.method} does better here: {self.ours.method} does not reach its recall"
        else:
            saved = labels_saved(self.ours, self.best)
            saving = (
                f"it takes {needed:.0f} labels to get where {self.best.method} gets with {spent}: {saved:.0%} saved"
            )
        own = f"{self.ours.mean[-1]:.0%} with {self.ours.method}"
        return f"Rare-class recall after {spent} labels: {own}, {others}; {saving}."


def gain(records: Sequence[Record], ours: str = "fisher") -> Gain:
    """Returns the gain in rare-class recall."""
    rivals = (method for method in methods_of(records) if method != ours)
    return Gain(curve(records, ours, "rare_recall"), tuple(curve(records, m, "rare_recall") for m in rivals))


def demo_page(
    records: Sequence[Record],
    thumbnails: Sequence[Sequence[Thumbnail]],
    *,
    rare: Sequence[int],
    class_names: Sequence[str],
    pool_size: int,
    command: str,
    version: str,
) -> str:
    """Returns the HTML of the demo's report; `thumbnails` has one list per round."""
    methods, seeds = methods_of(records), sorted({record.seed for record in records})
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        (files("rarefish.report") / "demo.html").read_text(encoding="utf-8")
    )
    return template.render(
        sentence=gain(records).sentence,
        curves=to_svg(draw_curves(records)),
        recall=to_svg(draw_recall(records, rare, class_names)),
        table=[_table_row(records, method) for method in methods],
        labels_spent=curve(records, methods[0], "accuracy").labels_spent.tolist(),
        bought=[[method, _rare_bought(records, method, rare)] for method in methods],
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


def _rare_bought(records: Sequence[Record], method: str, rare: Sequence[int]) -> list[str]:
    """Returns the number of rare images labeled in each round, mean over seeds."""
    rounds = sorted({record.round for record in records})
    own = [[r for r in records if r.method == method and r.round == number] for number in rounds]
    counts = [[sum(label in rare for label in r.bought) for r in of_round] for of_round in own]
    return [f"{sum(count) / len(count):.1f}" for count in counts]
