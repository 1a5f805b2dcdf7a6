"""The commands of a workspace: init, status, next, label, train, evaluate, check and backup."""

import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rarefish.cli.options import (
    MODEL_HELP,
    allow_model,
    closed_at_end,
    json_option,
    machine_options,
    make_running,
    near_copies_option,
    parse_size,
    reject_unused,
    split_names,
    tell,
    trust_option,
    weights_option,
    workspace_argument,
)
from rarefish.cli.select import round_message, select_round
from rarefish.errors import ArgumentError, DataError
from rarefish.workspace.store import FILE, Store, check_classes, create_store, is_workspace, open_store

if TYPE_CHECKING:
    from rarefish.data.file_listing import ListedFile
    from rarefish.workspace.indexing import Indexed

REASONS = {
    "duplicate": "copies of other images",
    "unreadable": "unreadable",
    "trusted": "also in the validation set",
}


@click.command()
@click.argument("workspace", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--pool",
    required=True,
    type=click.Path(exists=True, path_type=Path),
    help="Folder of images, or CSV file with a path column.",
)
@click.option(
    "--validation",
    required=True,
    type=click.Path(exists=True, path_type=Path),
    help="Folder with one subfolder per class, or CSV file with the columns path and label.",
)
@click.option("--classes", help="Comma-separated class names. [default: those of the validation set]")
@click.option("--model", help=f"{MODEL_HELP} [default: efficientnet-lite0 for photographs, if it is installed]")
@weights_option("File with initial weights (.pt or .safetensors).")
@click.option(
    "--start",
    type=click.Choice(["random", "rotation"]),
    help="Initial weights if --weights is not given: random, or pretrained on rotated pool images. [default: random]",
)
@click.option("--size", help="HEIGHTxWIDTH to which images are resized. [default: that of the model]")
@click.option(
    "--mode", type=click.Choice(["RGB", "L"]), help="Color mode: RGB, or L for grayscale. [default: that of the model]"
)
@click.option("--layers", help="Comma-separated layer names. [default: chosen automatically]")
@click.option(
    "--finetune/--no-finetune",
    default=None,
    help="Train the whole network, or only a head on its frozen features. [default: a head if the model is pretrained]",
)
@click.option(
    "--hold-out/--no-hold-out",
    default=None,
    help="Never train a head on the validation images. [default: train on them, and estimate the accuracy out of fold]",
)
@click.option("--people", type=click.IntRange(1, 20), help="Number of people who label each image. [default: 1]")
@click.option(
    "--jobs", type=click.IntRange(min=1), help="Number of processes that read images. [default: one per core]"
)
@json_option
def init(workspace: Path, pool: Path, validation: Path, classes: str | None, as_json: bool, **how: Any) -> None:
    """Create a workspace, or update an existing one.

    A workspace is a folder with an index of the images, the labels and the trained models; the images stay where they
    are. Every image is read once: duplicates, unreadable files and pool images that are also in the validation set are
    left out and reported. On an existing workspace, the command adds new images or changes the model. Files that were
    moved or renamed are recognized by their content and keep their labels.

    \b
    Example:
      rarefish init work --pool images --validation trusted --model resnet18
    """
    from rarefish.data.file_listing import list_pool, list_trusted, name_classes
    from rarefish.workspace.answers import ask_people
    from rarefish.workspace.embeddings import why_network
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
    is_default = not (settings["model"] or settings["weights"] or settings["start"])
    if is_default:
        from rarefish.data.image_files import full_paths
        from rarefish.workspace.model import default_model

        settings.update(model=default_model(full_paths(pool_root, files)))
    check_new_model(settings, how, before, names)
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
    lines = [
        f"{seen.taken:,} validation images of {len(names)} classes, {found.taken:,} pool images: {workspace.resolve()}",
        *left_out_lines("validation set", seen),
        *left_out_lines("pool", found),
        *empty_class_lines(names, trusted),
        *(
            [f"Model: {settings['model']}, pretrained on ImageNet. Use another one with --model."]
            if is_default and settings["model"]
            else []
        ),
        *found_copies(store),
        f"Next: rarefish {'next' if why_network(settings) else 'embed'} {workspace}",
    ]
    result = {"validation": _plain(seen), "pool": _plain(found), "classes": names, "model": settings["model"]}
    tell(as_json, {**result, "workspace": str(workspace.resolve())}, "\n".join(lines))


