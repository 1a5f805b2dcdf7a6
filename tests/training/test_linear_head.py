"""The head equals scikit-learn's at the same ridge, chooses as a slow twin chooses, and takes whatever is a table."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy.optimize import minimize_scalar
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn import functional

from rarefish.errors import ArgumentError, DataError, LabelError, ModelError, NotFiniteError
from rarefish.training import linear_head
from rarefish.training.linear_head import LinearHead, assign_folds, best_temperature, fit_linear_head

COUNTS = (40, 18, 9, 5)


def table(
    counts: tuple[int, ...] = COUNTS, width: int = 20, seed: int = 0, noise: float = 1.5
) -> tuple[Tensor, Tensor]:
    """Overlapping classes of unequal size, in random order, in features of unequal scale and far from 0."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=generator)]
    means = torch.randn(len(counts), width, generator=torch.Generator().manual_seed(7))
    features = means[labels] + noise * torch.randn(len(labels), width, generator=generator)
    return features * torch.logspace(-1, 1, width) + 30, labels


def same(one: LinearHead, other: LinearHead, atol: float = 1e-4) -> bool:
    rows = table(seed=5)[0].to(one.weight)
    return torch.allclose(one.probabilities(rows).double(), other.probabilities(rows).double(), rtol=0, atol=atol)


@pytest.mark.parametrize("balance", ["logit", "class", "none"])
@pytest.mark.parametrize("width", [20, 120])
def test_equals_scikit_learn_at_a_fixed_ridge(balance: str, width: int) -> None:
    features, labels = table(width=width)
    weight = torch.rand(len(labels), generator=torch.Generator().manual_seed(1)) + 0.5
    head = fit_linear_head(
        features, labels, 4, sample_weight=weight, balance=balance, ridges=[5.0], folds=0, tolerance=1e-10
    )
    x, y, w = features.double().numpy(), labels.numpy(), weight.double().numpy()
    mean = w @ x / w.sum()
    deviation = np.sqrt(w @ (x - mean) ** 2 / w.sum())
    scale = np.sqrt(deviation * np.sqrt((deviation**2).mean()))
    frequency = np.bincount(y, w) / w.sum()
    used = w / frequency[y] / 4 if balance == "class" else w
    twin = LogisticRegression(C=1 / 5.0, tol=1e-9, max_iter=10_000).fit((x - mean) / scale, y, used)
    new = table(width=width, seed=2)[0]
    logits = twin.decision_function((new.double().numpy() - mean) / scale)
    logits = torch.tensor(logits - (np.log(frequency) if balance == "logit" else 0))
    assert (head.probabilities(new) - logits.softmax(dim=1)).abs().max() < 1e-4
    assert (head.ridge, head.temperature, head.ridge_losses) == (5.0, 1.0, {})
    expected = torch.tensor(frequency) if balance == "none" else torch.full((4,), 0.25)
    torch.testing.assert_close(head.prior.double(), expected.double())


def test_a_feature_that_hardly_varies_in_a_few_rows_does_not_dominate() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(2).repeat(20)
    features = torch.randn(40, 30, generator=generator)
    features[:, 0] += 3.0 * labels
    features[:, 1] = 1e-3 * torch.randn(40, generator=generator) + 1e-3 * labels  # almost zero in all known rows
    head = fit_linear_head(features, labels, 2)
    new, truth = torch.randn(400, 30, generator=generator), torch.arange(2).repeat(200)
    new[:, 0] += 3.0 * truth  # and as large as others in new ones
    assert (head.logits(new).argmax(dim=1) == truth).float().mean() > 0.75


