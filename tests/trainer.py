"""One process of several that train a model together, started by test_distributed.py."""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from rarefish.data.lazy_images import Stored
from rarefish.distributed import torchrun as distributed
from rarefish.training.config import Training
from rarefish.training.jobs import FitAll, Job
from rarefish.training.loop import Present, show_as_is
from rarefish.training.rotation import show_rotations
from tests.cases import IMAGE, NUM_CLASSES, Plain

torch.set_num_threads(1)


class Files:
    """Stands for images on disk; notes which were read."""

    def __init__(self, images: Tensor) -> None:
        self.images = images
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        self.read.append(index)
        return self.images[index]


def train(fit_all: FitAll, present: Present = show_as_is, files: list[Files] | None = None) -> Plain:
    """24 images in batches of 7: of three processes each has two or three, and the last batch is everyone's.

    With `files`, the images are read one by one, from what is put there.
    """
    torch.manual_seed(0)
    model, generator = Plain().double(), torch.Generator().manual_seed(1)
    images, labels = torch.randn(24, *IMAGE, generator=generator).double(), torch.arange(24) % NUM_CLASSES
    training = Training(epochs=3, batch_size=7, shift=1, flip=True)
    if files is not None:
        files.append(Files(images.flip(0)))
        fit_all([Job(model, Stored(files[0], range(23, -1, -1)), labels, training, generator, present)])
    else:
        fit_all([Job(model, images, labels, training, generator, present)])
    return model


def train_norms(fit_all: FitAll) -> dict[str, Tensor]:
    """A network whose norms take their statistics from what each process sees."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(IMAGE[0], 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(NUM_CLASSES))
    model(torch.zeros(2, *IMAGE))
    generator = torch.Generator().manual_seed(1)
    images, labels = torch.randn(24, *IMAGE, generator=generator), torch.arange(24) % NUM_CLASSES
    fit_all([Job(model, images, labels, Training(epochs=2, batch_size=8), generator)])
    return model.state_dict()


def main() -> None:
    distributed.join()
    files: list[Files] = []
    together = distributed.fit_together
    made = {
        "tensor": train(together).state_dict(),
        "turned": train(together, show_rotations).state_dict(),
        "stored": train(together, files=files).state_dict(),
        "read": files[0].read,
        "norms": train_norms(together),
    }
    torch.save(made, Path(sys.argv[1]) / f"weights-{distributed.rank()}.pt")
    distributed.leave()


if __name__ == "__main__":
    main()
