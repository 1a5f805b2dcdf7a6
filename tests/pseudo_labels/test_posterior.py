"""The trusted posterior: what it learns against what is known, its choice of candidate, its care for its input."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from rarefish import describe, select
from rarefish.data.reader import Reader
from rarefish.errors import ArgumentError, LabelError
from rarefish.features import View
from rarefish.pseudo_labels import posterior
from rarefish.pseudo_labels.posterior import (
    Evidence,
    Head,
    Network,
    Posterior,
    Seen,
    fit_head,
    gather,
    held_out_losses,
    one_cycle,
)
from tests.cases import Plain, blobs, exact_posterior, labeled

CPU = torch.device("cpu")
UNEVEN = [0.5, 0.3, 0.2]
"""Shares of the classes in a validation set: what is wrong about a prior does not show where all are equal."""
QUICK = Posterior(steps=(60, 60), batch_size=32)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def evidence_of(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    pool: Tensor,
    features: tuple[Tensor, Tensor] | None = None,
    num_labeled: int = 0,
) -> Evidence:
    """Evidence about three classes, as frequent as in the validation set; the features are the images unless given."""
    own, of_pool = features or (images, pool)
    size = len(labels) - num_labeled
    prior = labels[:size].bincount(minlength=3) / size
    return Evidence(model, Seen(images, own), labels, size, prior, Seen(pool, of_pool), 4000, seeded(), CPU)


def small_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 3))


@pytest.mark.parametrize("are_features_blind", [True, False])
def test_learns_the_posterior_under_the_pools_shares(are_features_blind: bool) -> None:
    """By the network where the features say nothing, by a head on them where the network cannot learn."""
    images, labels = blobs(UNEVEN, 600)
    pool, truth = blobs([0.6, 0.38, 0.02], 4000, seed=5)
    blind = torch.zeros(600, 2), torch.zeros(4000, 2)
    shown = (images, pool) if are_features_blind else (torch.zeros_like(images), torch.zeros_like(pool))
    evidence = evidence_of(small_net(), shown[0], labels, shown[1], blind if are_features_blind else (images, pool))
    evidence.model.requires_grad_(False)  # as a model comes that was only meant to be asked
    before = copy.deepcopy(evidence.model.state_dict())
    learned = Posterior(steps=(300, 300))(evidence)
    assert isinstance(learned.answer, Network if are_features_blind else Head)
    assert len({id(one) for one in (learned.answer, *learned.fold_candidates)}) == 4
    assert {type(one) for one in learned.fold_candidates} == {type(learned.answer)}
    assert "held-out validation labels" in learned.note
    view = View(shown[1], torch.empty(0), (evidence.sample.features,))
    found = learned(view, None, lambda _: view)
    best = exact_posterior(pool) * (truth.bincount(minlength=3) / 4000)
    best = best / best.sum(dim=1, keepdim=True)
    assert (found - best).abs().mean() < 0.03
    is_rare, chosen = truth == 2, found[:, 2].topk(40).indices
    assert is_rare[chosen].float().mean() > 0.9 * is_rare[best[:, 2].topk(40).indices].float().mean()
    assert all(torch.equal(value, before[name]) for name, value in evidence.model.state_dict().items())


@pytest.mark.parametrize("num_labeled", [0, 40])
def test_no_copy_of_a_large_model_is_trained_where_a_head_is_reliable(
    num_labeled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that is unreliable leaves no trace: the copy is then trained with the same random numbers."""
    images, labels = blobs(UNEVEN, 150)
    pool, _ = blobs([0.6, 0.38, 0.02], 300, seed=5)
    telling = torch.eye(3)[labels] + 0.1 * torch.randn(150, 3, generator=seeded())
    if num_labeled:  # the features of labeled images say more than those of the validation set
        telling[:-num_labeled] = 0
    large = evidence_of(small_net(), images, labels, pool, (telling, pool), num_labeled)
    expected = QUICK(large)
    assert isinstance(expected.answer, Network)
    monkeypatch.setattr(posterior, "LARGE", 100)
    large = replace(large, generator=seeded())
    if num_labeled:
        found = QUICK(large)
        assert torch.equal(found.held_logits, expected.held_logits) and found.note == expected.note
        return
    monkeypatch.setattr(Posterior, "_train_network", None)
    found = QUICK(large)
    assert found.reliability > 0.95 and found.note.endswith("so no copy of the model was trained.")
    one_class = replace(large, labels=torch.zeros_like(labels))
    with pytest.raises(TypeError, match="not callable"):  # there is nothing to tell apart: the copy is trained
        QUICK(one_class)


