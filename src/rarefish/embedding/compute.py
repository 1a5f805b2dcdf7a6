"""embed(): the embeddings of all images of a dataset, computed once per image and model."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from rarefish.checks import check_data
from rarefish.data.embeddings import Embeddings, open_embeddings
from rarefish.data.hashing import content_id
from rarefish.data.reader import UNREADABLE, Batch, Data, Fingerprinted, Identified, Reader, labels_of
from rarefish.distributed.executor import Executor, SingleProcess
from rarefish.distributed.fingerprints import digest_backbone, digest_data
from rarefish.embedding.embedding_file import (
    IDS,
    EmbeddingFile,
    Finished,
    Layout,
    Lookup,
    check_same_model,
    finish,
    prepare,
    to_ids,
)
from rarefish.errors import ArgumentError, DataError, NotFiniteError, list_some, nearest
from rarefish.features import INPUT, PRECISIONS
from rarefish.models.layer_selection import casting, check_model, device_of, find_classifier, find_layers
from rarefish.ops.onnx_runtime import BACKENDS, OnnxBackbone

DTYPES = ("float32", "float16")
FEW = 256
"""With `backend="auto"`, torch embeds up to this many images, since exporting the model takes seconds."""


def embed(
    model: nn.Module,
    data: Data,
    *,
    layer: str | None = None,
    path: str | Path | None = None,
    dtype: str = "float32",
    batch_size: int = 64,
    num_workers: int = 0,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    device: torch.device | str | None = None,
    precision: str = "auto",
    backend: str = "auto",
    strict: bool = False,
    progress: bool = True,
    executor: Executor | None = None,
) -> Embeddings:
    """Returns the embeddings of all images: the spatial means of one layer of the model.

    Row i belongs to image i of the dataset. An image that cannot be read has a row of zeros and is listed in
    `Embeddings.unreadable`; `select()` leaves it out.

    Args:
        model: A network whose output is a tensor.
        data: The images.
        layer: The name of the layer; with the suffix `:input`, its input. The default is the input of the classifier,
            or the output of a model that does not end in a linear layer.
        path: A .safetensors file for the embeddings, which is mapped and not read into memory. If it exists, images
            that it contains are not computed again. A killed run is resumed. None keeps the embeddings in memory.
        dtype: `float32`, or `float16` for half the size.
        precision: `auto`, `float32` or `bfloat16`.
        backend: `onnx` for ONNX Runtime, `torch`, or `auto` for the faster one that can be used.
        strict: Whether to raise an error for images that cannot be read.
        executor: Distributes the images among processes, such as `distributed.torchrun.TorchrunExecutor`.
    """
    executor = executor or SingleProcess()
    reader = Reader(batch_size=batch_size, num_workers=num_workers, collate_fn=collate_fn, progress=progress)
    file = None if path is None else Path(path)
    executor.everywhere(lambda: _check(model, data, file, dtype, precision, backend))
    with _on_device(model, device):
        first = executor.everywhere(lambda: first_readable(reader, data))
        classifier = None if layer == "" else find_classifier(model, first)
        name = default_layer(classifier) if layer is None else layer
        if name:
            find_layers(model, [name.removesuffix(INPUT)])
        key = f"{digest_backbone(model, name, classifier)[:32]}-{preprocessing_of(data)[:16]}"
        executor = executor.for_run(lambda: {"model": key, "layer": name, **digest_data(data)})
        ids = content_ids(data, executor)
        task = Task(data, reader, Features(model, name, first, backend, precision), key, dtype, strict, ids)
        found = task.in_memory(executor) if file is None else task.in_file(file, executor)
    labels = labels_of(data)
    is_labeled = labels is not None and bool((labels >= 0).any())
    return replace(found, labels=labels.numpy()) if labels is not None and is_labeled else found


def default_layer(classifier: str | None) -> str:
    """Returns the name of the classifier's input, or an empty name for the output of a model without a classifier."""
    return "" if classifier is None else classifier + INPUT


def first_readable(reader: Reader, data: Data) -> Tensor:
    """Returns the first image that can be read, as a batch of one."""
    problem = ""
    for index in range(len(data)):
        try:
            return reader.one(data, index)
        except UNREADABLE as error:
            problem = problem or str(error)
    raise DataError(f"None of the {len(data)} images can be read. Image 0: {problem}")


