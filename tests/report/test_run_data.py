"""Runs read from disk, and the paper's curves beside them."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from rarefish.errors import ArgumentError, DataError
from rarefish.report.curves import complete, methods_of, name_apart
from rarefish.report.experiment_page import write_report
from rarefish.report.run_data import read_runs
from tests.report.made import make_run, rounds


def test_the_papers_curves_are_laid_over(run: Path, tmp_path: Path) -> None:
    paper = tmp_path / "paper.csv"
    paper.write_text(
        "dataset,imbalance,method,param,round,accuracy\nMNIST,100,random,,1,50.5\nMNIST,100,random,,2,52.4\n"
        "MNIST,1,random,,1,84.4\nMNIST,100,fisher_density,L80,1,71.6\nMNIST,100,fisher_density,L80_rnd,1,68\nSVHN,100,random,,1,40\n"
    )
    drawn = {curve.method: curve for curve in read_runs([run], paper=paper).paper}
    assert set(drawn) == {"random", "fisher density L80"}
    assert drawn["random"].mean.tolist() == [0.505, 0.524] and drawn["random"].labels_spent.tolist() == [40, 80]

    path = run / "settings.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {"dataset": "svhn-extra"}))
    (curve,) = read_runs([run], paper=paper).paper
    assert curve.method == "random" and curve.mean.tolist() == [0.4]
    path.write_text(json.dumps(settings | {"dataset": "svhn"}))
    with pytest.raises(
        ArgumentError, match="no curves for 'svhn', only for mnist, svhn-extra, imagenet with its own splits"
    ):
        read_runs([run], paper=paper)


def test_settings_that_vary_are_named_and_unfinished_rounds_left_out() -> None:
    records = [
        *rounds("a", 0, (0.1, 0.2)),
        *(replace(r, start="random") for r in rounds("a", 0, (0.1, 0.2))),
        *rounds("b", 0, (0.1, 0.2)),
        *rounds("b", 1, (0.1,)),
    ]
    named = name_apart(records)
    assert methods_of(named) == ["a, pretrained", "a, random", "b, pretrained"]
    assert [(r.method, r.seed, r.round) for r in complete(named) if r.method == "b, pretrained"] == [
        ("b, pretrained", 0, 1),
        ("b, pretrained", 1, 1),
    ]


def test_sizes_come_in_order() -> None:
    records = [
        replace(record, validation_size=size)
        for method in ("b", "a")
        for size in (1000, 100)
        for record in rounds(method, 0, (0.1,))
    ]
    assert methods_of(name_apart(records)) == ["b, M=100", "b, M=1000", "a, M=100", "a, M=1000"]


def test_bad_input(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no method 'fischer density L80' in these runs. Did you mean fisher"):
        read_runs([run], ours="fischer density L80")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="does not contain a run"):
        read_runs([tmp_path / "empty"])
    (tmp_path / "empty" / "settings.json").write_text('{"methods": [], "rare": []}')
    with pytest.raises(DataError, match="contains no records"):
        read_runs([tmp_path / "empty"])
    bad = ("[]", '"run"', '{"methods": 3}', '{"methods": ["a"]}', '{"rare": {}}', '{"dataset": []}', "[" * 100_000, "{")
    for content in bad:
        (tmp_path / "empty" / "settings.json").write_text(content)
        with pytest.raises(DataError, match=r"settings\.json (cannot be read|does not contain the settings of a run)"):
            read_runs([tmp_path / "empty"])
    (tmp_path / "empty" / "settings.json").unlink()
    os.mkfifo(tmp_path / "empty" / "settings.json")
    with pytest.raises(DataError, match=r"settings\.json cannot be read"):
        read_runs([tmp_path / "empty"])
    broken = next((run / "records").glob("random*"))
    broken.write_text('{"method": "random"}\n')
    with pytest.raises(DataError, match="does not contain records"):
        read_runs([run])


def test_a_cell_of_two_runs_counts_once_and_other_circumstances_are_kept_apart(run: Path, tmp_path: Path) -> None:
    again = make_run(tmp_path / "again")
    assert len(read_runs([run, again]).records) == len(read_runs([run]).records)
    settings = json.loads((again / "settings.json").read_text())
    for change in ({"circumstances": {"junk": 5}}, {"training": {"epochs": 60}}):
        (again / "settings.json").write_text(json.dumps(settings | change))
        with pytest.raises(
            ArgumentError, match=f"run and .*again differ in {next(iter(change))}. Write a separate report for each"
        ):
            read_runs([run, again])


def test_two_methods_of_one_name_are_not_taken_for_one(run: Path) -> None:
    (run / "records" / "random-s0-other.jsonl").write_text((run / "records" / "random-s0.jsonl").read_text())
    with pytest.raises(ArgumentError, match="Two methods of these runs have the same name"):
        read_runs([run])


def test_a_run_under_way_can_be_looked_at(run: Path, tmp_path: Path) -> None:
    for path in (run / "records").glob("random*"):
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:1]))
    contents = read_runs([run])
    assert {"accuracy.png", "recall_round_1.png"} <= {p.name for p in write_report(contents, tmp_path / "out", ["png"])}
