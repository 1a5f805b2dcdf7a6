"""What people made of the images: who said what, where they differ, and what counts."""

import json
from collections import Counter, defaultdict

from rarefish.workspace.store import Store


def votes(store: Store) -> dict[int, Counter[int | str]]:
    """For each answered image how many people said what: a class's number, or none, or unsure."""
    found: dict[int, Counter[int | str]] = defaultdict(Counter)
    with store.reading() as connection:
        for image, kind, number in connection.execute(
            "SELECT image, answer, class FROM standing WHERE answer <> 'skip'"
        ):
            found[image][number if kind == "class" else kind] += 1
    return dict(found)


def disagreements(store: Store) -> dict[int, Counter[int | str]]:
    """Images on which people said different things."""
    return {image: said for image, said in votes(store).items() if len(said) > 1}


def opinions(store: Store, images: tuple[int, ...]) -> dict[int, dict[int | str, list[str]]]:
    """Who said what about each of these images: a class's number, or none, or unsure -> people."""
    found: dict[int, dict[int | str, list[str]]] = {image: defaultdict(list) for image in images}
    with store.reading() as connection:
        for image, who, kind, number in connection.execute(
            "SELECT image, who, answer, class FROM standing WHERE answer <> 'skip' "
            "AND image IN (SELECT value FROM json_each(?)) ORDER BY id",
            (json.dumps(images),),
        ):
            found[image][number if kind == "class" else kind].append(who)
    return {image: dict(said) for image, said in found.items()}


def settled(store: Store) -> dict[int, int]:
    """The class of each image on which most people agree; what is none of the classes, or unsure, has none."""
    found = {}
    for image, said in votes(store).items():
        (first, count), *rest = said.most_common()
        if isinstance(first, int) and not any(other == count for _, other in rest):
            found[image] = first
    return found
