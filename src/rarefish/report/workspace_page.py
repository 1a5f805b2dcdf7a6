"""The report on a workspace: one HTML file with the progress so far and the reason for each chosen image."""

import base64
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from rarefish.active_learning.stopping import failing_classes
from rarefish.data.image_io import open_picture
from rarefish.errors import DataError, WorkspaceError
from rarefish.io import write_whole
from rarefish.report.charts import STYLE, to_svg
from rarefish.report.templates import load_template
from rarefish.workspace.answers import settled
from rarefish.workspace.round_history import picks_and_centers
from rarefish.workspace.store import Store
from rarefish.workspace.summary import summarize

SHOWN = 24
"""Number of images shown per round."""
EDGE = 96
BARS = 30
"""Maximum number of classes in a chart; if there are more, those that changed most are shown."""
RARE = 0.5
"""A class is rare if its fraction in the pool is below this multiple of its fraction in the validation set."""
BLUE, ORANGE, GREY = "#0072b2", "#d08a00", "#8a8a8a"


@dataclass(frozen=True)
class Shown:
    """A labeled image and the validation failure that it was matched to."""

    picture: str
    center_picture: str
    label: str
    center_label: str
    is_rare: bool


def write_work_report(store: Store, folder: Path, command: str) -> Path:
    """Writes report.html into the folder and returns its path."""
    found = summarize(store)
    if not found["trainings"]:
        raise WorkspaceError(
            f"There is nothing to report before the first training run. Next: rarefish next {store.folder}"
        )
    name, rare = rare_of(found)
    page = load_template("work.html").render(
        found=found,
        sentence=headline(found, name, rare),
        name=name,
        rare=[found["classes"][c] for c in rare],
        curves=to_svg(draw_progress(found, name, rare)),
        recall=to_svg(draw_change(found)),
        mix=to_svg(draw_mix(found)) if found["mix"]["pool"] else "",
        rounds=[(made, picked(store, made["number"], rare)) for made in found["rounds"] if made["labeled"]],
        command=command,
        is_out_of_fold=bool(out_of_fold(found)),
        top=lambda made: most_frequent(made, found["classes"]),
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.html"
    write_whole(path, page)
    return path


def most_frequent(made: dict[str, Any], classes: list[str], count: int = 6) -> list[tuple[int, str]]:
    """Returns the counts and names of the most frequent labels of a round."""
    counts = sorted(zip(made["labels_per_class"], classes, strict=True), reverse=True)
    return [pair for pair in counts[:count] if pair[0]]


def rare_of(found: dict[str, Any]) -> tuple[str, list[int]]:
    """Returns the classes to highlight and their name: rare in the pool or, if there are none, failing at first."""
    mix = found["mix"]
    if mix["pool"]:
        rare = [c for c, (v, p) in enumerate(zip(mix["validation"], mix["pool"], strict=True)) if p < v * RARE]
        if rare:
            return "classes rare in the pool", rare
    first = [np.nan if r is None else r for r in found["trainings"][0]["recall"]]
    return "classes that failed most at first", failing_classes(first)


def mean_recall(training: dict[str, Any], classes: list[int]) -> float:
    known = [training["recall"][c] for c in classes if training["recall"][c] is not None]
    return sum(known) / len(known) if known else float("nan")


def headline(found: dict[str, Any], name: str, rare: list[int]) -> str:
    first, last = found["trainings"][0], found["trainings"][-1]
    spent = f"{first['labels_spent']} to {last['labels_spent']} labels"
    if len(found["trainings"]) == 1 or not rare:
        return (
            f"After {last['labels_spent']} labels, the model gets {last['accuracy']:.0%} of the validation set right"
            f"{out_of_fold(found)}."
        )
    before, after = mean_recall(first, rare), mean_recall(last, rare)
    moved = "rose" if after > before else "stayed" if after == before else "fell"
    return (
        f"From {spent}, recall on the {name} {moved} from {before:.0%} to {after:.0%}; accuracy "
        f"on the validation set went from {first['accuracy']:.0%} to {last['accuracy']:.0%}{out_of_fold(found)}."
    )


def out_of_fold(found: dict[str, Any]) -> str:
    """Returns the words for scores that were measured out of fold, or nothing."""
    return ", out of fold" if found["trainings"][-1]["scored"] == "out of fold" else ""


def draw_progress(found: dict[str, Any], name: str, rare: list[int]) -> Figure:
    """Draws accuracy, mean recall and recall of the highlighted classes against the number of labels."""
    spent = [training["labels_spent"] for training in found["trainings"]]
    lines = (
        (name, ORANGE, "-", [mean_recall(t, rare) for t in found["trainings"]]),
        ("mean recall of all classes", BLUE, "-", [t["balanced"] for t in found["trainings"]]),
        ("accuracy", GREY, ":", [t["accuracy"] for t in found["trainings"]]),
    )
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.6), layout="constrained")
        axes = figure.subplots()
        for what, color, style, values in lines:
            axes.plot(spent, values, style, color=color, marker="o", label=what)
        axes.set(ylim=(0, 1.02), xlabel="labels", ylabel=f"on the validation set{out_of_fold(found)}")
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.legend(frameon=False, loc="lower right")
    return figure


