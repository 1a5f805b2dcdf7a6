"""The command `rarefish report`, for runs of experiments and for workspaces."""

import os
from importlib.util import find_spec
from pathlib import Path

import click

from rarefish.cli.options import closed_at_end, json_option, reject_unused, split_names, tell
from rarefish.errors import ArgumentError
from rarefish.workspace.store import is_workspace, open_store


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Folder. [default: RUN/report]")
@click.option(
    "--format",
    "formats",
    default="html,csv",
    show_default=True,
    help="Formats separated by commas: html, png, pdf, csv, parquet.",
)
@click.option(
    "--ours",
    help="The method that is compared with the others. [default: the last fisher method without true labels]",
)
@click.option("--paper", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The paper's curves (CSV).")
@json_option
def report(
    runs: tuple[Path, ...], output: Path | None, formats: str, ours: str | None, paper: Path | None, as_json: bool
) -> None:
    """Write charts, tables and tests for one or more runs, or for a workspace.

    For a workspace: the labels and the recall per class and per round. For runs: learning curves, labels saved with a
    confidence interval, paired tests, labels per class, confusion matrices, t-SNE, time and passes; a run that has not
    finished can be reported too. The page needs no network.

    \b
    Example:
      rarefish report runs/imbalanced --format html,png,csv
      rarefish report work
    """
    if not all(find_spec(package) for package in ("matplotlib", "jinja2", "sklearn")):
        raise ArgumentError("The report draws charts and needs more packages: pip install 'rarefish[report]'.")
    if len(runs) == 1 and is_workspace(runs[0]):
        reject_unused(["formats", "ours", "paper"], "The report of a workspace is one HTML page about one model")
        _report_workspace(runs[0], output, as_json)
    else:
        _report_runs(runs, output or runs[0] / "report", split_names(formats), ours, paper, as_json)


def _report_runs(
    runs: tuple[Path, ...], output: Path, formats: tuple[str, ...], ours: str | None, paper: Path | None, as_json: bool
) -> None:
    from rarefish.report.experiment_page import savings, write_report
    from rarefish.report.run_data import read_runs

    contents = read_runs(runs, ours, paper)
    files = [str(path.resolve()) for path in write_report(contents, output, formats)]
    verbs = ("needs more labels: it saves", "saves")
    sentences = [
        f"{contents.ours} {verbs[saved.mean >= 0]} {100 * saved.mean:.0f} % ({saved.interval}) against {saved.rival}."
        for saved in savings(contents)
    ]
    tell(as_json, {"files": files, "savings": sentences}, "\n".join(files + sentences))


def _report_workspace(folder: Path, output: Path | None, as_json: bool) -> None:
    from rarefish.data.image_io import printable
    from rarefish.report.workspace_page import headline, rare_of, write_work_report
    from rarefish.workspace.summary import summarize

    if output is None and not os.access(folder, os.W_OK):
        raise ArgumentError(
            f"{folder} is read-only, so the report cannot be written there. Name another folder: --output DIR"
        )
    store = closed_at_end(open_store(folder))
    path = write_work_report(store, output or folder / "report", f"rarefish report {printable(str(folder))}")
    summary = summarize(store)
    sentence = headline(summary, *rare_of(summary))
    tell(as_json, {"path": str(path.resolve()), "sentence": sentence}, f"{path.resolve()}\n{sentence}")
