"""The device, the batches and the worker processes of a workspace's actions."""

import pytest
import torch

from rarefish.errors import ArgumentError
from rarefish.workspace.running import Running, check_device


def test_the_reader_has_the_same_settings() -> None:
    reader = Running(batch_size=7, workers=3, progress=False).reader()
    assert (reader.batch_size, reader.num_workers, reader.progress) == (7, 3, False)


def test_devices() -> None:
    assert Running(device="cpu").torch_device() == torch.device("cpu")
    assert Running().torch_device().type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert Running(device="cpu").join_processes() == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "cuda:99"])
def test_a_device_that_cannot_be_used_is_one_sentence(name: str) -> None:
    for use in (check_device, lambda name: Running(device=name).torch_device()):
        with pytest.raises(ArgumentError, match=f"The device '{name}' is not available: ") as caught:
            use(name)
        assert "\n" not in str(caught.value)