def test_a_trained_copy_predicts_few_large_images_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    network, images = nn.Sequential(nn.Flatten(), nn.Linear(48, 3)), torch.randn(10, 3, 4, 4, generator=seeded())
    seen, sizes = Seen(images, images.flatten(1)), list[int]()
    expected = Network(network)(seen)
    network[1].register_forward_hook(lambda _, given, __: sizes.append(len(given[0])))
    monkeypatch.setattr(posterior, "PIXELS", 4 * 48 + 5)
    assert torch.allclose(Network(network)(seen), expected) and sizes == [4, 4, 2]
    monkeypatch.setattr(posterior, "PIXELS", 5)
    assert len(Network(network)(Seen(images[:2], images[:2].flatten(1)))) == 2 and sizes[3:] == [1, 1]


def test_the_head_is_where_its_loss_is_flat() -> None:
    images, labels = blobs([0.6, 0.3, 0.1], 200)
    evidence = replace(evidence_of(small_net(), images, labels, images), prior=torch.tensor(UNEVEN))
    head = fit_head(evidence, torch.ones(200, dtype=torch.bool))
    weight, bias = head.weight_DC.clone().requires_grad_(), head.bias_C.clone().requires_grad_()
    logits = (images - images.mean(dim=0)) / images.std(dim=0) @ weight + bias
    each = functional.cross_entropy(logits, labels, reduction="none")
    by_class = sum(UNEVEN[c] * each[labels == c].mean() for c in range(3))
    (by_class + 3 / 200 / 2 * weight.square().sum()).backward()
    assert weight.grad is not None and bias.grad is not None
    assert max(weight.grad.abs().max(), bias.grad.abs().max()) < 1e-3


def test_a_candidate_that_is_too_sure_is_not_blamed_for_it() -> None:
    images, labels = blobs([1 / 3, 1 / 3, 1 / 3], 2000)
    evidence = evidence_of(small_net(), images, labels, images)
    honest = exact_posterior(images).clamp_min(1e-30).log()
    losses = [held_out_losses(lambda _, k=k: k * honest, evidence, labels >= 0).mean() for k in (1, 4, 0.7)]
    torch.testing.assert_close(losses[0], functional.cross_entropy(honest, labels).double())
    assert losses[1] == pytest.approx(float(losses[0]))
    assert losses[2] == pytest.approx(float(losses[0]))


def test_a_head_must_be_clearly_better() -> None:
    """With ten labels held out, a head that is a little better by chance is not taken."""
    for seed in range(4):
        images, labels = blobs(UNEVEN, 100, seed)
        assert isinstance(QUICK(evidence_of(small_net(), images, labels, images)).answer, Network)


@pytest.mark.parametrize("num_validation", [10, 20])
def test_chance_does_not_choose_between_candidates_that_know_nothing(num_validation: int) -> None:
    heads = 0
    for seed in range(20):
        images = torch.randn(num_validation, 3, generator=seeded(seed))
        labels = torch.randint(3, (num_validation,), generator=seeded(seed))
        learned = Posterior(steps=(30, 30), batch_size=16)(evidence_of(small_net(), images, labels, images))
        heads += isinstance(learned.answer, Head)
    assert heads <= 2


def test_features_that_know_what_was_bought_do_not_make_a_head_better() -> None:
    """A model has learned the labels that were bought, so its features tell them; of other images they tell nothing."""
    images, labels = blobs(UNEVEN, 600)
    pool, _ = blobs([0.6, 0.38, 0.02], 4000, seed=5)
    images = images + torch.randn(images.shape, generator=seeded())
    learned_by_heart = functional.one_hot(labels, 3).float()
    learned_by_heart[:60] = 0
    features = learned_by_heart, torch.zeros(4000, 3)
    learned = Posterior(steps=(300, 300))(evidence_of(small_net(), images, labels, pool, features, num_labeled=540))
    assert isinstance(learned.answer, Network)