@pytest.mark.parametrize("balance", ["logit", "none"])
def test_chooses_the_ridge_and_the_temperature_of_a_slow_twin(balance: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_head, "FEW_CLOSE", 1e-9)
    features, labels = table(width=40)
    ridges = [1e-2, 1.0, 30.0, 1e4]
    head = fit_linear_head(features, labels, 4, balance=balance, ridges=ridges, folds=3)
    fold = assign_folds(features, labels, 3, new_generator())
    losses, logits_of = {}, {}
    for ridge in ridges:
        losses[ridge], logits_of[ridge] = twin_loss(features, labels, fold_like(head, fold), ridge, balance)
    for ridge in ridges:
        assert head.ridge_losses[ridge] == pytest.approx(losses[ridge][0], abs=2e-3)
    good = [ridge for ridge in ridges if losses[ridge][0] <= 1.01 * min(loss for loss, _ in losses.values())]
    assert head.ridge == max(good)
    loss, temperature = losses[head.ridge]
    assert head.temperature == pytest.approx(temperature, rel=0.02)
    assert head.out_of_fold_loss == pytest.approx(loss, abs=1e-3)
    probability = (logits_of[head.ridge] / temperature).softmax(dim=1)
    torch.testing.assert_close(head.out_of_fold_probabilities.double(), probability, atol=5e-3, rtol=0)
    is_right = probability.argmax(dim=1) == labels
    assert head.out_of_fold_accuracy == pytest.approx(float(is_right.double().mean()))
    recall = torch.stack([is_right[labels == label].double().mean() for label in range(4)]).mean()
    assert head.out_of_fold_recall == pytest.approx(float(recall))


def test_of_ridges_that_are_as_good_the_strongest_is_chosen() -> None:
    features, labels = table()
    for ridges in ([2.0, 2.001, 1e7], [1e7, 2.001, 2.0]):
        head = fit_linear_head(features, labels, 4, ridges=ridges)
        assert head.ridge == 2.001 and list(head.ridge_losses) == [1e7, 2.001, 2.0]


def new_generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fold_like(head: LinearHead, fold: Tensor) -> Tensor:
    assert fold.unique().tolist() == [0, 1, 2] and not head.out_of_fold_probabilities.isnan().any()
    return fold


def twin_loss(
    features: Tensor, labels: Tensor, fold: Tensor, ridge: float, balance: str
) -> tuple[tuple[float, float], Tensor]:
    """Loss, temperature and logits of held-out rows: scikit-learn and a loop over folds and classes."""
    x = features.double().numpy()
    deviation = x.std(axis=0)
    x = (x - x.mean(axis=0)) / np.sqrt(deviation * np.sqrt((deviation**2).mean()))
    logits = torch.zeros(len(labels), 4, dtype=torch.float64)
    for number in fold.unique():
        rest, held = (fold != number).numpy(), (fold == number).numpy()
        twin = LogisticRegression(C=1 / ridge, tol=1e-8, max_iter=10_000).fit(x[rest], labels.numpy()[rest])
        logits[held] = torch.tensor(twin.decision_function(x[held]))
    if balance == "logit":
        logits -= (labels.bincount() / len(labels)).double().log()

    def loss_at(log_temperature: float) -> float:
        each = functional.cross_entropy(logits / math.exp(log_temperature), labels, reduction="none")
        parts = [each[labels == label].mean() for label in range(4)] if balance == "logit" else [each.mean()]
        return float(torch.stack(parts).mean())

    found: Any = minimize_scalar(lambda log: loss_at(log) + log**2 / 2 / len(labels), bounds=(-3, 3), method="bounded")
    return (loss_at(found.x), math.exp(found.x)), logits


def test_the_head_is_calibrated_on_new_rows() -> None:
    features, labels = table((60, 30, 15, 10), width=60, noise=5)
    head = fit_linear_head(features, labels, 4, ridges=[1e-2])
    new, answers = table((600, 600, 600, 600), width=60, seed=3, noise=5)
    logits = head.logits(new)
    calibrated, sure = (float(functional.cross_entropy(z, answers)) for z in (logits, logits * head.temperature))
    assert head.temperature > 1.5
    assert calibrated < 0.9 * sure
    is_right = logits.argmax(dim=1).eq(answers).float().mean()
    gap, sure_gap = (z.softmax(dim=1).amax(dim=1).mean() - is_right for z in (logits, logits * head.temperature))
    assert gap.abs() < 0.12 < 0.3 < sure_gap


