"""Assign images to annotators and record their answers; several people can label at once."""

import json
import sqlite3
import time
from collections import Counter, defaultdict
from dataclasses import dataclass

from rarefish.errors import ArgumentError, LabelError
from rarefish.workspace.store import Store, now


def votes(store: Store) -> dict[int, Counter[int | str]]:
    """Returns, for each image, the number of people per answer: a class number, "none" or "unsure"."""
    found: dict[int, Counter[int | str]] = defaultdict(Counter)
    with store.reading() as connection:
        for image, kind, number in connection.execute(
            "SELECT image, answer, class FROM current_answer WHERE answer <> 'skip'"
        ):
            found[image][number if kind == "class" else kind] += 1
    return dict(found)


def disagreements(store: Store) -> dict[int, Counter[int | str]]:
    """Returns the votes for images that received different answers."""
    return {image: said for image, said in votes(store).items() if len(said) > 1}


def opinions(store: Store, images: tuple[int, ...]) -> dict[int, dict[int | str, list[str]]]:
    """Returns, for each of these images, its answers and the names of the people who gave them."""
    found: dict[int, dict[int | str, list[str]]] = {image: defaultdict(list) for image in images}
    with store.reading() as connection:
        for image, who, kind, number in connection.execute(
            "SELECT image, who, answer, class FROM current_answer WHERE answer <> 'skip' "
            "AND image IN (SELECT value FROM json_each(?)) ORDER BY id",
            (json.dumps(images),),
        ):
            found[image][number if kind == "class" else kind].append(who)
    return {image: dict(said) for image, said in found.items()}


def settled(store: Store) -> dict[int, int]:
    """Returns the class of every image whose most frequent answer is a class and is not tied."""
    found = {}
    for image, said in votes(store).items():
        (first, count), *rest = said.most_common()
        if isinstance(first, int) and not any(other == count for _, other in rest):
            found[image] = first
    return found


ANSWERS = ("class", "none", "unsure", "skip")
LEASE_S = 600.0
"""Seconds for which an image that was assigned to one person is not assigned to others."""
LONGEST_NAME = 64


@dataclass(frozen=True)
class Task:
    """An image to label, and why it was selected."""

    image: int
    round: int
    rank: int
    similarity: float
    center: int | None
    """The validation failure it was matched to."""
    center_class: int | None
    """The class of the center."""
    center_guess: int | None
    """The class that the model predicted for the center."""
    guess: int | None
    probabilities: tuple[tuple[int, float], ...]
    """The most likely classes and their probabilities, as predicted by the model."""


@dataclass(frozen=True)
class Progress:
    """How many images were picked, how many are still open, and who answered how many."""

    asked: int
    open: int
    own: int
    """Number of images answered by the person who requests the progress."""
    by_person: dict[str, int]
    disagreements: int
    """Number of images on which people disagree."""


def take(store: Store, who: str, count: int = 1, held: tuple[int, ...] = ()) -> list[Task]:
    """Leases the next images to this person, and renews the leases of `held`, the images that the page already has.

    Skipped images come back when nothing else is left.
    """
    check_name(who)
    with store.writing() as connection:
        moment = time.time()
        _renew(connection, who, held, moment)
        given = {"who": who, "needed": _needed(connection)}
        found: list[sqlite3.Row] = []
        for again in (0, 1):  # skipped images come in the second pass
            shut = json.dumps([*held, *(row["image"] for row in found)])
            more = {"again": again, "shut": shut, "count": count - len(found)}
            found += connection.execute(OPEN, given | more).fetchall()
        _lease(connection, who, [row["image"] for row in found], moment)
    return [_to_task(row) for row in found]


def renew(store: Store, who: str, held: tuple[int, ...]) -> tuple[int, ...]:
    """Renews the leases of the images that this person may still answer, and returns those images.

    If the lease of an image has expired, the image may have been assigned to someone else.
    """
    check_name(who)
    with store.writing() as connection:
        return _renew(connection, who, held, time.time())


def tasks(store: Store, images: tuple[int, ...]) -> list[Task]:
    """Returns the tasks for these images, answered or not, except for images that no round has picked."""
    with store.reading() as connection:
        rows = connection.execute(f"{TASK} WHERE pick.image IN (SELECT value FROM json_each(?))", (json.dumps(images),))
        return [_to_task(row) for row in rows]


