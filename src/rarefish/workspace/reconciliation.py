"""Match the rows of the index with the files after files were moved, copied, edited or removed."""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rarefish.data.file_listing import show
from rarefish.errors import DataError

IN_VALIDATION = "the same image is in the validation set"
GONE = "no longer exists"


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a file: its hash, size and image dimensions."""

    hash: str
    """Empty if the file cannot be read."""
    bytes: int
    modified: int
    width: int = 0
    height: int = 0
    problem: str = ""
    """Why it cannot be used as an image."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file found in the folder."""

    path: bytes
    number: int | None
    """The class, for validation images."""
    content: Content


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the `image` table."""

    id: int | None
    """None for a new row."""
    path: bytes
    number: int | None
    content: Content
    state: str
    note: str
    is_kept: bool = False
    """Whether a round refers to the row. Such a row keeps its content and is never removed."""


@dataclass(frozen=True)
class Changes:
    """Changes to the index, in the order in which they must be applied."""

    removed: list[int]
    """Ids of rows that no round refers to and whose path now belongs to another row."""
    changed: list[Row]
    new: list[Row]
    num_fresh: int
    """Number of rows that are new or have new content."""


def reconcile(part: str, rows: Sequence[Row], files: Sequence[FoundFile], trusted: Container[str] = ()) -> Changes:
    """Returns the changes that make the rows agree with the files; reconciling again then changes nothing.

    A row follows its content: to the new path of a moved file, or to a copy if the file was removed. Rows that a round
    refers to are matched first. If the image of such a row no longer exists anywhere in the pool, its path stays
    reserved for it, unless another such image was moved there. Each content is used once. In the pool, it is used only
    if its hash is not in `trusted`, the hashes of the validation set.
    """
    if part == "validation":
        check_classes_agree(files)
    here = {file.path: file for file in files}
    kept, others = [row for row in rows if row.is_kept], [row for row in rows if not row.is_kept]
    owners: dict[bytes, Row] = {}
    lost = _follow_content(owners, kept, here, known=others)
    if part == "pool":
        reserved = {row.path for row in lost if row.path not in owners}
        here = {path: file for path, file in here.items() if path not in reserved}
    loose = _follow_content(owners, others, here)
    edited = {row.path: row for row in loose if row.path in here and row.path not in owners}
    owners |= {path: replace(row, state="") for path, row in edited.items()}
    for path, file in here.items():
        if path not in owners:
            owners[path] = Row(None, path, file.number, file.content, "", "")
    used = _choose_used(owners, here, trusted)
    present = [_present(owner, here[path], used, trusted) for path, owner in owners.items()]
    gone = [row for row in loose if row.path not in owners]
    absent = [*(_lose(row, part, row.path in owners, trusted) for row in lost), *(_mark_gone(row) for row in gone)]
    before = {row.id: row for row in rows}
    return Changes(
        removed=[row.id for row in loose if row.path in owners and row.path not in edited and row.id is not None],
        changed=[row for row in (*present, *absent) if row.id is not None and row != before[row.id]],
        new=[row for row in present if row.id is None],
        num_fresh=sum(row.id is None or row.content.hash != before[row.id].content.hash for row in present),
    )


def check_classes_agree(files: Iterable[FoundFile]) -> None:
    """Raises DataError if the validation set has the same image in two classes."""
    first: dict[str, FoundFile] = {}
    for file in files:
        if file.content.hash and not file.content.problem:
            other = first.setdefault(file.content.hash, file)
            if other.number != file.number:
                raise DataError(
                    f"{show(other.path)} and {show(file.path)} are the same image in two classes. Remove one."
                )


def _follow_content(
    owners: dict[bytes, Row], rows: Sequence[Row], here: Mapping[bytes, FoundFile], known: Sequence[Row] = ()
) -> list[Row]:
    """Assigns to each row the file with its content, preferably at its own path. Returns the rows without a file.

    Files are assigned first if their content does not belong to a row of `known` at the same path.
    """
    loose = []
    for row in rows:
        if row.path not in owners and _is_in_place(row, here):
            owners[row.path] = row
        else:
            loose.append(row)
    wanted = {row.content.hash for row in loose if row.content.hash}
    if not wanted:
        return loose
    later = {row.path for row in known if row.content.hash in wanted and _is_in_place(row, here)}
    spare: dict[str, list[bytes]] = defaultdict(list)
    for path, file in here.items():
        if file.content.hash in wanted and path not in owners:
            spare[file.content.hash].append(path)
    for paths in spare.values():
        paths.sort(key=lambda path: (path in later, path), reverse=True)
    left = []
    for row in sorted(loose, key=lambda row: (row.state != "ready", row.id)):
        paths = spare.get(row.content.hash)
        if paths:
            owners[paths.pop()] = row
        else:
            left.append(row)
    return left


def _is_in_place(row: Row, here: Mapping[bytes, FoundFile]) -> bool:
    file = here.get(row.path)
    return file is not None and bool(row.content.hash) and file.content.hash == row.content.hash


def _choose_used(
    owners: Mapping[bytes, Row], here: Mapping[bytes, FoundFile], trusted: Container[str]
) -> dict[str, bytes]:
    """Returns, for each hash, the path of the copy to use: one that a round refers to, or else the one used before."""
    used: dict[str, bytes] = {}
    for path, owner in owners.items():
        content = here[path].content
        if not _is_usable(owner, content) or content.hash in trusted:
            continue
        other = used.setdefault(content.hash, path)
        if other != path:
            used[content.hash] = min(
                (path, other), key=lambda one: (not owners[one].is_kept, owners[one].state != "ready", one)
            )
    return used


def _is_usable(owner: Row, content: Content) -> bool:
    return owner.is_kept or not content.problem


def _present(owner: Row, file: FoundFile, used: Mapping[str, bytes], trusted: Container[str]) -> Row:
    """Returns the row updated from its file."""
    content = file.content
    state, note = "ready", ""
    if not _is_usable(owner, content):
        state, note = "unreadable", content.problem
    elif content.hash in trusted:
        state, note = "trusted", IN_VALIDATION
    elif used[content.hash] != file.path and not owner.is_kept:
        state, note = "duplicate", f"the same image as {show(used[content.hash])}"
    if owner.is_kept and content.problem:
        content = replace(content, problem="")
    return Row(owner.id, file.path, file.number, content, state, note, owner.is_kept)


def _lose(row: Row, part: str, is_taken: bool, trusted: Container[str]) -> Row:
    """Returns a row that a round refers to and whose image is missing; its path changes if it is taken."""
    path = row.path + b"/replaced-%d" % (row.id or 0) if is_taken else row.path  # no other file can be below a file
    if part == "validation":
        return replace(_mark_gone(row), path=path)
    state, note = ("trusted", IN_VALIDATION) if row.content.hash in trusted else ("ready", "")
    return replace(row, path=path, state=state, note=note)


def _mark_gone(row: Row) -> Row:
    return replace(row, state="unreadable", note=GONE, content=replace(row.content, modified=0, problem=GONE))
