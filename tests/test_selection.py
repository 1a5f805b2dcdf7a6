"""select() as a whole: against Algorithm 1 written out, its invariances, its bad inputs."""

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from rarefish import MonteCarlo, describe, select
from rarefish.errors import (
    ArgumentError,
    DataError,
    IntegerImagesWarning,
    LabelError,
    LayerError,
    ModelError,
    UnstableDataWarning,
)
from rarefish.kernels import KERNELS, similarity, standardize
from rarefish.pseudo_labels.rules import RULES
from rarefish.selection import Selection
from tests.cases import NUM_CLASSES, Plain, images, labeled
from tests.reference import distinct_loop, k_center_loop

LAYERS = ("conv1", "conv2")
FEW = MonteCarlo(samples=6, noise=0.2, degrees=20)


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


@pytest.mark.parametrize("labels", [*RULES, FEW], ids=str)
def test_batch_size_and_seed(labels: Any) -> None:
    labels = FEW if labels in ("trace", "mutual_information") else labels
    runs = [
        select(net(), labeled(30, 1), labeled(12, 2), budget=6, layers=LAYERS, labels=labels, batch_size=b).indices
        for b in (1, 7, 30)
    ]
    assert torch.equal(runs[0], runs[1]) and torch.equal(runs[0], runs[2])


def test_another_order_of_the_pool_gives_the_same_images() -> None:
    pool, order = labeled(40, 1), torch.randperm(40, generator=seeded(5))
    shuffled = TensorDataset(*(tensor[order] for tensor in pool.tensors))
    straight, other = (select(net(), p, labeled(12, 2), budget=9, layers=LAYERS) for p in (pool, shuffled))
    assert order[other.indices].tolist() == straight.indices.tolist()


def test_the_seed_decides_which_failures_stand_for_all() -> None:
    runs = {
        tuple(
            select(net(), labeled(60, 1), labeled(40, 2), budget=3, layers=LAYERS, generator=seeded(s)).centers.tolist()
        )
        for s in range(8)
    }
    again = [select(net(), labeled(60, 1), labeled(40, 2), budget=3, layers=LAYERS, generator=seeded(4)) for _ in "ab"]
    assert len(runs) > 1 and torch.equal(again[0].indices, again[1].indices)


def test_images_are_distinct_and_none_excluded() -> None:
    excluded = [0, 5, 7, 7, 29]
    chosen = select(net(), labeled(30, 1), labeled(12, 2), budget=26, layers=LAYERS, exclude=excluded)
    assert sorted(chosen.indices.tolist()) == [i for i in range(30) if i not in excluded]
    tensor = select(net(), labeled(30, 1), labeled(12, 2), budget=26, layers=LAYERS, exclude=torch.tensor(excluded))
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
    assert "all 12 validation images right: the 4 it is least sure of" in chosen.notes[0]


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
    assert any("1 pool images cannot be read and were left out, such as 7: truncated" in note for note in chosen.notes)
    assert sorted(chosen.indices.tolist()) == [0, 1, 2, 3, 4, 5, 6, 8]
    fewer = select(net(), Broken(pool), validation, budget=9, layers=LAYERS, batch_size=1)
    assert len(fewer) == 8
    none = Broken(pool)
    none.bad = tuple(range(9))
    with pytest.raises(DataError, match="None of the pool's 9 images can be read, such as 0: truncated file"):
        select(net(), none, validation, budget=2, layers=LAYERS, labels="density")
    with pytest.raises(DataError, match="None of 9 pool images can be read"):
        select(net(), none, validation, budget=2, layers=LAYERS)


def test_the_model_comes_back_even_when_a_pool_image_cannot_be_read() -> None:
    model = net().train()
    with pytest.raises(DataError, match="Image 7 cannot be read: truncated"):
        select(model, Broken(images(9)), labeled(5, 2), budget=2, layers=LAYERS, strict=True)
    assert model.training and not model.conv1._forward_hooks and all(p.requires_grad for p in model.parameters())


def test_what_is_written(tmp_path: Path) -> None:
    chosen = select(net(), labeled(30, 1), labeled(12, 2), budget=5, layers=LAYERS)
    chosen.save(tmp_path / "picks.csv")
    rows = list(csv.DictReader((tmp_path / "picks.csv").read_text().splitlines()))
    assert [int(row["index"]) for row in rows] == chosen.indices.tolist()
    assert [float(row["similarity"]) for row in rows] == pytest.approx(chosen.similarities.tolist())
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
        ({"budget": 0}, ArgumentError, "Cannot choose 0 images. Give a budget of at least 1"),
        ({"budget": -3}, ArgumentError, "Cannot choose -3 images"),
        ({"budget": 12}, ArgumentError, "Cannot choose 12 images: the pool has 10 left. Lower the budget"),
        ({"budget": 9, "exclude": [1, 2]}, ArgumentError, r"has 8 left \(2 of 10 are excluded\)"),
        ({"exclude": [10]}, ArgumentError, "exclude or labeled names 10; the pool's indices are 0 to 9"),
        ({"pool": BARE[:0][0]}, DataError, "The pool is empty"),
        ({"validation": BARE[:0][0]}, DataError, "The validation set is empty"),
        ({"kernel": "fischer"}, ArgumentError, "no kernel 'fischer'. Did you mean fisher"),
        ({"labels": "densty"}, ArgumentError, "no label estimator 'densty'. Did you mean density"),
        ({"layers": ("conv3",)}, LayerError, "no layer 'conv3'. Did you mean conv2 or conv1"),
        ({"validation": TOO_HIGH}, LabelError, "4 classes, so labels must be 0 to 3; found 4, 9 at index 2, 4"),
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

    with pytest.warns(UnstableDataWarning, match="not the same on a second read"):
        chosen = select(Plain(), Augmented(images(10)), VALIDATION, budget=2, layers=LAYERS)
    assert isinstance(chosen, Selection) and len(chosen) == 2


def test_arguments_of_the_wrong_kind() -> None:
    """As a user meets them: in a process of its own, without the type checks of the tests."""
    script = Path(__file__).with_name("wrong_kinds.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_model_is_run_eagerly() -> None:
    model = net()
    compiled = torch.compile(model)
    assert isinstance(compiled, nn.Module)
    runs = [select(m, labeled(30, 1), labeled(12, 2), budget=4, layers=LAYERS).indices for m in (model, compiled)]
    assert torch.equal(runs[0], runs[1])


def test_the_callers_autocast_and_chance_do_not_matter() -> None:
    expected = select(net().float(), list(images(30, 1)), labeled(12, 2), budget=4, layers=LAYERS)
    before = torch.get_rng_state()
    with torch.autocast("cpu", torch.bfloat16):
        chosen = select(net().float(), list(images(30, 1)), labeled(12, 2), budget=4, layers=LAYERS)
    assert torch.equal(chosen.indices, expected.indices) and torch.equal(chosen.similarities, expected.similarities)
    assert torch.equal(torch.get_rng_state(), before)


def test_flat_descriptors_are_noted() -> None:
    model = net()
    nn.init.zeros_(model.conv2.weight)
    nn.init.zeros_(model.conv2.bias)  # pyright: ignore[reportArgumentType]
    chosen = select(model, labeled(10, 1), labeled(6, 2), budget=3, layers=("conv2",))
    assert "3 of the chosen images are like no failure" in chosen.notes[-1]


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


@pytest.mark.parametrize("labels", ["posterior", "true"])
def test_a_read_that_fails_at_any_time_is_no_reason_to_stop(labels: str, tmp_path: Path) -> None:
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
