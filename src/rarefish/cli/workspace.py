"""The commands of a workspace: init, status, next, label, train, evaluate, check and backup."""

import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rarefish.cli.options import (
    allow_model,
    closed_at_end,
    json_option,
    machine_options,
    make_running,
    parse_size,
    split_names,
    tell,
    trust_option,
    workspace_argument,
)
from rarefish.cli.select import round_message, select_round
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
    help="A folder with one folder per class, or a CSV (path, label).",
)
@click.option("--classes", help="Class names separated by commas. [default: those of the validation set]")
@click.option("--model", help="lenet, resnet18 …, FILE.py:FUNCTION, module:function, timm:…, torchvision:…")
@click.option("--weights", type=click.Path(exists=True, dir_okay=False, path_type=Path), help=".pt or .safetensors.")
@click.option(
    "--start",
    type=click.Choice(["random", "rotation"]),
    help="Initial weights, without --weights: random, or pretrained on rotated pool images. [default: random]",
)
@click.option("--size", help="HEIGHTxWIDTH that images are resized to. [default: the model's]")
@click.option("--mode", type=click.Choice(["RGB", "L"]), help="Color or grayscale. [default: the model's]")
@click.option("--layers", help="Layer names separated by commas. [default: chosen automatically]")
@click.option("--people", type=click.IntRange(1, 20), help="Number of people who label each image. [default: 1]")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes that read images. [default: one per core]")
@json_option
def init(workspace: Path, pool: Path, validation: Path, classes: str | None, as_json: bool, **how: Any) -> None:
    """Create a workspace: index the images, name the classes and the model.

    Every image is read once: copies, unreadable files and images that are also in the validation set are left out and
    reported. On an existing workspace, the same command adds new images or changes the model. Files that were moved or
    renamed are recognized by their content and keep their labels. Images stay where they are.

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
    names = list(split_names(classes)) if classes else known
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
    lines = [
        f"{seen.taken:,} validation images of {len(names)} classes, {found.taken:,} pool images: {workspace.resolve()}",
        *left_out_lines("validation", seen),
        *left_out_lines("pool", found),
        *(
            [f"  Classes without a validation image, for which rarefish cannot search: {', '.join(empty)}"]
            if empty
            else []
        ),
        f"Next: rarefish next {workspace}",
    ]
    result = {
        "validation": _plain(seen),
        "pool": _plain(found),
        "classes": names,
        "workspace": str(workspace.resolve()),
    }
    tell(as_json, result, "\n".join(lines))


def new_settings(before: dict[str, Any], how: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings to store: those given now and, for the same model, those stored before."""
    address = how["model"]
    if address and address.partition(":")[0].endswith(".py"):
        file, _, function = address.rpartition(":")
        address = f"{Path(file).resolve()}:{function}"
    given: dict[str, Any] = {"model": address, "mode": how["mode"], "start": how["start"]}
    given["size"] = list(parse_size(how["size"])) if how["size"] else None
    given["layers"] = list(split_names(how["layers"])) if how["layers"] else None
    given["weights"] = str(how["weights"].resolve()) if how["weights"] else None
    is_same = not address or address == before.get("model")
    return {name: value or (before.get(name) if is_same else None) for name, value in given.items()}


def left_out_lines(part: str, found: "Indexed") -> list[str]:
    """Returns one line per reason for which images were left out."""
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
    """Show the progress of a workspace: rounds, labels, trainings and the next step.

    \b
    Example:
      rarefish status work
    """
    from rarefish.workspace.summary import summarize

    found = summarize(store)
    tell(as_json, found, "\n".join(status_lines(found)))


