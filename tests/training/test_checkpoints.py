"""A checkpoint serves the training it is of, and no other; nothing else is written over."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from rarefish.errors import DataError
from rarefish.models.loading import load_weights
from rarefish.models.networks import build_model
from rarefish.training.checkpoints import fingerprint
from rarefish.training.config import Training
from tests.models.test_loading import Malice
from tests.training.small import SMALL, blobs, fine_tune, net, same


@dataclass(frozen=True)
class Named:
    """A dataset that is known by its names, and holds something with a place in memory."""

    paths: tuple[Path, ...]
    transform: object

    def __len__(self) -> int:
        return len(self.paths)


def key(data: Any, training: Training = SMALL, seed: int = 0) -> str:
    return fingerprint(net(), data, None, training, torch.Generator().manual_seed(seed))


def test_fingerprints() -> None:
    """The same again in another place of memory; another for every other training."""
    assert key(blobs(9)) == key(blobs(9)) == key(blobs(9), replace(SMALL, num_workers=7))
    subsets = [Subset(blobs(9), rows) for rows in ([0, 1], [0, 2], [0])]
    named = [Named((Path(name),), object()) for name in ("a.png", "b.png", "caf\udce9.png")]
    others: list[Any] = [blobs(9), blobs(9, seed=1), blobs(8), *subsets, *named]
    keys = [key(data) for data in others] + [key(blobs(9), replace(SMALL, flip=False)), key(blobs(9), seed=1)]
    assert len(set(keys)) == len(keys)
    assert key(Named((Path("a.png"),), object())) == key(named[0])


@pytest.mark.parametrize(
    ("data", "validation", "training", "first"),
    [
        (blobs(9, seed=5), blobs(9), SMALL, net),
        (blobs(9), blobs(9, seed=5), SMALL, net),
        (blobs(9), blobs(9), replace(SMALL, lr=0.02), net),
        (blobs(9), blobs(9), SMALL, lambda: build_model("lenet", 3, 1, torch.Generator())),
    ],
)
def test_a_checkpoint_of_another_training_is_not_used(
    tmp_path: Path, data: TensorDataset, validation: TensorDataset, training: Training, first: Any
) -> None:
    path, told = tmp_path / "run.pt", []
    fine_tune(net(), blobs(9), blobs(9), SMALL, checkpoint=path)
    if first is not net:
        data = validation = TensorDataset(torch.rand(9, 1, 28, 28), torch.arange(9) % 3)
    one, other = first(), first()
    fitted = fine_tune(one, data, validation, training, checkpoint=path, on_epoch=told.append)
    assert len(told) == 4 and fitted == fine_tune(other, data, validation, training) and same(one, other)


def test_a_file_that_is_no_checkpoint_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    path.write_bytes(b"precious")
    with pytest.raises(DataError, match="run.pt is damaged or not a checkpoint of rarefish"):
        fine_tune(net(), blobs(9), blobs(9), checkpoint=path)
    torch.save(net().state_dict(), path)
    with pytest.raises(DataError, match="Move it away, or choose another"):
        fine_tune(net(), blobs(9), blobs(9), checkpoint=path)


def test_the_best_weights_can_be_loaded_from_a_checkpoint(tmp_path: Path) -> None:
    model, fresh = net(), net()
    fine_tune(model, blobs(9), blobs(9), checkpoint=tmp_path / "run.pt")
    load_weights(fresh, tmp_path / "run.pt")
    assert same(model, fresh)


def test_a_malicious_checkpoint_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    torch.save({"format": "rarefish.training.image_training 1", "fingerprint": Malice(tmp_path / "ran")}, path)
    with pytest.raises(DataError, match="is damaged or not a checkpoint of rarefish"):
        fine_tune(net(), blobs(9), blobs(9), checkpoint=path)
    assert not (tmp_path / "ran").exists()
