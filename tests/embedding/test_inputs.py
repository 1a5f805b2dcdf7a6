"""select() on embeddings: the same picks as on images, every source, a head of its own, and what is refused."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from rarefish import Embeddings, Posterior, Selection, embed, select
from rarefish.distributed.torchrun import TorchrunExecutor
from rarefish.embedding.inputs import differ, fit_to_known, fit_to_labeled, open_sources, settle_model
from rarefish.errors import ArgumentError, DataError, LabelError, ModelError
from rarefish.kernels import KERNELS
from rarefish.models.efficientnet_lite import weights_file
from rarefish.training.linear_head import fit_linear_head
from tests.cases import NUM_CLASSES, labeled, skewed

ROOT = Path(__file__).parents[2]


class Backbone(nn.Module):
    """A frozen network whose classifier's input is the output of the layer `embedding`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Sequential(nn.Conv2d(2, 9, 3), nn.Tanh(), nn.Flatten(), nn.Linear(324, width), nn.Tanh())
        self.fc = nn.Linear(width, NUM_CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.embedding(images))


def setting(width: int) -> tuple[Backbone, TensorDataset, TensorDataset, Embeddings, Embeddings]:
    torch.manual_seed(width)
    model, pool, validation = Backbone(width).double(), skewed((40, 20, 10, 8), 1, 2.0), skewed((12, 10, 8, 7), 2, 2.0)
    return model, pool, validation, embed(model, pool, progress=False), embed(model, validation, progress=False)


@pytest.mark.parametrize("width", [16, 4])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("labels", ["true", "prediction", "density", Posterior(network=False)], ids=str)
def test_picks_equal_those_on_images(width: int, kernel: str, labels: Any) -> None:
    model, pool, validation, pool_rows, trusted_rows = setting(width)
    how: dict[str, Any] = {"kernel": kernel, "labels": labels, "labeled": {3: 0, 44: 1}, "exclude": [7], "budget": 12}
    expected = select(model, pool, validation, layers=("embedding",), batch_size=16, progress=False, **how)
    found = select(model.fc, pool_rows, trusted_rows, progress=False, **how)
    for name in ("indices", "centers", "pseudo_labels", "center_predictions"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert torch.allclose(found.similarities, expected.similarities, rtol=1e-5)
    assert torch.allclose(found.class_probabilities.double(), expected.class_probabilities.double(), atol=2e-3)
    assert found.num_failures == expected.num_failures > 3 and found.layers == ("embedding",)
    if isinstance(labels, Posterior):
        assert found.pool_mix is not None and expected.pool_mix is not None and found.pool_mix_interval is not None
        assert torch.allclose(found.pool_mix.double(), expected.pool_mix.double(), atol=1e-3)
        by_default = select(model.fc, pool_rows, trusted_rows, progress=False, **{**how, "labels": "posterior"})
        assert torch.equal(by_default.indices, found.indices) and "Head on the features" in found.notes[0]


def test_picks_do_not_depend_on_the_batch_size_or_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, _, pool, trusted = setting(16)
    monkeypatch.setattr("rarefish.fisher.EMBEDDINGS_AT_ONCE", 1)
    np.save(tmp_path / "pool.npy", pool.values)
    np.savez(tmp_path / "trusted.npz", embeddings=trusted.values, labels=np.asarray(trusted.targets))
    pairs: list[tuple[Any, Any]] = [
        (pool, trusted),
        (pool.values, (trusted.values, trusted.targets)),
        (torch.from_numpy(pool.values), (torch.from_numpy(trusted.values), torch.from_numpy(trusted.labels))),
        (tmp_path / "pool.npy", str(tmp_path / "trusted.npz")),
        (pool.values.astype(np.float64), (trusted, trusted.targets)),
    ]
    runs = [
        select(model.fc, *pair, budget=9, batch_size=size, progress=False)
        for pair, size in zip(pairs, (1, 7, 50, 99, 3), strict=True)
    ]
    assert all(torch.equal(run.indices, runs[0].indices) for run in runs)


def test_a_head_with_a_hidden_layer_is_described_by_its_layers() -> None:
    _, _, _, pool, trusted = setting(16)
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, NUM_CLASSES))
    found = select(model, pool, trusted, budget=5, progress=False)
    assert found.layers != ("embedding",) and len(found) == 5 and "Head on the features" in found.notes[0]


