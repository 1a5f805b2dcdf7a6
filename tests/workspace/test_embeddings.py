"""Embeddings in a workspace: which workspaces have them, when they are computed, and when they are refused."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rarefish.data.file_listing import list_pool
from rarefish.embedding.embedding_file import Finished
from rarefish.errors import WorkspaceError
from rarefish.models.loading import load_model
from rarefish.workspace.dataset import open_images
from rarefish.workspace.embeddings import (
    EmbeddedPart,
    embed_images,
    embedding_file,
    head_model,
    is_embedded,
    remove_embeddings,
    why_network,
)
from rarefish.workspace.indexing import index
from rarefish.workspace.store import Store
from rarefish.workspace.verification import verify
from tests import forked_processes
from tests.workspace.small_workspace import RUNNING, pretrained, small
from tests.workspaces import draw


def embedded(store: Store) -> dict[str, EmbeddedPart]:
    head = head_model(store)
    assert head is not None
    return embed_images(store, head, RUNNING)


def index_pool(store: Store, folder: Path) -> None:
    index(store, "pool", *list_pool(folder / "pool"), jobs=1, shown=False)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"model": "efficientnet-lite0"}, None),
        ({"model": "lenet"}, "because the initial weights are random"),
        ({"model": "lenet", "start": "rotation"}, "because the initial weights are pretrained on rotated images only"),
        ({"model": "lenet", "weights": "w.pt"}, None),
        ({"model": "lenet", "weights": "w.pt", "finetune": True}, "because the workspace was created with --finetune"),
        ({"model": "net.py:make", "finetune": False}, None),
        ({"model": "transformers:vit"}, "because the initial weights are random"),
    ],
)
def test_pretrained_models_get_a_head(settings: dict[str, Any], why: str | None) -> None:
    assert why_network(settings) == why


def test_a_transformers_folder_is_pretrained_if_it_has_weights(tmp_path: Path) -> None:
    settings = {"model": f"transformers:{tmp_path}"}
    assert why_network(settings) == "because the initial weights are random"
    (tmp_path / "model.safetensors").touch()
    assert why_network(settings) is None


def test_the_embeddings_are_the_inputs_of_the_classifier(tmp_path: Path) -> None:
    store = pretrained(tmp_path)
    head, parts = head_model(store), embedded(store)
    assert head is not None and head.layer == "fc2:input"
    images = open_images(store, "pool", head.wanted)
    assert parts["pool"].ids == images.ids and parts["pool"].num_new == 45 and parts["validation"].num_new == 24
    batch = torch.stack([images[row][0] for row in range(5)])
    with torch.no_grad():
        logits = head.model.get_submodule("fc2")(torch.from_numpy(parts["pool"].embeddings.values[:5].copy()))
        torch.testing.assert_close(logits, head.model(batch))
    assert parts["validation"].labels == open_images(store, "validation", head.wanted).labels


def test_only_new_and_changed_images_are_computed(tmp_path: Path) -> None:
    store = pretrained(tmp_path)
    first = embedded(store)["pool"]
    draw(tmp_path / "pool" / "new.png", 1, 777)
    draw(tmp_path / "pool" / "image 00003.png", 1, 778)
    (tmp_path / "pool" / "image 00005.png").rename(tmp_path / "pool" / "moved.png")
    index_pool(store, tmp_path)
    parts = embedded(store)
    assert parts["pool"].num_new == 2 and parts["validation"].num_new == 0
    row, old = parts["pool"].ids.index(first.ids[5]), first.embeddings.values[5]
    assert (parts["pool"].embeddings.values[row] == old).all(), "a moved file keeps its embedding"
    assert embedded(store)["pool"].num_new == 0


def test_an_image_that_cannot_be_read_is_left_out_until_it_can(tmp_path: Path) -> None:
    store = pretrained(tmp_path)
    lost = tmp_path / "pool" / "image 00003.png"
    content = lost.read_bytes()
    lost.unlink()
    pool = embedded(store)["pool"]
    assert len(pool.ids) == len(pool.embeddings) == 44 and list(pool.unreadable) == [4 + 24]
    lost.write_bytes(content)
    again = embedded(store)["pool"]
    assert len(again.ids) == 45 and again.num_new == 1 and not again.unreadable


def test_other_weights_and_another_image_size_are_refused(tmp_path: Path) -> None:
    store = pretrained(tmp_path)
    embedded(store)
    weights = load_model("lenet", 3, 1).state_dict()
    torch.save(weights | {"fc2.bias": weights["fc2.bias"] + 1}, tmp_path / "weights.pt")
    assert embedded(store)["pool"].num_new == 0, "embeddings do not depend on the classifier"
    torch.save(weights | {"fc1.1.bias": weights["fc1.1.bias"] + 1}, tmp_path / "weights.pt")
    way_out = f"compute all embeddings again: rarefish embed {store.folder} --again"
    with pytest.raises(WorkspaceError, match=r"computed by another model: its weights") as caught:
        embedded(store)
    assert way_out in str(caught.value)
    remove_embeddings(store)
    assert not is_embedded(store) and embedded(store)["pool"].num_new == 45
    store.set(mean=None, size=[28, 28], mode="RGB", model="resnet10", weights=None, finetune=False)
    with pytest.raises(WorkspaceError, match="another model"):
        embedded(store)


def test_code_of_ones_own_that_has_changed_is_refused(tmp_path: Path) -> None:
    store, net = small(tmp_path), tmp_path / "net.py"
    code = (
        "from torch import nn\ndef make(num_classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 9), {}, "
    )
    net.write_text(code.format("nn.ReLU()") + "nn.Linear(9, num_classes))\n")
    store.set(model=f"{net}:make", finetune=False)
    from rarefish.workspace.trust import trust_model

    trust_model(store, f"{net}:make", changes=True)
    embedded(store)
    net.write_text(code.format("nn.Tanh()") + "nn.Linear(9, num_classes))\n")
    os.utime(net, (0, 0))
    with pytest.raises(WorkspaceError, match="computed by another model"):
        embedded(store)


def test_a_model_that_does_not_end_in_a_linear_layer_has_no_head(tmp_path: Path) -> None:
    store, net = small(tmp_path), tmp_path / "net.py"
    net.write_text("from torch import nn\ndef make():\n    return nn.Sequential(nn.Conv2d(1, 3, 28), nn.Flatten())\n")
    torch.save({"0.weight": torch.ones(3, 1, 28, 28), "0.bias": torch.zeros(3)}, tmp_path / "own.pt")
    store.set(model=f"{net}:make", weights=str(tmp_path / "own.pt"))
    from rarefish.workspace.trust import trust_model

    trust_model(store, f"{net}:make", changes=True)
    assert head_model(store) is None
    store.set(finetune=False)
    with pytest.raises(WorkspaceError, match="not that of a linear layer"):
        head_model(store)


KILLED = """
import sys, time
from rarefish.workspace import dataset
from rarefish.workspace.embeddings import embed_images, head_model
from rarefish.embedding import embedding_file
from rarefish.workspace.running import Running
from rarefish.workspace.store import open_store
from pathlib import Path

