"""The command `rarefish experiment`."""

from pathlib import Path

import click

from rarefish.cli.options import reject_unused, split_names
from rarefish.errors import printable_lines


@click.command()
@click.argument("recipe", metavar="FILE.py:FUNCTION")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the results. [default: runs/FUNCTION]",
)
@click.option("--seeds", type=click.IntRange(min=1), help="Number of seeds. [default: as in the recipe]")
@click.option("--rounds", type=click.IntRange(min=1), help="Number of rounds. [default: as in the recipe]")
@click.option("--methods", help="Names of the methods to run, separated by commas. [default: all]")
@click.option(
    "--device", default="auto", show_default=True, help="cpu, cuda, or auto: cuda if available, otherwise cpu."
)
@click.option("--jobs", type=click.IntRange(min=1), help="Number of worker processes on a CPU. [default: one per core]")
@click.option("--together", is_flag=True, help="Under torchrun: let all processes work together on one cell at a time.")
def experiment(
    recipe: str,
    output: Path | None,
    seeds: int | None,
    rounds: int | None,
    methods: str | None,
    device: str,
    jobs: int | None,
    together: bool,
) -> None:
    """Run an experiment, or resume one that was stopped.

    A recipe is a function that returns an Experiment: methods × seeds × imbalances × validation sizes. Each combination
    is a cell. Every finished round is saved; run the same command again to resume a run that was killed or to add
    rounds. Under torchrun, the cells are distributed among the processes. With --together, all processes work
    together on each cell, for models and pools that are too large for one process.

    \b
    Example:
      rarefish experiment recipes/mnist.py:imbalanced --seeds 3 --methods random,entropy
      torchrun --nproc-per-node 8 -m rarefish experiment recipes/mnist.py:imbalanced
    """
    from rarefish.experiments.recipes import load_recipe

    if together:
        reject_unused(["jobs"], "--together uses the processes that torchrun started")
    settings = load_recipe(recipe)
    changes = {name: value for name, value in (("seeds", seeds), ("rounds", rounds)) if value}
    settings = settings.only(split_names(methods) if methods else (), **changes)
    folder = output or Path("runs") / recipe.rpartition(":")[2]

    from rarefish.distributed import torchrun
    from rarefish.experiments.runner import run_experiment
    from rarefish.progress import rounds_bar

    own_device = torchrun.join()
    try:
        device = str(own_device) if device == "auto" else device
        if device.startswith("cuda"):
            reject_unused(["jobs"], f"On {device} all cells run in one process")
        is_first = torchrun.rank() == 0
        with rounds_bar(settings.name, shown=is_first) as tell:
            run_experiment(settings, folder, device=device, jobs=jobs or 0, together=together, tell=tell)
    finally:
        torchrun.leave()
    if is_first:
        click.echo(
            printable_lines(
                f"All {len([*settings.cells(), *settings.baseline_cells()])} cells are done: {folder.resolve()}"
            )
        )
