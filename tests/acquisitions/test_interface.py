"""What every acquisition must do, and each against its brute-force twin."""

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rarefish import select
from rarefish.acquisitions import ACQUISITIONS, Choice, Situation, find_acquisition
from rarefish.acquisitions.class_balance import fill_quotas
from rarefish.acquisitions.diversity import farthest_first, last_features, spread_out
from rarefish.acquisitions.dropout import sampling
from rarefish.acquisitions.epig import epig
from rarefish.acquisitions.fisher_kernel import monte_carlo_passes
from rarefish.acquisitions.typiclust import k_means, rank_clusters, typicality
from rarefish.acquisitions.uncertainty import STATISTICS, uncertainties
from rarefish.acquisitions.vaal import Vaal, train_vaal
from rarefish.active_learning.oracles import known_labels
from rarefish.errors import ArgumentError, ModelError
from rarefish.pseudo_labels.monte_carlo import MonteCarlo
from rarefish.pseudo_labels.posterior import Posterior
from tests.cases import Plain, labeled

POOL, VALIDATION, CPU = labeled(30, 1), labeled(12, 2), torch.device("cpu")
ANSWERS = known_labels(POOL.tensors[1].tolist())
FAST: dict[str, dict[str, Any]] = {
    "variation_ratio": {"samples": 5},
    "bald": {"samples": 5},
    "mean_std": {"samples": 5},
    "vaal": {"settings": Vaal(steps=2, batch_size=4)},
    "epig": {"samples": 5, "num_targets": 4},
}


class Dropped(Plain):
    default_dropout = {"conv1": 0.25, "conv2": 0.5}  # noqa: RUF012


def situation(labeled_: tuple[int, ...] = (3, 9, 11), members: int = 1, batch_size: int = 1000) -> Situation:
    torch.manual_seed(0)
    models = tuple(Dropped() for _ in range(members))
    return Situation(models, POOL, VALIDATION, labeled_, batch_size=batch_size, ask=ANSWERS)


class Files:
    """The pool as files would give it: one by one, with a list of labels."""

    targets = POOL.tensors[1].tolist()

    def __len__(self) -> int:
        return len(POOL)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return POOL.tensors[0][index], self.targets[index]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def choose(name: str, here: Situation, budget: int, seed: int = 0) -> Choice:
    return find_acquisition(name, **FAST.get(name, {}))(here, budget, seeded(seed))


@pytest.mark.parametrize("name", ACQUISITIONS)
@pytest.mark.parametrize("already", [(), (3, 9, 11)])
@pytest.mark.parametrize("budget", [1, 7, 27])
def test_contract(name: str, already: tuple[int, ...], budget: int) -> None:
    """The right count, distinct, only unlabeled, the same by the same generator, pool and model untouched."""
    here = situation(already)
    pool, model = copy.deepcopy(POOL.tensors), copy.deepcopy(here.model.state_dict())
    chance = torch.get_rng_state()
    chosen = choose(name, here, budget).indices
    assert len(chosen) == len(set(chosen)) == budget
    assert not set(chosen) & set(already) and set(chosen) <= set(range(30))
    assert torch.equal(torch.get_rng_state(), chance)
    assert choose(name, situation(already), budget).indices == chosen
    assert all(torch.equal(a, b) for a, b in zip(pool, POOL.tensors, strict=True))
    assert all(torch.equal(value, here.model.state_dict()[name]) for name, value in model.items())
    assert here.model.training and not any(m._forward_hooks or m._forward_pre_hooks for m in here.model.modules())


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_what_was_refused_is_not_chosen(name: str) -> None:
    here = Situation(situation().models, POOL, VALIDATION, (3, 9), refused=(0, 1, 2), ask=ANSWERS)
    assert not {0, 1, 2, 3, 9} & set(choose(name, here, 25).indices)


def test_random_is_fair() -> None:
    counts = torch.zeros(30)
    for seed in range(600):
        counts[choose("random", situation(), 5, seed).indices] += 1
    assert counts[[3, 9, 11]].sum() == 0
    expected = 600 * 5 / 27
    chi_squared = float(((counts[counts > 0] - expected) ** 2 / expected).sum())
    assert chi_squared < 55  # 26 degrees of freedom: 0.1 % of fair draws are above 54


