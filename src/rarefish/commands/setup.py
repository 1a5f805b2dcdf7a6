"""A workspace made, looked at and checked."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rarefish.commands.options import closed_at_end, json_option, parse_size, tell, workspace_argument
from rarefish.errors import ArgumentError, DataError
from rarefish.workspace.store import FILE, Store, check_classes, create_store, is_workspace, open_store

if TYPE_CHECKING:
    from rarefish.workspace.indexing import Indexed

REASONS = {
    "duplicate": "are copies of others",
    "unreadable": "cannot be read",
    "trusted": "are in the validation set too",
}


@click.command()
@click.argument("workspace", type=click.Path(file_okay=False, path_type=Path))
@click.option("--pool", required=True, type=click.Path(exists=True, path_type=Path), help="A folder, or a CSV (path).")
@click.option(
    "--validation",
    required=True,
    type=click.Path(exists=True, path_type=Path),
    help="A folder with one folder a class, or a CSV (path, label).",
)
@click.option("--classes", help="Names, with commas between. [default: those of the validation set]")
@click.option("--model", help="lenet, resnet18 …, FILE.py:FUNCTION, module:function, timm:…, torchvision:…")
@click.option("--weights", type=click.Path(exists=True, dir_okay=False, path_type=Path), help=".pt or .safetensors.")
@click.option(
    "--start",
    type=click.Choice(["random", "rotation"]),
    help="Without weights: at random, or after learning to tell rotations of pool images. [default: random]",
)
@click.option("--size", help="HEIGHTxWIDTH that images are brought to. [default: the model's]")
@click.option("--mode", type=click.Choice(["RGB", "L"]), help="Colour or gray. [default: the model's]")
@click.option("--layers", help="Names, with commas between. [default: chosen]")
@click.option("--people", type=click.IntRange(1, 20), help="Answers each image needs. [default: 1]")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes that read images. [default: the cores]")
@json_option
def init(workspace: Path, pool: Path, validation: Path, classes: str | None, as_json: bool, **how: Any) -> None:
    """Make a workspace: index the images, name the classes and the model.

    Every image is read once: copies, unreadable files and images that are in the validation set too are left out and
    reported. The same command on a workspace that is there takes in what is new, or changes the model. Files that were
    moved or renamed are recognized by their content and keep their labels. Images stay where they are.

    \b
    Example:
      rarefish init work --pool images --validation trusted --model resnet18
    """
    from rarefish.workspace.answers import ask_people
    from rarefish.workspace.indexing import check_labels, index
    from rarefish.workspace.listing import list_pool, list_trusted, name_classes

    root, trusted = list_trusted(validation)
    pool_root, files = list_pool(pool)
    if not files:
        raise DataError(f"{pool} has no images.")
    before = closed_at_end(open_store(workspace)) if is_workspace(workspace) else None
    known = before.classes() if before else name_classes(validation, trusted)
    names = [name.strip() for name in classes.split(",")] if classes else known
    check_classes(names)
    check_labels(trusted, names)
    settings = new_settings(before.settings() if before else {}, how)
    if settings.get("model"):
        from rarefish.standing import build
        from rarefish.trust import check_trust

        if before and not how["model"]:
            check_trust(before)
        build(settings, len(names))
    store = closed_at_end(create_store(workspace, names))
    if how["model"]:
        from rarefish.trust import trust_model

        trust_model(store, settings["model"], changes=True)
    seen = index(store, "validation", root, trusted, jobs=how["jobs"] or 0)
    found = index(store, "pool", pool_root, files, jobs=how["jobs"] or 0)
    store.set(**settings)
    if how["people"]:
        ask_people(store, how["people"])
    if not (seen.taken and found.taken):
        raise DataError(f"No image of {pool if seen.taken else validation} can be used.")
    empty = sorted(set(names) - {f.label for f in trusted})
    words = [
        f"{seen.taken:,} validation images of {len(names)} classes, {found.taken:,} pool images: {workspace.resolve()}",
        *describe("validation", seen),
        *describe("pool", found),
        *([f"  Classes without a validation image, which cannot be asked for: {', '.join(empty)}"] if empty else []),
        f"Next: rarefish next {workspace}",
    ]
    told = {"validation": _plain(seen), "pool": _plain(found), "classes": names, "workspace": str(workspace.resolve())}
    tell(as_json, told, "\n".join(words))


def new_settings(before: dict[str, Any], how: dict[str, Any]) -> dict[str, Any]:
    """What the store is to keep: what was given and, of the same model, what was there before."""
    address = how["model"]
    if address and address.partition(":")[0].endswith(".py"):
        file, _, function = address.rpartition(":")
        address = f"{Path(file).resolve()}:{function}"
    given: dict[str, Any] = {"model": address, "mode": how["mode"], "start": how["start"]}
    given["size"] = list(parse_size(how["size"])) if how["size"] else None
    given["layers"] = [name.strip() for name in how["layers"].split(",")] if how["layers"] else None
    given["weights"] = str(how["weights"].resolve()) if how["weights"] else None
    is_same = not address or address == before.get("model")
    return {name: value or (before.get(name) if is_same else None) for name, value in given.items()}


def describe(part: str, found: "Indexed") -> list[str]:
    return [
        f"  {count:,} of the {part} {REASONS[state]} and were left out, such as {some[0]}"
        for state, (count, some) in found.left_out.items()
    ]


def _plain(found: "Indexed") -> dict[str, Any]:
    left_out = {state: {"count": count, "some": list(some)} for state, (count, some) in found.left_out.items()}
    return {"taken": found.taken, "new": found.new, "left_out": left_out}


@click.command()
@workspace_argument
@json_option
def status(store: Store, as_json: bool) -> None:
    """Show how far a workspace is: rounds, labels, trainings, what to do next.

    \b
    Example:
      rarefish status work
    """
    from rarefish.workspace.summary import summarize

    found = summarize(store)
    tell(as_json, found, "\n".join(status_lines(found)))


def status_lines(found: dict[str, Any]) -> list[str]:
    state, lines = found["progress"], []
    for made in found["rounds"]:
        bought = sorted(zip(made["bought"], found["classes"], strict=True), reverse=True)
        what = ", ".join(f"{name} ×{count}" for count, name in bought[:8] if count)
        lines.append(f"round {made['number']}: {made['labeled']} of {made['picks']} labeled ({what or 'none'})")
    for done in found["trainings"]:
        balanced = f", mean recall {done['balanced']:.1%}" if done["balanced"] is not None else ""
        lines.append(f"trained on {done['labels_spent']} labels: accuracy {done['accuracy']:.1%}{balanced}")
    people = ", ".join(f"{who} {count}" for who, count in state["by_person"].items())
    lines.append(f"{state['open']} of {state['asked']} images wait for labels; answers: {people or 'none yet'}")
    if state["split"]:
        lines.append(f"{state['split']} images are labeled differently by different people")
    if found["outlook"]:
        lines.append(found["outlook"])
    lines.append(f"{found['unlabeled']:,} pool images were never asked about. Next: {next_step(found)}")
    return lines


def next_step(found: dict[str, Any]) -> str:
    """select, label or train: the obvious one."""
    if found["progress"]["open"]:
        return "label"
    return "train" if found["progress"]["settled"] and not found["is_trained"] else "select"


@click.command()
@workspace_argument
@click.argument("target", type=click.Path(path_type=Path))
@json_option
def backup(store: Store, target: Path, as_json: bool) -> None:
    """Copy a workspace to a new folder: all labels, rounds and trained models.

    Works at any time, also while people are labeling, and has every label that was acknowledged before it started. The
    copy is verified and is a workspace itself. Images are not copied: the workspace refers to them where they are.

    \b
    Example:
      rarefish backup work backups/monday
    """
    from rarefish.workspace.backup import back_up

    done = back_up(store, target)
    told = {"path": str(done.folder), "labels": done.labels, "models": done.models, "missing": list(done.missing)}
    words = [f"{done.labels:,} labels and {done.models} models: {done.folder}"]
    words += [f"The weights models/{name} are gone and were left out; train again." for name in done.missing]
    tell(as_json, told, "\n".join(words))


@click.command()
@workspace_argument
@click.option("--deep", is_flag=True, help="Read every image again and compare its hash.")
@json_option
def check(store: Store, deep: bool, as_json: bool) -> None:
    """Verify a workspace: the file, the labels, the models, the images. Exit status 1 where something is wrong.

    \b
    Example:
      rarefish check work --deep
    """
    from rarefish.workspace.verifying import verify

    wrong, notes = verify(store, deep), list[str]()
    store.close()
    if store.has_wal():
        notes.append(
            f"Another process has the workspace open: {FILE}-wal may hold labels that {FILE} lacks. A copy by hand "
            "must contain both files and the folder models; `rarefish backup` makes a whole one at any time."
        )
    tell(as_json, {"wrong": wrong, "notes": notes}, "\n".join([*(wrong or ["All is well."]), *notes]))
    sys.exit(1 if wrong else 0)


def report_work(folder: Path, output: Path | None, as_json: bool) -> None:
    """`rarefish report WORKSPACE`."""
    from rarefish.opening import printable
    from rarefish.report.work import headline, rare_of, write_work_report
    from rarefish.workspace.summary import summarize

    if output is None and not os.access(folder, os.W_OK):
        raise ArgumentError(
            f"{folder} can only be read, so the report cannot be put there. Name a folder: --output DIR"
        )
    store = closed_at_end(open_store(folder))
    path = write_work_report(store, output or folder / "report", f"rarefish report {printable(str(folder))}")
    found = summarize(store)
    sentence = headline(found, *rare_of(found))
    tell(as_json, {"path": str(path.resolve()), "sentence": sentence}, f"{path.resolve()}\n{sentence}")
