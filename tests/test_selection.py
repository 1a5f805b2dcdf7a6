"""select() as a whole: against Algorithm 1 written out, its invariances, its bad inputs."""

import csv
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given as hypothesis_given
from hypothesis import settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from rarefish import Embeddings, MonteCarlo, Posterior, describe, select
from rarefish.data.reader import Reader
from rarefish.distributed.torchrun import TorchrunExecutor
from rarefish.errors import (
    ArgumentError,
    DataError,
    IntegerImagesWarning,
    LabelError,
    LayerError,
    ModelError,
    UnstableDataWarning,
)
from rarefish.features import watched
from rarefish.fisher import configure
from rarefish.kernels import KERNELS, similarity, standardize
from rarefish.matching import fixed_uniforms
from rarefish.pseudo_labels.label_shift import fit_temperature
from rarefish.pseudo_labels.posterior import Evidence, Seen, TrustedPosterior, gather
from rarefish.pseudo_labels.rules import RULES
from rarefish.selection import Selection
from tests import forked_processes
from tests.cases import NUM_CLASSES, NormedPlain, Plain, biased, images, labeled, skewed
from tests.reference import Settings, cover_by_loops, distinct_loop, k_center_loop, select_by_posterior

LAYERS = ("conv1", "conv2")
FEW = MonteCarlo(samples=6, noise=0.2, degrees=20)
QUICK = Posterior(steps=(5, 5))
"""The default, hardly trained: for tests in which the answers of the posterior do not matter."""


def net(seed: int = 0) -> Plain:
    torch.manual_seed(seed)
    return Plain().double()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("labels", ["true", "prediction", "density", FEW])
@pytest.mark.parametrize("budget", [3, 40])
def test_equals_algorithm_1_written_out(kernel: str, labels: Any, budget: int) -> None:
    model, pool, validation = net(), labeled(60, seed=1), labeled(20, seed=2)
    chosen = select(model, pool, validation, budget=budget, layers=LAYERS, kernel=kernel, labels=labels, batch_size=16)

    truth = validation.tensors[1]
    wrong = (model(validation.tensors[0].double()).argmax(dim=1) != truth).nonzero().flatten()
    assert chosen.num_failures == len(wrong) > 3
    side = labels if not isinstance(labels, str) or labels != "density" else "true"
    failures = standardize(describe(model, validation, layers=LAYERS, labels=side)[wrong])
    if labels == "density":
        features = [standardize(describe(model, data, layers=LAYERS)) for data in (pool, validation)]
        side = truth[similarity(features[0], features[1], "features").argmax(dim=1)]
    described = describe(model, pool, layers=LAYERS, labels=side)
    generator = seeded()
    torch.randint(2**62, (), generator=generator)  # the seed of Monte Carlo labels is drawn first
    first = int(torch.randint(len(wrong), (1,), generator=generator))
    rows = (
        k_center_loop(similarity(failures, failures, kernel), first, budget)
        if budget < len(wrong)
        else list(range(len(wrong)))
    )
    expected = distinct_loop(
        similarity(failures[torch.tensor(rows)], standardize(described), kernel), list(range(60)), budget
    )
    assert chosen.indices.tolist() == [index for index, _ in expected]
    assert chosen.centers.tolist() == [int(wrong[rows[k]]) for _, k in expected]
    shown = describe(model, pool, layers=LAYERS) if kernel == "features" else described
    assert torch.equal(chosen.pseudo_labels, shown.label[chosen.indices])