def test_without_a_model_a_head_is_fitted_and_fails_out_of_fold() -> None:
    _, _, _, pool, trusted = setting(16)
    assert pool.labels is not None and trusted.labels is not None
    known = {2: int(pool.labels[2]), 45: int(pool.labels[45])}
    settled = fit_to_known(pool, trusted, known)
    rows = torch.from_numpy(np.concatenate([trusted.values, pool.values[[2, 45]]]))
    labels = torch.from_numpy(np.concatenate([trusted.labels, [known[2], known[45]]]))
    head = fit_linear_head(rows, labels, NUM_CLASSES)
    assert settled.out_of_fold is not None and isinstance(settled.model, nn.Linear)
    assert torch.equal(settled.model.weight, head.weight)
    assert torch.equal(settled.out_of_fold, head.out_of_fold_probabilities[: len(trusted)])
    found = select(None, pool, trusted, budget=6, labeled=known, method="fisher", progress=False)
    wrong = settled.out_of_fold.argmax(dim=1) != torch.from_numpy(trusted.labels)
    assert found.num_failures == int(wrong.sum()) > 0 and wrong[found.centers].all()
    assert torch.equal(found.center_predictions, settled.out_of_fold.argmax(dim=1)[found.centers])
    assert not set(found.indices.tolist()) & {2, 45}
    with_head = select(head, pool, trusted, budget=6, labeled=known, failures=wrong, progress=False)
    assert torch.equal(with_head.indices, found.indices)


def test_the_only_row_of_a_class_counts_as_wrong() -> None:
    _, _, _, pool, trusted = setting(16)
    assert trusted.labels is not None
    labels = trusted.labels.copy()
    labels[5] = NUM_CLASSES
    settled = fit_to_known(pool, replace(trusted, labels=labels), {})
    assert settled.out_of_fold is not None and int(settled.out_of_fold[5].argmax()) != NUM_CLASSES
    assert settled.out_of_fold.isfinite().all()


def test_unreadable_rows_of_the_pool_are_left_out_and_reported() -> None:
    model, _, _, pool, trusted = setting(16)
    best = select(model.fc, pool, trusted, budget=4, progress=False).indices.tolist()
    broken = replace(pool, unreadable={best[0]: "truncated"})
    found = select(model.fc, broken, trusted, budget=4, progress=False)
    assert best[0] not in found.indices and found.unreadable == {best[0]: "truncated"}
    with pytest.raises(DataError, match="truncated"):
        select(model.fc, broken, trusted, budget=4, progress=False, strict=True)


def test_bad_input_is_one_sentence() -> None:
    model, images, validation, pool, trusted = setting(16)
    bare, by_flags = replace(trusted, labels=None), {"labels": "prediction", "failures": [True] * 37}
    cases: list[tuple[Any, Any, Any, dict[str, Any], type[Exception], str]] = [
        (model.fc, pool.values[:, :9], trusted, {}, DataError, "pool have 9 channels, but those of the validation"),
        (model.fc, replace(pool, model="a-"), replace(trusted, model="b-"), {}, DataError, "by different models"),
        (model.fc, pool, validation, {}, DataError, "pool consists of embeddings, but the validation set does not"),
        (model, images, trusted, {}, DataError, "validation set consists of embeddings, but the pool does not"),
        (nn.Linear(5, 4), pool, trusted, {}, ArgumentError, "needs embeddings with 5 channels, but they have 16"),
        (None, images, validation, {}, ModelError, "a head can be fitted only to embeddings"),
        (None, pool, bare, by_flags, LabelError, "The validation set has no labels"),
        (model.fc, pool, bare, {}, LabelError, "needs validation labels"),
        (None, pool, replace(trusted, labels=np.full(37, -1)), {}, LabelError, "class numbers from 0"),
        (model.fc, pool, trusted, {"labels": "trace"}, ArgumentError, "'trace' distorts images"),
        (model.fc, replace(pool, labels=None), trusted, {"labels": "true"}, LabelError, "needs the pool's true labels"),
    ]
    for head, data, known, how, error, message in cases:
        with pytest.raises(error, match=message):
            select(head, data, known, budget=3, progress=False, **how)


