"""The turns of a round: label, train, evaluate, and the one that is obviously next."""

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from rarefish.commands.options import (
    allow_model,
    closed_at_end,
    json_option,
    machine_options,
    tell,
    trust_option,
    workspace_argument,
)
from rarefish.commands.setup import next_step
from rarefish.errors import ArgumentError
from rarefish.workspace.store import Store, open_store


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
    from rarefish.work import course_for, learn

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
    from rarefish.work import Running

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
    from rarefish.work import judge

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
    from rarefish.work import choose_round

    allow_model(store, how["trust"])
    kept = {key: how[key] for key in ("labels", "layers") if how.get(key)}
    return choose_round(store, budget, running=make_running(how), **kept)


def selection_words(store: Store, number: int) -> str:
    with store.reading() as connection:
        row = connection.execute("SELECT how FROM round WHERE number = ?", (number,)).fetchone()
        (count,) = connection.execute("SELECT count(*) FROM pick WHERE round = ?", (number,)).fetchone()
    notes = json.loads(row["how"])["notes"]
    return "\n".join([*notes, f"Round {number}: {count} images wait for labels. Next: rarefish label {store.folder}"])