@pytest.mark.parametrize(
    ("build", "layers", "steps", "noise", "seed", "is_network", "is_too_sure"),
    [
        (NormedPlain, ("conv1",), 24, 2.0, 3, False, False),
        (NormedPlain, ("conv1",), 40, 1.0, 3, True, False),
        (Plain, LAYERS, 80, 2.0, 3, True, False),
        (Plain, LAYERS, 160, 3.0, 4, True, True),
    ],
)
def test_the_default_equals_its_twin(
    build: type[nn.Module],
    layers: tuple[str, ...],
    steps: int,
    noise: float,
    seed: int,
    is_network: bool,
    is_too_sure: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a posterior; validation set, pool and the labels so far have classes in different and uneven proportions."""
    torch.manual_seed(seed)
    model, budget = build().double(), 12
    pool, validation = (
        TensorDataset(data.tensors[0].double(), data.tensors[1])
        for data in (skewed((50, 14, 9, 7), seed + 1, noise), skewed((20, 11, 6, 3), seed + 2, noise))
    )
    (pool_images, pool_labels), (trusted, truth) = pool.tensors, validation.tensors
    bought = {int(i): c for c, count in enumerate((2, 3, 6, 5)) for i in (pool_labels == c).nonzero().flatten()[:count]}
    excluded = [i for i in range(80) if i not in bought][:3]
    settings = Settings(steps=steps, batch_size=16, lr=1e-2, shift=1 / 14, floor=1e-3, sample=40)
    monkeypatch.setattr("rarefish.pseudo_labels.posterior.SAMPLE", settings.sample)
    chosen = select(
        model,
        TensorDataset(pool_images),
        validation,
        budget=budget,
        layers=layers,
        labels=Posterior(steps=(steps, steps), batch_size=16),
        exclude=excluded,
        labeled=bought,
        batch_size=16,
        progress=False,
    )
    known = trusted, truth.tolist()
    expected = select_by_posterior(model, pool_images, known, bought, excluded, budget, layers, settings)
    assert expected.is_network == is_network and chosen.num_failures > budget
    assert (expected.temperature > 1.5) == is_too_sure
    rows = chosen.rows()
    assert [(i, center, label) for i, _, center, label in rows] == [
        (i, center, label) for i, _, center, label in expected.rows
    ]
    assert chosen.similarities.tolist() == pytest.approx([row[1] for row in expected.rows], abs=0.02)
    assert chosen.pool_mix is not None and chosen.pool_mix.tolist() == pytest.approx(expected.pool_mix, abs=3e-4)
    losses = [float(number) for number in re.findall(r"\d+\.\d\d", chosen.notes[0])]
    assert losses == pytest.approx(expected.losses, abs=0.006)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_posterior_weighs_every_kernel_as_written_out(kernel: str) -> None:
    """Priors that differ between validation and pool, and labels of the pool, none of them uniform."""
    model, pool, validation = net().float(), biased([40, 25, 10, 5], seed=1), biased([6, 9, 8, 7], seed=2)
    known = {3: int(pool.tensors[1][3]), 17: int(pool.tensors[1][17])}
    how: dict[str, Any] = {"labels": Posterior(steps=(40, 40)), "labeled": known, "kernel": kernel}
    chosen = select(model, pool, validation, budget=12, layers=LAYERS, batch_size=16, **how)

    left, generator = [i for i in range(80) if i not in known], seeded()
    torch.randint(2**62, (), generator=generator)  # the seed of Monte Carlo labels is drawn first
    evidence = gather(model, LAYERS, validation, pool, left, known, Reader(progress=False), generator)
    learned = how["labels"](evidence)
    trusted_logits, truth = model(validation.tensors[0]), validation.tensors[1]
    wrong = (trusted_logits.argmax(dim=1) != truth).nonzero().flatten()
    failures = describe(model, validation, layers=LAYERS, labels="true")[wrong]
    with torch.no_grad(), watched(model, LAYERS) as watch:
        p = torch.cat([learned(watch(pool.tensors[0][i : i + 1]), None, watch) for i in left])
    described = describe(
        model, pool, layers=LAYERS, labels=torch.zeros(80).long().index_put_((torch.tensor(left),), p.argmax(dim=1))
    )
    rows = k_center_loop(
        similarity(standardize(failures), standardize(failures), kernel),
        int(torch.randint(len(wrong), (1,), generator=generator)),
        min(12, len(wrong)),
    )
    similarity_KN = similarity(
        standardize(failures[torch.tensor(rows)]), standardize(described[torch.tensor(left)]), kernel
    )
    probabilities = [[float(p[n, truth[wrong[row]]]) for n in range(len(left))] for row in rows]
    expected = distinct_loop(similarity_KN, left, 12, probabilities)
    assert list(zip(chosen.indices.tolist(), chosen.centers.tolist(), strict=True)) == [
        (index, int(wrong[rows[k]])) for index, k in expected
    ]
    assert chosen.indices.tolist() != [index for index, _ in distinct_loop(similarity_KN, left, 12)]
    assert torch.equal(chosen.pseudo_labels, described.label[chosen.indices]) and chosen.pool_mix is not None


def test_labels_without_effect_are_noted() -> None:
    """On a kernel without scores, labels that are no probabilities have none; nothing is dropped in silence."""
    how: dict[str, Any] = {"budget": 4, "layers": LAYERS, "kernel": "features"}
    plain = select(net(), labeled(30, 1), labeled(12, 2), labels="prediction", **how)
    assert plain.notes == ()
    for labels in ("density", "true", FEW):
        chosen = select(net(), labeled(30, 1), labeled(12, 2), labels=labels, **how)
        assert torch.equal(chosen.indices, plain.indices)
        assert f"kernel='features' does not use labels={labels!r}" in chosen.notes[0]
    few = select(net(), labeled(30, 1), labeled(9, 2), **how)
    assert "9 validation images are too few" in few.notes[0] and "does not use labels='density'" in few.notes[1]


@pytest.mark.parametrize("labels", [*RULES, FEW], ids=str)
def test_batch_size_and_seed(labels: Any) -> None:
    labels = {"posterior": QUICK, "trace": FEW, "mutual_information": FEW}.get(labels, labels)
    runs = [
        select(net(), labeled(30, 1), labeled(12, 2), budget=6, layers=LAYERS, labels=labels, batch_size=b).indices
        for b in (1, 7, 30)
    ]
    assert torch.equal(runs[0], runs[1]) and torch.equal(runs[0], runs[2])


def test_another_order_of_the_pool_gives_the_same_images() -> None:
    pool, order = labeled(40, 1), torch.randperm(40, generator=seeded(5))
    shuffled = TensorDataset(*(tensor[order] for tensor in pool.tensors))
    how: dict[str, Any] = {"budget": 9, "layers": LAYERS, "labels": QUICK}
    straight, other = (select(net(), p, labeled(12, 2), **how) for p in (pool, shuffled))
    assert order[other.indices].tolist() == straight.indices.tolist()


def test_the_seed_decides_which_failures_stand_for_all() -> None:
    how: dict[str, Any] = {"budget": 3, "layers": LAYERS, "labels": QUICK}
    runs = [select(net(), labeled(60, 1), labeled(40, 2), **how, generator=seeded(s)) for s in (*range(8), 4)]
    assert len({tuple(run.centers.tolist()) for run in runs}) > 1
    assert torch.equal(runs[4].indices, runs[-1].indices)


def test_images_are_distinct_and_none_excluded() -> None:
    excluded = [0, 5, 7, 7, 29]
    how: dict[str, Any] = {"budget": 26, "layers": LAYERS, "labels": QUICK}
    chosen = select(net(), labeled(30, 1), labeled(12, 2), **how, exclude=excluded)
    assert sorted(chosen.indices.tolist()) == [i for i in range(30) if i not in excluded]
    tensor = select(net(), labeled(30, 1), labeled(12, 2), **how, exclude=torch.tensor(excluded))
    assert torch.equal(tensor.indices, chosen.indices)


@pytest.mark.parametrize("labels", ["posterior", "density"])
def test_what_was_learned_on_the_way_is_kept(labels: str) -> None:
    model, validation = net().float(), labeled(15, 2)
    chosen = select(model, labeled(30, 1), validation, budget=6, layers=LAYERS, labels=labels, batch_size=4)
    answers = model(validation.tensors[0]).argmax(dim=1)
    assert chosen.center_predictions is not None
    assert torch.equal(chosen.center_predictions, answers[chosen.centers])
    assert (chosen.center_predictions != validation.tensors[1][chosen.centers]).all()
    assert (chosen.pool_mix is not None) == (labels == "posterior")
    if chosen.pool_mix is not None:
        assert chosen.pool_mix.shape == (NUM_CLASSES,) and float(chosen.pool_mix.sum()) == pytest.approx(1)


def test_layers_are_chosen_when_none_are_named() -> None:
    assert select(net(), labeled(9, 1), labeled(5, 2), budget=2).layers == ("conv1", "conv2")


@pytest.mark.parametrize("labels", ["prediction", FEW, MonteCarlo(statistic="mutual_information", samples=6)], ids=str)
def test_right_or_wrong_is_enough(labels: Any) -> None:
    """Weak supervision: flags in place of validation labels choose as the labels would."""
    model, pool, validation = net(), labeled(30, 1), labeled(12, 2)
    wrong = model(validation.tensors[0].double()).argmax(dim=1) != validation.tensors[1]
    by_label = select(model, pool, validation, budget=5, layers=LAYERS, labels=labels)
    bare = TensorDataset(validation.tensors[0])
    for flags in (wrong, wrong.tolist()):
        by_flag = select(model, pool, bare, budget=5, layers=LAYERS, labels=labels, failures=flags)
        assert torch.equal(by_flag.indices, by_label.indices) and torch.equal(by_flag.centers, by_label.centers)


def test_no_failures_fall_back_to_the_least_sure() -> None:
    model, inputs = net(), images(12, 2)
    logits = model(inputs.double())
    validation = TensorDataset(inputs, logits.argmax(dim=1))
    chosen = select(model, labeled(30, 1), validation, budget=4, layers=LAYERS)
    margin = logits.topk(2).values.diff(dim=1).neg().flatten()
    assert chosen.num_failures == 0 and len(chosen) == 4
    assert set(chosen.centers.tolist()) <= set(margin.argsort()[:4].tolist())
    assert "all 12 validation images right. The 4 least certain ones" in chosen.notes[0]


class Broken(list[Any]):
    """Some items cannot be read."""

    bad: tuple[int, ...] = (7,)

    def __getitem__(self, index: Any) -> Any:
        if index in self.bad:
            raise OSError("truncated file")
        return super().__getitem__(index)


def test_pool_images_that_cannot_be_read_are_left_out_and_listed() -> None:
    pool, validation = images(9), labeled(12, 2)
    chosen = select(net(), Broken(pool), validation, budget=8, layers=LAYERS)
    assert chosen.unreadable == {7: "truncated file"}
    assert any(
        "1 pool images could not be read and were left out, such as 7: truncated" in note for note in chosen.notes
    )
    assert sorted(chosen.indices.tolist()) == [0, 1, 2, 3, 4, 5, 6, 8]
    for method in ("coverage", "fisher"):
        fewer = select(net(), Broken(pool), validation, budget=9, layers=LAYERS, batch_size=1, method=method)
        assert len(fewer) == 8 and len(set(fewer.indices.tolist())) == 8
    none = Broken(pool)
    none.bad = tuple(range(9))
    with pytest.raises(DataError, match="None of the pool's 9 images can be read. Image 0: truncated file"):
        select(net(), none, validation, budget=2, layers=LAYERS, labels="density")
    with pytest.raises(DataError, match="None of the 9 sampled pool images can be read"):
        select(net(), none, validation, budget=2, layers=LAYERS)


def test_the_model_comes_back_even_when_a_pool_image_cannot_be_read() -> None:
    model = net().train()
    with pytest.raises(DataError, match="Cannot read image 7: truncated"):
        select(model, Broken(images(9)), labeled(5, 2), budget=2, layers=LAYERS, strict=True)
    assert model.training and not model.conv1._forward_hooks and all(p.requires_grad for p in model.parameters())


def test_what_is_written(tmp_path: Path) -> None:
    chosen = select(net(), labeled(30, 1), labeled(12, 2), budget=5, layers=LAYERS)
    chosen.save(tmp_path / "picks.csv")
    rows = list(csv.DictReader((tmp_path / "picks.csv").read_text().splitlines()))
    assert [int(row["index"]) for row in rows] == chosen.indices.tolist()
    assert [float(row["similarity"]) for row in rows] == pytest.approx(chosen.relative_similarities.tolist(), abs=1e-6)
    frame = chosen.to_frame()
    assert list(frame.columns) == ["index", "similarity", "center", "pseudo_label"]
    assert frame["center"].tolist() == chosen.centers.tolist()
    chosen.contact_sheet(tmp_path / "picks.png")
    sheet = Image.open(tmp_path / "picks.png")
    assert sheet.width > 500 and len(sheet.convert("L").getcolors(100_000) or []) > 10
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".part"] == []


class Wrapped(nn.Module):
    """A model whose output is not what it should be."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.net, self.change = Plain(), change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.net(x))


POOL, VALIDATION = labeled(10, 1), labeled(6, 2)
BARE = TensorDataset(images(6))
TOO_HIGH = TensorDataset(images(6), torch.tensor([0, 1, NUM_CLASSES, 2, 9, 1]))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"budget": 0}, ArgumentError, "Cannot choose 0 images. The budget must be at least 1"),
        ({"budget": -3}, ArgumentError, "Cannot choose -3 images"),
        ({"budget": 12}, ArgumentError, "Cannot choose 12 images: the pool has 10 left. Lower the budget"),
        ({"budget": 9, "exclude": [1, 2]}, ArgumentError, r"has 8 left \(2 of 10 are excluded\)"),
        ({"exclude": [10]}, ArgumentError, "exclude or labeled contains 10, but the pool's indices are 0 to 9"),
        ({"pool": BARE[:0][0]}, DataError, "The pool is empty"),
        ({"validation": BARE[:0][0]}, DataError, "The validation set is empty"),
        ({"kernel": "fischer"}, ArgumentError, "no kernel 'fischer'. Did you mean fisher"),
        ({"labels": "densty"}, ArgumentError, "no label estimator 'densty'. Did you mean density"),
        ({"layers": ("conv3",)}, LayerError, "no layer 'conv3'. Did you mean conv2 or conv1"),
        ({"validation": TOO_HIGH}, LabelError, "4 classes, so labels must be 0 to 3, but found 4, 9 at index 2, 4"),
        ({"validation": BARE}, LabelError, "'posterior' needs validation labels"),
        ({"validation": BARE, "labels": "prediction"}, LabelError, "has no labels. Give .* or failures="),
        ({"validation": BARE, "failures": [True] * 6}, LabelError, "'posterior' needs validation labels"),
        ({"failures": [True]}, ArgumentError, "1 flags for 6 validation images"),
        ({"pool": BARE, "labels": "true"}, LabelError, "needs the pool's true labels"),
        ({"model": Wrapped(lambda y: {"logits": y}), "layers": None}, ModelError, "returns a dict with logits"),
        ({"model": Wrapped(lambda y: (y, y)), "layers": ("net.conv1",)}, ModelError, "returns a tuple"),
        ({"model": Wrapped(lambda y: y[:, :, None]), "layers": ("net.conv1",)}, ModelError, r"shape \(6, 4, 1\)"),
        ({"model": Wrapped(lambda y: y / 0), "layers": ("net.conv1",)}, ArithmeticError, "in the logits of 6 of 6"),
        ({"batch_size": 0}, ArgumentError, "batch_size must be at least 1"),
        ({"precision": "half"}, ArgumentError, "no precision 'half'"),
    ],
)
def test_bad_input(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = {"model": Plain(), "pool": POOL, "validation": VALIDATION, "budget": 2, "layers": LAYERS} | changes
    with pytest.raises(error, match=message):
        select(**arguments)


@pytest.mark.parametrize("changes", [{"budget": 99}, {"layers": ("nope",)}, {"kernel": "x"}, {"labels": "x"}])
def test_mistakes_are_found_before_any_image_goes_through_the_model(changes: dict[str, Any]) -> None:
    class Counted(Plain):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            Counted.calls += 1
            return super().forward(x)

    with pytest.raises(ArgumentError):
        select(**{"model": Counted(), "pool": POOL, "validation": VALIDATION, "budget": 2, "layers": LAYERS} | changes)
    assert Counted.calls == 0


@pytest.mark.parametrize("labels", ["posterior", "density", "prediction", "mutual_information"])
def test_infinite_scores_name_the_images(labels: str) -> None:
    pool = images(10)
    pool[[4, 8]] = torch.inf
    with pytest.raises(ArithmeticError, match=r"2 of 10 images of a batch: index 4, 8\."):
        select(Plain(), TensorDataset(pool), VALIDATION, budget=2, layers=LAYERS, labels=labels)


def test_a_pool_that_changes_between_reads_is_warned_of() -> None:
    class Augmented(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index) + torch.rand(())

    with pytest.warns(UnstableDataWarning, match="differed on a second read"):
        chosen = select(Plain(), Augmented(images(10)), VALIDATION, budget=2, layers=LAYERS)
    assert isinstance(chosen, Selection) and len(chosen) == 2


def test_arguments_of_the_wrong_kind() -> None:
    """As a user meets them: in a process of its own, without the type checks of the tests."""
    script = Path(__file__).with_name("wrong_kinds.py")
    done = forked_processes.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_model_is_run_eagerly() -> None:
    model = net()
    compiled = torch.compile(model)
    assert isinstance(compiled, nn.Module)
    how: dict[str, Any] = {"budget": 4, "layers": LAYERS, "labels": QUICK}
    runs = [select(m, labeled(30, 1), labeled(12, 2), **how).indices for m in (model, compiled)]
    assert torch.equal(runs[0], runs[1])


def test_the_callers_autocast_and_chance_do_not_matter() -> None:
    how: dict[str, Any] = {"budget": 4, "layers": LAYERS, "labels": Posterior(steps=(50, 50))}
    expected = select(net().float(), list(images(30, 1)), labeled(12, 2), **how)
    before = torch.get_rng_state()
    with torch.autocast("cpu", torch.bfloat16):
        chosen = select(net().float(), list(images(30, 1)), labeled(12, 2), **how)
    assert torch.equal(chosen.indices, expected.indices) and torch.equal(chosen.similarities, expected.similarities)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_callers_autocast_does_not_matter_for_coverage() -> None:
    pool, trusted = vectors([0.9, 0.07, 0.03], 300, seed=1)[0], vectors(PRIORS, 40, seed=2)
    expected = select(None, pool, trusted, budget=25, progress=False)
    with torch.autocast("cpu", torch.bfloat16):
        chosen = select(None, pool, trusted, budget=25, progress=False)
    assert torch.equal(chosen.indices, expected.indices) and torch.equal(chosen.similarities, expected.similarities)


def test_flat_descriptors_are_noted() -> None:
    model = net()
    nn.init.zeros_(model.conv2.weight)
    nn.init.zeros_(model.conv2.bias)  # pyright: ignore[reportArgumentType]
    chosen = select(model, labeled(10, 1), labeled(6, 2), budget=3, layers=("conv2",))
    assert "3 chosen images resemble no failure" in chosen.notes[-1]


def test_pictures_without_a_transform_are_refused_before_the_work() -> None:
    pictures = [(Image.new("RGB", (8, 8)), 0)] * 4
    with pytest.raises(DataError, match="Image 0 is a Image, not a tensor. Add a transform"):
        select(Plain(), pictures, VALIDATION, budget=2, layers=LAYERS)


def test_a_collate_may_make_images_of_anything() -> None:
    items = [{"file": i, "digit": int(POOL.tensors[1][i % 10])} for i in range(10)]

    def collate(rows: list[dict[str, int]]) -> tuple[Tensor, Tensor]:
        return torch.stack([images(10)[row["file"]] for row in rows]), torch.tensor([row["digit"] for row in rows])

    chosen = select(Plain(), items, items[:6], budget=2, layers=LAYERS, collate_fn=collate)
    assert len(chosen) == 2
    with pytest.raises(LabelError, match="collate_fn= returned a batch without labels"):
        select(Plain(), items, items[:6], budget=2, layers=LAYERS, collate_fn=lambda rows: collate(rows)[0])
    with pytest.raises(DataError, match="returned 2 images for 1 items"):
        select(
            Plain(),
            items,
            items[:6],
            budget=2,
            layers=LAYERS,
            collate_fn=lambda rows: tuple(torch.cat([part, part]) for part in collate(rows)),
        )


def test_an_error_in_a_worker_is_one_sentence() -> None:
    pool = [(image, 0) for image in images(9)] + [(images(1)[0, :1], 0)]
    with pytest.raises(DataError) as caught:
        select(Plain(), pool, VALIDATION, budget=2, layers=LAYERS, num_workers=1, batch_size=10)
    assert "Traceback" not in str(caught.value) and "differ in shape" in str(caught.value)


def test_images_in_whole_numbers_are_warned_of() -> None:
    pool = TensorDataset((images(10) * 50).byte())
    with pytest.warns(IntegerImagesWarning, match="images of the pool are uint8, not floats"):
        select(Plain(), pool, VALIDATION, budget=2, layers=LAYERS)


class Failing(TensorDataset):
    """A pool on a disk that fails at one read, or from one read on."""

    def __init__(self, data: TensorDataset, at: int, forever: bool) -> None:
        super().__init__(*data.tensors)
        self.reads, self.at, self.forever = 0, at, forever

    def __getitem__(self, index: Any) -> Any:
        self.reads += 1
        if self.reads == self.at or (self.forever and self.reads > self.at):
            raise OSError(5, "Input/output error")
        return super().__getitem__(index)


@pytest.mark.parametrize("labels", [QUICK, "true"], ids=["posterior", "true"])
def test_a_read_that_fails_at_any_time_is_no_reason_to_stop(labels: Any, tmp_path: Path) -> None:
    validation = labeled(15, 1)

    def choose(at: int, forever: bool = False) -> tuple[int, Selection]:
        pool = Failing(labeled(12), at, forever)
        chosen = select(net().float(), pool, validation, budget=3, layers=LAYERS, labels=labels, progress=False)
        return pool.reads, chosen

    reads, whole = choose(0)
    told = 0
    for at in range(1, reads + 1):
        _, chosen = choose(at)
        assert len(chosen) == 3 and len(chosen.unreadable) <= 1
        told += len(chosen.unreadable)
    assert told == 12  # in the pass over the pool each image is missed once
    assert not whole.unreadable
    assert isinstance(whole.pool, Failing)
    whole.pool.at = whole.pool.reads + 2
    whole.contact_sheet(tmp_path / "picks.png")  # with a black image
    with Image.open(tmp_path / "picks.png") as sheet:
        assert sheet.width > 100
    with pytest.raises(DataError, match="Input/output error"):
        choose(1, forever=True)


@pytest.mark.parametrize("kernel", ["fisher", "features"])
def test_class_probabilities_are_the_models_in_the_order_of_the_picks(kernel: str) -> None:
    model, pool = net().train(), labeled(30, 1)
    how: dict[str, Any] = {"budget": 7, "layers": LAYERS, "kernel": kernel, "labels": "density"}
    chosen = select(model, pool, labeled(12, 2), **how, batch_size=3)
    assert model.training and not chosen.indices.equal(chosen.indices.sort().values)
    expected = model.eval()(pool.tensors[0][chosen.indices].double()).softmax(dim=1)
    torch.testing.assert_close(chosen.class_probabilities, expected.float())


def test_class_probabilities_of_a_posterior_are_its_own_under_the_proportions_of_the_pool() -> None:
    """Logits that say nothing: what is left are the proportions of the pool."""

    def know_nothing(evidence: Evidence) -> TrustedPosterior:
        prior_C, mix_C = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.1, 0.2, 0.3, 0.4]])
        return TrustedPosterior(
            lambda seen: torch.zeros(len(seen.images), 4), (mix_C / prior_C).log(), "", mix_C, mix_C.expand(2, 4)
        )

    class Ignorant(Posterior):
        def __call__(self, evidence: Evidence) -> TrustedPosterior:
            return know_nothing(evidence)

    chosen = select(net(), labeled(30, 1), labeled(12, 2), budget=5, layers=LAYERS, labels=Ignorant(), batch_size=2)
    assert chosen.pool_mix is not None
    torch.testing.assert_close(chosen.class_probabilities, chosen.pool_mix.expand(5, 4))