def slow_statistic(name: str, answers: list[list[float]]) -> float:
    """The statistic of one image from T lists of C probabilities."""
    T, C = len(answers), len(answers[0])
    mean = [sum(p[c] for p in answers) / T for c in range(C)]

    def entropy(p: list[float]) -> float:
        return -sum(q * math.log(q) for q in p if q > 0)

    votes = [max(range(C), key=lambda c: p[c]) for p in answers]
    spread = [math.sqrt(sum((p[c] - mean[c]) ** 2 for p in answers) / T) for c in range(C)]
    first, second = sorted(mean)[-1], sorted(mean)[-2]
    return {
        "least_confidence": 1 - first,
        "margin": second - first,
        "entropy": entropy(mean),
        "variation_ratio": 1 - max(votes.count(c) for c in range(C)) / T,
        "bald": entropy(mean) - sum(map(entropy, answers)) / T,
        "mean_std": sum(spread) / C,
    }[name]


@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.parametrize("T", [1, 6])
def test_statistics_equal_loops(name: str, T: int) -> None:
    p_TNC = torch.randn(T, 9, 5, generator=seeded(), dtype=torch.float64).mul(2).softmax(dim=2)
    slow = [slow_statistic(name, p_TNC[:, n].tolist()) for n in range(9)]
    torch.testing.assert_close(STATISTICS[name](p_TNC), torch.tensor(slow, dtype=torch.float64))


@pytest.mark.parametrize("name", ["least_confidence", "margin", "entropy"])
def test_without_samples_the_least_sure_are_taken(name: str) -> None:
    here = situation(members=2)
    values = {}
    for i in here.unlabeled:
        answers = [model(POOL.tensors[0][i : i + 1]).softmax(dim=1)[0].tolist() for model in here.models]
        values[i] = slow_statistic(name, answers)
    choice = choose(name, here, 6)
    assert choice.indices == sorted(values, key=lambda i: -values[i])[:6]
    assert choice.passes == 27 * 2


@pytest.mark.parametrize(
    "name",
    [
        "least_confidence",
        "entropy",
        "variation_ratio",
        "bald",
        "mean_std",
        "badge",
        "vaal",
        "tail_first",
        "epig",
        "galaxy",
        "direct",
    ],
)
def test_a_random_first_round(name: str) -> None:
    assert choose(name, situation(()), 6, 4).indices == choose("random", situation(()), 6, 4).indices


@pytest.mark.parametrize("name", ACQUISITIONS)
def test_images_in_files_are_chosen_as_those_in_memory(name: str) -> None:
    here = situation(batch_size=7)
    assert choose(name, replace(here, pool=Files()), 6).indices == choose(name, here, 6).indices


def test_dropout_is_on_at_scoring_only_and_its_mean_is_the_model() -> None:
    here = situation()
    images = POOL.tensors[0][:3]
    plain = here.model.eval()(images)
    with torch.no_grad(), sampling(here.model, 2, seeded()) as answer:
        first, second = answer(images)
        torch.testing.assert_close(answer(images[1:2])[:, 0], torch.stack([first[1], second[1]]))
    assert not torch.equal(first, second)
    assert torch.equal(here.model(images), plain)
    linear = nn.Sequential(nn.Linear(4, 50), nn.Linear(50, 3))
    linear.default_dropout = {"0": 0.5}  # pyright: ignore[reportArgumentType]
    x = torch.ones(1, 4)
    with torch.no_grad(), sampling(linear, 4000, seeded()) as answer:
        mean = answer(x).mean(dim=0)
    torch.testing.assert_close(mean, linear(x), atol=0.05, rtol=0)


class Dropper(nn.Module):
    """Two places that drop, each with a mask that is looked up."""

    default_dropout: ClassVar = {"first": 0.25, "second": 0.5}

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(2, 3, 3), nn.Conv2d(3, 4, 3), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x).relu()).relu().flatten(1))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_samples_equal_a_loop_over_samples_and_images(layout: torch.memory_format) -> None:
    model = Dropper().eval().to(memory_format=layout)  # pyright: ignore[reportCallIssue]
    images, chance = POOL.tensors[0][:5], seeded(3)
    keep = [torch.empty(6, *shape).bernoulli_(1 - p, generator=chance) / (1 - p) for p, shape in MASKS]
    with torch.no_grad(), sampling(model, 6, seeded(3)) as answer:
        fast = answer(images)
    for s in range(6):
        for n in range(5):
            x = model.first(images[n : n + 1]) * keep[0][s]
            x = model.second(x.relu()) * keep[1][s]
            torch.testing.assert_close(fast[s, n], model.last(x.relu().flatten(1))[0], atol=1e-5, rtol=1e-5)


