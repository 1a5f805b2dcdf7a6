"""A workspace with a network so small that it can be trained in a test."""

from pathlib import Path

import torch

from rarefish.models.loading import load_model
from rarefish.workspace.answers import answer, take
from rarefish.workspace.running import Running
from rarefish.workspace.store import Store
from tests.workspaces import CLASSES, make_workspace

RUNNING = Running(device="cpu", batch_size=32, workers=0, progress=False)


def small(folder: Path, **settings: object) -> Store:
    store = make_workspace(folder, pool=45, trusted=8)
    store.set(model="lenet", mode="L", size=[28, 28], **settings)
    return store


def label_all(store: Store, who: str = "ann") -> None:
    """The truth: image n of the pool is of class n % 3."""
    with store.reading() as connection:
        rows = connection.execute("SELECT id, path FROM image WHERE part = 'pool'").fetchall()
    names = {image: bytes(path) for image, path in rows}
    for task in take(store, who, 100):
        number = int(names[task.image].split()[1][:5]) % len(CLASSES)
        answer(store, task.image, who, "class", number, f"{who}-{task.image}")


def pretrained(folder: Path, **settings: object) -> Store:
    """A workspace that trains only a head, since its network has weights from a file."""
    folder.mkdir(exist_ok=True)
    path = folder / "weights.pt"
    torch.save(load_model("lenet", len(CLASSES), 1).state_dict(), path)
    return small(folder, weights=str(path), **settings)
