"""Workspaces with awkward names, and what a dashboard shows of them."""

from pathlib import Path
from typing import Any

from rarefish.data.file_listing import list_pool, list_trusted
from rarefish.workspace.indexing import index
from rarefish.workspace.store import Store, create_store
from tests.workspaces import CLASSES, add_round, make_images

EVIL = ("<img src=x onerror=alert(1)>", "<script>alert(2)</script>", '"><svg onload=alert(3)>', "a'b\"c &amp; {{7*7}}")


def make_many(folder: Path, count: int = 1000, picks: int = 6) -> Store:
    """A workspace with many classes, some of which would be markup if anybody let them."""
    names = [*CLASSES, *EVIL, *(f"kind {number:04d}" for number in range(count - len(CLASSES) - len(EVIL)))]
    make_images(folder, pool=picks)
    store = create_store(folder / "work", names[:count])
    index(store, "validation", *list_trusted(folder / "validation"), jobs=1, shown=False)
    index(store, "pool", *list_pool(folder / "pool"), jobs=1, shown=False)
    add_round(store, picks)
    return store


def make_summary(classes: list[str], trainings: int = 3) -> dict[str, Any]:
    """As `rarefish.workspace.summary` makes it."""
    count = len(classes)
    recalls = [[(number * 37 % 100) / 200 + 0.15 * at for number in range(count)] for at in range(trainings)]
    return {
        "classes": classes,
        "trainings": [
            {"round": at, "labels_spent": 100 * at, "accuracy": 0.5 + 0.1 * at, "recall": [*recall[:-1], None]}
            | {"made_at": "2026-11-16T06:00:00+00:00"}
            for at, recall in enumerate(recalls)
        ],
        "counts": [10] * count,
        "rounds": [{"number": 1, "picks": 100, "labeled": 90, "labels_per_class": [at % 7 for at in range(count)]}],
        "outlook": "The next 100 labels should add 2 points.",
        "mix": {"validation": [1 / count] * count, "pool": [2 * number / count**2 for number in range(count)]},
        "progress": {"asked": 100, "open": 10, "own": 0, "by_person": {"Ann": 50, EVIL[0]: 40}, "disagreements": 4},
        "unlabeled": 12345,
    }
