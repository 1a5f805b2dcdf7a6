"""Batches out of every kind of dataset."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import TensorDataset

from rarefish.data.arrays import Pixels
from rarefish.data.reader import Batch, Data, Reader, labels_of, lies_in_memory
from rarefish.errors import ArgumentError, DataError, LabelError
from tests.cases import images, labeled


class Items(list[Any]):
    """A list of items is a dataset."""


def read_all(data: Data, with_labels: bool = False, **settings: Any) -> list[Batch]:
    return list(Reader(batch_size=2, progress=False, **settings).read(data, labels=with_labels))


IMAGES = images(3)


@pytest.mark.parametrize(
    "data",
    [
        TensorDataset(IMAGES, torch.tensor([3, 1, 2])),
        Items((image, label) for image, label in zip(IMAGES, (3, 1, 2), strict=True)),
        Items([image.numpy(), np.int64(label), "a path"] for image, label in zip(IMAGES, (3, 1, 2), strict=True)),
        Items({"pixel_values": image, "label": label} for image, label in zip(IMAGES, (3, 1, 2), strict=True)),
        Items({"image": image, "labels": torch.tensor(label)} for image, label in zip(IMAGES, (3, 1, 2), strict=True)),
    ],
)
def test_images_and_labels_are_found(data: Data) -> None:
    batches = read_all(data, with_labels=True)
    assert [len(batch.index) for batch in batches] == [2, 1]
    assert torch.equal(torch.cat([batch.images for batch in batches]), IMAGES)
    assert torch.cat([batch.labels for batch in batches if batch.labels is not None]).tolist() == [3, 1, 2]


def test_bare_images() -> None:
    assert torch.equal(read_all(Items(IMAGES))[0].images, IMAGES[:2])
    with pytest.raises(LabelError, match="Item 0 has no label"):
        read_all(Items(IMAGES), with_labels=True)


def test_some_of_them_in_any_order() -> None:
    (batch,) = Reader(progress=False).read(labeled(5), [4, 0, 2])
    assert batch.index.tolist() == [4, 0, 2] and torch.equal(batch.images, labeled(5).tensors[0][[4, 0, 2]])


def test_workers_read_the_same() -> None:
    alone, helped = (torch.cat([b.images for b in read_all(labeled(5), num_workers=n)]) for n in (0, 2))
    assert torch.equal(alone, helped)


def test_hugging_face_data_sets_with_a_transform() -> None:
    datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed")
    pictures = [Image.fromarray(np.full((4, 4), value, np.uint8)) for value in (10, 20, 30)]
    data = datasets.Dataset.from_dict({"image": [np.asarray(p) for p in pictures], "label": [0, 1, 2]})
    data.set_transform(
        lambda rows: {
            "pixel_values": [torch.tensor(np.asarray(image), dtype=torch.float32)[None] for image in rows["image"]],
            "label": rows["label"],
        }
    )
    batches = read_all(data, with_labels=True)
    assert batches[1].images.shape == (1, 1, 4, 4) and float(batches[1].images[0, 0, 0, 0]) == 30
    assert batches[0].labels is not None and batches[0].labels.tolist() == [0, 1]


def test_sizes_that_differ_need_a_collate() -> None:
    data = Items([(torch.ones(1, 2, 2), 0), (torch.ones(1, 3, 3), 1)])
    with pytest.raises(DataError, match=r"differ in shape: \(1, 2, 2\), \(1, 3, 3\). Resize them"):
        read_all(data)

    def pad(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
        padded = [torch.nn.functional.pad(image, (0, 3 - image.shape[2], 0, 3 - image.shape[1])) for image, _ in items]
        return torch.stack(padded), torch.tensor([label for _, label in items])

    (batch,) = read_all(data, with_labels=True, collate_fn=pad)
    assert batch.images.shape == (2, 1, 3, 3) and batch.labels is not None and batch.labels.tolist() == [0, 1]


def test_pictures_without_a_transform_are_refused() -> None:
    with pytest.raises(DataError, match="is a Image, not a tensor. Add a transform"):
        read_all(Items([(Image.new("L", (3, 3)), 0)]))


def test_items_without_an_image_are_refused() -> None:
    with pytest.raises(DataError, match="An item with the keys text, label has no image"):
        read_all(Items([{"text": "a", "label": 1}]))


def test_labels_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(LabelError, match="label of item 0 is 'cat'"):
        read_all(Items([(IMAGES[0], "cat")]), with_labels=True)


@pytest.mark.parametrize("bad", [{"batch_size": 0}, {"num_workers": -1}])
def test_bad_settings(bad: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="batch_size must be at least 1"):
        Reader(**bad)


def test_a_tensor_data_set_with_ways_of_its_own_is_asked_item_by_item() -> None:
    class Shifted(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index)[0] + 5

    assert torch.equal(read_all(Shifted(IMAGES))[0].images, IMAGES[:2] + 5)


def test_labels_that_are_not_whole_are_refused() -> None:
    with pytest.raises(LabelError, match="label of item 0 is 1.7"):
        read_all(Items([(IMAGES[0], 1.7)]), with_labels=True)


def test_labels_given_apart_go_with_their_images() -> None:
    batches = list(Reader(batch_size=2, progress=False).read(Items(IMAGES), [2, 0, 1], labels=torch.tensor([7, 8, 9])))
    assert [batch.labels.tolist() for batch in batches if batch.labels is not None] == [[9, 7], [8]]


def test_batches_of_given_sizes_whatever_holds_the_images() -> None:
    data = labeled(9, 1)
    pixels = Pixels(
        torch.arange(9 * 8, dtype=torch.uint8).reshape(9, 2, 2, 2),
        torch.arange(9),
        data.tensors[1],
        torch.zeros(2),
        torch.ones(2),
    )
    for source in (data, Items(zip(*data.tensors, strict=True)), pixels):
        batches = list(Reader(progress=False).read(source, [8, 0, 3, 3, 1], labels=True, sizes=[2, 3]))
        assert [batch.index.tolist() for batch in batches] == [[8, 0], [3, 3, 1]]
        for batch in batches:
            assert batch.labels is not None and torch.equal(batch.labels, data.tensors[1][batch.index])
            assert torch.equal(batch.images[0], source[int(batch.index[0])][0])
    assert lies_in_memory(data) and lies_in_memory(pixels) and not lies_in_memory(Items())
    assert labels_of(Items()) is None and torch.equal(labels_of(pixels), data.tensors[1])  # pyright: ignore[reportArgumentType]


def test_labels_in_a_column_of_their_own_are_taken_and_others_refused() -> None:
    truth = torch.tensor([3, 1, 2])
    for labels in (truth[:, None], truth.double(), truth.double()[:, None]):
        batches = read_all(TensorDataset(IMAGES, labels), with_labels=True)
        assert torch.cat([batch.labels for batch in batches if batch.labels is not None]).tolist() == [3, 1, 2]
    with pytest.raises(
        LabelError, match=r"labels of 2 images have the shape \(2, 4\)\. Give one class number per image"
    ):
        read_all(TensorDataset(IMAGES, torch.eye(4)[truth]), with_labels=True)
    with pytest.raises(LabelError, match=r"label of item 1 is 1\.5"):
        read_all(TensorDataset(IMAGES, torch.tensor([3, 1.5, 2])), with_labels=True)
    with pytest.raises(LabelError, match=r"the shape \(2, 1, 1\)"):
        read_all(
            Items(zip(IMAGES, truth, strict=True)), True, collate_fn=lambda items: (IMAGES[:2], truth[:2, None, None])
        )
