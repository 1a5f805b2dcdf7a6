"""A workspace made, looked at and checked."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rarefish.cli.options import closed_at_end, json_option, parse_size, tell, workspace_argument
from rarefish.errors import ArgumentError, DataError
from rarefish.workspace.store import FILE, Store, check_classes, create_store, is_workspace, open_store

if TYPE_CHECKING:
    from rarefish.workspace.indexing import Indexed

import json
from collections.abc import Sequence
from contextlib import ExitStack

from rarefish.cli.options import allow_model, machine_options, trust_option

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
    from rarefish.data.file_listing import list_pool, list_trusted, name_classes
    from rarefish.workspace.answers import ask_people
    from rarefish.workspace.indexing import check_labels, index

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
        from rarefish.workspace.model import build
        from rarefish.workspace.trust import check_trust

        if before and not how["model"]:
            check_trust(before)
        build(settings, len(names))
    store = closed_at_end(create_store(workspace, names))
    if how["model"]:
        from rarefish.workspace.trust import trust_model

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
    from rarefish.workspace.verification import verify

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
    from rarefish.data.image_io import printable
    from rarefish.report.workspace_page import headline, rare_of, write_work_report
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


def course_options(command: Any) -> Any:
    for option in (
        click.option("--epochs", type=click.IntRange(min=1), help="At most. [default: more for fewer labels]"),
        click.option("--lr", type=float, help="Learning rate. [default: 0.001]"),
        click.option("--optimizer", type=click.Choice(["adamw", "sgd"]), help="[default: adamw]"),
        click.option(
            "--patience", type=click.IntRange(min=1), help="Epochs without a gain on validation. [default: a quarter]"
        ),
        click.option("--flips/--no-flips", default=None, help="Mirror images now and then. [default: yes]"),
        click.option("--balanced/--no-balanced", default=None, help="Show all classes equally often. [default: yes]"),
        click.option("--seed", type=click.IntRange(0, 2**62), default=0, show_default=True),
    ):
        command = option(command)
    return command


@click.command()
@workspace_argument
@course_options
@machine_options
@trust_option
@json_option
def train(store: Store, as_json: bool, **how: Any) -> None:
    """Train the workspace's model on all labels so far.

    From the first weights, on the labels that people agree on; the epoch that does best on the validation set is kept.
    A run that was killed goes on where it stopped.

    \b
    Example:
      rarefish train work --epochs 30
    """
    done = run_training(store, how)
    classes, recall = store.classes(), json.loads(done["recall"])
    tell(as_json, {**done, "recall": recall}, training_words(done, classes, recall))


def run_training(store: Store, how: dict[str, Any]) -> dict[str, Any]:
    from rarefish.workspace.actions import course_for, learn

    allow_model(store, how["trust"])
    names = {"flips": "flip"}
    keys = ("epochs", "lr", "optimizer", "patience", "flips", "balanced", "batch_size")
    given = {names.get(key, key): how[key] for key in keys if how.get(key) is not None}
    running = make_running({**how, "batch_size": None})
    return learn(store, course_for(store, given, running), seed=how.get("seed", 0), running=running)


def training_words(done: dict[str, Any], classes: list[str], recall: list[float | None]) -> str:
    known = [(value, name) for value, name in zip(recall, classes, strict=True) if value is not None]
    worst = ", ".join(f"{name} {value:.0%}" for value, name in sorted(known)[:5])
    mean = sum(value for value, _ in known) / max(1, len(known))
    found = f"accuracy {done['accuracy']:.1%}, mean recall {mean:.1%}; least: {worst}"
    lost = json.loads(done["how"]).get("left_out", [])
    without = f", but for {len(lost)} whose image cannot be read, such as {lost[0]}" if lost else ""
    return f"Trained on {done['labels_spent']} labels{without}. On the validation set: {found}."


def make_running(how: dict[str, Any]) -> Any:
    from rarefish.workspace.actions import Running

    kept = {key: how[key] for key in ("device", "workers", "batch_size", "shard") if how.get(key) is not None}
    return Running(**kept)


@click.command()
@workspace_argument
@click.option("--data", type=click.Path(exists=True, path_type=Path), help="Another labeled folder or CSV.")
@machine_options
@trust_option
@json_option
def evaluate(store: Store, data: Path | None, as_json: bool, **how: Any) -> None:
    """Show how well the latest model does, on the validation set or on a test set of your own.

    \b
    Example:
      rarefish evaluate work --data test
    """
    from rarefish.workspace.actions import judge

    allow_model(store, how["trust"])
    score = judge(store, data, make_running(how))
    recall = [None if value != value else round(value, 4) for value in score.recall.tolist()]
    lines = [f"accuracy {score.accuracy:.1%}"]
    lines += [
        f"  {name}: {value:.1%}" for name, value in zip(store.classes(), recall, strict=True) if value is not None
    ]
    tell(
        as_json,
        {"accuracy": score.accuracy, "recall": dict(zip(store.classes(), recall, strict=True))},
        "\n".join(lines),
    )


@click.command()
@workspace_argument
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="[default: a free one]")
@click.option(
    "--allow-remote", is_flag=True, help="Other addresses than this machine's own; the token is the only key."
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with a token to use instead of a random one. [default: the variable RAREFISH_TOKEN]",
)
@click.option(
    "--person", "people", multiple=True, help="A link of its own for each of these people, which proves who labels."
)
@click.option("--name", "names", multiple=True, help="Another name of this machine, of a proxy for instance.")
@click.option("--open", "open_page", is_flag=True, help="Open the page in the browser.")
@json_option
def label(store: Store, open_page: bool, as_json: bool, **how: Any) -> None:
    """Label what the last rounds chose, in the browser, by keyboard. Ends with ctrl+c; every answer is kept at once.

    \b
    Example:
      rarefish label work --open
      rarefish label work --person ann --person bob
    """
    run_page(store, open_page=open_page, as_json=as_json, **how)


def run_page(
    store: Store,
    *,
    open_page: bool,
    as_json: bool = False,
    token_file: Path | None = None,
    people: Sequence[str] = (),
    **how: Any,
) -> None:
    if open_page and len(people) > 1:
        raise ArgumentError(
            f"--open opens one link, and there are {len(people)}. Leave it out, and open them yourself."
        )
    try:
        from rarefish.labeling.redirect import redirect_file
        from rarefish.labeling.server import serve
    except ModuleNotFoundError as error:
        raise ArgumentError("The labeling page needs two packages: pip install 'rarefish[label]'.") from error

    from rarefish.workspace.summary import summarize

    with ExitStack() as until_end:

        def ready(links: dict[str, str]) -> None:
            address = next(iter(links.values()))
            if people:
                tell(as_json, {"links": links}, "\n".join(f"{who}: {link}" for who, link in links.items()))
            else:
                tell(as_json, {"address": address}, address)
            if open_page:
                click.launch(until_end.enter_context(redirect_file(address)).as_uri())

        serve(store, token=read_token(token_file), people=people, on_ready=ready, summary=summarize, **how)


def read_token(file: Path | None) -> str | None:
    """The token from a file, else from the environment: a command line can be read by everybody on the machine."""
    if file is not None:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    return os.environ.get("RAREFISH_TOKEN") or None


@click.command(name="next")
@workspace_argument
@click.option("--budget", type=click.IntRange(min=1), default=100, show_default=True, help="Images of a new round.")
@click.option("--open", "open_page", is_flag=True, help="Where labeling is next: open the page in the browser.")
@machine_options
@trust_option
@json_option
def next_(store: Store, budget: int, open_page: bool, as_json: bool, **how: Any) -> None:
    """Do the obvious next step: select a round, label it, or train on it.

    \b
    Example:
      rarefish next work
    """
    from rarefish.workspace.summary import summarize

    step = next_step(summarize(store))
    if not as_json:
        click.echo(f"Next: {step}.")
    if step == "label":
        if as_json:
            tell(True, {"step": step, "open": summarize(store)["progress"]["open"]}, "")
        else:
            run_page(store, open_page=open_page)
    elif step == "train":
        done = run_training(store, how)
        recall = json.loads(done["recall"])
        tell(as_json, {"step": step, **done}, training_words(done, store.classes(), recall))
    else:
        number = run_selection(store, budget, how)
        tell(as_json, {"step": step, "round": number}, selection_words(store, number))


def select_round(workspace: Path, own: dict[str, Any], options: dict[str, Any]) -> None:
    """`rarefish select WORKSPACE`: what the workspace knows cannot be given once more."""
    twice = [name for name, given in own.items() if given]
    twice += [f"--{name}" for name in ("weights", "strict", "compile") if options[name]]
    if twice:
        raise ArgumentError(f"A workspace has its own; leave out {', '.join(twice)}, or the workspace.")
    store = closed_at_end(open_store(workspace))
    layers = tuple(name.strip() for name in options["layers"].split(",")) if options["layers"] else None
    number = run_selection(store, options["budget"], {**options, "layers": layers})
    if number:
        tell(options["as_json"], {"round": number}, selection_words(store, number))


def run_selection(store: Store, budget: int, how: dict[str, Any]) -> int:
    from rarefish.workspace.actions import choose_round

    allow_model(store, how["trust"])
    kept = {key: how[key] for key in ("labels", "layers") if how.get(key)}
    return choose_round(store, budget, running=make_running(how), **kept)


def selection_words(store: Store, number: int) -> str:
    with store.reading() as connection:
        row = connection.execute("SELECT how FROM round WHERE number = ?", (number,)).fetchone()
        (count,) = connection.execute("SELECT count(*) FROM pick WHERE round = ?", (number,)).fetchone()
    notes = json.loads(row["how"])["notes"]
    return "\n".join([*notes, f"Round {number}: {count} images wait for labels. Next: rarefish label {store.folder}"])
