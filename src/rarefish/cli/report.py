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
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), help="Folder for the report. [default: RUN/report]"
)
@click.option(
    "--format",
    "formats",
    default="html,csv",
    show_default=True,
    help="Comma-separated formats: html, png, pdf, csv, parquet.",
)
@click.option(
    "--ours",
    help="Method to compare with all others. [default: the last fisher method that does not use true labels]",
)
@click.option(
    "--paper",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CSV file with the curves of the paper.",
)
@json_option
def report(
    runs: tuple[Path, ...], output: Path | None, formats: str, ours: str | None, paper: Path | None, as_json: bool
) -> None:
    """Write a report on experiments or on a workspace.

    RUNS are one or more folders of experiments, or one workspace. The report on a workspace shows the labels and the
    recall per class and per round. The report on experiments compares one method with all others: learning curves,
    differences in accuracy and labels saved, with confidence intervals. It also shows labels per class, confusion
    matrices, t-SNE, time and passes. Unfinished runs are allowed. The HTML page works without a network connection.

    \b
    Example:
      rarefish report runs/imbalanced --format html,png,csv
      rarefish report work
    """
    if not all(find_spec(package) for package in ("matplotlib", "jinja2", "sklearn")):
        raise ArgumentError("The report draws charts and needs additional packages: pip install 'rarefish[report]'.")
    if len(runs) == 1 and is_workspace(runs[0]):
        reject_unused(["formats", "ours", "paper"], "The report on a workspace is one HTML page about one model")
        _report_workspace(runs[0], output, as_json)
    else:
        _report_runs(runs, output or runs[0] / "report", split_names(formats), ours, paper, as_json)


def _report_runs(
    runs: tuple[Path, ...], output: Path, formats: tuple[str, ...], ours: str | None, paper: Path | None, as_json: bool
) -> None:
    from rarefish.report.experiment_page import comparisons, savings, write_report
    from rarefish.report.run_data import read_runs

    contents = read_runs(runs, ours, paper)
    files = [str(path.resolve()) for path in write_report(contents, output, formats)]
    leads = [
        f"{contents.ours} is {100 * abs(one.difference):.1f} points {'ahead of' if one.difference >= 0 else 'behind'} "
        f"{one.rival}, mean over rounds (95 % interval: {one.interval})."
        for one in comparisons(contents)
    ]
    verbs = ("needs more labels: it saves", "saves")
    saved = [
        f"{contents.ours} {verbs[one.mean >= 0]} {one.share} of the labels of {one.rival} ({one.interval})."
        for one in savings(contents)
    ]
    tell(as_json, {"files": files, "leads": leads, "savings": saved}, "\n".join(files + leads + saved))


def _report_workspace(folder: Path, output: Path | None, as_json: bool) -> None:
    from rarefish.data.image_io import printable
    from rarefish.report.workspace_page import headline, rare_of, write_work_report
    from rarefish.workspace.summary import summarize

    if output is None and not os.access(folder, os.W_OK):
        raise ArgumentError(
            f"{folder} is read-only, so the report cannot be written there. Choose another folder: --output DIR"
        )
    store = closed_at_end(open_store(folder))
    path = write_work_report(store, output or folder / "report", f"rarefish report {printable(str(folder))}")
    summary = summarize(store)
    sentence = headline(summary, *rare_of(summary))
    tell(as_json, {"path": str(path.resolve()), "sentence": sentence}, f"{path.resolve()}\n{sentence}")