TASK = "SELECT pick.*, center.class AS center_class FROM pick LEFT JOIN image AS center ON center.id = pick.center"

OPEN = f"""
{TASK}
WHERE is_open
  AND NOT EXISTS (SELECT 1 FROM current_answer WHERE current_answer.image = pick.image AND current_answer.who = :who
                  AND (NOT :again OR current_answer.answer <> 'skip'))
  AND (SELECT count(*) FROM lease WHERE lease.image = pick.image AND lease.who <> :who)
    + (SELECT count(*) FROM current_answer AS own WHERE own.image = pick.image AND own.answer <> 'skip') < :needed
  AND pick.image NOT IN (SELECT value FROM json_each(:shut))
ORDER BY pick.round, rank LIMIT :count
"""


def answer(
    store: Store, image: int, who: str, kind: str, number: int | None, ticket: str, seconds: float | None = None
) -> int:
    """Records an answer and returns the id of the label. Repeating a ticket returns the same label."""
    with store.writing() as connection:
        return record(connection, image, who, kind, number, ticket, seconds)


def record(
    connection: sqlite3.Connection,
    image: int,
    who: str,
    kind: str,
    number: int | None,
    ticket: str,
    seconds: float | None = None,
    made_at: str | None = None,
) -> int:
    """Records an answer like `answer`, but in the caller's transaction; `made_at` is the time of an older answer."""
    check_name(who)
    if kind not in ANSWERS:
        raise LabelError(f"An answer must be one of {', '.join(ANSWERS)}, not {kind!r}.")
    if (kind == "class") != (number is not None):
        raise LabelError("Give a class number with the answer 'class' and with no other answer.")
    known = find_ticket(connection, ticket)
    if known:
        if (known["image"], known["who"], known["answer"], known["class"]) != (image, who, kind, number):
            raise LabelError("This ticket belongs to another answer. Send each answer with a separate ticket.")
        return known["id"]
    pick = connection.execute("SELECT round FROM pick WHERE image = ?", (image,)).fetchone()
    if pick is None:
        raise LabelError(f"No round has picked image {image}. Only picked images can be labeled.")
    if number is not None and not connection.execute("SELECT 1 FROM class WHERE number = ?", (number,)).fetchone():
        raise LabelError(f"There is no class {number}.")
    if (
        kind == "skip"
        and connection.execute(
            "SELECT 1 FROM current_answer WHERE image = ? AND who = ? AND answer <> 'skip'", (image, who)
        ).fetchone()
    ):
        raise LabelError(
            f"You have already answered image {image}; a skip would discard that answer. Undo it, or answer again."
        )
    done = connection.execute(
        "INSERT INTO label (image, round, who, made_at, answer, class, seconds, ticket) VALUES (?,?,?,?,?,?,?,?)",
        (image, pick["round"], who, made_at or now(), kind, number, seconds, ticket),
    )
    connection.execute("DELETE FROM lease WHERE image = ? AND who = ?", (image, who))
    refresh(connection, image)
    assert done.lastrowid is not None
    return done.lastrowid


def undo(store: Store, who: str, ticket: str) -> Task | None:
    """Undoes this person's last answer and returns its task, or None if there is nothing to undo."""
    check_name(who)
    with store.writing() as connection:
        known = find_ticket(connection, ticket)
        if known and (known["who"], known["answer"]) != (who, "undo"):
            raise LabelError("This ticket belongs to an answer. Send each undo with a separate ticket.")
        query = "SELECT * FROM current_answer WHERE who = ? ORDER BY id DESC LIMIT 1"
        last = connection.execute(query, (who,)).fetchone()
        if known is None and last is None:
            return None
        if known is None:
            connection.execute(
                "INSERT INTO label (image, round, who, made_at, answer, undoes, ticket) VALUES (?,?,?,?,'undo',?,?)",
                (last["image"], last["round"], who, now(), last["id"], ticket),
            )
            refresh(connection, last["image"])
        image = (known or last)["image"]
        _lease(connection, who, [image], time.time())
        row = connection.execute(f"{TASK} WHERE pick.image = ?", (image,)).fetchone()
    return _to_task(row)


def current_answers(connection: sqlite3.Connection) -> list[sqlite3.Row]:
    """Returns the current answer of every person to every image, in chronological order."""
    return connection.execute("SELECT * FROM current_answer ORDER BY id").fetchall()