class Fading(list[Any]):
    """Some items can be read at first, but not any more once the pool has been described."""

    def __init__(self, items: Any, fading: tuple[int, ...]) -> None:
        super().__init__(items)
        self.fading, self.reads = fading, Counter[int]()

    def __getitem__(self, index: Any) -> Any:
        self.reads[index] += 1
        if index in self.fading and self.reads[index] > (3 if index < 8 else 1):  # of eight, two reads are a check
            raise OSError("gone")
        return super().__getitem__(index)


def test_a_pick_that_cannot_be_read_again_has_no_class_probabilities() -> None:
    pool, validation = images(20), labeled(12, 2)
    how: dict[str, Any] = {"budget": 4, "layers": LAYERS, "labels": "density", "batch_size": 3}
    whole = select(net(), Fading(pool, ()), validation, **how)
    picks = whole.indices.tolist()
    chosen = select(net(), Fading(pool, (picks[2],)), validation, **how)
    assert chosen.rows() == whole.rows() and not chosen.unreadable
    assert "1 chosen images could not be read again: their probabilities are unknown." in chosen.notes
    assert chosen.class_probabilities.isnan().all(dim=1).tolist() == [False, False, True, False]
    torch.testing.assert_close(chosen.class_probabilities[[0, 1, 3]], whole.class_probabilities[[0, 1, 3]])
    none = select(net(), Fading(pool, tuple(picks)), validation, **how)
    assert none.rows() == whole.rows() and none.class_probabilities.isnan().all(dim=1).tolist() == [True] * 4
    with pytest.raises(DataError, match="Cannot read image 5: gone"):
        select(net(), Fading(pool, (picks[2],)), validation, **how, strict=True)