def status_lines(found: dict[str, Any]) -> list[str]:
    """Returns the text of `rarefish status` for the summary of a workspace."""
    state, lines = found["progress"], []
    for made in found["rounds"]:
        counts = sorted(zip(made["bought"], found["classes"], strict=True), reverse=True)
        per_class = ", ".join(f"{name} ×{count}" for count, name in counts[:8] if count)
        lines.append(f"round {made['number']}: {made['labeled']} of {made['picks']} labeled ({per_class or 'none'})")
    for done in found["trainings"]:
        balanced = f", mean recall {done['balanced']:.1%}" if done["balanced"] is not None else ""
        lines.append(f"trained on {done['labels_spent']} labels: accuracy {done['accuracy']:.1%}{balanced}")
    people = ", ".join(f"{who} {count}" for who, count in state["by_person"].items())
    lines.append(f"{state['open']} of {state['asked']} images wait for labels; answers: {people or 'none yet'}")
    if state["split"]:
        lines.append(f"{state['split']} images have different labels from different people")
    if found["outlook"]:
        lines.append(found["outlook"])
    lines.append(f"{found['unlabeled']:,} pool images were never chosen for labeling. Next: {next_step(found)}")
    return lines


def next_step(found: dict[str, Any]) -> str:
    """Returns the next step for a workspace: select, label or train."""
    if found["progress"]["open"]:
        return "label"
    return "train" if found["progress"]["settled"] and not found["is_trained"] else "select"


@click.command()
@workspace_argument
@click.argument("target", type=click.Path(path_type=Path))
@json_option
def backup(store: Store, target: Path, as_json: bool) -> None:
    """Copy a workspace to a new folder: all labels, rounds and trained models.

    Works at any time, also while people are labeling, and contains every label that was saved before it started. The
    copy is verified and is itself a workspace. Images are not copied: the workspace refers to the original files.

    \b
    Example:
      rarefish backup work backups/monday
    """
    from rarefish.workspace.backup import back_up

    done = back_up(store, target)
    result = {"path": str(done.folder), "labels": done.labels, "models": done.models, "missing": list(done.missing)}
    lines = [f"{done.labels:,} labels and {done.models} models: {done.folder}"]
    lines += [f"The weights models/{name} are missing and were left out; train again." for name in done.missing]
    tell(as_json, result, "\n".join(lines))


@click.command()
@workspace_argument
@click.option("--deep", is_flag=True, help="Read every image again and compare its hash.")
@json_option
def check(store: Store, deep: bool, as_json: bool) -> None:
    """Verify a workspace: the database, the labels, the models and the images. Exit status 1 if there are problems.

    \b
    Example:
      rarefish check work --deep
    """
    from rarefish.workspace.verification import verify

    problems, notes = verify(store, deep), list[str]()
    store.close()
    if store.has_wal():
        notes.append(
            f"Another process has the workspace open: {FILE}-wal may hold labels that {FILE} lacks. A manual copy "
            "must contain both files and the folder models; `rarefish backup` makes a complete copy at any time."
        )
    tell(as_json, {"wrong": problems, "notes": notes}, "\n".join([*(problems or ["All is well."]), *notes]))
    sys.exit(1 if problems else 0)


def training_options(command: Any) -> Any:
    """Adds the options of a training: --epochs, --lr, --optimizer, --patience, --flips, --balanced and --seed."""
    for option in (
        click.option(
            "--epochs", type=click.IntRange(min=1), help="Maximum number of epochs. [default: more for fewer labels]"
        ),
        click.option("--lr", type=float, help="Learning rate. [default: 0.001]"),
        click.option("--optimizer", type=click.Choice(["adamw", "sgd"]), help="[default: adamw]"),
        click.option(
            "--patience",
            type=click.IntRange(min=1),
            help="Epochs without improvement on the validation set before stopping. [default: a quarter of --epochs]",
        ),
        click.option("--flips/--no-flips", default=None, help="Flip images horizontally at random. [default: yes]"),
        click.option("--balanced/--no-balanced", default=None, help="Sample all classes equally often. [default: yes]"),
        click.option("--seed", type=click.IntRange(0, 2**62), default=0, show_default=True, help="Random seed."),
    ):
        command = option(command)
    return command


@click.command()
@workspace_argument
@training_options
@machine_options
@trust_option
@json_option
def train(store: Store, as_json: bool, **how: Any) -> None:
    """Train the workspace's model on all labels so far.

    Starts from the initial weights and uses the labels that people agree on; keeps the weights of the epoch that is
    best on the validation set. The same command resumes a run that was killed.

    \b
    Example:
      rarefish train work --epochs 30
    """
    done = run_training(store, how)
    classes, recall = store.classes(), json.loads(done["recall"])
    tell(as_json, {**done, "recall": recall}, training_message(done, classes, recall))