def test_heads_are_calibrated_on_labels_they_have_not_learned() -> None:
    """Features of chance: a head learns its own labels by heart, and is wrong and sure of it about all others."""
    images, labels = torch.randn(60, 40, generator=seeded()), blobs(UNEVEN, 60)[1]
    evidence = evidence_of(small_net(), images, labels, images)
    held = Posterior().out_of_fold(evidence, fit_head(evidence, labels >= 0))
    assert len(held.candidates) == 3 and held.temperature > 1.5
    assert (held.logits.argmax(dim=1) == held.labels).float().mean() < 0.6


def test_a_class_with_a_single_image_does_not_count_for_the_temperature() -> None:
    images, labels = blobs([0.6, 0.4, 0.0], 40)
    labels[7] = 2
    evidence = evidence_of(small_net(), images, labels, images)
    held = QUICK.out_of_fold(evidence, fit_head(evidence, labels >= 0))
    assert len(held.labels) == 39 and 2 not in held.labels.tolist()


def test_a_class_without_validation_images_is_not_expected_in_the_pool() -> None:
    images, labels = blobs([0.6, 0.4, 0.0], 60)
    pool, _ = blobs([0.8, 0.2, 0.0], 400, seed=5)
    evidence = evidence_of(small_net(), images, labels, pool)
    learned = QUICK(evidence)
    view = View(pool, torch.empty(0), (evidence.sample.features,))
    found = learned(view, None, lambda _: view)
    assert learned.pool_mix_C[2] == 0 and (found[:, 2] == 0).all() and found.isfinite().all()
    low, high = learned.pool_mix_interval_2C
    assert (low <= learned.pool_mix_C).all() and (learned.pool_mix_C <= high).all() and (high - low)[:2].min() > 0


def test_a_network_that_diverges_is_not_taken() -> None:
    images, labels = blobs([0.4, 0.3, 0.3], 100)
    learned = Posterior(steps=(20, 20), lr=1e30)(evidence_of(small_net(), images, labels, images))
    assert isinstance(learned.answer, Head) and "nan" in learned.note


def test_the_learning_rate_rises_and_falls_to_nothing() -> None:
    rates = one_cycle(400)
    assert rates.argmax() in (119, 120) and rates.max() == pytest.approx(1, abs=1e-3)
    assert rates[0] < 0.001 and rates[-1] < 0.001
    assert len(one_cycle(1)) == 1


@pytest.mark.parametrize("batch_size", [4, 256])
def test_select_with_a_posterior(batch_size: int) -> None:
    torch.manual_seed(0)
    model, pool, validation = Plain(), labeled(40, 1), labeled(16, 2)
    before = copy.deepcopy(model.state_dict())

    def choose() -> list[int]:
        chosen = select(
            model,
            TensorDataset(pool.tensors[0]),
            validation,
            budget=6,
            layers=["conv1", "conv2"],
            labels=QUICK,
            exclude=[0],
            labeled={3: 1, 7: 2},
            batch_size=batch_size,
            generator=seeded(),
            progress=False,
        )
        return chosen.indices.tolist()

    first = choose()
    assert len(set(first)) == 6 and not {0, 3, 7} & set(first)
    assert choose() == first
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items()) and model.training


def test_steps_follow_the_number_of_labels() -> None:
    assert [Posterior().num_steps(n, 10**6) for n in (100, 1000, 10_000, 100_000)] == [200, 200, 391, 800]
    assert [Posterior().num_steps(10_000, n) for n in (1_000, 10_000, 10**6)] == [100, 156, 391]


def test_a_handful_of_validation_images_is_too_few() -> None:
    torch.manual_seed(0)
    model, pool, few = Plain(), labeled(20, 1), labeled(9, 2)
    chosen, by_density = (
        select(model, pool, few, budget=3, labels=labels, progress=False) for labels in ("posterior", "density")
    )
    assert torch.equal(chosen.indices, by_density.indices)
    assert "9 validation images are too few" in chosen.notes[-1]