@settings(max_examples=25, deadline=None)
@hypothesis_given(
    seed=st.integers(0, 10**6),
    num_groups=st.integers(1, 30),
    batch_size=st.sampled_from([1, 3, 17, 60]),
    shard_size=st.sampled_from([4, 25, 60]),
    share=st.floats(0.05, 1),
    is_weighted=st.booleans(),
)
def test_the_budget_counts_groups_and_none_is_chosen_twice(
    seed: int, num_groups: int, batch_size: int, shard_size: int, share: float, is_weighted: bool
) -> None:
    """For any groups, batches, order and shards; each group with its row that Algorithm 1 would choose first."""
    rng = seeded(seed)
    pool, validation = labeled(60, seed % 7), labeled(16, 99)
    group = torch.randint(num_groups, (60,), generator=rng)
    bought = {int(i): int(pool.tensors[1][i]) for i in torch.randperm(60, generator=rng)[:2]}
    excluded = torch.randperm(60, generator=rng)[:2].tolist()
    gone = {int(group[i]) for i in (*bought, *excluded)}
    left = sorted({int(g) for g in group} - gone)
    if not left:
        return
    budget = max(1, round(share * len(left)))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(128, NUM_CLASSES)).double()
    rows, trusted = (
        Embeddings(d.tensors[0].flatten(1).numpy(), labels=d.tensors[1].numpy()) for d in (pool, validation)
    )
    how: dict[str, Any] = {"budget": budget, "labeled": bought, "exclude": excluded, "progress": False}
    how["labels"] = "posterior" if is_weighted else "density"
    names = [f"video {g}" for g in group.tolist()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rarefish.fisher.EMBEDDINGS_AT_ONCE", 1)
        patch.setattr("rarefish.matching.GROUP_IMAGES", batch_size)
        chosen = select(model, rows, trusted, groups=names, batch_size=batch_size, **how)
        executor = TorchrunExecutor(shard_size=shard_size)
        sharded = select(model, rows, trusted, groups=group, executor=executor, **how)
        order = torch.randperm(60, generator=rng)
        where = {int(old): new for new, old in enumerate(order.tolist())}
        shuffled = select(
            model,
            rows.only(order.numpy()),
            trusted,
            groups=group[order],
            **{**how, "labeled": {where[i]: c for i, c in bought.items()}, "exclude": [where[i] for i in excluded]},
        )
    groups = group[chosen.indices].tolist()
    assert len(groups) == budget == len(set(groups)) and set(groups) <= set(left)
    assert torch.equal(sharded.indices, chosen.indices)
    if not is_weighted:  # the folds of the posterior depend on the order of the rows
        assert order[shuffled.indices].tolist() == chosen.indices.tolist()
    with pytest.raises(ArgumentError, match=f"Cannot choose {len(left) + 1} groups: the pool has {len(left)} left"):
        select(model, rows, trusted, groups=names, **{**how, "budget": len(left) + 1})


@pytest.mark.parametrize("kernel", KERNELS)
def test_groups_choose_as_algorithm_1_over_groups(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All first choices of the centers, then second choices; a choice is a group, with its most similar row."""
    monkeypatch.setattr("rarefish.matching.GROUP_IMAGES", 8)  # so that tables of several batches are merged
    model, pool, validation = net(), labeled(60, seed=1), labeled(20, seed=2)
    group = torch.randint(14, (60,), generator=seeded(3))
    wrong = (model(validation.tensors[0].double()).argmax(dim=1) != validation.tensors[1]).nonzero().flatten()[:2]
    flags = torch.zeros(20, dtype=torch.bool).index_fill(0, wrong, True)  # few centers, which need many choices each
    how: dict[str, Any] = {"layers": LAYERS, "kernel": kernel, "labels": "true", "batch_size": 8, "failures": flags}
    chosen = select(model, pool, validation, budget=13, groups=group.numpy(), **how)
    failures, points = (
        standardize(describe(model, data, layers=LAYERS, labels="true")[rows])
        for data, rows in ((validation, wrong), (pool, torch.arange(60)))
    )
    table = similarity(failures, points, kernel)
    best = {g: (group == g).nonzero().flatten() for g in range(14)}
    ranked = [sorted(best, key=lambda g, k=k: -float(table[k, best[g]].max())) for k in range(len(table))]
    expected: list[int] = []
    for rank in range(14):
        for k in sorted(range(len(table)), key=lambda k: -float(table[k, best[ranked[k][rank]]].max())):
            members = best[ranked[k][rank]]
            row = int(members[table[k, members].argmax()])
            if int(group[row]) not in {int(group[i]) for i in expected}:
                expected.append(row)
    assert chosen.indices.tolist() == expected[:13]


def test_groups_that_do_not_fit_are_named() -> None:
    how: dict[str, Any] = {"budget": 2, "layers": LAYERS, "labels": QUICK}
    with pytest.raises(ArgumentError, match=r"groups has the shape \(3,\) for 30 pool images"):
        select(net(), labeled(30, 1), labeled(12, 2), groups=[1, 2, 3], **how)
    same = select(net(), labeled(30, 1), labeled(12, 2), groups=range(30), **how)
    assert torch.equal(same.indices, select(net(), labeled(30, 1), labeled(12, 2), **how).indices)


PRIORS = [0.5, 0.3, 0.2]


def vectors(shares: list[float], num: int, seed: int, width: int = 6) -> tuple[Tensor, Tensor]:
    """Overlapping classes with these proportions, at the same places for every seed."""
    generator = seeded(seed)
    labels = torch.multinomial(torch.tensor(shares), num, replacement=True, generator=generator)
    places = 0.8 * torch.randn(3, width, generator=seeded(7))
    return places[labels] + torch.randn(num, width, generator=generator), labels


@pytest.mark.parametrize("candidates", [40, 500])
@pytest.mark.parametrize("cross_fit", [True, False])
def test_coverage_equals_its_twin(cross_fit: bool, candidates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With uneven classes, labeled and excluded rows, and fewer or more candidates than rows."""
    monkeypatch.setattr("rarefish.selection.CANDIDATES", candidates)
    pool, truth = vectors([0.9, 0.07, 0.03], 120, seed=1)
    trusted, labels = vectors(PRIORS, 60, seed=2)
    own = {5: int(truth[5]), 9: int(truth[9]), 30: 2}
    torch.manual_seed(3)
    head = None if cross_fit else nn.Linear(6, 3)
    how: dict[str, Any] = {"budget": 10, "labeled": own, "exclude": [0, 1], "progress": False}
    chosen = select(head, pool, (trusted, labels), **how, batch_size=17)

    model = nn.Linear(6, 3) if head is None else head
    data, known = Embeddings(pool.numpy()), Embeddings(trusted.numpy(), labels=labels.numpy())
    config = configure(model, None, known, Reader(progress=False), None, "auto")
    remaining = [row for row in range(120) if row not in (0, 1, *own)]
    generator = seeded()
    torch.randint(2**62, (), generator=generator)  # drawn for the label rule
    evidence = gather(
        *(model, ("embedding",), known, data, remaining, own, config.reader, generator), watching=config.watching
    )
    posterior = Posterior()(evidence)
    answers = [posterior.answer(Seen(rows, rows)) / posterior.temperature for rows in (pool[remaining], trusted)]
    if cross_fit:
        logits, tested = answers[0], (posterior.held_logits / posterior.temperature).softmax(dim=1)
        assert len(tested) == 60
    else:
        temperature = fit_temperature(model(trusted).detach().double(), labels)
        logits, tested = (model(rows).detach() / temperature for rows in (pool[remaining], trusted))
        tested = tested.softmax(dim=1)
    need = [1 - float(tested[labels == c, c].mean()) for c in range(3)]
    recalls = [float((posterior.held_logits.argmax(dim=1) == c)[labels == c].float().mean()) for c in range(3)]
    reliability = (sum(recalls) / 3 - 1 / 3) / (2 / 3)
    mean, scale = pool[remaining].mean(dim=0), pool[remaining].std(dim=0, correction=0)
    expected = cover_by_loops(
        posterior=answers[0].softmax(dim=1).tolist(),
        model=logits.softmax(dim=1).tolist(),
        features=((pool[remaining] - mean) / scale).tolist(),
        known=((torch.cat([trusted, pool[[*own]]]) if cross_fit else pool[[*own]]) - mean).div(scale).tolist(),
        prior=(labels.bincount() / 60).tolist(),
        mix=posterior.pool_mix_C.tolist(),
        reliability=reliability,
        need=[(value + 0.02) ** 0.5 for value in need],
        count=10,
        uniforms=fixed_uniforms(torch.tensor(remaining)).tolist(),
        candidates=candidates,
    )
    assert chosen.indices.tolist() == [remaining[row] for row in expected]

    # Each image is explained by the failure that is close to it and of a class that it probably has.
    failed = (tested.argmax(dim=1) != labels).nonzero()[:, 0]
    shift = reliability * (posterior.pool_mix_C * 60 / labels.bincount()).log()
    probabilities = (answers[0][expected] + shift).softmax(dim=1)
    here, there = (
        nn.functional.normalize((rows - mean) / scale, dim=1) for rows in (pool[chosen.indices], trusted[failed])
    )
    closest = (((here @ there.T - 1) / 0.8).exp() * probabilities[:, labels[failed]]).argmax(dim=1)
    assert chosen.centers.tolist() == failed[closest].tolist()

    wrong = (tested.argmax(dim=1) != labels).nonzero()[:, 0]
    assert chosen.num_failures == len(wrong) and set(chosen.centers.tolist()) <= set(wrong.tolist())
    assert chosen.center_predictions.tolist() == tested.argmax(dim=1)[chosen.centers].tolist()
    directions = nn.functional.normalize((torch.cat([pool, trusted]) - mean) / scale, dim=1)
    cosine = directions[chosen.indices] @ directions[120 + wrong].T
    match = (((cosine - 1) / 0.8).exp() * chosen.class_probabilities[:, labels[wrong]]).argmax(dim=1)
    assert chosen.centers.tolist() == wrong[match].tolist()
    found = (1 + cosine.gather(1, match[:, None]).squeeze(1)) / 2
    torch.testing.assert_close(chosen.similarities, found, atol=1e-5, rtol=1e-5)
    assert chosen.pseudo_labels.tolist() == chosen.class_probabilities.argmax(dim=1).tolist()


@pytest.mark.parametrize("batch_size", [3, 1000])
@pytest.mark.parametrize("shard_size", [7, 50])
def test_coverage_does_not_depend_on_batches_shards_or_order(batch_size: int, shard_size: int) -> None:
    pool, _ = vectors([0.9, 0.07, 0.03], 90, seed=1)
    trusted = vectors(PRIORS, 40, seed=2)
    how: dict[str, Any] = {"budget": 7, "progress": False, "labeled": {4: 1}}
    whole = select(None, pool, trusted, **how)
    parts = select(None, pool, trusted, **how, batch_size=batch_size, executor=TorchrunExecutor(shard_size=shard_size))
    assert parts.indices.tolist() == whole.indices.tolist() and parts.centers.tolist() == whole.centers.tolist()
    torch.testing.assert_close(parts.class_probabilities, whole.class_probabilities)


def test_coverage_finds_the_rare_classes_that_random_images_hardly_contain() -> None:
    pool, truth = vectors([0.97, 0.02, 0.01], 2000, seed=1, width=12)
    trusted = vectors([0.4, 0.3, 0.3], 30, seed=2, width=12)
    chosen = select(None, pool, trusted, budget=30, progress=False)
    assert (truth[chosen.indices] > 0).float().mean() > 5 * (truth > 0).float().mean() > 0.1


def test_coverage_of_groups_takes_one_row_of_each() -> None:
    pool, _ = vectors([0.9, 0.07, 0.03], 60, seed=1)
    group = torch.arange(60) // 3
    chosen = select(None, pool, vectors(PRIORS, 30, seed=2), budget=12, groups=group, exclude=[0, 8], progress=False)
    found = group[chosen.indices].tolist()
    assert len(set(found)) == 12 and not {0, 2} & set(found)


def test_coverage_of_images_through_a_frozen_backbone_equals_coverage_of_their_embeddings() -> None:
    """With a posterior that does not train a copy of the model."""
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(128, 9), nn.Tanh())
    torch.manual_seed(0)
    head = nn.Linear(9, NUM_CLASSES)
    pool, validation = labeled(50, 1), labeled(30, 2)
    model = nn.Sequential(*backbone, head).float()
    rows, trusted = (model[:3](data.tensors[0].float()).detach() for data in (pool, validation))
    images_of = [TensorDataset(data.tensors[0].float(), data.tensors[1]) for data in (pool, validation)]
    how: dict[str, Any] = {"budget": 8, "method": "coverage", "progress": False}
    one = select(head, rows, (trusted, validation.tensors[1]), **how)
    other = select(model, *images_of, **how, layers=("2",), labels=Posterior(network=False))
    assert one.indices.tolist() == other.indices.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "coverag"}, "no method 'coverag'. Did you mean coverage"),
        ({"method": "coverage", "kernel": "sum"}, "does not use kernel. Set method='fisher'"),
        ({"method": "coverage", "labels": "density"}, "does not use labels"),
    ],
)
def test_arguments_that_a_method_ignores_are_rejected(options: dict[str, Any], message: str) -> None:
    pool, _ = vectors(PRIORS, 30, seed=1)
    with pytest.raises(ArgumentError, match=message):
        select(None, pool, vectors(PRIORS, 20, seed=2), budget=2, progress=False, **options)