def test_keys_of_models_differ_only_where_both_are_known() -> None:
    assert differ("a-x", "b-x") and differ("a-x", "a-y")
    assert not differ("a-x", "a-") and not differ("", "a-x") and not differ("a-x", "a-x")


def test_images_are_left_as_they_are() -> None:
    pool, validation = labeled(4, 1), labeled(4, 2)
    assert open_sources(pool, validation) == (pool, validation)
    four = np.zeros((2, 3, 4, 4), np.float32)
    assert open_sources(four, four)[0] is four
    model = nn.Linear(2, 2)
    assert settle_model(model, pool, validation, {}).model is model


def run(folder: Path | None, pool: Embeddings, trusted: Embeddings, head: nn.Linear) -> Selection:
    executor = TorchrunExecutor(model=head, folder=folder, shard_size=17)
    return select(head, pool, trusted, budget=9, progress=False, executor=executor)


def test_shards_give_the_same_picks_and_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, _, pool, trusted = setting(16)
    alone = select(model.fc, pool, trusted, budget=9, progress=False)
    kept = run(tmp_path / "resume", pool, trusted, model.fc)
    assert torch.equal(kept.indices, alone.indices) and len(list((tmp_path / "resume").glob("*-of-*.pt"))) > 2
    monkeypatch.setattr("rarefish.selection.match_batches", lambda *_: pytest.fail("a shard was matched again"))
    again = run(tmp_path / "resume", pool, trusted, model.fc)
    assert torch.equal(again.indices, alone.indices) and torch.equal(again.similarities, kept.similarities)


def test_the_code_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if weights_file() is None:
        pytest.skip("pip install 'rarefish[pretrained]'")
    rng = np.random.default_rng(0)
    for folder, count in (("images", 45), ("trusted", 20)):
        for i in range(count):
            place = tmp_path / folder / f"class{i % 5}"
            place.mkdir(parents=True, exist_ok=True)
            noise = rng.integers(0, 100, (32, 32, 3)) + 30 * (i % 5)
            Image.fromarray(noise.astype(np.uint8)).save(place / f"{i}.png")
    table, labels = rng.normal(size=(20, 6)).astype(np.float32), np.arange(20) % 5
    np.save(tmp_path / "trusted.npy", table)
    names: dict[str, Any] = {"table": table, "trusted_table": table, "trusted_labels": labels}
    names["video_of_row"] = [i // 3 for i in range(45)]
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guides/embeddings.md").read_text(), flags=re.DOTALL)
    assert len(blocks) == 5
    for block in blocks:
        for word, smaller in (("224", "32"), ("budget=100", "budget=4"), ('"pool.npy"', '"trusted.npy"')):
            block = block.replace(word, smaller)
        exec(block, names)
        assert "selection" not in names or len(names["selection"]) == 4


def test_heads_of_the_labeled_rows_only_do_not_know_the_validation_set() -> None:
    _, _, _, pool, trusted = setting(16)
    assert pool.labels is not None
    known = {row: int(pool.labels[row]) for row in range(12)}
    settled = fit_to_labeled(pool, trusted, known)
    twin = fit_linear_head(torch.from_numpy(pool.values[:12]), torch.tensor([*known.values()]), NUM_CLASSES)
    assert isinstance(settled.model, nn.Linear) and torch.equal(settled.model.weight, twin.weight)
    for few in ({}, {3: 1, 4: 1}):
        blank = fit_to_labeled(pool, trusted, few).model
        assert isinstance(blank, nn.Linear) and blank.out_features == NUM_CLASSES and not blank.weight.any()