def test_passes_are_counted() -> None:
    # Each trusted image once, validation images again for the temperature; a tenth of these, or three, again; 10 steps
    # of 8 images there and back, and three times 6 without a fold; the sample five times, the pool once.
    passes = Posterior(steps=(10, 10), batch_size=8).passes
    assert passes(100, 0, 3000) == 100 + 100 + 10 + 2 * (10 + 3 * 6) * 8 + 5 * 3000 + 3000
    assert passes(60, 40, 50_000) == 100 + 60 + 6 + 2 * (10 + 3 * 6) * 8 + 5 * 5000 + 50_000
    assert passes(12, 0, 3000) == 12 + 12 + 3 + 2 * (10 + 3 * 6) * 8 + 5 * 3000 + 3000


class InPlace(nn.Module):
    """Scales its input where it stands, as some models do, and drops."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.mul_(2))


def test_neither_global_chance_nor_a_forbidden_gradient_nor_a_model_that_writes_on_images_matters() -> None:
    torch.manual_seed(0)
    model, (images, labels), (pool, _) = InPlace(), blobs([0.4, 0.3, 0.3], 60), blobs([0.8, 0.1, 0.1], 50, seed=3)
    before = images.clone(), pool.clone()
    view = View(pool, torch.empty(0), ())

    def learn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        blind = torch.zeros(60, 2), torch.zeros(50, 2)
        with torch.no_grad():
            learned = QUICK(evidence_of(model, images, labels, pool, blind))
            found = learned(View(pool, torch.empty(0), (blind[1],)), None, lambda _: view)
        assert torch.equal(torch.get_rng_state(), state)
        return found

    assert torch.equal(learn(1), learn(2))
    assert torch.equal(images, before[0]) and torch.equal(pool, before[1])


def test_bad_input() -> None:
    with pytest.raises(ArgumentError, match="batch_size > 0 and lr > 0"):
        Posterior(steps=(0, 10))
    for labels, own in ((labeled(12, 2).tensors[1] + 7, {}), (labeled(12, 2).tensors[1], {1: 9})):
        trusted = TensorDataset(labeled(12, 2).tensors[0], labels)
        with pytest.raises(LabelError, match="classes"):
            select(Plain(), labeled(10, 1), trusted, budget=2, labels="posterior", labeled=own, progress=False)
    with pytest.raises(ArgumentError, match="A posterior is trained for a pool"):
        describe(Plain(), labeled(6, 2), labels="posterior", progress=False)
    pool, validation = labeled(10, 1), labeled(6, 2)
    with pytest.raises(ArgumentError, match="exclude or labeled contains 10"):
        select(Plain(), pool, validation, budget=2, labels="posterior", labeled={10: 1}, progress=False)
    with pytest.raises(LabelError, match="labels='posterior' needs validation labels"):
        select(Plain(), pool, TensorDataset(validation.tensors[0]), budget=2, labels="posterior", progress=False)


def test_evidence_is_the_validation_set_and_what_was_bought() -> None:
    torch.manual_seed(0)
    model, validation, pool = Plain(), labeled(12, 2), labeled(30, 1)
    bought = {4: 2, 9: 0}
    left = [i for i in range(30) if i not in bought]
    reader, generator = Reader(batch_size=5, progress=False), torch.Generator().manual_seed(0)
    evidence = gather(model, ["conv1"], validation, pool, left, bought, reader, generator)
    assert torch.equal(evidence.trusted.images, torch.cat([validation.tensors[0], pool.tensors[0][[4, 9]]]))
    assert evidence.labels.tolist() == [*validation.tensors[1].tolist(), 2, 0]
    assert torch.equal(evidence.sample.images, pool.tensors[0][left])
    assert abs(float(evidence.prior.sum()) - 1) < 1e-6
    features = [
        describe(model, data, layers=["conv1"], labels=None, progress=False).features for data in (validation, pool)
    ]
    torch.testing.assert_close(evidence.trusted.features, torch.cat([features[0], features[1][[4, 9]]]))
    torch.testing.assert_close(evidence.sample.features, features[1][left])
    assert model.training
