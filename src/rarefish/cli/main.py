"""The `rarefish` command group and its entry point."""

import os
import sys

import click

from rarefish import __version__
from rarefish.cli.demo import demo
from rarefish.cli.embed import embed
from rarefish.cli.exchange import export_, import_, studio
from rarefish.cli.experiment import experiment
from rarefish.cli.layers import layers
from rarefish.cli.report import report
from rarefish.cli.select import select
from rarefish.cli.workspace import backup, check, evaluate, init, label, next_, status, train
from rarefish.errors import RarefishError, printable_lines


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


for command in (
    *(init, embed, label, train, evaluate, status, next_, check, backup, export_, import_, studio, layers),
    *(demo, select, experiment, report),
):
    cli.add_command(command)


def main() -> None:
    """Runs the command line. Prints an error that the user can fix as one line and exits with status 1."""
    # Threads of PyTorch that wait for each other would otherwise spin, which makes everything several times as slow if
    # the cores have other work to do. OpenMP reads the setting when PyTorch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
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