def preprocessing_of(data: Data) -> str:
    """Returns a hash of the size and scaling of the images, or an empty string if the dataset does not tell."""
    if isinstance(data, Subset):
        return preprocessing_of(data.dataset)  # pyright: ignore[reportArgumentType]
    return data.fingerprints().get("preprocessing", "") if isinstance(data, Fingerprinted) else ""


def content_ids(data: Data, executor: Executor) -> np.ndarray | None:
    """Returns the ids of all images, or None if the dataset can identify them only by reading them."""
    rows: Sequence[int] = range(len(data))
    if isinstance(data, Subset):
        data, rows = data.dataset, data.indices  # pyright: ignore[reportAssignmentType]
    if not isinstance(data, Identified):
        return None
    identified = data
    parts = executor.map_parts(lambda part: identified.content_ids(part), rows)
    return to_ids([one for part in parts for one in part])


@contextmanager
def _on_device(model: nn.Module, device: torch.device | str | None) -> Iterator[None]:
    """Moves the model to the device within the block."""
    home = device_of(model)
    try:
        if device is not None:
            model.to(device)
        yield
    finally:
        if device is not None:
            model.to(home)


class Features:
    """Computes the vectors of a batch with the backend that suits the number of images."""

    def __init__(self, model: nn.Module, layer: str, example: Tensor, backend: str, precision: str) -> None:
        self.model, self.layer, self.example, self.precision = model, layer, example, precision
        self.backend = "torch" if precision == "bfloat16" else backend
        self.backbone = OnnxBackbone(model, layer, example, backend="torch")

    @property
    def width(self) -> int:
        return self.backbone.width

    def prepare(self, count: int) -> None:
        """Chooses the backend for this number of images."""
        if self.backend == "onnx" or (self.backend == "auto" and count > FEW):
            self.backbone = OnnxBackbone(self.model, self.layer, self.example, backend=self.backend)

    def __call__(self, images: Tensor, rows: np.ndarray) -> np.ndarray:
        """Returns the vectors; raises NotFiniteError if some are not finite."""
        with casting(device_of(self.model), self.precision):
            vectors = self.backbone(images).cpu()
        is_bad = ~vectors.isfinite().all(dim=1).numpy()
        if is_bad.any():
            raise NotFiniteError(
                f"NaN or infinity in the embeddings of the images {list_some(rows[is_bad].tolist())}. Check these "
                "images and the model's weights; in bfloat16 (the default on a GPU), try precision='float32'."
            )
        return vectors.numpy()


