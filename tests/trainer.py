"""One process of several that train a model together, started by test_distributed.py."""

import sys
from pathlib import Path

import torch

from rarefish import distributed
from rarefish.jobs import FitAll, Job
from rarefish.training import Training
from tests.cases import IMAGE, NUM_CLASSES, Plain

torch.set_num_threads(1)


def train(fit_all: FitAll) -> Plain:
    """22 images in batches of 5: the last batch has fewer images than three processes."""
    torch.manual_seed(0)
    model, chance = Plain().double(), torch.Generator().manual_seed(1)
    images, labels = torch.randn(22, *IMAGE, generator=chance).double(), torch.arange(22) % NUM_CLASSES
    fit_all([Job(model, images, labels, Training(epochs=3, batch_size=5), chance)])
    return model


def main() -> None:
    distributed.join()
    torch.save(train(distributed.fit_together).state_dict(), Path(sys.argv[1]) / f"weights-{distributed.rank()}.pt")
    distributed.leave()


if __name__ == "__main__":
    main()
