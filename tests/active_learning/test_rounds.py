"""The loop: what each round may see, from which weights it trains, and what it records."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from rarefish.acquisitions import ACQUISITIONS, Choice, Situation
from rarefish.active_learning.oracles import known_labels
from rarefish.active_learning.resume import RoundFiles
from rarefish.active_learning.rounds import advance, jobs_of, rebuild, run_rounds, step_generator
from rarefish.data.lazy_images import Stored
from rarefish.errors import ArgumentError
from rarefish.training.config import Training
from rarefish.training.evaluation import evaluate
from rarefish.training.jobs import Job, fit_each
from tests.active_learning.tasks import POOL, QUICK, TEST, TRUTH, VALIDATION, rounds, task
from tests.cases import NUM_CLASSES, Plain


@pytest.mark.parametrize("name", ["random", "entropy", "badge", "fisher"])
def test_labels_add_up_and_no_image_is_labeled_twice(name: str) -> None:
    run = rounds(QUICK[name])
    chosen = [i for each in run for i in each.choice.indices]
    assert [each.labels_spent for each in run] == [5, 10, 15] and len(set(chosen)) == 15
    assert [label for each in run for label in each.answers] == POOL.tensors[1][chosen].tolist()
    again = rounds(QUICK[name])
    assert [each.score.accuracy for each in again] == [each.score.accuracy for each in run]
    assert [each.choice.indices for each in again] == [each.choice.indices for each in run]


def test_each_seed_round_and_purpose_has_numbers_of_its_own() -> None:
    drawn = {
        (seed, number, purpose): torch.rand(1, generator=step_generator(seed, number, purpose)).item()
        for seed in range(3)
        for number in range(3)
        for purpose in ("select", "train 0", "train 1")
    }
    assert len(set(drawn.values())) == len(drawn) == 27
    first, other = (rounds(ACQUISITIONS["random"], seed=seed) for seed in (0, 1))
    assert [each.choice.indices for each in first] != [each.choice.indices for each in other]


def test_validation_is_scored_only_if_the_model_does_not_learn_from_it() -> None:
    for each in rounds():
        assert each.validation is not None
        score = evaluate(each.situation.models[0], task().start.validation, NUM_CLASSES)
        assert torch.equal(each.validation.prediction, score.prediction)
    assert all(each.validation is None for each in rounds(learns_validation=True))


@pytest.mark.parametrize("learns_validation", [False, True])
def test_a_situation_says_whether_its_model_has_learned_from_the_validation_set(learns_validation: bool) -> None:
    start = task(learns_validation=learns_validation).start
    assert not start.trained_on_validation and not start.is_trained
    for each in rounds(learns_validation=learns_validation):
        assert each.situation.trained_on_validation == learns_validation and each.situation.is_trained


def test_learns_validation_adds_the_validation_set_to_the_training() -> None:
    seen: list[Job] = []

    def note(jobs: Sequence[Job]) -> None:
        seen.extend(jobs)
        fit_each(jobs)

    list(run_rounds(task(learns_validation=True), 2, fit_all=note))
    assert [len(job.images) for job in seen] == [5 + 12, 10 + 12]
    assert torch.equal(seen[0].tensor[5:], VALIDATION.tensors[0])
    assert torch.equal(seen[0].labels[5:], VALIDATION.tensors[1])


@pytest.mark.parametrize("learns_validation", [False, True])
@pytest.mark.parametrize("name", ["random", "fisher"])
def test_rounds_over_files_are_those_over_tensors(name: str, learns_validation: bool, tmp_path: Path) -> None:
    """Also with choices and checkpoints on disk."""

    class Files:
        def __init__(self, data: TensorDataset) -> None:
            self.data, self.targets = data, data.tensors[1].tolist()

        def __len__(self) -> int:
            return len(self.data)

        def __getitem__(self, index: int) -> Any:
            return self.data[index]

    jobs: list[Job] = []

    def note(some: Sequence[Job]) -> None:
        jobs.extend(some)
        fit_each(some)

    expected = rounds(QUICK[name], learns_validation=learns_validation)
    lazy: dict[str, Any] = {"pool": Files(POOL), "validation": Files(VALIDATION), "test": Files(TEST)}
    files = RoundFiles(tmp_path, "task")
    here = task(QUICK[name], learns_validation=learns_validation, round_files=files, **lazy)
    found = list(run_rounds(here, 3, fit_all=note))
    assert all(isinstance(job.images, Stored) for job in jobs)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.choice.indices == theirs.choice.indices
        assert torch.equal(ours.score.prediction, theirs.score.prediction)
    # A second run loads the saved choices and does not call the acquisition.
    never = replace(here, acquire=lambda *_: Choice([]))
    again = list(run_rounds(never, 3))
    assert [each.choice.indices for each in again] == [each.choice.indices for each in expected]


def test_a_state_is_rebuilt_from_the_choices() -> None:
    here = task(ask=known_labels([-1 if i % 3 == 0 else label for i, label in enumerate(TRUTH)]))
    run = list(run_rounds(here, 3))
    after = rebuild(here, [each.choice.indices for each in run])
    assert (after.finished_rounds, after.labeled, after.labels, after.refused) == (
        *(3, run[-1].situation.labeled),
        *(run[-1].situation.labels, run[-1].situation.refused),
    )
    fit_each(jobs_of(here, after, []))
    theirs = run[-1].situation.models[0].state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in after.models[0].state_dict().items())


def test_images_of_no_class_cost_a_label_and_are_not_trained_on() -> None:
    truth = [-1 if i % 2 else label for i, label in enumerate(TRUTH)]
    run = rounds(ask=known_labels(truth))
    after = run[-1].situation
    assert run[-1].labels_spent == 15 and len(after.labels) < 15
    assert all(i % 2 == 0 for i in after.labeled) and all(i % 2 for i in after.refused)


def test_rounds_without_an_answer_leave_the_model_unchanged() -> None:
    start = Plain()
    before = start.fc.weight.clone()
    run = rounds(start=start, ask=lambda indices: [None] * len(indices), num_rounds=2)
    assert run[-1].labels_spent == 10 and run[-1].situation.labels == ()
    model = run[-1].situation.models[0]
    assert isinstance(model, Plain) and torch.equal(model.fc.weight, before)


@pytest.mark.parametrize("warm", [False, True])
def test_cold_rounds_train_from_the_start_and_warm_rounds_continue(warm: bool) -> None:
    """Without epochs, a warm second round keeps the weights of the first round, and a cold one the initial weights."""
    torch.manual_seed(0)
    start = Plain()
    before = start.fc.weight.clone()
    here = task(start=start, warm=warm)
    (first,) = advance([here], [here.start])
    assert torch.equal(start.fc.weight, before)
    still = task(start=start, warm=warm, training=Training(epochs=0))
    (second,) = advance([still], [first.situation])
    expected = first.situation.models[0] if warm else start
    assert isinstance(expected, Plain) and isinstance(second.situation.models[0], Plain)
    assert torch.equal(second.situation.models[0].fc.weight, expected.fc.weight)


def test_a_resumed_run_equals_an_uninterrupted_one() -> None:
    whole = rounds(QUICK["fisher"], num_rounds=4)
    rest = list(run_rounds(task(QUICK["fisher"]), 4, situation=whole[1].situation))
    assert [each.number for each in rest] == [3, 4]
    assert [each.choice.indices for each in rest] == [each.choice.indices for each in whole[2:]]
    assert torch.equal(rest[-1].score.prediction, whole[-1].score.prediction)


def test_an_ensemble_reports_the_mean_of_its_members_and_the_predictions_of_the_first() -> None:
    torch.manual_seed(0)
    starts = (Plain(), Plain())
    seen: list[int] = []

    def acquire(situation: Situation, budget: int, _: torch.Generator) -> Choice:
        seen.append(len(situation.models))
        return Choice(situation.unlabeled[:budget])

    run = rounds(acquire, models=starts, num_rounds=1)
    alone = [rounds(acquire, models=(start,), num_rounds=1)[0] for start in starts[:1]]
    assert seen[0] == 2 and len(run[0].situation.models) == 2
    assert torch.equal(run[0].score.prediction, alone[0].score.prediction)
    members = [evaluate(model, TEST, NUM_CLASSES) for model in run[0].situation.models]
    assert members[0].accuracy != members[1].accuracy
    assert run[0].score.accuracy == pytest.approx((members[0].accuracy + members[1].accuracy) / 2)
    torch.testing.assert_close(run[0].score.recall, (members[0].recall + members[1].recall) / 2, equal_nan=True)


def test_time_of_joint_trainings_is_split_by_model() -> None:
    alone, four = task(), task(models=tuple(Plain() for _ in range(4)))
    first, second = advance([alone, four], [alone.start, four.start])
    assert second.train_s == pytest.approx(4 * first.train_s) and first.train_s > 0


def test_an_acquisition_that_returns_too_few_images_is_named() -> None:
    def lazy(situation: Situation, budget: int, _: torch.Generator) -> Choice:
        return Choice(situation.unlabeled[: budget - 1])

    def stuck(situation: Situation, budget: int, _: torch.Generator) -> Choice:
        return Choice(list(range(budget)))

    with pytest.raises(ArgumentError, match="lazy returned 4 images, of which 4 are new and distinct, instead of 5"):
        rounds(lazy, name="lazy")
    with pytest.raises(ArgumentError, match="stuck returned 5 images, of which 0 are new"):
        rounds(stuck, name="stuck")


def test_more_labels_than_images_are_rejected_before_the_first_round() -> None:
    with pytest.raises(ArgumentError, match="9 rounds of 5 labels need 45 images, but the pool has 40"):
        rounds(num_rounds=9)


@pytest.mark.parametrize(("batch_size", "read"), [(1000, 1000), (50, 50), (20_000, 1000)])
def test_the_reader_follows_the_batch_size_up_to_a_thousand(batch_size: int, read: int) -> None:
    reader = task(batch_size=batch_size, workers=3).reader
    assert (reader.batch_size, reader.num_workers, reader.progress) == (read, 3, False)


def test_a_task_without_an_oracle_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"needs an oracle .* Pass one as Situation\(ask=...\)"):
        task(ask=None)
