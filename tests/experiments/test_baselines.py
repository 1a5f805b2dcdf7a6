"""Baselines: what they are trained on, written out, and that a run measures each once per seed."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rarefish.active_learning.rounds import Task, run_rounds, step_generator
from rarefish.errors import ArgumentError
from rarefish.experiments.baselines import learn_posterior_alone
from rarefish.experiments.cells import run_baselines, task_of
from rarefish.experiments.initial_models import prepare_starts, starts_of
from rarefish.experiments.run_folder import RunFolder, open_run_folder
from rarefish.experiments.runner import run_experiment
from rarefish.experiments.settings import Cell, Circumstances, Experiment, Method
from rarefish.pseudo_labels.posterior import Evidence, Head, Network, Posterior, Seen, TrustedPosterior
from rarefish.training.config import Training
from rarefish.training.loop import fit
from tests.experiments.small import BASELINES, few, small

pytestmark = [pytest.mark.usefixtures("few_images"), pytest.mark.xdist_group("runner")]


@pytest.fixture
def biased() -> Experiment:
    """Classes of different sizes in the validation set too, so that a wrong prior shows; the default posterior."""
    whole = replace(few(), methods=small().methods, baselines=BASELINES)
    return replace(whole, circumstances=Circumstances(validation_imbalance=4), seeds=1)


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Evidence, TrustedPosterior]]:
    """What every posterior was trained on, and what came of it."""
    kept: list[tuple[Evidence, TrustedPosterior]] = []
    learn = Posterior.__call__

    def note(posterior: Posterior, evidence: Evidence) -> TrustedPosterior:
        made = learn(posterior, evidence)
        kept.append((evidence, made))
        return made

    monkeypatch.setattr(Posterior, "__call__", note)
    return kept


def begin(experiment: Experiment, folder: Path) -> RunFolder:
    run_folder = open_run_folder(folder, experiment)
    prepare_starts(experiment, starts_of(experiment.cells()), run_folder, "cpu")
    return run_folder


def cell_of(experiment: Experiment, acquisition: str) -> Cell:
    cells = [*experiment.cells(), *experiment.baseline_cells()]
    return next(cell for cell in cells if cell.method.acquisition == acquisition)


def on_test(task: Task) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = task.test.tensors  # pyright: ignore[reportAttributeAccessIssue]
    return images, labels


def test_the_trusted_images_alone_train_the_initial_network(biased: Experiment, tmp_path: Path) -> None:
    """As the training of a round, with the validation set in place of the labeled images."""
    run_folder, cell = begin(biased, tmp_path / "run"), cell_of(biased, "trusted_only")
    run_baselines(biased, [cell], run_folder, "cpu")
    (record,) = run_folder.records(cell)
    task = task_of(biased, cell, run_folder, "cpu")
    model, (images, labels) = copy.deepcopy(task.start.model), task.start.validation.tensors  # pyright: ignore[reportAttributeAccessIssue]
    fit(model, images, labels, Training(**biased.training), step_generator(cell.seed, 0, "train 0"))
    shown, truth = on_test(task)
    with torch.no_grad():
        is_right = model.eval()(shown).argmax(dim=1) == truth
    assert record.accuracy == pytest.approx(float(is_right.float().mean()))
    assert record.recall == pytest.approx([float(is_right[truth == c].float().mean()) for c in range(10)])
    assert (record.round, record.labels_spent, record.new_labels, record.rare_labeled) == (0, 0, (), 0)
    assert (record.validation_size, record.start, record.labels) == (80, "pretrained", "")


def test_the_posterior_alone_is_that_of_the_first_round(
    biased: Experiment, tmp_path: Path, learned: list[tuple[Evidence, TrustedPosterior]]
) -> None:
    run_folder = begin(biased, tmp_path / "run")
    alone, fisher = cell_of(biased, "posterior_alone"), cell_of(biased, "fisher")
    run_baselines(biased, [alone], run_folder, "cpu")
    next(run_rounds(task_of(biased, fisher, run_folder, "cpu"), 1))
    (evidence, posterior), (other_evidence, other) = learned
    assert torch.equal(evidence.trusted.images, other_evidence.trusted.images)
    assert isinstance(posterior.answer, Network) and isinstance(other.answer, Network)
    weights, others = posterior.answer.network.state_dict(), other.answer.network.state_dict()
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    (record,) = run_folder.records(alone)
    assert (record.round, record.labels_spent, record.labels) == (0, 0, "posterior") and record.passes > 0


@pytest.mark.parametrize(("settings", "kind"), [(Posterior(), Network), (Posterior(lr=1e6), Head)])
def test_the_posterior_alone_answers_under_the_proportions_of_the_validation_set(
    settings: Posterior,
    kind: type,
    biased: Experiment,
    tmp_path: Path,
    learned: list[tuple[Evidence, TrustedPosterior]],
) -> None:
    """Either candidate; the prior of the pool, in which some classes are much rarer, would give other answers.

    A network that diverged loses to the head.
    """
    run_folder, cell = begin(biased, tmp_path / "run"), cell_of(biased, "posterior_alone")
    task = task_of(biased, cell, run_folder, "cpu")
    finished = learn_posterior_alone(task, labels=settings, layers=["conv2"])
    ((_, posterior),) = learned
    assert isinstance(posterior.answer, kind)
    images, truth = on_test(task)
    maps: list[torch.Tensor] = []
    model = task.start.model.eval()
    handle = dict(model.named_modules())["conv2"].register_forward_hook(lambda *call: maps.append(call[-1].clone()))
    with torch.no_grad():
        model(images)
        handle.remove()
        logits = posterior.answer(Seen(images, maps[0].mean(dim=(2, 3))))
    is_right = logits.argmax(dim=1) == truth
    shifted = (logits + posterior.log_shift_C).argmax(dim=1) == truth
    assert finished.score.accuracy == pytest.approx(float(is_right.float().mean()))
    assert finished.score.accuracy != pytest.approx(float(shifted.float().mean()))


def test_baselines_join_a_run_that_has_none(tmp_path: Path) -> None:
    plain = replace(few(), baselines=(), methods=few().methods[:1], rounds=2)
    run_experiment(plain, tmp_path / "run", jobs=1)
    told: list[tuple[int, int]] = []
    more = replace(plain, baselines=few().baselines)
    run_folder = run_experiment(
        more, tmp_path / "run", jobs=1, tell=lambda what, done, total: told.append((done, total))
    )
    assert told[0] == (4, 8) and told[-1] == (8, 8)
    made = {cell.key: run_folder.records(cell) for cell in more.baseline_cells()}
    assert len(made) == 4 and {r.seed for (r,) in made.values()} == {0, 1}
    run_experiment(more, tmp_path / "run", jobs=2)
    assert run_folder.num_finished() == 8


def test_mistakes_in_baselines_are_found_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no baseline 'trusted'. Did you mean trusted_only"):
        replace(few(), baselines=(Method(name="a", acquisition="trusted"),))
    with pytest.raises(ArgumentError, match="Two methods have the same name"):
        replace(few(), baselines=(Method(name="random", acquisition="trusted_only"),))
    for wrong in (
        Method(name="a", acquisition="trusted_only", settings={"layers": []}),
        Method(name="a", acquisition="posterior_alone", settings={"layer": []}),
    ):
        with pytest.raises(ArgumentError, match="settings of baseline 'a' are not valid: .*'layer"):
            run_experiment(replace(few(), baselines=(wrong,)), tmp_path / "run")
    learner = few().baselines[1]
    changed = replace(learner, settings={**learner.settings, "layers": ["conv1"]})
    run_experiment(replace(few(), methods=few().methods[:1], seeds=1, rounds=1), tmp_path / "run", jobs=1)
    with pytest.raises(ArgumentError, match="other settings: method 'posterior alone'"):
        run_experiment(replace(few(), seeds=1, rounds=1, baselines=(changed,)), tmp_path / "run", jobs=1)
