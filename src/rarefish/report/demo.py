"""The demo: compare three acquisitions on a biased pool of digits, and write a report."""

import base64
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from rarefish import __version__
from rarefish.acquisitions import ACQUISITIONS
from rarefish.active_learning.oracles import known_labels
from rarefish.active_learning.records import Record, write_records
from rarefish.active_learning.rounds import Round, Task, run_rounds
from rarefish.data.digits import load_digits
from rarefish.data.splits import Splits
from rarefish.data.visualize import to_picture
from rarefish.io import write_whole
from rarefish.models.networks import build_model
from rarefish.report.charts import draw_curves, save_figure
from rarefish.report.demo_page import Thumbnail, demo_page, gain
from rarefish.training.loop import Training
from rarefish.training.rotation import PretrainingJob, pretrain_rotation

Digits = Splits[TensorDataset]
METHODS = ("fisher", "entropy", "random")
BUDGET = 40
PRETRAINING = Training(epochs=4, step_size=2)
"""Half of the paper's epochs, to keep the demo short."""

Tell = Callable[[str, int], None]
"""Progress callback: (description, steps done since the last call)."""


@dataclass(frozen=True)
class Outcome:
    """The path of the report, and one sentence about the gain."""

    page: Path
    sentence: str


def num_steps(num_seeds: int, num_rounds: int) -> int:
    """Returns the number of progress steps of `run_demo`."""
    return num_seeds * (PRETRAINING.epochs + len(METHODS) * num_rounds)


def run_demo(output: Path, num_seeds: int, num_rounds: int, tell: Tell = lambda what, steps: None) -> Outcome:
    """Runs all methods with all seeds and writes report.html, curves.png and records.jsonl into the folder."""
    output.mkdir(parents=True, exist_ok=True)
    splits = load_digits()
    records, thumbnails = [], []
    for seed in range(num_seeds):
        start = pretrained_start(splits, seed, lambda _, seed=seed: tell(f"seed {seed}: learning rotations", 1))
        for method in METHODS:
            tell(f"seed {seed}: {method}", 0)
            for each in rounds_of(method, seed, num_rounds, splits, start):
                records.append(to_record(method, seed, each, splits.rare))
                if method == "fisher" and seed == 0:
                    thumbnails.append(to_thumbnails(each, splits))
                tell(f"seed {seed}: {method}", 1)
    write_records(records, output / "records.jsonl")
    save_figure(draw_curves(records), output / "curves.png")
    page = demo_page(
        records,
        thumbnails,
        rare=splits.rare,
        class_names=[str(c) for c in range(splits.num_classes)],
        pool_size=len(splits.pool),
        command=f"rarefish demo --seeds {num_seeds} --rounds {num_rounds}",
        version=__version__,
    )
    write_whole(output / "report.html", page)
    return Outcome(output / "report.html", gain(records).sentence)


def pretrained_start(splits: Digits, seed: int, on_epoch: Callable[[nn.Module], None]) -> nn.Module:
    """Returns a LeNet pretrained on rotations of the pool, from which every round of this seed starts."""
    generator = torch.Generator().manual_seed(seed)
    model = build_model("lenet", splits.num_classes, 1, generator)
    job = PretrainingJob(model, splits.pool.tensors[0], splits.num_classes, generator)
    return pretrain_rotation([job], PRETRAINING, on_epoch=on_epoch)[0]


def rounds_of(method: str, seed: int, num_rounds: int, splits: Digits, start: nn.Module) -> Iterator[Round]:
    task = Task(
        pool=splits.pool,
        validation=splits.validation,
        test=splits.test,
        starts=(start,),
        acquire=ACQUISITIONS[method],
        oracle=known_labels(splits.pool.tensors[1].tolist()),
        budget=BUDGET,
        num_classes=splits.num_classes,
        seed=seed,
    )
    return run_rounds(task, num_rounds)


def to_record(method: str, seed: int, each: Round, rare: tuple[int, ...]) -> Record:
    return Record(
        method=method,
        seed=seed,
        round=each.number,
        labels_spent=each.labels_spent,
        accuracy=each.score.accuracy,
        rare_recall=float(each.score.recall[list(rare)].mean()),
        recall=tuple(each.score.recall.tolist()),
        bought=tuple(label for label in each.answers if label is not None),
        select_s=each.select_s,
        train_s=each.train_s,
    )


def to_thumbnails(each: Round, splits: Digits) -> list[Thumbnail]:
    """Returns the chosen images of a round, each with the validation failure that it was matched to."""
    assert each.choice.why is not None
    thumbnails = []
    for label, (index, _, center, pseudo_label) in zip(each.answers, each.choice.why.rows(), strict=True):
        assert label is not None
        picture, (center_picture, center_label) = splits.pool[index][0], splits.validation[center]
        thumbnails.append(
            Thumbnail(
                to_data_address(picture),
                to_data_address(center_picture),
                label,
                pseudo_label,
                int(center_label),
                is_rare=label in splits.rare,
            )
        )
    return thumbnails


def to_data_address(image: torch.Tensor) -> str:
    """Returns the image as a data URL that can be embedded in a page."""
    buffer = io.BytesIO()
    to_picture(image).convert("L").save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
