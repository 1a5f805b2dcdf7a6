"""Acquisitions by the posterior alone against loops over single images; no class is as frequent as another."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rarefish import select
from rarefish.acquisitions import Choice, Situation, find_acquisition
from rarefish.acquisitions.posterior_quotas import best_per_class, learn_posterior, share_out
from rarefish.data.reader import Reader
from rarefish.errors import ArgumentError
from rarefish.features import watched
from rarefish.pseudo_labels.posterior import Posterior, gather
from tests.acquisitions.situations import Dropped, seeded, slow_statistic
from tests.cases import biased

POOL, VALIDATION = biased([50, 30, 9, 11], seed=1), biased([9, 4, 8, 5], seed=2)
LABELED = (3, 11, 17, 40, 71)
LAYERS = ("conv1", "conv2")
SHORT = Posterior(steps=(60, 60))
BUDGET = 22


def biased_situation(members: int = 1) -> Situation:
    torch.manual_seed(0)
    models = tuple(Dropped() for _ in range(members))
    for model in models:  # sure of some images, so that entropies differ
        nn.init.normal_(model.fc.weight, std=1.0)
    labels = tuple(POOL.tensors[1][list(LABELED)].tolist())
    return Situation(models, POOL, VALIDATION, LABELED, (5,), labels=labels, batch_size=13)


def choose(name: str, here: Situation, seed: int = 0) -> Choice:
    return find_acquisition(name, labels=SHORT, layers=LAYERS)(here, BUDGET, seeded(seed))


def slow_probabilities(here: Situation) -> dict[int, list[float]]:
    """The posterior of `select()` by its own parts, asked for one image at a time."""
    generator, left = seeded(), [i for i in range(len(POOL)) if i not in {*LABELED, 5}]
    torch.randint(2**62, (), generator=generator)  # the seed of Monte Carlo labels is drawn first
    known = {i: int(POOL.tensors[1][i]) for i in LABELED}
    evidence = gather(here.model, LAYERS, VALIDATION, POOL, left, known, Reader(progress=False), generator)
    estimate = SHORT(evidence)
    with torch.no_grad(), watched(here.model, LAYERS) as watch:
        return {i: estimate(watch(POOL.tensors[0][i : i + 1]), None, watch)[0].tolist() for i in left}


def failures_per_class(here: Situation) -> list[int]:
    answers = here.model(VALIDATION.tensors[0]).argmax(dim=1)
    return [sum(int(t == c and a != t) for a, t in zip(answers, VALIDATION.tensors[1], strict=True)) for c in range(4)]


def slow_best(score: dict[int, list[float]], quotas: list[int]) -> list[int]:
    chosen: list[int] = []
    for c in sorted(range(4), key=lambda c: sum(values[c] for values in score.values())):
        free = [i for i in score if i not in chosen]
        chosen += sorted(free, key=lambda i: -score[i][c])[: quotas[c]]
    return chosen


def test_random_images_of_each_class_that_the_posterior_predicts() -> None:
    here, chosen = biased_situation(), choose("posterior_quotas", biased_situation())
    p = slow_probabilities(here)
    predicted = {i: max(range(4), key=lambda c: values[c]) for i, values in p.items()}
    supply, quotas = Counter(predicted.values()), [0] * 4
    while sum(quotas) < BUDGET:
        quotas[min((c for c in range(4) if quotas[c] < supply[c]), key=lambda c: quotas[c])] += 1
    assert Counter(predicted[i] for i in chosen.indices) == Counter(dict(enumerate(quotas))) and len(set(quotas)) > 1
    # Random within: another seed has the same quotas of a class but not the same images. The posterior differs as well,
    # so this is asked of the rows alone.
    learned = learn_posterior(here, seeded(), SHORT, LAYERS).of_unlabeled()
    torch.testing.assert_close(learned, torch.tensor([p[i] for i in here.unlabeled]))
    common = max(supply, key=lambda c: supply[c])
    most_certain = sorted((i for i in p if predicted[i] == common), key=lambda i: -p[i][common])[: quotas[common]]
    assert set(most_certain) != {i for i in chosen.indices if predicted[i] == common}
    assert sorted(chosen.indices) != chosen.indices


@pytest.mark.parametrize("name", ["posterior_likeliest", "posterior_entropy"])
def test_the_best_images_of_each_failing_class(name: str) -> None:
    here = biased_situation(members=2)
    score = slow_probabilities(here)
    if name == "posterior_entropy":
        with torch.no_grad():
            members = [model.eval()(POOL.tensors[0]).softmax(dim=1) for model in here.models]
        for i, values in score.items():
            entropy = slow_statistic("entropy", [p[i].tolist() for p in members])
            score[i] = [value * entropy for value in values]
    failed = failures_per_class(here)
    assert len(set(failed)) > 2 and failed != VALIDATION.tensors[1].bincount().tolist()
    expected = slow_best(score, share_out(failed, BUDGET))
    assert sorted(choose(name, biased_situation(members=2)).indices) == sorted(expected)


def test_entropy_and_labels_matter() -> None:
    here = biased_situation()
    plain = set(choose("posterior_likeliest", here).indices)
    assert plain != set(choose("posterior_entropy", here).indices)
    wrong = tuple((label + 1) % 4 for label in here.labels)
    assert plain != set(choose("posterior_likeliest", replace(here, labels=wrong)).indices)


def test_the_posterior_is_the_one_that_select_learns() -> None:
    here = biased_situation()
    learned = learn_posterior(here, seeded(), SHORT, LAYERS)
    chosen = select(
        *(here.model, POOL, VALIDATION),
        budget=5,
        layers=LAYERS,
        labels=SHORT,
        exclude=[5],
        labeled=dict(zip(LABELED, here.labels, strict=True)),
        generator=seeded(),
        progress=False,
    )
    assert chosen.pool_mix is not None and torch.equal(chosen.pool_mix, learned.estimate.pool_mix_C)


def test_passes_are_those_of_the_posterior_and_of_what_else_is_asked() -> None:
    here, left = biased_situation(members=2), 94
    learning = SHORT.passes(26, 5, left) + left
    assert choose("posterior_quotas", here).passes == learning
    assert choose("posterior_likeliest", here).passes == learning + 26
    assert choose("posterior_entropy", here).passes == learning + 26 + 2 * left


def test_too_few_validation_images_are_refused() -> None:
    with pytest.raises(
        ArgumentError, match="9 validation images are too few to learn a posterior from. Give at least 10"
    ):
        choose("posterior_quotas", replace(biased_situation(), validation=biased([5, 2, 1, 1])))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=7).filter(any), st.integers(1, 90))
def test_quotas_are_as_close_to_the_proportions_as_whole_numbers_can_be(counts: list[int], budget: int) -> None:
    quotas = share_out(counts, budget)
    assert sum(quotas) == budget
    exact = [budget * count / sum(counts) for count in counts]
    assert all(abs(quota - e) < 1 for quota, e in zip(quotas, exact, strict=True))
    up, down = ([e % 1 for q, e in zip(quotas, exact, strict=True) if (q > e) == is_up and e % 1] for is_up in (1, 0))
    assert not up or not down or min(up) >= max(down) - 1e-9


def test_a_row_is_taken_once_and_ties_are_broken_at_random() -> None:
    score = torch.tensor([[0.9, 0.8], [0.9, 0.1], [0.9, 0.0], [0.9, 0.0], [0.1, 0.0]])
    rows = {tuple(best_per_class(score, [2, 1], seeded(seed))) for seed in range(20)}
    assert {first for first, *_ in rows} == {0}  # the class with the fewest likely images chooses first
    assert {tuple(sorted(others)) for _, *others in rows} == {(1, 2), (1, 3), (2, 3)}
