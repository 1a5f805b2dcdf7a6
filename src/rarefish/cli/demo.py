"""The command `rarefish demo`."""

from importlib.util import find_spec
from pathlib import Path

import click

from rarefish.errors import ArgumentError, printable_lines


@click.command()
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("rarefish-demo"),
    show_default=True,
    help="Folder for report.html, curves.png and records.jsonl.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="Number of runs, each from a different random start.",
)
@click.option("--rounds", type=click.IntRange(1, 50), default=5, show_default=True, help="Rounds of 40 labels each.")
@click.option("--open", "open_page", is_flag=True, help="Open the report in the browser.")
def demo(output: Path, seeds: int, rounds: int, open_page: bool) -> None:
    """Compare three ways to choose images, on handwritten digits that come with the package.

    The pool has 6,000 common digits 0-4 and 60 rare ones 5-9. Three methods get the same number of labels; a report
    shows how well a small network classifies all ten digits with each. Takes about a minute on two cores.

    \b
    Example:
      rarefish demo --seeds 1 --open
    """
    if not all(find_spec(package) for package in ("matplotlib", "jinja2")):
        raise ArgumentError("The demo draws charts and needs more packages: pip install 'rarefish[report]'.")
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

        def show_step(description: str, steps: int) -> None:
            if not console.is_terminal and not steps:
                console.print(description, highlight=False)
            progress.update(task, description=description, advance=steps)

        outcome = run_demo(output, seeds, rounds, show_step)
    click.echo(printable_lines(f"{outcome.sentence}\nThe report: {outcome.page.resolve()}"))
    if open_page:
        click.launch(outcome.page.resolve().as_uri())
