"""A small run on disk, made by hand."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from rarefish.active_learning.records import Record, write_records
from tests.active_learning.test_records import record

LEVELS = {"random": (0.3, 0.35, 0.4), "varR K128": (0.3, 0.5, 0.7), "fisher density L80": (0.5, 0.7, 0.8)}


def rounds(method: str, seed: int, levels: tuple[float, ...]) -> list[Record]:
    confusion = tuple(tuple(10 if i == j else 1 for j in range(4)) for i in range(4))
    return [
        replace(
            record(method, seed, number, level + 0.01 * seed),
            recall=(1.0, 1.0, level, level),
            confusion=confusion,
            imbalance=100,
            validation_size=400,
            validation_recall=(1.0, 1.0, level, level) if "fisher" in method else (),
            start="pretrained",
            rare_precision=level if "fisher" in method else None,
            pseudo_accuracy=level if "fisher" in method else None,
            passes=1000,
        )
        for number, level in enumerate(levels, 1)
    ]


def make_run(folder: Path) -> Path:
    """Three methods, three seeds, three rounds."""
    (folder / "records").mkdir(parents=True)
    (folder / "snapshots").mkdir()
    for method, levels in LEVELS.items():
        for seed in range(3):
            write_records(rounds(method, seed, levels), folder / "records" / f"{method}-s{seed}.jsonl")
    rng = np.random.default_rng(0)
    truth = np.arange(60) % 4
    features = rng.normal(0, 1, (60, 5)) + truth[:, None]
    np.savez(folder / "snapshots" / "random-s0-r03.npz", features=features, truth=truth, answers=np.roll(truth, 1))
    order = [{"name": name} for name in ("fisher density L80", "random", "varR K128")]
    (folder / "settings.json").write_text(json.dumps({"methods": order, "rare": [2, 3], "dataset": "mnist"}))
    return folder