def test_few_rows_leave_the_temperature_near_one() -> None:
    logits, labels = torch.tensor([[3.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 1])
    few, loss = best_temperature(logits, labels, torch.ones(2))
    many, _ = best_temperature(logits.repeat(500, 1), labels.repeat(500), torch.ones(1000))
    assert many < 0.4 < 0.8 < few < 1
    assert loss == pytest.approx(math.log1p(math.exp(-3 / few)), rel=1e-4)


def test_the_order_of_rows_does_not_matter() -> None:
    features, labels = table()
    order = torch.randperm(len(labels), generator=new_generator(4))
    one, other = fit_linear_head(features, labels, 4), fit_linear_head(features[order], labels[order], 4)
    assert one.ridge == other.ridge and same(one, other)
    torch.testing.assert_close(one.out_of_fold_probabilities[order], other.out_of_fold_probabilities, atol=1e-4, rtol=0)


def test_folds_are_stratified_and_hold_copies_together() -> None:
    features, labels = table()
    labels, features = torch.cat([labels, labels[:20]]), torch.cat([features, features[:20]])
    fold = assign_folds(features, labels, 5, new_generator())
    assert torch.equal(fold[-20:], fold[:20])
    distinct = fold[:-20]
    for label, count in enumerate(COUNTS):
        spread = distinct[labels[:-20] == label].bincount(minlength=5)
        assert spread.sum() == count and spread.max() - spread.min() <= 1
    assert distinct.bincount().max() - distinct.bincount().min() <= 1
    assert not torch.equal(fold, assign_folds(features, labels, 5, new_generator(1)))
    assert torch.equal(fold, assign_folds(features, labels, 5, new_generator()))


def test_the_only_row_of_a_class_is_never_held_out() -> None:
    features, labels = table((20, 8, 1, 2))
    twice = torch.cat([features, features[labels == 2]]), torch.cat([labels, torch.tensor([2])])
    for rows, answers in ((features, labels), twice):
        head = fit_linear_head(rows, answers, 4)
        is_missing = head.out_of_fold_probabilities.isnan().all(dim=1)
        assert torch.equal(is_missing, answers == 2)
        assert math.isfinite(head.out_of_fold_loss)
        assert head.probabilities(rows)[answers == 2].argmax(dim=1).eq(2).all()


def test_folds_survive_rounding_errors() -> None:
    """Another batch size or library changes the last bits of embeddings, and may change those of copies differently."""
    features = torch.randn(2000, 300, generator=new_generator()) + 1
    features = torch.cat([features, features[:50]])
    labels = torch.arange(len(features)) % 20
    labels[-50:] = labels[:50]
    noise = 1e-6 * torch.randn(features.shape, generator=new_generator(1))
    fold = assign_folds(features, labels, 5, new_generator())
    assert torch.equal(assign_folds(features + noise, labels, 5, new_generator()), fold)
    assert torch.equal(assign_folds(features.double(), labels, 5, new_generator()), fold)
    assert torch.equal(fold[-50:], fold[:50])


def test_the_same_row_with_two_labels_in_every_fold() -> None:
    """Class 1 has only rows that are also of class 0, so that a fold has all of one kind."""
    features = torch.randn(4, 6, generator=new_generator())
    rows = torch.cat([features, features[:2]])
    head = fit_linear_head(rows, torch.tensor([0, 0, 0, 0, 1, 1]), 2, folds=2)
    assert head.probabilities(rows).isfinite().all() and math.isfinite(head.out_of_fold_loss)


def test_classes_without_rows_are_unlikely_but_possible() -> None:
    features, labels = table()
    head = fit_linear_head(features, labels, 7)
    probability = head.probabilities(features)
    assert 0 < float(probability[:, 4:].mean()) < 0.5 / len(labels)
    logits = head.logits(features.mean(dim=0, keepdim=True))[0]
    odds = (logits[4:] - logits[:4].logsumexp(dim=0)).exp()
    assert odds.tolist() == pytest.approx([0.5 / len(labels)] * 3, rel=1e-3)
    assert head.prior.tolist() == pytest.approx([0.25] * 4 + [0] * 3)
    fixed: dict[str, Any] = {"ridges": [1.0], "folds": 0}
    without = fit_linear_head(features, labels, 4, **fixed)
    given = fit_linear_head(features, labels, 7, **fixed).probabilities(features)[:, :4]
    given = given / given.sum(dim=1, keepdim=True)
    torch.testing.assert_close(given, without.probabilities(features), atol=1e-5, rtol=0)


def test_fewer_rows_than_classes() -> None:
    features, labels = table((1, 1, 1))
    head = fit_linear_head(features, labels, 10)
    assert math.isnan(head.out_of_fold_loss) and head.out_of_fold_probabilities.isnan().all()
    assert head.temperature == 1 and torch.equal(head.probabilities(features).argmax(dim=1), labels)
    few = fit_linear_head(*table((2, 1, 2)), 10)
    assert math.isfinite(few.out_of_fold_loss)


def test_two_rows_count_as_one_of_weight_two_and_none_as_weight_zero() -> None:
    features, labels = table()
    twice = torch.arange(len(labels)) % 3 == 0
    gone = torch.arange(len(labels)) % 5 == 0
    weight = (1.0 + twice) * ~gone
    rows = torch.cat([torch.arange(len(labels))[~gone], torch.arange(len(labels))[twice & ~gone]])
    for balance in ("logit", "class", "none"):
        fixed: dict[str, Any] = {"balance": balance, "ridges": [3.0], "folds": 0, "tolerance": 1e-9}
        weighted = fit_linear_head(features, labels, 4, sample_weight=weight, **fixed)
        assert same(weighted, fit_linear_head(features[rows], labels[rows], 4, **fixed))
    head = fit_linear_head(features, labels, 4, sample_weight=weight)
    assert torch.equal(head.out_of_fold_probabilities.isnan().all(dim=1), gone)
    other = fit_linear_head(features[~gone], labels[~gone], 4, sample_weight=weight[~gone])
    assert head.ridge == other.ridge and same(head, other)


def test_kinds_of_tables() -> None:
    features, labels = table()
    features = features.half().float()  # the same numbers in all kinds
    head = fit_linear_head(features, labels, 4)
    wide = torch.stack([features, -features], dim=2).flatten(1)
    fixed = np.asarray(features)
    fixed.flags.writeable = False
    kinds = (features.half(), wide[:, ::2], fixed, features.numpy().astype(np.float16), np.asfortranarray(features))
    for kind in kinds:
        other = fit_linear_head(kind, labels.numpy().astype(np.uint8), 4)
        assert other.weight.dtype == torch.float32 and other.ridge == head.ridge and same(head, other, 1e-6)
        torch.testing.assert_close(other.logits(kind), other.logits(features), atol=1e-3, rtol=0)
    double = fit_linear_head(features.double(), labels.tolist(), 4, ridges=[2.0], folds=0)
    assert double.weight.dtype == torch.float64
    assert same(double, fit_linear_head(features, labels, 4, ridges=[2.0], folds=0))


def test_features_that_do_not_vary_get_no_weight() -> None:
    features, labels = table()
    extra = torch.cat([features, torch.zeros(len(labels), 2), torch.full((len(labels), 1), 1 / 3)], dim=1)
    head, plain = fit_linear_head(extra, labels, 4), fit_linear_head(features, labels, 4)
    assert head.weight[:, -3:].eq(0).all() and head.weight.isfinite().all()
    assert set(head.ridge_losses) == set(plain.ridge_losses)  # ridges are in proportion to features that vary
    constant = fit_linear_head(
        torch.ones(12, 3), torch.tensor([0] * 9 + [1] * 3), 2, balance="none", folds=0, ridges=[1.0]
    )
    torch.testing.assert_close(
        constant.probabilities(torch.ones(1, 3)), torch.tensor([[0.75, 0.25]]), atol=1e-3, rtol=0
    )


def test_folds_solved_in_groups_give_the_same_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_head, "FEW_CLOSE", 1e-9)
    features, labels = table()
    one = fit_linear_head(features, labels, 4)
    monkeypatch.setattr(linear_head, "AT_ONCE", 2 * 4 * len(labels))
    other = fit_linear_head(features, labels, 4)
    assert one.ridge == other.ridge and same(one, other)