def check_new_model(settings: dict[str, Any], how: dict[str, Any], before: Store | None, names: Sequence[str]) -> None:
    """Raises an error if the model in these settings cannot be built or would run code that is not trusted."""
    if not settings.get("model"):
        return
    from rarefish.workspace.model import build
    from rarefish.workspace.trust import check_trust

    if before and not how["model"]:
        check_trust(before)
    build(settings, len(names))


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
    settings = {name: value or (before.get(name) if is_same else None) for name, value in given.items()}
    choices = {name: before.get(name) if how[name] is None else how[name] for name in ("finetune", "hold_out")}
    return settings | choices


def found_copies(store: Store) -> list[str]:
    """Returns lines about near-copies among the images that have an embedding."""
    if not (store.folder / "embeddings").is_dir():
        return []  # without importing torch
    from rarefish.workspace.near_copies import copy_lines, find_near_copies

    return copy_lines(find_near_copies(store).groups())


def empty_class_lines(names: Sequence[str], trusted: Sequence["ListedFile"]) -> list[str]:
    """Returns a line with the classes that have no validation images, if there are any."""
    empty = sorted(set(names) - {file.label for file in trusted})
    if not empty:
        return []
    return [f"  rarefish cannot search for classes that have no validation images: {', '.join(empty)}"]


def left_out_lines(part: str, found: "Indexed") -> list[str]:
    """Returns one line for each reason why images were left out."""
    return [
        f"  {count:,} left out of the {part} ({REASONS[state]}), such as {some[0]}"
        for state, (count, some) in found.left_out.items()
    ]


def _plain(found: "Indexed") -> dict[str, Any]:
    left_out = {state: {"count": count, "some": list(some)} for state, (count, some) in found.left_out.items()}
    return {"taken": found.taken, "new": found.new, "left_out": left_out}


@click.command()
@workspace_argument
@json_option
def status(store: Store, as_json: bool) -> None:
    """Show the progress of a workspace.

    Prints the rounds, the labels, the training runs and the next step.

    \b
    Example:
      rarefish status work
    """
    from rarefish.workspace.summary import summarize

    found = summarize(store)
    tell(as_json, found, "\n".join(status_lines(found)))


def status_lines(found: dict[str, Any]) -> list[str]:
    """Returns the output of `rarefish status` for the summary of a workspace."""
    state, lines = found["progress"], []
    for made in found["rounds"]:
        counts = sorted(zip(made["labels_per_class"], found["classes"], strict=True), reverse=True)
        per_class = ", ".join(f"{name} ×{count}" for count, name in counts[:8] if count)
        lines.append(f"round {made['number']}: {made['labeled']} of {made['picks']} labeled ({per_class or 'none'})")
    for done in found["trainings"]:
        balanced = f", mean recall {done['balanced']:.1%}" if done["balanced"] is not None else ""
        scores = f"accuracy {done['accuracy']:.1%}{balanced} {scored_words(done['scored'])}"
        lines.append(f"trained on {count_examples(done['labels_spent'], done['trusted'])}: {scores}")
    people = ", ".join(f"{who} {count}" for who, count in state["by_person"].items())
    lines.append(f"{state['open']} of {state['asked']} images are waiting for labels; answers: {people or 'none yet'}")
    if state["disagreements"]:
        lines.append(f"{state['disagreements']} images were labeled differently by different people")
    if found["outlook"]:
        lines.append(found["outlook"])
    lines.append(f"{found['unlabeled']:,} pool images have not been chosen for labeling yet. Next: {next_step(found)}")
    return lines


def count_examples(num_labels: int, num_trusted: int) -> str:
    """Returns the words for the images from which a model has learned."""
    return f"{num_labels} labels" + (f" and {num_trusted} validation images" if num_trusted else "")


def scored_words(scored: str) -> str:
    """Returns the words for how accuracy and recall were measured."""
    return "on the validation set" + (", out of fold" if scored == "out of fold" else "")


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
    """Copy a workspace: its labels, rounds and trained models.

    TARGET is a new folder. This works at any time, even while people are labeling, and the copy contains every label
    that was saved before the backup started. The copy is verified and is itself a workspace. Images are not copied:
    the workspace refers to the original files.

    \b
    Example:
      rarefish backup work backups/monday
    """
    from rarefish.workspace.backup import back_up

    done = back_up(store, target)
    result = {"path": str(done.folder), "labels": done.labels, "models": done.models, "missing": list(done.missing)}
    lines = [f"Copied {done.labels:,} labels and {done.models} models: {done.folder}"]
    lines += [f"The weights models/{name} are missing and were left out. Train again." for name in done.missing]
    tell(as_json, result, "\n".join(lines))