def draw_change(found: dict[str, Any]) -> Figure:
    """Draws the recall of each class after the first and the last training run."""
    first, last = found["trainings"][0]["recall"], found["trainings"][-1]["recall"]
    rows = [
        (name, a, b)
        for name, a, b in zip(found["classes"], first, last, strict=True)
        if a is not None and b is not None
    ]
    rows = sorted(sorted(rows, key=lambda row: -abs(row[2] - row[1]))[:BARS], key=lambda row: row[2])
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 0.8 + 0.28 * len(rows)), layout="constrained")
        axes = figure.subplots()
        places = np.arange(len(rows))
        axes.hlines(places, [a for _, a, _ in rows], [b for _, _, b in rows], color="#c8c8c8", linewidth=3)
        axes.plot([a for _, a, _ in rows], places, "o", color=GREY, label="first training run", linestyle="none")
        axes.plot([b for _, _, b in rows], places, "o", color=BLUE, label="last training run", linestyle="none")
        axes.set_yticks(places, [name[:30] for name, _, _ in rows])
        axes.set_xlim(-0.03, 1.03)
        axes.xaxis.set_major_formatter(PercentFormatter(1))
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return figure


def draw_mix(found: dict[str, Any]) -> Figure:
    """Draws the fractions of the classes in the validation set and in the pool."""
    mix = found["mix"]
    low, high = (mix.get(f"pool_{end}") or mix["pool"] for end in ("low", "high"))
    rows = list(zip(found["classes"], mix["validation"], mix["pool"], low, high, strict=True))
    rows = sorted(sorted(rows, key=lambda row: -abs(row[2] - row[1]))[:BARS], key=lambda row: row[2])
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 0.8 + 0.34 * len(rows)), layout="constrained")
        axes = figure.subplots()
        places = np.arange(len(rows))
        axes.barh(places + 0.2, [row[1] for row in rows], 0.36, color=GREY, label="validation")
        errors = [[row[2] - row[3] for row in rows], [row[4] - row[2] for row in rows]]
        axes.barh(places - 0.2, [row[2] for row in rows], 0.36, xerr=errors, color=ORANGE, label="pool (estimated)")
        axes.set_yticks(places, [row[0][:30] for row in rows])
        axes.xaxis.set_major_formatter(PercentFormatter(1))
        axes.legend(frameon=False, loc="lower right")
    return figure


def picked(store: Store, number: int, rare: list[int]) -> list[Shown]:
    """Returns some labeled images of a round, best matches first."""
    classes, labels, settings = store.classes(), settled(store), store.settings()
    rows = [row for row in picks_and_centers(store, number) if row["id"] in labels][:SHOWN]
    pool, trusted = (os.fsencode(settings[f"{part}_root"]) for part in ("pool", "validation"))
    return [
        Shown(
            thumbnail(os.path.join(pool, row["path"])),
            thumbnail(os.path.join(trusted, row["center_path"])),
            classes[labels[row["id"]]],
            classes[row["center_class"]],
            labels[row["id"]] in rare,
        )
        for row in rows
    ]


def thumbnail(path: bytes) -> str:
    """Returns a thumbnail as a data URL, or an empty text if the file can no longer be read."""
    try:
        picture = open_picture(Path(os.fsdecode(path)), "image")
    except (DataError, OSError):
        return ""
    picture.thumbnail((EDGE, EDGE))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