def run_training(store: Store, how: dict[str, Any]) -> dict[str, Any]:
    """Trains the workspace's model and returns the row of the training."""
    from rarefish.workspace.actions import course_for, learn

    allow_model(store, how["trust"])
    names = {"flips": "flip"}
    keys = ("epochs", "lr", "optimizer", "patience", "flips", "balanced", "batch_size")
    given = {names.get(key, key): how[key] for key in keys if how.get(key) is not None}
    running = make_running({**how, "batch_size": None})
    return learn(store, course_for(store, given, running), seed=how.get("seed", 0), running=running)


def training_message(done: dict[str, Any], classes: list[str], recall: list[float | None]) -> str:
    """Returns a sentence with the accuracy, the mean recall and the classes with the lowest recall."""
    known = [(value, name) for value, name in zip(recall, classes, strict=True) if value is not None]
    worst = ", ".join(f"{name} {value:.0%}" for value, name in sorted(known)[:5])
    mean = sum(value for value, _ in known) / max(1, len(known))
    scores = f"accuracy {done['accuracy']:.1%}, mean recall {mean:.1%}; lowest: {worst}"
    lost = json.loads(done["how"]).get("left_out", [])
    without = f", except {len(lost)} whose image cannot be read, such as {lost[0]}" if lost else ""
    return f"Trained on {done['labels_spent']} labels{without}. On the validation set: {scores}."


@click.command()
@workspace_argument
@click.option(
    "--data",
    type=click.Path(exists=True, path_type=Path),
    help="Another labeled folder or CSV. [default: the validation set]",
)
@machine_options
@trust_option
@json_option
def evaluate(store: Store, data: Path | None, as_json: bool, **how: Any) -> None:
    """Show the accuracy and recall of the latest model, on the validation set or on your own test set.

    \b
    Example:
      rarefish evaluate work --data test
    """
    from rarefish.workspace.actions import evaluate_model

    allow_model(store, how["trust"])
    score = evaluate_model(store, data, make_running(how))
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
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on. [default: any free port]")
@click.option(
    "--allow-remote",
    is_flag=True,
    help="Allow an address that other machines can reach; only the token protects the page.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with a token to use instead of a random one. [default: the variable RAREFISH_TOKEN]",
)
@click.option(
    "--person",
    "people",
    multiple=True,
    help="Create a personal link that identifies this person's labels. Can be repeated.",
)
@click.option(
    "--name", "names", multiple=True, help="Another host name to accept, such as that of a proxy. Can be repeated."
)
@click.option("--open", "open_page", is_flag=True, help="Open the page in the browser.")
@json_option
def label(store: Store, open_page: bool, as_json: bool, **how: Any) -> None:
    """Label the chosen images in the browser, by keyboard. Stop with ctrl+c; every answer is saved immediately.

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
    """Serves the labeling page until ctrl+c."""
    if open_page and len(people) > 1:
        raise ArgumentError(
            f"--open opens a single link, but there are {len(people)}. Leave out --open and open the links yourself."
        )
    try:
        from rarefish.labeling.redirect import redirect_file
        from rarefish.labeling.server import serve
    except ModuleNotFoundError as error:
        raise ArgumentError("The labeling page needs more packages: pip install 'rarefish[label]'.") from error

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
    """Returns the token from a file or else the environment: every user of the machine can read a command line."""
    if file is not None:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    return os.environ.get("RAREFISH_TOKEN") or None


@click.command(name="next")
@workspace_argument
@click.option("--budget", type=click.IntRange(min=1), default=100, show_default=True, help="Images in a new round.")
@click.option("--open", "open_page", is_flag=True, help="If the next step is labeling: open the page in the browser.")
@machine_options
@trust_option
@json_option
def next_(store: Store, budget: int, open_page: bool, as_json: bool, **how: Any) -> None:
    """Do the next step: select a round, label it, or train on it.

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
        tell(as_json, {"step": step, **done}, training_message(done, store.classes(), recall))
    else:
        number = select_round(store, budget, how)
        tell(as_json, {"step": step, "round": number}, round_message(store, number))
