"""The cells of an experiment as tasks: settings that are checked first, and states of finished rounds."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rarefish.active_learning.rounds import run_rounds
from rarefish.errors import ArgumentError, DataError
from rarefish.experiments.cells import load_situations, task_of
from rarefish.experiments.datasets import splits_of
from rarefish.experiments.initial_models import prepare_starts, starts_of
from rarefish.experiments.run_folder import RunFolder, open_run_folder
from rarefish.experiments.runner import run_experiment
from rarefish.experiments.settings import Circumstances, Method
from rarefish.pseudo_labels.posterior import Evidence, Posterior, TrustedPosterior
from rarefish.training.jobs import Job, fit_each
from tests.experiments.runs import everything, without_states
from tests.experiments.small import few

pytestmark = [pytest.mark.usefixtures("few_images"), pytest.mark.xdist_group("runner")]  # `whole` is made only once


def test_records_alone_are_enough_to_go_on(whole: Path, tmp_path: Path) -> None:
    """The last finished round is trained again, and the next one chooses what it would have chosen."""
    run_folder = without_states(whole, tmp_path / "run", 2)
    run_experiment(few(), run_folder.folder, jobs=1)
    assert everything(run_folder.folder) == everything(whole)


def test_trainings_done_again_are_handed_over_together(whole: Path, tmp_path: Path) -> None:
    run_folder, experiment = without_states(whole, tmp_path / "run", 2), few().only(seeds=1)
    open_run_folder(run_folder.folder, few())
    cells, calls = list(experiment.cells()), []

    def note(jobs: Sequence[Job]) -> None:
        calls.append(len(jobs))
        fit_each(jobs)

    prepare_starts(experiment, starts_of(cells), run_folder, "cpu")
    tasks = [task_of(experiment, cell, run_folder, "cpu") for cell in cells]
    situations = load_situations(tasks, cells, run_folder, note)
    assert calls == [4]  # one of the methods has two networks
    assert [each.finished_rounds for each in situations] == [2, 2, 2]
    for cell, after in zip(cells, situations, strict=True):
        assert after.labeled == tuple(i for record in run_folder.records(cell) for i in record.indices)


def test_what_the_posterior_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The validation set, and the images and labels of all earlier rounds; the prior is that of the validation set."""
    shown: list[Evidence] = []
    learn = Posterior.__call__

    def note(posterior: Posterior, evidence: Evidence) -> TrustedPosterior:
        shown.append(evidence)
        return learn(posterior, evidence)

    monkeypatch.setattr(Posterior, "__call__", note)
    settings = {"layers": ["conv2"], "labels": Posterior(steps=(4, 4))}
    experiment = replace(
        few(),
        methods=(Method(name="fisher", acquisition="fisher", settings=settings),),
        circumstances=Circumstances(validation_imbalance=4),
    )
    run_folder, (cell, *_) = open_run_folder(tmp_path / "run", experiment), experiment.cells()
    prepare_starts(experiment, starts_of([cell]), run_folder, "cpu")
    task = task_of(experiment, cell, run_folder, "cpu")
    finished = list(run_rounds(task, 3))
    (pool, pool_labels), (trusted, truth) = task.start.pool.tensors, task.start.validation.tensors  # pyright: ignore[reportAttributeAccessIssue]
    prior = truth.bincount(minlength=10) / len(truth)
    assert prior.min() < prior.max() / 3 and len(shown) == 3
    for number, evidence in enumerate(shown):
        earlier = [i for each in finished[:number] for i in each.choice.indices]
        assert len(earlier) == 10 * number and evidence.num_validation == len(truth)
        assert torch.equal(evidence.trusted.images, torch.cat([trusted, pool[earlier]]))
        assert torch.equal(evidence.labels, torch.cat([truth, pool_labels[earlier]]))
        assert torch.equal(evidence.prior, prior) and evidence.pool_size == len(pool) - len(earlier)
        rest = [i for i in range(len(pool)) if i not in earlier]
        assert torch.equal(evidence.sample.images, pool[rest])


def test_what_a_record_says_of_rare_classes(whole: Path) -> None:
    """The recall on the test set, and the precision among the images chosen for failures of rare classes."""
    experiment, run_folder = few(), RunFolder(whole)
    differs_from_labels = False
    for cell in experiment.cells():
        splits = splits_of(experiment, cell, "cpu")
        truth, trusted = splits.pool.tensors[1].tolist(), splits.validation.tensors[1].tolist()
        of_class = splits.test.tensors[1].bincount().tolist()
        for record in run_folder.records(cell):
            assert record.rare_recall == pytest.approx(sum(record.recall[5:]) / 5) != pytest.approx(record.accuracy)
            assert [sum(row) for row in record.confusion] == of_class  # a row per true class
            if not record.centers:
                assert record.rare_precision is None
                continue
            pairs = zip(record.indices, record.centers, strict=True)
            is_rare = [truth[index] >= 5 for index, center in pairs if trusted[center] >= 5]
            assert record.rare_precision == pytest.approx(sum(is_rare) / len(is_rare))
            differs_from_labels |= 0 < sum(is_rare) < len(is_rare)
    assert differs_from_labels  # the fraction is neither 0 nor 1 everywhere


def test_a_warm_run_says_that_it_needs_its_state(whole: Path, tmp_path: Path) -> None:
    experiment = few().only(("random",), seeds=1, rounds=1, restarts=("warm",))
    made = run_experiment(experiment, tmp_path / "made", together=True)
    run_folder = without_states(made.folder, tmp_path / "run", 1)
    with pytest.raises(DataError, match="1 rounds of random.* but not their state, states/random.*copy that file"):
        run_experiment(replace(experiment, rounds=2), run_folder.folder, together=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "mnst"}, "no dataset 'mnst'. Did you mean mnist"),
        ({"model": "lennet"}, "no model 'lennet'. Did you mean lenet"),
        ({"rare": (5, 42)}, "rare= contains class 42, but mnist has classes 0 to 9"),
        ({"training": {"epoch": 1}}, "settings of training are not valid: .*'epoch'"),
        ({"methods": (Method(name="a", acquisition="fischer"),)}, "no acquisition 'fischer'. Did you mean fisher"),
        (
            {"methods": (Method(name="a", acquisition="fisher", settings={"layer": []}),)},
            "method 'a' are not valid: .*'layer'",
        ),
        ({"methods": (Method(name="a", acquisition="fisher", settings={"layers": ["conv9"]}),)}, "no layer 'conv9'"),
        (
            {"holdout": 1400, "validation_sizes": (1400,)},
            "holdout=1400: .* but there are 62. Use fewer. Change holdout=",
        ),
    ],
)
def test_mistakes_in_a_recipe_are_found_before_any_work(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        run_experiment(replace(few(), **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()
