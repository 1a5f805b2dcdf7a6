"""The command line: thin; torch is imported inside the commands that need it."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from rarefish import __version__
from rarefish.cli.exchange import export_, import_, studio
from rarefish.cli.layers import layers
from rarefish.cli.options import json_option, parse_size, tell, trust_option
from rarefish.cli.workspace import backup, check, evaluate, init, label, next_, report_work, select_round, status, train
from rarefish.errors import ArgumentError, RarefishError, printable_lines
from rarefish.workspace.store import is_workspace


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="rarefish")
def cli() -> None:
    """Find the images worth labeling in a large, biased pool.

    \b
    Example:
      rarefish demo --open
      rarefish init work --pool images --validation trusted --model resnet18
      rarefish next work
    """


for command in (init, label, train, evaluate, status, next_, check, backup, export_, import_, studio, layers):
    cli.add_command(command)


@cli.command()
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("rarefish-demo"),
    show_default=True,
    help="Folder for report.html, curves.png and records.jsonl.",
)
@click.option(
    "--seeds", type=click.IntRange(1, 100), default=3, show_default=True, help="Runs, each from another start."
)
@click.option("--rounds", type=click.IntRange(1, 50), default=5, show_default=True, help="Rounds of 40 labels each.")
@click.option("--open", "open_page", is_flag=True, help="Open the report in the browser.")
def demo(output: Path, seeds: int, rounds: int, open_page: bool) -> None:
    """Show the gain on handwritten digits that come with the package.

    The pool has 6,000 common digits 0-4 and 60 rare ones 5-9. Three methods buy the same number of labels; a report
    shows how well a small network does on all ten digits with each. Takes about a minute on two cores.

    \b
    Example:
      rarefish demo --seeds 1 --open
    """
    if not all(find_spec(package) for package in ("matplotlib", "jinja2")):
        raise ArgumentError("The demo draws charts: pip install 'rarefish[report]'.")
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from rarefish.report.demo import num_steps, run_demo

    columns = (
        TextColumn("{task.description:<32}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting", total=num_steps(seeds, rounds))

        def tell(what: str, steps: int) -> None:
            if not console.is_terminal and not steps:
                console.print(what, highlight=False)
            progress.update(task, description=what, advance=steps)

        outcome = run_demo(output, seeds, rounds, tell)
    click.echo(printable_lines(f"{outcome.sentence}\nThe report: {outcome.page.resolve()}"))
    if open_page:
        click.launch(outcome.page.resolve().as_uri())


@cli.command()
@click.argument("workspace", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("--model", "address", help="FILE.py:FUNCTION, module:function, timm:…, or lenet, resnet10, resnet18.")
@click.option("--weights", type=click.Path(exists=True, dir_okay=False, path_type=Path), help=".pt or .safetensors.")
@click.option("--pool", type=click.Path(path_type=Path), help="A folder, a CSV (path) or Parquet files.")
@click.option(
    "--validation",
    type=click.Path(exists=True, path_type=Path),
    help="A folder with one folder a class, or a CSV (path, label).",
)
@click.option("--budget", required=True, type=click.IntRange(min=1), help="How many images to choose.")
@click.option("--size", default="224x224", show_default=True, help="Height and width that images are brought to.")
@click.option("--mode", default="RGB", show_default=True, help="RGB, or L for gray.")
@click.option("--layers", help="Names, with commas between. [default: chosen]")
@click.option("--labels", default="posterior", show_default=True, help="How pool images are labeled for selection.")
@click.option("--batch-size", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--workers", type=click.IntRange(min=0), default=2, show_default=True, help="Processes that decode.")
@click.option("--compile/--no-compile", default=None, help="torch.compile. [default: on a GPU, where it pays]")
@click.option("--shard", type=click.IntRange(min=1), default=20_000, show_default=True, help="Images kept at a time.")
@click.option("--device", default="auto", show_default=True, help="In a workspace: cpu, cuda, or auto.")
@trust_option
@json_option
@click.option("--strict", is_flag=True, help="Stop at an image that cannot be read, instead of leaving it out.")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), default=Path("picks"), show_default=True)
def select(
    workspace: Path | None,
    address: str | None,
    pool: Path | None,
    validation: Path | None,
    size: str,
    output: Path,
    **options: Any,
) -> None:
    """Choose the pool images worth labeling: a new round of a workspace, or with a model and folders of your own.

    In a workspace the images wait for `rarefish label`. Else picks.csv and picks.png are written, with the validation
    image that called for each. The same command goes on after a kill. Under torchrun the pool is shared out.

    \b
    Example:
      rarefish select work --budget 100
      rarefish select --model net.py:make --weights net.pt --pool images --validation trusted --budget 100
      torchrun --nproc-per-node 8 -m rarefish select --model net.py:make …
    """
    if workspace:
        select_round(workspace, {"--model": address, "--pool": pool, "--validation": validation}, options)
        return
    if not (address and pool and validation):
        raise ArgumentError("Name a workspace, or give --model, --pool and --validation.")
    from rarefish.cli.select import choose

    del options["as_json"], options["device"], options["trust"]
    choose(address, pool, validation, parse_size(size), output, **options)


@cli.command()
@click.argument("recipe", metavar="FILE.py:FUNCTION")
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), help="Folder of the run. [default: runs/FUNCTION]"
)
@click.option("--seeds", type=click.IntRange(min=1), help="Other than the recipe says.")
@click.option("--rounds", type=click.IntRange(min=1), help="Other than the recipe says.")
@click.option("--methods", help="Only these, by name, with commas between.")
@click.option("--device", default="auto", show_default=True, help="cpu, cuda, or auto: cuda where there is one.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes on a CPU. [default: its cores]")
@click.option("--together", is_flag=True, help="Under torchrun: all processes work on one cell after another.")
def experiment(
    recipe: str, output: Path | None, methods: str | None, device: str, jobs: int | None, together: bool, **other: Any
) -> None:
    """Run an experiment, or go on with one that was stopped.

    A recipe is a function that returns an Experiment: methods × seeds × biases × validation sizes. Every finished round
    is kept; the same command goes on where a run was killed, and adds what it lacks. Under torchrun the cells are
    shared out; with --together one cell at a time is, for models and pools too large for one process.

    \b
    Example:
      rarefish experiment recipes/mnist.py:imbalanced --seeds 3 --methods random,entropy
      torchrun --nproc-per-node 8 -m rarefish experiment recipes/mnist.py:imbalanced
    """
    from rarefish.experiments.recipes import load_recipe

    settings = load_recipe(recipe)
    changes = {name: value for name, value in other.items() if value}
    chosen = tuple(name.strip() for name in methods.split(",")) if methods else ()
    settings = settings.only(chosen, **changes)
    folder = output or Path("runs") / recipe.rpartition(":")[2]

    from rarefish.distributed import torchrun as distributed
    from rarefish.experiments.runner import run_experiment
    from rarefish.progress import rounds_bar

    own = distributed.join()
    try:
        is_first = distributed.rank() == 0
        with rounds_bar(settings.name, shown=is_first) as tell:
            how = {"device": str(own) if device == "auto" else device, "jobs": jobs or 0, "together": together}
            run_experiment(settings, folder, **how, tell=tell)
    finally:
        distributed.leave()
    if is_first:
        click.echo(printable_lines(f"All {sum(1 for _ in settings.cells())} cells are done: {folder.resolve()}"))


@cli.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Folder. [default: RUN/report]")
@click.option(
    "--format", "formats", default="html,csv", show_default=True, help="Of html, png, pdf, csv, parquet, with commas."
)
@click.option("--ours", help="The method that others are compared with. [default: the last fisher without true labels]")
@click.option("--paper", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The paper's curves (CSV).")
@json_option
def report(runs: tuple[Path, ...], output: Path | None, formats: str, as_json: bool, **how: Any) -> None:
    """Charts, tables and tests from one or more runs, or from a workspace.

    Of a workspace: what the labels bought, class by class and round by round. Of runs: learning curves, labels saved
    with an interval, paired tests, what was bought, confusion, t-SNE, time and passes; a run that is under way can be
    looked at too. The page needs no network.

    \b
    Example:
      rarefish report runs/imbalanced --format html,png,csv
      rarefish report work
    """
    if not all(find_spec(package) for package in ("matplotlib", "jinja2", "sklearn")):
        raise ArgumentError("The report draws charts: pip install 'rarefish[report]'.")
    if len(runs) == 1 and is_workspace(runs[0]):
        report_work(runs[0], output, as_json)
        return
    from rarefish.report.experiment_page import savings, write_report
    from rarefish.report.run_data import read_runs

    contents = read_runs(runs, how["ours"], how["paper"])
    paths = write_report(contents, output or runs[0] / "report", [name.strip() for name in formats.split(",")])
    verbs = ("needs more labels: it saves", "saves")
    words = [
        f"{contents.ours} {verbs[saved.mean >= 0]} {100 * saved.mean:.0f} % ({saved.interval}) against {saved.rival}."
        for saved in savings(contents)
    ]
    files = [str(path.resolve()) for path in paths]
    tell(as_json, {"files": files, "savings": words}, "\n".join(files + words))


def main() -> None:
    """Runs the command line; what a user can mend is one line and exit status 1."""
    try:
        cli()
    except RarefishError as error:
        click.echo(printable_lines(f"rarefish: {error}"), err=True)
        sys.exit(1)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        click.echo(printable_lines(f"rarefish: {error.strerror or error}{where}"), err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