MASKS = [(0.25, (3, 6, 6)), (0.5, (4, 4, 4))]


def test_a_models_own_dropout_layers_are_used_even_beside_a_shortcut() -> None:
    class Shortcut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.last = nn.Dropout(0.5), nn.Linear(128, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.drop(x.flatten(1)) + x.flatten(1))

    own, images = Shortcut().eval(), POOL.tensors[0][:2]
    with sampling(own, 3, seeded()) as answer:
        answers = answer(images)
    assert answers.shape == (3, 2, 4) and not torch.equal(answers[0], answers[1])
    assert torch.equal(own(images), own(images))
    with pytest.raises(ModelError, match="needs a model with Dropout layers"), sampling(Plain(), 2, seeded()):
        pass


def test_dropout_layers_that_are_switched_off_do_not_count() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.0), nn.Linear(128, 4)).eval()
    with pytest.raises(ModelError, match="needs a model with Dropout layers"), sampling(model, 2, seeded()):
        pass


def test_what_is_said_of_an_image_does_not_depend_on_its_batch() -> None:
    one, other = (
        uncertainties(situation(members=2, batch_size=size), STATISTICS["bald"], 5, seeded()) for size in (3, 10)
    )
    torch.testing.assert_close(one, other)


def test_samples_are_as_many_as_asked_for() -> None:
    seen: list[tuple[int, ...]] = []

    def note(p: Tensor) -> Tensor:
        seen.append(tuple(p.shape))
        return p.mean(dim=(0, 2))

    uncertainties(situation(members=2, batch_size=10), note, 20, seeded())
    assert all(shape[0] == 40 and shape[2] == 4 for shape in seen) and sum(shape[1] for shape in seen) == 27
    assert max(shape[1] for shape in seen) == 2  # 4 × batch_size / samples images at a time


def farthest_loop(points: Tensor, given_: list[int], first: int | None, count: int) -> list[int]:
    chosen: list[int] = []
    while len(chosen) < count:
        if first is not None and not chosen:
            chosen.append(first)
            continue
        left = [i for i in range(len(points)) if i not in [*given_, *chosen]]
        distance = {i: min(float((points[i] - points[j]).square().sum()) for j in [*given_, *chosen]) for i in left}
        chosen.append(max(left, key=lambda i: distance[i]))
    return chosen


