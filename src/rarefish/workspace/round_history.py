"""Record rounds, training runs and weight files in a workspace, and read them back."""

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any

from rarefish.errors import WorkspaceError
from rarefish.workspace.store import Store, now

WEIGHTS = "weights of models/"
"""Prefix of the settings that contain the size and hash of a weight file."""
MODEL_SETTINGS = ("model", "weights", "start", "size", "mode")


@dataclass(frozen=True)
class Chosen:
    """A selected image, to be recorded in a round."""

    image: int
    center: int | None
    center_guess: int | None
    """The class that the model predicted for the center."""
    similarity: float
    guess: int
    probabilities: tuple[tuple[int, float], ...]


def add_round(store: Store, picks: Sequence[Chosen], how: dict[str, Any]) -> int:
    """Records a round and returns its number; raises WorkspaceError if one of its images was picked before."""
    with store.writing() as connection:
        (number,) = connection.execute("SELECT coalesce(max(number), 0) + 1 FROM round").fetchone()
        taken = {row["image"] for row in connection.execute("SELECT image FROM pick")}
        if any(pick.image in taken for pick in picks):
            raise WorkspaceError("Another process has recorded a round in the meantime. Select again.")
        connection.execute("INSERT INTO round VALUES (?, ?, ?)", (number, now(), json.dumps(how)))
        connection.executemany(
            "INSERT INTO pick VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1)",
            [
                (p.image, number, rank, p.center, p.center_guess, p.similarity, p.guess, json.dumps(p.probabilities))
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
    """Records a training run; its weights become the latest model of the workspace."""
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


def read_round(store: Store, number: int) -> tuple[dict[str, Any], int]:
    """Returns how the images of a round were chosen, and how many there are."""
    with store.reading() as connection:
        row = connection.execute("SELECT how FROM round WHERE number = ?", (number,)).fetchone()
        (count,) = connection.execute("SELECT count(*) FROM pick WHERE round = ?", (number,)).fetchone()
    return json.loads(row["how"]), count


def read_picks(connection: sqlite3.Connection, *, only_answered: bool = False) -> list[sqlite3.Row]:
    """Returns every pick with the file of its image and the class of its center, ordered by round and rank."""
    return connection.execute(
        "SELECT pick.*, image.path, image.hash, image.bytes AS num_bytes, image.modified, image.width, image.height, "
        "center.class AS center_class FROM pick JOIN image ON image.id = pick.image "
        "LEFT JOIN image AS center ON center.id = pick.center "
        "WHERE NOT ? OR EXISTS (SELECT 1 FROM current_answer WHERE current_answer.image = pick.image) "
        "ORDER BY pick.round, pick.rank",
        (only_answered,),
    ).fetchall()


def picks_and_centers(store: Store, number: int) -> list[sqlite3.Row]:
    """Returns the picks of a round by rank, with the path of each and the path and class of its center."""
    with store.reading() as connection:
        return connection.execute(
            "SELECT pick.image AS id, own.path AS path, center.path AS center_path, center.class AS center_class "
            "FROM pick JOIN image AS own ON own.id = pick.image JOIN image AS center ON center.id = pick.center "
            "WHERE pick.round = ? ORDER BY rank",
            (number,),
        ).fetchall()


def next_training(store: Store) -> int:
    """Returns the number that the next training run will have."""
    with store.reading() as connection:
        (number,) = connection.execute("SELECT coalesce(max(id), 0) + 1 FROM training").fetchone()
    return number


def picked_images(store: Store) -> list[int]:
    """Returns the ids of all images that a round has picked."""
    with store.reading() as connection:
        return [image for (image,) in connection.execute("SELECT image FROM pick")]


def keep_weights(store: Store, name: str, write: Callable[[Path], object], *, replace: bool = True) -> None:
    """Writes a weight file and records its size and hash; keeps an existing file unless `replace` is set."""
    path = store.folder / "models" / name
    with store.writing() as connection:  # makes a second process wait
        if replace or not path.exists():
            write(path)
            known = json.dumps({"bytes": path.stat().st_size, "hash": hash_file(path)})
            connection.execute("INSERT OR REPLACE INTO setting VALUES (?, ?)", (WEIGHTS + name, known))


def damage_of_weights(store: Store, name: str) -> str | None:
    """Returns a sentence about the damage to a weight file, if any; files without a recorded hash are not checked."""
    path, known = store.folder / "models" / name, store.settings().get(WEIGHTS + name)
    if known is None or not path.is_file():
        return None
    size = path.stat().st_size
    if size != known["bytes"]:
        why = f"has {size:,} of {known['bytes']:,} bytes"
    elif hash_file(path) != known["hash"]:
        why = "does not have the content that was written"
    else:
        return None
    return f"The weights models/{name} are damaged: the file {why}. Restore the file, or remove it and train again."


def check_weights(store: Store, name: str) -> None:
    """Raises WorkspaceError if a weight file is damaged."""
    damage = damage_of_weights(store, name)
    if damage:
        raise WorkspaceError(damage)


def recorded_weights(store: Store) -> list[str]:
    """Returns the names of all weight files with a recorded size and hash."""
    return [name.removeprefix(WEIGHTS) for name in store.settings() if name.startswith(WEIGHTS)]


def hash_file(path: Path) -> str:
    """Returns the BLAKE2 hash of a file's content."""
    with path.open("rb") as file:
        return file_digest(file, lambda: blake2b(digest_size=16)).hexdigest()


def latest_training(store: Store) -> dict[str, Any] | None:
    """Returns the last training run of the workspace's current model, or None if it has not been trained."""
    own = model_key(store.settings())
    with store.reading() as connection:
        rows = connection.execute("SELECT * FROM training ORDER BY id DESC").fetchall()
    return next((dict(row) for row in rows if json.loads(row["how"]).get("model", own) == own), None)


def read_how(training: Mapping[str, Any] | sqlite3.Row) -> dict[str, Any]:
    """Returns how a training was done, from its row."""
    return json.loads(training["how"])


def model_key(settings: dict[str, Any]) -> str:
    """Returns a key that identifies a model by its address, initial weights and input."""
    return json.dumps({name: settings.get(name) for name in MODEL_SETTINGS})


def labels_key(labels: dict[int, int]) -> str:
    """Returns a hash of the labels, which changes if a label is added or corrected."""
    return blake2b(repr(sorted(labels.items())).encode(), digest_size=8).hexdigest()