def test_the_generator_alone_decides() -> None:
    features, labels = table()
    before = torch.get_rng_state()
    heads = [fit_linear_head(features, labels, 4, generator=new_generator(seed)) for seed in (1, 1, 2)]
    assert torch.equal(before, torch.get_rng_state())
    probabilities = [head.out_of_fold_probabilities for head in heads]
    assert torch.equal(probabilities[0], probabilities[1]) and not torch.equal(probabilities[0], probabilities[2])


def test_the_module_gives_the_logits(tmp_path: Path) -> None:
    features, labels = table()
    head = fit_linear_head(features, labels, 4)
    module = head.module()
    assert isinstance(module, nn.Linear) and all(parameter.requires_grad for parameter in module.parameters())
    torch.testing.assert_close(module(features), head.logits(features))
    with torch.no_grad():
        module.weight.zero_()
    assert head.weight.any()


CORNERS = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])


def exclusive_or(count: int, seed: int) -> tuple[Tensor, Tensor]:
    corner = torch.tensor([4.0, 3.0, 2.0, 3.0]).multinomial(count, True, generator=new_generator(seed))
    noise = 0.15 * torch.randn(count, 2, generator=new_generator(seed + 1))
    return 5 * (CORNERS[corner] + noise) + 2, torch.tensor([0, 1, 1, 0])[corner]