@given(num=st.integers(4, 25), num_given=st.integers(0, 3), data=st.data(), seed=st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_core_set_equals_a_loop(num: int, num_given: int, data: st.DataObject, seed: int) -> None:
    count = data.draw(st.integers(1, num - num_given))
    points = torch.randn(num, 6, generator=seeded(seed), dtype=torch.float64)
    num_candidates = data.draw(st.integers(1, num))
    rows = farthest_first(points, num_given, count, seeded(seed), num_candidates).tolist()
    first = rows[0] if num_given == 0 else None
    assert rows == farthest_loop(points, list(range(num_given)), first, count)


def test_core_set_sees_what_the_classifier_sees() -> None:
    here = situation()
    features, logits = last_features(here, [4, 2])
    assert isinstance(here.model, Plain)
    torch.testing.assert_close(here.model.fc(features), logits)
    everything = [*here.labeled, *here.unlabeled]
    points, _ = last_features(here, everything)
    assert choose("core_set", here, 4).indices == [everything[r] for r in farthest_loop(points, [0, 1, 2], None, 4)]


@given(num=st.integers(2, 20), data=st.data(), seed=st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_badge_equals_k_means_plus_plus_on_whole_gradients(num: int, data: st.DataObject, seed: int) -> None:
    count = data.draw(st.integers(1, num))
    left, right = (torch.randn(num, d, generator=seeded(seed + d), dtype=torch.float64) for d in (3, 5))
    gradients = torch.einsum("nc,nf->ncf", left, right).flatten(1)
    chances = torch.rand(count, generator=seeded(seed), dtype=torch.float64).tolist()
    rows = [int(gradients.square().sum(dim=1).argmax())]
    for chance in chances[: count - 1]:
        weights = [min(float((g - gradients[r]).square().sum()) for r in rows) for g in gradients]
        passed = [sum(weights[: row + 1]) > chance * sum(weights) for row in range(num)]
        rows.append(passed.index(True))
    assert spread_out(left, right, count, seeded(seed)).tolist() == rows


def test_badge_takes_copies_only_when_nothing_else_is_left() -> None:
    left, right = torch.ones(6, 2), torch.ones(6, 3)
    left[5] *= 2
    rows = spread_out(left, right, 6, seeded()).tolist()
    assert rows[0] == 5 and sorted(rows) == list(range(6))


def test_badge_gradients_are_those_of_the_classifiers_weights() -> None:
    here = situation()
    features, logits = last_features(here, [7])
    probability = logits.softmax(dim=1)
    error = probability - torch.nn.functional.one_hot(probability.argmax(dim=1), 4)
    assert isinstance(here.model, Plain)
    here.model.eval()
    out = here.model(POOL.tensors[0][7:8])
    torch.nn.functional.cross_entropy(out, out.argmax(dim=1)).backward()
    assert here.model.fc.weight.grad is not None
    torch.testing.assert_close(torch.outer(error[0], features[0]), here.model.fc.weight.grad)


def test_vaal_tells_labeled_from_unlabeled() -> None:
    """Labeled images are bright, unlabeled ones dark: the discriminator finds out."""
    bright, dark = (torch.rand(20, 1, 28, 28, generator=seeded(s)) + 2 * (s == 0) for s in (0, 1))
    encoder, judge = train_vaal(bright, dark, Vaal(steps=60, batch_size=16, adversary=0.0), seeded(), CPU)
    with torch.no_grad():
        scores = [float(judge(encoder(images)[0]).mean()) for images in (bright, dark)]
    assert scores[0] > scores[1] + 1


@given(data=st.data(), num_classes=st.integers(1, 6), budget=st.integers(1, 20))
def test_quotas_equal_giving_one_at_a_time(data: st.DataObject, num_classes: int, budget: int) -> None:
    counts = st.lists(st.integers(0, 9), min_size=num_classes, max_size=num_classes)
    have, supply = data.draw(counts), data.draw(counts.filter(lambda given_: sum(given_) >= budget))
    slow = [0] * num_classes
    for _ in range(budget):
        open_ = [c for c in range(num_classes) if slow[c] < supply[c]]
        slow[min(open_, key=lambda c: (have[c] + slow[c], c))] += 1
    assert fill_quotas(have, supply, budget) == slow


@pytest.mark.parametrize(("name", "have"), [("balanced_entropy", [0] * 4), ("tail_first", [2, 1, 0, 0])])
def test_quotas_take_the_least_sure_of_each_answer(name: str, have: list[int]) -> None:
    here = replace(situation(), labels=(0, 0, 1))
    with torch.no_grad():
        p = here.model(POOL.tensors[0]).softmax(dim=1)
    values = {i: slow_statistic("entropy", [p[i].tolist()]) for i in here.unlabeled}
    answers = {i: int(p[i].argmax()) for i in here.unlabeled}
    chosen = choose(name, here, 8).indices
    supply = [sum(a == c for a in answers.values()) for c in range(4)]
    for c, quota in enumerate(fill_quotas(have, supply, 8)):
        best = sorted((i for i in answers if answers[i] == c), key=lambda i: -values[i])[:quota]
        assert set(best) == {i for i in chosen if answers[i] == c}


def test_similar_covers_the_failures_greedily() -> None:
    here = situation()
    (images, truth), unlabeled = VALIDATION.tensors, here.unlabeled

    def gradient(image: Tensor, label: int | None) -> Tensor:
        """Of the classifier's weights, by autograd; the predicted label where none is given."""
        assert isinstance(here.model, Plain)
        logits = here.model(image[None])
        target = logits.argmax(dim=1) if label is None else torch.tensor([label])
        (found,) = torch.autograd.grad(nn.functional.cross_entropy(logits, target), [here.model.fc.weight])
        return found.flatten() / found.norm()

    wrong = [m for m in range(12) if int(here.model(images[m : m + 1]).argmax()) != int(truth[m])]
    queries = [gradient(images[m], int(truth[m])) for m in wrong]
    pool = {i: gradient(POOL.tensors[0][i], None) for i in unlabeled}
    S = {i: [max(float(q @ g), 0.0) for q in queries] for i, g in pool.items()}

    def value(chosen: list[int]) -> float:
        return sum(max(S[i][q] for i in chosen) for q in range(len(queries))) + sum(max(S[i]) for i in chosen)

    chosen: list[int] = []
    for _ in range(5):
        chosen.append(max((i for i in unlabeled if i not in chosen), key=lambda i: value([*chosen, i])))
    assert choose("similar", here, 5).indices == chosen


def test_k_means_finds_what_is_apart() -> None:
    truth = torch.arange(60) % 3
    points = 10 * nn.functional.one_hot(truth, 4).float() + torch.randn(60, 4, generator=seeded())
    found = k_means(points, 3, seeded())
    assert len({(int(t), int(c)) for t, c in zip(truth, found, strict=True)}) == 3


def test_typicality_equals_loops() -> None:
    points = torch.randn(9, 3, generator=seeded(), dtype=torch.float64)
    for n, fast in enumerate(typicality(points).tolist()):
        distances = sorted(float((points[n] - points[m]).norm()) for m in range(9) if m != n)[:4]
        assert fast == pytest.approx(1 / (sum(distances) / 4 + 1e-5))


def test_clusters_with_fewest_labels_then_the_largest_come_first() -> None:
    #                       labeled | the rest
    cluster = torch.tensor([0, 0, 2, *[0] * 9, *[1] * 5, *[2] * 7, *[3] * 6, 4])
    assert rank_clusters(cluster, 3) == [3, 1, 2, 0]


def test_typiclust_takes_one_of_each_cluster_in_turn() -> None:
    here = situation()
    everything = [*here.labeled, *here.unlabeled]
    features, _ = last_features(here, everything)
    features = nn.functional.normalize(features, dim=1)
    cluster = k_means(features, 7, seeded())
    order = rank_clusters(cluster, 3)
    expected, taken = [], set()
    while len(expected) < 4:
        for c in order:
            members = [row for row in range(3, 30) if int(cluster[row]) == c and row not in taken]
            if members and len(expected) < 4:
                best = members[int(typicality(features[members]).argmax())]
                taken.add(best)
                expected.append(everything[best])
    assert choose("typiclust", here, 4).indices == expected


def test_epig_equals_loops_and_is_zero_where_answers_do_not_hang_together() -> None:
    pool, targets = (torch.randn(7, n, 3, generator=seeded(n), dtype=torch.float64).softmax(dim=2) for n in (4, 5))
    for n, fast in enumerate(epig(pool, targets).tolist()):
        slow = 0.0
        for m in range(5):
            for y in range(3):
                for z in range(3):
                    both = sum(float(pool[t, n, y] * targets[t, m, z]) for t in range(7)) / 7
                    alone = float(pool[:, n, y].mean() * targets[:, m, z].mean())
                    slow += both * math.log(both / alone) / 5
        assert fast == pytest.approx(slow)
    assert epig(pool[:1].expand(7, -1, -1), targets).abs().max() < 1e-9


@pytest.mark.parametrize(
    ("name", "options"),
    [("fisher", {}), ("features", {"kernel": "features"}), ("fisher_true", {"labels": "true"})],
)
def test_fisher_is_select_and_says_why(name: str, options: dict[str, Any]) -> None:
    here = situation()
    choice = choose(name, here, 5)
    chosen = select(here.model, POOL, VALIDATION, budget=5, exclude=here.labeled, generator=seeded(), **options)
    assert choice.indices == chosen.indices.tolist()
    assert choice.why is not None and torch.equal(choice.why.centers, chosen.centers)
    each = 1 if name == "features" else 2
    learning = Posterior().passes(12, 3, 27) if name == "fisher" else 0
    assert choice.passes == 12 + each * (27 + chosen.num_failures) + learning


def test_monte_carlo_labels_cost_samples_times_classes() -> None:
    assert monte_carlo_passes("density", 10) == 0
    assert monte_carlo_passes("trace", 10) == 128 * 11
    assert monte_carlo_passes(MonteCarlo(samples=4), 10) == 44


def test_unknown_names_get_a_hint() -> None:
    assert find_acquisition("random") is ACQUISITIONS["random"]
    with pytest.raises(ArgumentError, match="no acquisition 'entopy'. Did you mean entropy"):
        find_acquisition("entopy")


def test_the_guide_names_every_acquisition() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/experiments.md").read_text()
    assert [name for name in ACQUISITIONS if f"`{name}`" not in guide] == []