@click.command()
@workspace_argument
@click.option("--deep", is_flag=True, help="Read every image again and compare its hash.")
@json_option
def check(store: Store, deep: bool, as_json: bool) -> None:
    """Check a workspace for damage.

    Verifies the database, the labels, the models and the images. The exit status is 1 if there are problems.

    \b
    Example:
      rarefish check work --deep
    """
    from rarefish.workspace.verification import verify

    problems = verify(store, deep)
    notes = list[str]()
    with suppress(DataError):  # damaged embeddings are among the problems
        notes += [line.strip() for line in found_copies(store)]
    store.close()
    if store.has_wal():
        notes.append(
            f"Another process has the workspace open, so {FILE}-wal may contain labels that are not in {FILE} yet. A "
            "manual copy must contain both files and the folder models; `rarefish backup` makes a complete copy at any "
            "time."
        )
    tell(as_json, {"problems": problems, "notes": notes}, "\n".join([*(problems or ["No problems found."]), *notes]))
    sys.exit(1 if problems else 0)


def training_options(command: Any) -> Any:
    """Adds the training options: --epochs, --lr, --optimizer, --patience, --flips, --balanced and --seed."""
    for option in (
        click.option(
            "--epochs",
            type=click.IntRange(min=1),
            help="Maximum number of epochs. [default: depends on the number of labels]",
        ),
        click.option("--lr", type=float, help="Learning rate. [default: 0.001]"),
        click.option("--optimizer", type=click.Choice(["adamw", "sgd"]), help="Optimizer. [default: adamw]"),
        click.option(
            "--patience",
            type=click.IntRange(min=1),
            help="Stop after this many epochs without improvement on the validation set. "
            "[default: a quarter of --epochs]",
        ),
        click.option("--flips/--no-flips", default=None, help="Flip images horizontally at random. [default: yes]"),
        click.option("--balanced/--no-balanced", default=None, help="Sample all classes equally often. [default: yes]"),
        click.option("--seed", type=click.IntRange(0, 2**62), default=0, show_default=True, help="Random seed."),
    ):
        command = option(command)
    return command


@click.command()
@workspace_argument
@click.option("--finetune", is_flag=True, help="Train the whole network, even if the model is pretrained.")
@training_options
@machine_options(batch_size="32")
@trust_option
@json_option
def train(store: Store, finetune: bool, as_json: bool, **how: Any) -> None:
    """Train the model of a workspace on all labels so far.

    With a pretrained model, a head is trained on the frozen features of the labeled images and of the validation
    images; its accuracy is estimated out of fold. Otherwise, or with --finetune, the whole network is trained on the
    labeled images only, from its initial weights, and the weights of the epoch that is best on the validation set are
    kept. The majority decides each label. Run the same command again to resume a training run that was killed.

    \b
    Example:
      rarefish train work
      rarefish train work --finetune --epochs 30
    """
    done = run_training(store, how, finetune=finetune)
    classes, recall = store.classes(), json.loads(done["recall"])
    tell(as_json, {**done, "recall": recall}, training_message(done, classes, recall))


TRAINING = ("epochs", "lr", "optimizer", "patience", "flips", "balanced", "batch_size")
"""Options that only apply to the training of a whole network."""


def run_training(store: Store, how: dict[str, Any], *, finetune: bool = False) -> dict[str, Any]:
    """Trains the workspace's model and returns the row of the training run."""
    from rarefish.workspace.active_learning import train_head_model, train_model, training_for
    from rarefish.workspace.embeddings import head_model

    allow_model(store, how["trust"])
    head = None if finetune else head_model(store)
    if head:
        if "epochs" in how:  # `rarefish next` has no such options
            reject_unused(TRAINING, "Only a head is trained. These options need --finetune")
        return train_head_model(store, head, seed=how.get("seed", 0), running=make_running(how))
    names = {"flips": "flip"}
    given = {names.get(key, key): how[key] for key in TRAINING if how.get(key) is not None}
    running = make_running({**how, "batch_size": None})
    return train_model(store, training_for(store, given, running), seed=how.get("seed", 0), running=running)


