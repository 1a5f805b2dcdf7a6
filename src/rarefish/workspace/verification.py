"""Check a workspace for damage: the database, the consistency of labels, the weights and the image files."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from rarefish.errors import DataError
from rarefish.workspace.answers import IS_OPEN
from rarefish.workspace.indexed_files import has_changed
from rarefish.workspace.indexing import show
from rarefish.workspace.round_history import damage_of_weights, recorded_weights
from rarefish.workspace.store import Store

FEW = 5


def verify(store: Store, deep: bool = False) -> list[str]:
    """Returns one sentence per problem; with `deep`, reads every image again and compares its hash."""
    return [*_file(store), *_labels(store), *_models(store), *_embeddings(store), *_images(store, deep)]


def _file(store: Store) -> Iterator[str]:
    with store.reading() as connection:
        for (word,) in connection.execute("PRAGMA integrity_check").fetchall():
            if word != "ok":
                yield f"The database is damaged: {word}."
        for table, row, other, _ in connection.execute("PRAGMA foreign_key_check").fetchall():
            yield f"Row {row} of {table} refers to a missing row of {other}."


LABELS: dict[str, str] = {
    "{} images are marked as open or done, but their labels indicate the opposite.": (
        "SELECT image FROM pick WHERE is_open <> " + IS_OPEN.replace("?", ":needed")
    ),
    "{} labels are on images that no round has picked.": (
        "SELECT image FROM label WHERE image NOT IN (SELECT image FROM pick)"
    ),
    "{} labels undo an answer by someone else or on another image.": (
        "SELECT one.id FROM label AS one JOIN label AS other ON other.id = one.undoes "
        "WHERE one.who <> other.who OR one.image <> other.image OR other.answer = 'undo'"
    ),
    "{} picked images are not in the pool.": (
        "SELECT pick.image FROM pick JOIN image ON image.id = pick.image "
        "WHERE part <> 'pool' OR state NOT IN ('ready', 'trusted')"
    ),
    "{} rounds have gaps in their ranks.": (
        "SELECT round FROM pick GROUP BY round HAVING max(rank) + 1 <> count(*) OR min(rank) <> 0"
    ),
}
"""Problems and the queries that find them; every query must return nothing."""


def _labels(store: Store) -> Iterator[str]:
    needed = store.settings().get("people_per_image", 1)
    with store.reading() as connection:
        for sentence, query in LABELS.items():
            given = {"needed": needed} if ":needed" in query else {}
            found = connection.execute(query, given).fetchall()
            if found:
                yield sentence.format(len(found))


def _models(store: Store) -> Iterator[str]:
    with store.reading() as connection:
        for (name,) in connection.execute("SELECT weights FROM training").fetchall():
            if not (store.folder / "models" / name).is_file():
                yield f"The weights models/{name} are missing. Train again."
    yield from filter(None, (damage_of_weights(store, name) for name in recorded_weights(store)))


def _embeddings(store: Store) -> Iterator[str]:
    files = sorted((store.folder / "embeddings").glob("*.safetensors"))
    if not files:
        return  # without importing torch
    from rarefish.embedding.embedding_file import Finished

    for file in files:
        try:
            Finished.read(file)
        except DataError as error:
            yield f"{error} Run: rarefish embed {store.folder} --again"


def _images(store: Store, deep: bool) -> Iterator[str]:
    changed, gone = [], []
    settings = store.settings()
    for part in ("validation", "pool"):
        if f"{part}_root" not in settings:
            continue
        root = os.fsencode(settings[f"{part}_root"])
        with store.reading() as connection:
            rows = connection.execute("SELECT * FROM image WHERE part = ? AND state = 'ready'", (part,)).fetchall()
        for row in rows:
            path = Path(os.fsdecode(os.path.join(root, row["path"])))
            if not path.is_file():
                gone.append(row["path"])
            elif has_changed(path, row["bytes"], row["modified"], row["hash"], deep):
                changed.append(row["path"])
    kinds: tuple[tuple[str, list[bytes], Callable[[bytes], str]], ...] = (
        ("{} images are missing, such as {}.", gone, show),
        ("{} images have changed since they were indexed, such as {}. They are left out.", changed, show),
    )
    for sentence, found, name in kinds:
        if found:
            yield sentence.format(len(found), ", ".join(name(path) for path in found[:FEW]))
