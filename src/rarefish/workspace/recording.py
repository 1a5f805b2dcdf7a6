"""Rounds and trainings written into a workspace, whole or not at all."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from rarefish.errors import WorkspaceError
from rarefish.workspace.store import Store, now

MODEL_SETTINGS = ("model", "weights", "start", "size", "mode")


@dataclass(frozen=True)
class Chosen:
    """An image that a selection chose."""

    image: int
    center: int | None
    center_guess: int | None
    """What the model took the center for."""
    similarity: float
    guess: int
    chances: tuple[tuple[int, float], ...]


def add_round(store: Store, picks: Sequence[Chosen], how: dict[str, Any]) -> int:
    """The number of a new round with these picks; refused where another process chose one of them meanwhile."""
    with store.writing() as connection:
        (number,) = connection.execute("SELECT coalesce(max(number), 0) + 1 FROM round").fetchone()
        taken = {row["image"] for row in connection.execute("SELECT image FROM pick")}
        if any(pick.image in taken for pick in picks):
            raise WorkspaceError("Another process has made a round meanwhile. Select again.")
        connection.execute("INSERT INTO round VALUES (?, ?, ?)", (number, now(), json.dumps(how)))
        connection.executemany(
            "INSERT INTO pick VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1)",
            [
                (p.image, number, rank, p.center, p.center_guess, p.similarity, p.guess, json.dumps(p.chances))
                for rank, p in enumerate(picks)
            ],
        )
    return number


def add_training(
    store: Store,
    *,
    labels_spent: int,
    weights: str,
    how: dict[str, Any],
    accuracy: float,
    recall: Sequence[float | None],
    counts: Sequence[int],
) -> None:
    """The training becomes the workspace's latest model."""
    with store.writing() as connection:
        (number,) = connection.execute("SELECT coalesce(max(number), 0) FROM round").fetchone()
        columns = "(round, made_at, labels_spent, weights, how, accuracy, recall, counts)"
        connection.execute(
            f"INSERT INTO training {columns} VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(number, now(), labels_spent, weights, json.dumps(how), accuracy),
                *(json.dumps(list(recall)), json.dumps(list(counts))),
            ),
        )


def latest_training(store: Store) -> dict[str, Any] | None:
    """The last training of the model that the workspace has now."""
    own = model_key(store.settings())
    with store.reading() as connection:
        rows = connection.execute("SELECT * FROM training ORDER BY id DESC").fetchall()
    return next((dict(row) for row in rows if json.loads(row["how"]).get("model", own) == own), None)


def model_key(settings: dict[str, Any]) -> str:
    """Tells a model from another: where its address, first weights or input differ, so do its trainings."""
    return json.dumps({name: settings.get(name) for name in MODEL_SETTINGS})


def labels_key(labels: dict[int, int]) -> str:
    """Tells labels from others: a corrected one asks for a training too."""
    return blake2b(repr(sorted(labels.items())).encode(), digest_size=8).hexdigest()