def test_the_method_of_the_paper_takes_the_model_as_it_is() -> None:
    with pytest.raises(ArgumentError, match="Leave out cross_fit"):
        select(net(), labeled(20, 1), labeled(20, 2), budget=2, layers=LAYERS, method="fisher", cross_fit=True)


def test_with_few_validation_images_the_paper_is_followed() -> None:
    pool, _ = vectors(PRIORS, 30, seed=1)
    chosen = select(None, pool, vectors(PRIORS, 8, seed=2), budget=2, progress=False)
    assert any("too few to train a posterior" in note for note in chosen.notes)


def test_the_default_is_coverage_if_the_trusted_images_are_trained_on_or_there_are_embeddings() -> None:
    pool, validation = labeled(30, 1), labeled(20, 2)
    how: dict[str, Any] = {"budget": 3, "layers": LAYERS, "progress": False}
    assert select(net(), pool, validation, **how).method == "fisher"
    assert select(net(), pool, validation, **how, cross_fit=True).method == "coverage"
    rows, trusted = vectors(PRIORS, 30, seed=1)[0], vectors(PRIORS, 20, seed=2)
    for head in (None, nn.Linear(6, 3)):
        assert select(head, rows, trusted, budget=3, progress=False).method == "coverage"
        assert select(head, rows, trusted, budget=3, progress=False, labels="density").method == "fisher"