def training_message(done: dict[str, Any], classes: list[str], recall: list[float | None]) -> str:
    """Returns what was trained and why, the accuracy, the mean recall and the classes with the lowest recall."""
    known = [(value, name) for value, name in zip(recall, classes, strict=True) if value is not None]
    worst = ", ".join(f"{name} {value:.0%}" for value, name in sorted(known)[:5])
    mean = sum(value for value, _ in known) / max(1, len(known))
    scores = f"accuracy {done['accuracy']:.1%}, mean recall {mean:.1%}; lowest: {worst}"
    how = json.loads(done["how"])
    lost = how.get("left_out", [])
    without = f", except {len(lost)} whose images cannot be read, such as {lost[0]}" if lost else ""
    examples = count_examples(done["labels_spent"], how.get("trusted", 0))
    what = f"Trained {how['what']} on {examples}{without}"
    where = scored_words(how["scored"])
    return f"{what}, {how['why']}. {where[0].upper()}{where[1:]}: {scores}."


@click.command()
@workspace_argument
@click.option(
    "--data",
    type=click.Path(exists=True, path_type=Path),
    help="Labeled images to use instead of the validation set, in the same form as for `rarefish init --validation`.",
)
@machine_options(batch_size="256")
@trust_option
@json_option
def evaluate(store: Store, data: Path | None, as_json: bool, **how: Any) -> None:
    """Show the accuracy and recall of the latest model.

    Both are measured on the validation set or, with --data, on your own test set.

    \b
    Example:
      rarefish evaluate work --data test
    """
    from rarefish.workspace.active_learning import evaluate_model

    allow_model(store, how["trust"])
    score = evaluate_model(store, data, make_running(how))
    recall = [None if value != value else round(value, 4) for value in score.recall.tolist()]
    known = [value for value in recall if value is not None]
    mean = sum(known) / len(known) if known else None
    of_fold = ", out of fold" if data is None and not len(score.prediction) else ""
    lines = [f"accuracy {score.accuracy:.1%}" + (f", mean recall {mean:.1%}" if mean is not None else "") + of_fold]
    lines += [
        f"  {name}: {value:.1%}" for name, value in zip(store.classes(), recall, strict=True) if value is not None
    ]
    tell(
        as_json,
        {"accuracy": score.accuracy, "mean_recall": mean, "recall": dict(zip(store.classes(), recall, strict=True))},
        "\n".join(lines),
    )


@click.command()
@workspace_argument
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on. [default: any free port]")
@click.option(
    "--allow-remote",
    is_flag=True,
    help="Allow a --host that other machines can reach. The token is then the only protection of the page.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with a token to use instead of a random one. [default: the environment variable RAREFISH_TOKEN]",
)
@click.option(
    "--person",
    "people",
    multiple=True,
    help="Create a personal link for this annotator, which proves who is labeling. Can be repeated.",
)
@click.option(
    "--name", "names", multiple=True, help="Additional host name to accept, such as that of a proxy. Can be repeated."
)
@click.option("--open", "open_page", is_flag=True, help="Open the page in your browser.")
@json_option
def label(store: Store, open_page: bool, as_json: bool, **how: Any) -> None:
    """Label the chosen images in the browser.

    Starts a server and prints the address of the labeling page. Every answer is saved immediately; stop the server with
    Ctrl+C.

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
    """Serves the labeling page until Ctrl+C is pressed."""
    if open_page and len(people) > 1:
        raise ArgumentError(
            f"--open opens a single link, but there are {len(people)}. Leave out --open and open the links yourself."
        )
    try:
        from rarefish.labeling.redirect import redirect_file
        from rarefish.labeling.server import serve
    except ModuleNotFoundError as error:
        raise ArgumentError("The labeling page needs additional packages: pip install 'rarefish[label]'.") from error

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
    """Returns the token from a file or else from the environment, since any user can read command lines."""
    if file is not None:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    return os.environ.get("RAREFISH_TOKEN") or None


@click.command(name="next")
@workspace_argument
@click.option(
    "--budget", type=click.IntRange(min=1), default=100, show_default=True, help="Number of images in a new round."
)
@click.option("--open", "open_page", is_flag=True, help="If the next step is to label, open the page in your browser.")
@near_copies_option
@machine_options(batch_size="32 for training, otherwise 256")
@trust_option
@json_option
def next_(store: Store, budget: int, open_page: bool, as_json: bool, **how: Any) -> None:
    """Run the next step: select, label or train.

    Selects a new round of images, starts the labeling page, or trains the model on the labels.

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
