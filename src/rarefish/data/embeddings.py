"""Embeddings: one vector per image, computed once, in memory or in a file that is mapped and read block by block."""

import json
import mmap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rarefish.data.hashing import digest, digest_files
from rarefish.errors import ArgumentError, DataError, EmptyEmbeddingsWarning, LabelError, NotFiniteError, list_some
from rarefish.io import open_regular

SUFFIXES = (".npy", ".npz", ".safetensors", ".parquet", ".lance")
COLUMNS = ("embeddings", "embedding", "features", "values", "vector", "arr_0")
"""Names under which a file may contain the embeddings."""
BLOCK_BYTES = 2**22
"""Number of bytes that are converted to float32 and checked at a time."""
SAFETENSORS = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "U8": "u1", "I32": "<i4", "I64": "<i8"}
"""Data types of arrays in a .safetensors file that are mapped."""
FORMAT = "rarefish.embeddings 1"
"""Format of the files that `rarefish.embed()` writes, whose values have already been checked."""


@dataclass(frozen=True, eq=False)
class Embeddings:
    """A dataset of vectors. Its items are (vector, label), or vectors if there are no labels.

    Use `open_embeddings` or `rarefish.embed` to create one; they check the values.
    """

    values: np.ndarray
    """The vectors (N, D), in float16, float32 or float64; may be a read-only memory map."""
    ids: np.ndarray | None = None
    """An id per row; `rarefish.embed` uses a hash of the image's content."""
    labels: np.ndarray | None = None
    """The class of each row, as integers."""
    model: str = ""
    """Key of the model, layer and preprocessing that computed the vectors, or empty if unknown."""
    path: Path | None = None
    unreadable: Mapping[int, str] = field(default_factory=dict)
    """Rows without a vector, because the image could not be read, with the reasons."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def width(self) -> int:
        """The number of channels of each vector."""
        return self.values.shape[1]

    @property
    def targets(self) -> np.ndarray | None:
        """The labels; torchvision's datasets use the same name."""
        return self.labels

    def take(self, rows: Tensor) -> Tensor:
        """Returns the vectors of the given rows in float32."""
        if not len(rows):
            return torch.empty(0, self.width)
        first, last = int(rows[0]), int(rows[-1]) + 1
        if last - first == len(rows) and bool((rows.diff() == 1).all()):
            found = to_float32(self.values[first:last])
            release(self.values)
            return found
        found = to_float32(self.values[rows.cpu().numpy()])
        release(self.values)
        return found

    def __getitem__(self, index: int) -> "tuple[Tensor, int] | Tensor":
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        if index in self.unreadable:
            raise DataError(self.unreadable[index])
        vector = torch.from_numpy(np.array(self.values[index], dtype=np.float32))
        return vector if self.labels is None else (vector, int(self.labels[index]))

    def only(self, rows: Sequence[int] | np.ndarray) -> "Embeddings":
        """Returns the given rows, in memory."""
        kept = np.asarray(rows, dtype=np.int64)
        place_of = {int(row): place for place, row in enumerate(kept)} if self.unreadable else {}
        return replace(
            self,
            values=self.values[kept],
            ids=None if self.ids is None else self.ids[kept],
            labels=None if self.labels is None else self.labels[kept],
            path=None,
            unreadable={place_of[row]: why for row, why in self.unreadable.items() if row in place_of},
        )

    def fingerprints(self, *, with_contents: bool = False) -> dict[str, str]:
        """Returns hashes by name, which change when the embeddings change.

        Without `with_contents`, a file is identified by its size and modification time.
        """
        known = {"labels": digest([None if self.labels is None else self.labels.tolist()])}
        if self.path is not None and not with_contents:
            return {**known, "embeddings": digest_files([self.path]), "model": digest([self.model])}
        blocks = (np.ascontiguousarray(block).tobytes() for _, block in blocks_of(self.values))
        shape = (self.values.shape, str(self.values.dtype))
        return {**known, "embeddings": digest([shape, *map(_hash_of, blocks)]), "model": digest([self.model])}


