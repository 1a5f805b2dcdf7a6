"""Images read when their turn comes are learned from as those in memory are."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from rarefish.data.image_files import ImageFiles
from rarefish.data.lazy_images import Stored, read_parts
from rarefish.errors import DataError
from rarefish.training.config import Training
from rarefish.training.cuda_streams import fit_many
from rarefish.training.jobs import Job, group_compatible
from rarefish.training.loop import fit
from tests.cases import IMAGE, NUM_CLASSES, Plain, labeled

DATA = labeled(30, 1)
INDEX = [7, 3, 29, 3, 11, 0]
CPU = torch.device("cpu")


class Items:
    """The same, one by one."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return DATA.tensors[0][index], int(DATA.tensors[1][index])


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_a_tensor(workers: int) -> None:
    parts = [torch.tensor([5, 0]), torch.tensor([1, 2, 3]), torch.tensor([4])]
    images = DATA.tensors[0][INDEX]
    for data in (DATA, Items()):
        stored = Stored(data, INDEX, workers)
        assert len(stored) == 6 and stored.shape == images.shape == (6, *IMAGE)
        found = list(read_parts(stored, parts, CPU, torch.float64))
        assert all(batch.dtype == torch.float64 for batch in found)
        for batch, own in zip(found, read_parts(images, parts, CPU, torch.float64), strict=True):
            assert torch.equal(batch, own.double())


@pytest.mark.parametrize(
    "training", [Training(epochs=2, batch_size=4), Training(epochs=2, batch_size=4, shift=1, flip=True)]
)
def test_learned_from_as_in_memory(training: Training) -> None:
    labels = torch.arange(6) % NUM_CLASSES
    models = []
    for source in (DATA.tensors[0][INDEX], Stored(DATA, INDEX), Stored(Items(), INDEX, 1)):
        torch.manual_seed(0)
        models.append(Plain())
        job = Job(models[-1], source, labels, training, torch.Generator().manual_seed(3))
        if isinstance(source, Stored):
            assert [len(group) for group in group_compatible([job])] == [1]
            fit_many([job])
        else:
            fit(job.model, job.images, job.labels, job.training, job.generator)
    for model in models[1:]:
        assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), model.parameters(), strict=True))


def test_a_file_that_cannot_be_read_is_named_in_a_line(tmp_path: Path) -> None:
    paths = tuple(tmp_path / f"{name}.png" for name in "abc")
    for path in paths:
        Image.new("RGB", (9, 9)).save(path)
    paths[1].write_bytes(b"no image")
    stored = Stored(ImageFiles(paths, (0, 1, 0), ("x", "y"), size=(8, 8)), range(3), workers=1)
    with pytest.raises(DataError, match="^Cannot read image 1: .*b.png") as error:
        list(stored.read([torch.tensor([0, 1])]))
    assert "\n" not in str(error.value)
