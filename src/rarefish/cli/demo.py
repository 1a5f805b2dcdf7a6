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
    help="Folder for report.html, curves.png, records.jsonl and the files of the run.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="Number of runs, each with a different random seed.",
)
@click.option(
    "--rounds", type=click.IntRange(1, 50), default=5, show_default=True, help="Number of rounds, with 40 labels each."
)
@click.option("--open", "open_page", is_flag=True, help="Open the report in your browser.")
def demo(output: Path, seeds: int, rounds: int, open_page: bool) -> None:
    """Compare three selection methods on bundled digits.

    The pool contains 6,000 common digits (0-4) and 60 rare ones (5-9). Each method gets the same number of labels, and
    a report shows how well a small network classifies all ten digits afterward. This takes about a minute on two
    cores. Run the same command again to resume a demo that was stopped.

    \b
    Example:
      rarefish demo --seeds 1 --open
    """
    if not all(find_spec(package) for package in ("matplotlib", "jinja2")):
        raise ArgumentError("The demo draws charts and needs additional packages: pip install 'rarefish[report]'.")
    from rarefish.progress import rounds_bar
    from rarefish.report.demo import run_demo

    with rounds_bar("demo") as tell:
        outcome = run_demo(output, seeds, rounds, tell)
    click.echo(printable_lines(f"{outcome.sentence}\nReport: {outcome.page.resolve()}"))
    if open_page:
        click.launch(outcome.page.resolve().as_uri())