@pytest.mark.parametrize("balance", ["logit", "class", "none"])
def test_a_hidden_layer_learns_what_no_linear_head_can(
    balance: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if balance != "logit":  # the default is tried with all of its steps
        monkeypatch.setattr(linear_head, "HIDDEN_STEPS", 300)
    features, labels = exclusive_or(300, 1)
    before = torch.get_rng_state()
    head = fit_linear_head(features, labels, 2, hidden=16, folds=2, balance=balance)
    assert torch.equal(before, torch.get_rng_state())
    assert fit_linear_head(features, labels, 2).out_of_fold_accuracy < 0.8
    new, answers = exclusive_or(500, 8)
    assert head.out_of_fold_accuracy > 0.95 and head.probabilities(new).argmax(1).eq(answers).float().mean() > 0.95
    assert isinstance(head.module(), nn.Sequential)
    torch.testing.assert_close(head.module()(new), head.logits(new))
    head.save(tmp_path / "head.safetensors")
    assert torch.equal(LinearHead.load(tmp_path / "head.safetensors").logits(new), head.logits(new))


def test_balance_makes_up_for_rare_classes_behind_a_hidden_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_head, "HIDDEN_STEPS", 200)
    features, labels = table((90, 10), width=2, noise=3)
    new, _ = table((200, 200), width=2, noise=3, seed=3)
    heads = [fit_linear_head(features, labels, 2, hidden=4, folds=2, balance=balance) for balance in ("none", "class")]
    rare = [float((head.probabilities(new).argmax(dim=1) == 1).float().mean()) for head in heads]
    assert rare[0] < 0.1 < 0.25 < rare[1]


def test_a_saved_head_is_the_same(tmp_path: Path) -> None:
    features, labels = table((20, 8, 1, 2))
    head = fit_linear_head(features, labels, 4)
    path = tmp_path / "head.safetensors"
    head.save(path)
    assert list(tmp_path.iterdir()) == [path]
    again = LinearHead.load(str(path))
    for name in ("weight", "bias", "prior", "out_of_fold_probabilities"):
        torch.testing.assert_close(getattr(again, name), getattr(head, name), rtol=0, atol=0, equal_nan=True)
    for name in ("temperature", "ridge", "ridge_losses", "out_of_fold_loss", "out_of_fold_recall", "hidden"):
        assert getattr(again, name) == getattr(head, name), name


