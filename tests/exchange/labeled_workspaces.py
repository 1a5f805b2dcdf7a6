"""A workspace with answers of two people, for tests, and what a store holds, to compare."""

from pathlib import Path

from rarefish.data.file_listing import list_pool, list_trusted
from rarefish.workspace.answers import answer
from rarefish.workspace.indexing import index
from rarefish.workspace.store import Store, create_store
from tests.workspaces import draw, make_workspace


def make_labeled(folder: Path, picks: int = 8) -> Store:
    """Ann answers most of the picks, Bob some: one none, one unsure, one skip, one disagreement."""
    store = make_workspace(folder, pool=12, trusted=2, picks=picks)
    images = asked(store)
    for place, image in enumerate(images[: picks - 3]):
        answer(store, image, "ann", "class", place % 3, f"ann {image}")
    answer(store, images[0], "bob", "class", 0, "bob agrees")
    answer(store, images[1], "bob", "class", 2, "bob differs")
    answer(store, images[-3], "bob", "none", None, "bob none")
    answer(store, images[-2], "bob", "unsure", None, "bob unsure")
    answer(store, images[-1], "bob", "skip", None, "bob skips")
    return store


def asked(store: Store) -> list[int]:
    with store.reading() as connection:
        return [image for (image,) in connection.execute("SELECT image FROM pick ORDER BY round, rank")]


def rows(store: Store) -> list[tuple[object, ...]]:
    """Every label there is."""
    with store.reading() as connection:
        return [tuple(row) for row in connection.execute("SELECT * FROM label ORDER BY id")]


def answers(store: Store) -> set[tuple[object, ...]]:
    """Who said what of which image, but for skips."""
    with store.reading() as connection:
        found = connection.execute("SELECT image, who, answer, class FROM current_answer WHERE answer <> 'skip'")
        return {tuple(row) for row in found}


def make_picked(folder: Path, name: str, classes: list[str]) -> Store:
    """A workspace FOLDER/NAME over the images of FOLDER/pool, all of them selected, with these classes."""
    store = create_store(folder / name, classes)
    index(store, "pool", *list_pool(folder / "pool"), jobs=1, shown=False)
    draw(folder / "trusted.png", 0, 77)
    (folder / "validation.csv").write_text(f"path,label\ntrusted.png,{_quote(classes[0])}\n", encoding="utf-8")
    index(store, "validation", *list_trusted(folder / "validation.csv"), jobs=1, shown=False)
    with store.writing() as connection:
        connection.execute("INSERT INTO round VALUES (1, '', '{}')")
        connection.execute(
            "INSERT INTO pick SELECT id, 1, id, NULL, NULL, 1.0, 0, '[[0, 0.5]]', 1 FROM image "
            "WHERE part = 'pool' AND state = 'ready'"
        )
    return store


def _quote(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'