def current_answer(connection: sqlite3.Connection, image: int, who: str) -> sqlite3.Row | None:
    """Returns this person's current answer to the image, or None if there is none or it was undone."""
    return connection.execute("SELECT * FROM current_answer WHERE image = ? AND who = ?", (image, who)).fetchone()


def last_label(connection: sqlite3.Connection, image: int, who: str) -> sqlite3.Row | None:
    """Returns the last row among this person's answers and undos for the image."""
    query = "SELECT * FROM label WHERE image = ? AND who = ? ORDER BY id DESC"
    return connection.execute(query, (image, who)).fetchone()


def find_label(connection: sqlite3.Connection, label: int) -> sqlite3.Row:
    """Returns the row of the label with this id."""
    return connection.execute("SELECT * FROM label WHERE id = ?", (label,)).fetchone()


def find_ticket(connection: sqlite3.Connection, ticket: str) -> sqlite3.Row | None:
    """Returns the row that was recorded with this ticket, or None."""
    return connection.execute("SELECT * FROM label WHERE ticket = ?", (ticket,)).fetchone()


def progress(store: Store, who: str = "") -> Progress:
    """Returns how many images are answered and still open, in total and per person."""
    with store.reading() as connection:
        asked, still = connection.execute("SELECT count(*), coalesce(sum(is_open), 0) FROM pick").fetchone()
        query = "SELECT who, count(*) FROM current_answer WHERE answer <> 'skip' GROUP BY who"
        people = dict(connection.execute(query).fetchall())
    return Progress(asked, still, people.get(who, 0), people, len(disagreements(store)))


def ask_people(store: Store, number: int) -> None:
    """Sets how many people must answer each image and updates which images are open."""
    with store.writing() as connection:
        connection.execute("INSERT OR REPLACE INTO setting VALUES ('people_per_image', ?)", (json.dumps(number),))
        connection.execute("UPDATE pick SET is_open = " + IS_OPEN, (number,))


def refresh(connection: sqlite3.Connection, image: int) -> None:
    """Updates whether an image needs more answers."""
    connection.execute("UPDATE pick SET is_open = " + IS_OPEN + " WHERE image = ?", (_needed(connection), image))


IS_OPEN = "((SELECT count(*) FROM current_answer AS own WHERE own.image = pick.image AND own.answer <> 'skip') < ?)"


def check_name(who: str) -> None:
    """Raises ArgumentError if the name is not valid for a person."""
    if not who.strip() or len(who) > LONGEST_NAME or not who.isprintable():
        raise ArgumentError(f"A name must have 1 to {LONGEST_NAME} printable characters, not {who[:80]!r}.")


def _renew(connection: sqlite3.Connection, who: str, held: tuple[int, ...], moment: float) -> tuple[int, ...]:
    """Renews leases, except for images that the person has answered in the meantime.

    A lease that would last longer than LEASE_S was made while the clock was ahead, so it ends now.
    """
    connection.execute("DELETE FROM lease WHERE until < ? OR until > ?", (moment, moment + LEASE_S))
    given = {"who": who, "needed": _needed(connection), "again": 1, "shut": "[]", "count": -1}
    query = OPEN.replace("WHERE is_open", "WHERE is_open AND pick.image IN (SELECT value FROM json_each(:held))")
    kept = [row["image"] for row in connection.execute(query, given | {"held": json.dumps(held)})]
    _lease(connection, who, kept, moment)
    return tuple(kept)


def _lease(connection: sqlite3.Connection, who: str, images: list[int], moment: float) -> None:
    rows = [(image, who, moment + LEASE_S) for image in images]
    connection.executemany("INSERT OR REPLACE INTO lease VALUES (?, ?, ?)", rows)


def _needed(connection: sqlite3.Connection) -> int:
    row = connection.execute("SELECT value FROM setting WHERE name = 'people_per_image'").fetchone()
    return json.loads(row["value"]) if row else 1


def _to_task(row: sqlite3.Row) -> Task:
    probabilities = tuple((int(number), float(value)) for number, value in json.loads(row["probabilities"]))
    values = {
        name: row[name]
        for name in ("image", "round", "rank", "similarity", "center", "center_class", "center_guess", "guess")
    }
    return Task(**values, probabilities=probabilities)