def test_files_that_hold_no_head(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        LinearHead.load(tmp_path / "none.safetensors")
    save_file({"weight": torch.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ModelError, match="does not contain a head"):
        LinearHead.load(tmp_path / "other.safetensors")
    head = fit_linear_head(*table(), 4, folds=0, ridges=[1.0])
    head.save(tmp_path / "head.safetensors")
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "head.safetensors").read_bytes()[:-100])
    with pytest.raises(ModelError, match="is damaged"):
        LinearHead.load(tmp_path / "cut.safetensors")


FEATURES, LABELS = table()
BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"features": FEATURES.index_fill(0, torch.tensor([3, 7]), math.nan)}, NotFiniteError, "2 of 72 rows: 3, 7"),
    ({"features": FEATURES.index_fill(0, torch.tensor([5]), math.inf)}, NotFiniteError, "1 of 72 rows: 5"),
    ({"features": FEATURES[:0]}, DataError, "at least one of each"),
    ({"features": FEATURES[:, :0]}, DataError, "at least one of each"),
    ({"features": np.zeros(72)}, DataError, r"not \(72,\)"),
    ({"labels": LABELS[:-1]}, LabelError, r"72 integers, one per row of features, not \(71,\) of int64"),
    ({"labels": LABELS.numpy() / 2}, LabelError, "of float64"),
    ({"labels": LABELS.index_fill(0, torch.tensor([4]), -1)}, LabelError, "found -1 in rows 4"),
    ({"num_classes": 3}, LabelError, "0 to 2 for 3 classes, but found 3 in rows"),
    ({"labels": torch.full((72,), 2)}, LabelError, "All 72 rows belong to class 2. A head needs rows of at least two"),
    ({"sample_weight": (LABELS == 1).float()}, LabelError, "All 18 rows belong to class 1"),
    ({"sample_weight": torch.zeros(72)}, LabelError, "All rows have weight 0"),
    ({"sample_weight": torch.ones(71)}, ArgumentError, "one number for each of the 72 rows"),
    ({"sample_weight": -LABELS.float()}, ArgumentError, "at least 0, but is not in rows"),
    ({"sample_weight": torch.full((72,), math.nan)}, ArgumentError, "must be finite"),
    ({"balance": "clas"}, ArgumentError, "no balance 'clas'. Did you mean class"),
    ({"ridges": []}, ArgumentError, "one or more finite numbers greater than 0"),
    ({"ridges": [1.0, 0.0]}, ArgumentError, "greater than 0"),
    ({"ridges": [math.nan]}, ArgumentError, "greater than 0"),
    ({"folds": 1}, ArgumentError, "at least 2, or 0"),
    ({"folds": 0}, ArgumentError, "Without folds, no ridge can be chosen"),
    ({"tolerance": 0.0}, ArgumentError, "tolerance"),
    ({"hidden": 0}, ArgumentError, "hidden must be at least 1"),
    ({"hidden": 4, "ridges": [1.0]}, ArgumentError, "without ridges and sample_weight"),
    ({"hidden": 4, "sample_weight": torch.ones(72)}, ArgumentError, "without ridges and sample_weight"),
]


@pytest.mark.parametrize(("changes", "kind", "message"), BAD)
def test_bad_input(changes: dict[str, Any], kind: type[Exception], message: str) -> None:
    arguments: dict[str, Any] = {"features": FEATURES, "labels": LABELS, "num_classes": 4}
    with pytest.raises(kind, match=message):
        fit_linear_head(**arguments | changes)


def test_a_table_of_another_width_is_refused() -> None:
    head = fit_linear_head(FEATURES, LABELS, 4, folds=0, ridges=[1.0])
    with pytest.raises(ArgumentError, match=r"needs rows of 20 features, not a shape of \(72, 19\)"):
        head.logits(FEATURES[:, :-1])