def to_float32(block: np.ndarray) -> Tensor:
    """Returns the rows as a float32 tensor, which shares memory with a writable float32 array."""
    if not (block.flags.writeable and block.flags.c_contiguous and block.dtype.isnative):
        block = np.array(block, dtype=block.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(block).float()


def blocks_of(values: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (first row, rows) for consecutive parts of a table; memory stays flat if the table is a memory map."""
    size = max(1, BLOCK_BYTES // max(1, values.shape[1] * values.itemsize))
    for first in range(0, len(values), size):
        yield first, values[first : first + size]
        release(values)


def release(values: np.ndarray) -> None:
    """Unmaps the pages of a read-only memory map from this process; the operating system keeps them in its cache."""
    opened = getattr(values, "_mmap", None)
    if isinstance(opened, mmap.mmap) and not values.flags.writeable and hasattr(mmap, "MADV_DONTNEED"):
        opened.madvise(mmap.MADV_DONTNEED)


def are_embeddings(source: object) -> bool:
    """Returns whether `open_embeddings` accepts the source, which may also be a dataset of images."""
    if isinstance(source, Embeddings):
        return True
    if isinstance(source, (str, Path)):
        return Path(str(source).partition("#")[0]).suffix.lower() in SUFFIXES
    if isinstance(source, tuple) and len(source) == 2:
        return are_embeddings(source[0]) and (source[1] is None or np.ndim(source[1]) == 1)
    return isinstance(source, (np.ndarray, Tensor)) and source.ndim == 2


def open_embeddings(
    source: Any,
    ids: Sequence[object] | np.ndarray | None = None,
    labels: Sequence[int] | np.ndarray | Tensor | None = None,
    column: str | None = None,
) -> Embeddings:
    """Returns checked embeddings from an array, a file, or a tuple (embeddings, labels).

    Args:
        source: A table (rows, channels) of floating-point numbers, or the path of a .npy, .npz, .safetensors, .parquet
            or .lance file. Files in the formats .npy and .safetensors are mapped, not read into memory.
        ids: One distinct id per row.
        labels: One class number per row.
        column: The name of the array or column in the file; `FILE#COLUMN` does the same. By default, a usual name such
            as `embeddings`, or the only one that fits.
    """
    if isinstance(source, tuple):
        if len(source) != 2:
            raise ArgumentError(f"A tuple must be (embeddings, labels), not {len(source)} values.")
        if source[1] is not None and labels is not None:
            raise ArgumentError("There are labels in the tuple and in labels=. Give one of them.")
        source, labels = source[0], source[1] if labels is None else labels
    found = _open(source, column)
    is_checked = isinstance(source, Embeddings) or found.model != ""
    if not is_checked:
        _check_shape(found.values, found.path)
        _check_values(found.values, found.path)
    if ids is not None:
        found = replace(found, ids=_checked_ids(ids, len(found)))
    if labels is not None or (found.labels is not None and not isinstance(source, Embeddings)):
        found = replace(found, labels=_checked_labels(found.labels if labels is None else labels, len(found)))
    if found.ids is not None and len(found.ids) != len(found):
        raise DataError(f"There are {len(found.ids)} ids for {len(found)} embeddings. Give one id per row.")
    return found


def _open(source: object, column: str | None) -> Embeddings:
    """Returns the embeddings without checks of their values."""
    if isinstance(source, Embeddings):
        return source
    if isinstance(source, Tensor):
        values = source.detach().cpu()
        return Embeddings((values.float() if values.dtype == torch.bfloat16 else values).numpy())
    if isinstance(source, np.ndarray):
        return Embeddings(source)
    if not isinstance(source, (str, Path)):
        raise ArgumentError(
            f"Embeddings are a table of numbers or the path of a file, not a {type(source).__name__}. Use "
            "rarefish.embed(model, images) to compute them."
        )
    name, _, fragment = str(source).partition("#")
    path, column = Path(name), column or fragment or None
    readers = {
        ".npy": _read_npy,
        ".npz": _read_npz,
        ".safetensors": _read_safetensors,
        ".parquet": _read_parquet,
        ".lance": _read_lance,
    }
    if path.suffix.lower() not in readers:
        raise ArgumentError(f"{path} is not a file of embeddings. The formats are {', '.join(SUFFIXES)}.")
    if not path.exists():
        raise DataError(f"{path} does not exist.")
    return replace(readers[path.suffix.lower()](path, column), path=path)


def _read_npy(path: Path, column: str | None) -> Embeddings:
    try:
        open_regular(path).close()
        return Embeddings(np.load(path, mmap_mode="r", allow_pickle=False))
    except (ValueError, OSError, EOFError) as error:
        raise _damaged(path, error) from error


def _read_npz(path: Path, column: str | None) -> Embeddings:
    try:
        with open_regular(path) as file, np.load(file, allow_pickle=False) as content:
            tables = {name: content[name].ndim == 2 for name in content.files}
            values = content[_name_of(path, column, [name for name in tables if tables[name]])]
            ids, labels = (content[name] if name in tables else None for name in ("ids", "labels"))
    except DataError:
        raise
    except Exception as error:  # NumPy raises almost any exception for a damaged file
        raise _damaged(path, error) from error
    return Embeddings(values, ids, labels)


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Returns the header of a .safetensors file, and the position of the first array; checks the size of the file."""
    size = path.stat().st_size
    with open_regular(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(size - 8, 2**27):
            raise _damaged(path, "its header is cut off")
        try:
            header = json.loads(file.read(length))
            end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise _damaged(path, "its header cannot be read") from error
    if not isinstance(end, int) or size < 8 + length + end:
        raise _damaged(path, f"it has {size:,} bytes, but its header promises {8 + length + end:,}")
    return header, 8 + length


def map_array(path: Path, header: Mapping[str, Any], start: int, name: str) -> np.ndarray:
    """Returns an array in a .safetensors file as a read-only memory map."""
    entry = header[name]
    if entry["dtype"] not in SAFETENSORS:
        raise DataError(f"{path}: the array {name} has the type {entry['dtype']}. Save it as float16 or float32.")
    shape, dtype = tuple(entry["shape"]), np.dtype(SAFETENSORS[entry["dtype"]])
    first, last = entry["data_offsets"]
    if last - first != int(np.prod(shape)) * dtype.itemsize:
        raise _damaged(path, f"the array {name} has {last - first:,} bytes for the shape {shape}")
    if first == last:
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", offset=start + first, shape=shape)


def _read_safetensors(path: Path, column: str | None) -> Embeddings:
    header, start = read_header(path)
    about = header.pop("__metadata__", {})
    tables = [name for name, entry in header.items() if len(entry["shape"]) == 2 and entry["dtype"].startswith("F")]
    values = map_array(path, header, start, _name_of(path, column, tables))
    ids = map_array(path, header, start, "ids") if "ids" in header else None
    if ids is not None and ids.ndim == 2 and ids.dtype == np.uint8:  # text
        ids = ids.view(f"S{ids.shape[1]}")[:, 0]
    labels = np.array(map_array(path, header, start, "labels")) if "labels" in header else None
    if about.get("format") != FORMAT:
        return Embeddings(values, ids, labels)
    reasons = json.loads(about.get("unreadable", "{}"))
    missing = np.flatnonzero(np.asarray(map_array(path, header, start, "done")) == 0).tolist()
    unreadable = {row: reasons.get(str(row), "The image could not be read.") for row in missing}
    return Embeddings(values, ids, labels, model=about["model"], unreadable=unreadable)


def _read_parquet(path: Path, column: str | None) -> Embeddings:
    if not find_spec("pyarrow"):
        raise ArgumentError("Parquet needs an additional package: pip install 'rarefish[parquet]'.")
    from pyarrow.parquet import read_schema, read_table

    try:
        schema = read_schema(path)
        name = _name_of(path, column, [f.name for f in schema if _is_vector(f.type)])
        extra = [known for known in ("id", "label") if known in schema.names]
        table = read_table(path, columns=[name, *extra])
    except DataError:
        raise
    except Exception as error:  # pyarrow raises almost any exception for a damaged file
        raise _damaged(path, error) from error
    return _of_table(path, table, name)


def _read_lance(path: Path, column: str | None) -> Embeddings:
    if not find_spec("lance"):
        raise ArgumentError("Lance needs an additional package: pip install pylance.")
    import lance  # pyright: ignore[reportMissingImports]

    try:
        data = lance.dataset(str(path))
        name = _name_of(path, column, [f.name for f in data.schema if _is_vector(f.type)])
        table = data.to_table(columns=[name, *(known for known in ("id", "label") if known in data.schema.names)])
    except DataError:
        raise
    except Exception as error:
        raise _damaged(path, error) from error
    return _of_table(path, table, name)


def _is_vector(kind: Any) -> bool:
    """Returns whether an Arrow type is a list of floating-point numbers."""
    from pyarrow import types

    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return is_list and types.is_floating(kind.value_type)


def _of_table(path: Path, table: Any, name: str) -> Embeddings:
    """Returns the embeddings in a column of an Arrow table, with the columns id and label if there are any."""
    parts = []
    for number, chunk in enumerate(table.column(name).chunks):
        flat = chunk.flatten().to_numpy(zero_copy_only=False)
        if chunk.null_count or len(flat) % max(1, len(chunk)):
            raise DataError(f"{path}: part {number} of the column {name} has missing vectors, or different widths.")
        lengths = chunk.value_lengths().to_numpy(zero_copy_only=False) if hasattr(chunk, "value_lengths") else []
        if len(set(lengths)) > 1:
            widths = list_some(sorted(set(lengths)))
            raise DataError(f"{path}: the vectors in the column {name} have different widths: {widths}.")
        if len(chunk):
            parts.append(flat.reshape(len(chunk), -1))
    if not parts:
        raise DataError(f"{path} has no rows.")
    if len({part.shape[1] for part in parts}) > 1:
        raise DataError(f"{path}: the vectors in the column {name} have different widths.")
    ids, labels = (table.column(extra).to_numpy() if extra in table.column_names else None for extra in ("id", "label"))
    if labels is not None and not np.issubdtype(labels.dtype, np.integer):
        labels = None
    return Embeddings(parts[0] if len(parts) == 1 else np.concatenate(parts), ids, labels)


def _name_of(path: Path, column: str | None, tables: Sequence[str]) -> str:
    """Returns the name of the array or column that contains the embeddings."""
    if column is not None:
        if column not in tables:
            raise DataError(f"{path} has no vectors named {column!r}, only {', '.join(tables) or 'none'}.")
        return column
    usual = [name for name in COLUMNS if name in tables]
    if usual or len(tables) == 1:
        return (usual or list(tables))[0]
    if not tables:
        raise DataError(f"{path} contains no table of vectors.")
    raise DataError(f"{path} has several tables: {', '.join(tables)}. Name one: {path}#{tables[0]}.")


def _damaged(path: Path, error: object) -> DataError:
    why = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return DataError(f"{path} is truncated or damaged: {why}. Compute or copy it again.")


def _check_shape(values: np.ndarray, path: Path | None) -> None:
    named = f"{path}: embeddings" if path else "Embeddings"
    if values.ndim != 2:
        raise DataError(f"{named} must be a table (rows, channels), not an array of shape {values.shape}.")
    if not values.shape[0] or not values.shape[1]:
        raise DataError(f"{named} must have at least one row and one channel, not the shape {values.shape}.")
    if values.dtype.newbyteorder("=") not in (np.float16, np.float32, np.float64):
        raise DataError(f"{named} must be float16, float32 or float64, not {values.dtype}. Convert them with astype().")


def _check_values(values: np.ndarray, path: Path | None) -> None:
    """Raises NotFiniteError for rows with NaN or infinity; warns of rows without a direction."""
    bad: list[int] = []
    zero: list[int] = []
    for first, block in blocks_of(values):
        rows = to_float32(block)
        largest_N = torch.maximum(rows.amax(dim=1), -rows.amin(dim=1))  # NaN and infinity propagate
        bad += (first + (~largest_N.isfinite()).nonzero()[:, 0]).tolist()
        zero += (first + (largest_N == 0).nonzero()[:, 0]).tolist()
    of = f" of {path}" if path else ""
    if bad:
        raise NotFiniteError(
            f"NaN or infinity in {len(bad)} of {len(values)} rows{of}: {list_some(bad)}. Leave these rows out, or "
            "compute them again."
        )
    if zero:
        message = (
            f"{len(zero)} of {len(values)} rows{of} are all zero: {list_some(zero)}. They have no direction, so "
            "they are similar to nothing. Leave these rows out, or compute them again."
        )
        warnings.warn(message, EmptyEmbeddingsWarning, stacklevel=4)


def _checked_ids(ids: Sequence[object] | np.ndarray, count: int) -> np.ndarray:
    found = np.asarray(ids)
    if found.shape != (count,):
        raise DataError(f"There are {len(found)} ids for {count} embeddings. Give one id per row.")
    kinds, counts = np.unique(found, return_counts=True)
    if len(kinds) < count:
        again = list_some(kinds[counts > 1].tolist())
        raise DataError(f"{int((counts > 1).sum())} ids occur more than once: {again}. Give each row its own id.")
    return found


def _checked_labels(labels: Any, count: int) -> np.ndarray:
    found = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if found.shape != (count,) or not np.issubdtype(found.dtype, np.integer):
        raise LabelError(
            f"The labels must be {count} integers, one per row, not {found.dtype} values of shape {found.shape}."
        )
    return found.astype(np.int64)


def _hash_of(content: bytes) -> str:
    return digest([content])