embedding_file.FLUSH_EVERY = 0
decode = dataset.WorkspaceImages._decode
def slow(self, index):
    time.sleep(0.05)
    return decode(self, index)
dataset.WorkspaceImages._decode = slow
store = open_store(Path(sys.argv[1]))
embed_images(store, head_model(store), Running(device="cpu", batch_size=4, workers=0, progress=False))
"""


def test_a_killed_run_is_resumed(tmp_path: Path) -> None:
    store = pretrained(tmp_path)
    process = forked_processes.Popen([sys.executable, "-c", KILLED, str(store.folder)])
    unfinished = embedding_file(store, "pool").with_name("pool.safetensors.unfinished")
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        if unfinished.exists() and 4 <= int(_read(unfinished).done.sum()) < 40:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = int(_read(unfinished).done.sum())
    assert 4 <= done < 45, "it was killed in the middle"
    parts = embedded(store)
    assert parts["pool"].num_new == 45 - done and parts["validation"].num_new == 0
    again = pretrained(tmp_path / "again")
    expected = embedded(again)["pool"]
    assert (parts["pool"].embeddings.values == expected.embeddings.values).all()


def _read(path: Path) -> Finished:
    found = Finished.read(path)
    assert found is not None
    return found


def test_a_truncated_file_is_found_by_check(tmp_path: Path) -> None:
    store = pretrained(tmp_path)
    embedded(store)
    assert verify(store) == []
    path = embedding_file(store, "pool")
    os.truncate(path, path.stat().st_size - 100)
    (problem,) = verify(store)
    assert "pool.safetensors is truncated or damaged" in problem and "--again" in problem
