"""Rounds and trainings written into a workspace, whole or not at all."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rarefish.errors import WorkspaceError
from rarefish.workspace.store import Store, now


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
    with store.reading() as connection:
        row = connection.execute("SELECT * FROM training ORDER BY id DESC LIMIT 1").fetchone()
    return dict(row) if row else None