@dataclass(frozen=True)
class Task:
    """What to compute."""

    data: Data
    reader: Reader
    features: Features
    key: str
    dtype: str
    strict: bool
    ids: np.ndarray | None

    def compute(self, part: Sequence[int], table: "Table") -> dict[int, str]:
        """Writes the vectors of some images to the table; returns the unreadable ones with the reasons."""
        unreadable: dict[int, str] = {}
        found = None if self.strict else unreadable
        for batch in self.reader.read(self.data, part, title="embedding images", unreadable=found):
            rows, ids = batch.index.numpy(), self._ids_of(batch)
            is_needed = table.needs(rows, ids)
            if is_needed.any():
                vectors = self.features(batch.images[torch.from_numpy(is_needed)], rows[is_needed])
                table.write(rows[is_needed], ids[is_needed], vectors)
        return unreadable

    def in_memory(self, executor: Executor) -> Embeddings:
        """Returns the embeddings in memory, in every process."""
        self.features.prepare(len(self.data) // executor.size)
        shape = (len(self.data), self.features.width)
        values, ids = np.zeros(shape, self.dtype), np.zeros(len(self.data), IDS)

        def work(part: Sequence[int]) -> tuple[MemoryTable, dict[int, str]]:
            table = MemoryTable()
            return table, self.compute(part, table)

        unreadable: dict[int, str] = {}
        for table, missing in executor.map_parts(work, range(len(self.data))):
            unreadable |= missing
            for rows, own, vectors in table.parts:
                values[rows], ids[rows] = vectors, own
        self._check_any(unreadable)
        return Embeddings(values, ids, model=self.key, unreadable=unreadable)

    def in_file(self, path: Path, executor: Executor) -> Embeddings:
        """Returns the embeddings in a file, which all processes fill."""
        layout = Layout(self.key, len(self.data), self.features.width, self.dtype)
        finished = executor.everywhere(lambda: Finished.read(path))
        executor.everywhere(lambda: check_same_model(path, finished, layout))
        is_whole = finished is not None and bool(finished.done.all())  # or else an image may have become readable
        if finished is not None and is_whole and self.ids is not None and np.array_equal(finished.ids, self.ids):
            return open_embeddings(path)
        working = path.with_name(f"{path.name}.unfinished")
        in_one_process(executor, lambda: prepare(path, working, layout, self.ids))
        done = executor.everywhere(lambda: _read(working).done)
        to_do = np.arange(len(done)) if self.ids is None else np.flatnonzero(~done)
        self.features.prepare(len(to_do) // executor.size)

        def work(part: Sequence[int]) -> dict[int, str]:
            before = _read(working)
            table = FileTable(EmbeddingFile.open(working, layout), before, finished.lookup() if finished else None)
            try:
                return self.compute(part, table)
            finally:
                table.file.flush()
                table.file.close()

        parts = executor.map_parts(work, to_do.tolist())
        unreadable = {row: why for part in parts for row, why in part.items()}
        self._check_any(unreadable)
        in_one_process(executor, lambda: finish(path, working, layout, unreadable))
        return open_embeddings(path)

    def _ids_of(self, batch: Batch) -> np.ndarray:
        if self.ids is not None:
            return self.ids[batch.index.numpy()]
        images = batch.images.detach().cpu().contiguous()
        shape = repr((tuple(images.shape[1:]), images.dtype)).encode()
        return to_ids([content_id(shape + image.reshape(-1).view(torch.uint8).numpy().tobytes()) for image in images])

    def _check_any(self, unreadable: dict[int, str]) -> None:
        if unreadable and len(unreadable) == len(self.data):
            first, why = next(iter(unreadable.items()))
            raise DataError(f"None of the {len(self.data)} images can be read. Image {first}: {why}")


class Table(Protocol):
    """Where vectors are written."""

    def needs(self, rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Returns which of these images must be computed."""
        ...

    def write(self, rows: np.ndarray, ids: np.ndarray, vectors: np.ndarray) -> None: ...


@dataclass(frozen=True)
class MemoryTable:
    """Vectors in memory."""

    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=list)

    def needs(self, rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
        return np.ones(len(rows), bool)

    def write(self, rows: np.ndarray, ids: np.ndarray, vectors: np.ndarray) -> None:
        self.parts.append((rows, ids, vectors))


@dataclass(frozen=True)
class FileTable:
    """Vectors in a file, some of which are already there or in an older file."""

    file: EmbeddingFile
    before: Finished
    """The rows that were done when this run started."""
    known: Lookup | None

    def needs(self, rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
        is_needed = ~(self.before.done[rows] & (self.before.ids[rows] == ids))
        found = self.known.find(ids) if self.known else np.full(len(rows), -1)
        is_known = is_needed & (found >= 0)
        if self.known and is_known.any():
            self.write(rows[is_known], ids[is_known], self.known.values[found[is_known]])
        return is_needed & ~is_known

    def write(self, rows: np.ndarray, ids: np.ndarray, vectors: np.ndarray) -> None:
        self.file.write(rows, ids, vectors)


def in_one_process(executor: Executor, work: Callable[[], None]) -> None:
    """Runs the work in one process, while the others wait for it."""
    executor.map_parts(lambda part: [work() for _ in part], range(1))


def _read(path: Path) -> Finished:
    found = Finished.read(path)
    assert found is not None, "prepare() has created it"
    return found


def _check(model: object, data: object, path: Path | None, dtype: str, precision: str, backend: str) -> None:
    check_model(model)  # pyright: ignore[reportArgumentType]
    check_data(data, "dataset")
    if dtype not in DTYPES:
        raise ArgumentError(f"dtype must be {' or '.join(DTYPES)}, not {dtype!r}.")
    if precision not in PRECISIONS:
        raise ArgumentError(f"There is no precision {precision!r}. {nearest(str(precision), PRECISIONS)}")
    if backend not in BACKENDS:
        raise ArgumentError(f"There is no backend {backend!r}. {nearest(str(backend), BACKENDS)}")
    if path is not None and path.suffix != ".safetensors":
        raise ArgumentError(f"{path} must have the suffix .safetensors. Use numpy.save() to write other formats.")
