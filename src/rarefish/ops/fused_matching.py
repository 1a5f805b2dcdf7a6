# pyright: reportCallIssue=false
"""The best pool images of each center on a GPU with Triton, without storing the K×N similarities.

There are two steps. The first multiplies in 16 bits on the tensor cores and keeps the largest similarity of every group
of 32 images. The R best images of a center are in at most R groups, so keeping a few more groups than R is enough to
find all of them, except for near-ties. The second step computes the similarities to all images of those groups, summed
in float32. If full-precision values are given, it uses those, which makes the order exact.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate
from typing import Any
from warnings import warn

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from rarefish.kernels import Standardized, needs_scores
from rarefish.ops.autotune import Tiles, tuned

CHANNEL_MULTIPLE = 128
"""Channels of a layer are padded with zeros to a multiple of this."""


@dataclass(frozen=True)
class ClassProbabilities:
    """Class probabilities of the pool images, and the constants of `matching.weigh`."""

    posterior_NC: Float[Tensor, "N C"]
    classes_K: Int[Tensor, " K"]
    full: float
    doubtful: float
    largest: float
    last: float


@dataclass(frozen=True)
class PackedPoints:
    """Standardized points in one tensor: features and scores of the first layer, then of the second, and so on."""

    rows: Float[Tensor, "N W"]
    ends: tuple[int, ...]
    """The column where each of these parts ends; the padding is 0."""
    is_product: bool
    """Whether features and scores are multiplied layer by layer; otherwise, everything is one inner product."""

    def __len__(self) -> int:
        return len(self.rows)


def pack(points: Standardized, kernel: str = "fisher", dtype: torch.dtype = torch.float16) -> PackedPoints:
    """Returns points packed for the kernels; standardized values never exceed the range of float16."""
    if kernel == "fisher":
        parts = [part for layer in zip(points.features, points.scores, strict=True) for part in layer]
    else:
        parts = [*points.features, *(points.scores if needs_scores(kernel) else ())]
    widths = [-(-part.shape[1] // CHANNEL_MULTIPLE) * CHANNEL_MULTIPLE for part in parts]
    rows = parts[0].new_zeros(len(points), sum(widths), dtype=dtype)
    for part, columns in zip(parts, rows.split(widths, dim=1), strict=True):
        columns[:, : part.shape[1]] = part
    is_product = kernel == "fisher"
    return PackedPoints(rows, tuple(accumulate(widths)) if is_product else (sum(widths),), is_product)


Weights = tuple[Any, ...]
"""Arguments of the kernels that contain the class probabilities."""


def to_weights(probabilities: ClassProbabilities | None, pool: PackedPoints) -> Weights:
    """Returns the class probabilities as arguments of the kernels, or placeholders if there are none."""
    if probabilities is None:
        return (pool.rows, pool.rows, 0.0, 0.0, 0.0, 0.0)
    # Ordered by class, so that the threads of one center read consecutive addresses.
    posterior_CN = probabilities.posterior_NC.float().T.contiguous()
    classes = probabilities.classes_K.to(posterior_CN.device, torch.int32)
    return (
        posterior_CN,
        classes,
        1 / probabilities.full,
        probabilities.doubtful,
        1 / probabilities.largest,
        probabilities.last,
    )


GROUP = 32
"""Number of images per group; the first step keeps the largest similarity of each group."""
ERROR_16_BIT = 2**-7
"""Upper bound on the error of a similarity in 16 bits, relative to its value plus the number of channels."""
SPARE_GROUPS = 8
"""Number of groups kept in addition to the R that are needed, since 16 bits may swap near-ties."""
MIN_TUNED, TUNING_GROUPS = 2**28, 512
"""Minimum number of similarities for tuning tile sizes, which takes some seconds, and groups used for tuning."""
AT_ONCE = 65_536
"""Number of images per kernel call."""
MAX_MAXIMA = 2**26
"""Maximum number of maxima that the first step writes before they are reduced (256 MB)."""
MIN_CENTERS = 512
"""With fewer centers, plain matrix products are just as fast."""
MAX_DEPTH = 128
"""With longer lists of matches, the second step would compute too many similarities."""
FAILED: list[str] = []
"""Errors of the kernels in this process; after an error they are not used again."""


def is_fusible(centers: Standardized, depth: int = 1) -> bool:
    """Returns whether these kernels can be used; torch installs Triton on machines with a GPU."""
    z_KL = centers.features[0]
    is_available = z_KL.is_cuda and bool(find_spec("triton")) and not FAILED
    return is_available and z_KL.dtype == torch.float32 and len(z_KL) >= MIN_CENTERS and depth <= MAX_DEPTH


def best_matches(
    centers: PackedPoints,
    pool: PackedPoints,
    depth: int,
    *,
    probabilities: ClassProbabilities | None = None,
    exact: tuple[PackedPoints, PackedPoints] | None = None,
    floor: Float[Tensor, " K"] | None = None,
    tiles: Tiles | None = None,
) -> tuple[Float[Tensor, "K R"], Int[Tensor, "K R"]]:
    """Returns the similarities and rows of the `depth` pool images most similar to each center, best first.

    Args:
        exact: Centers and pool in full precision, used to order the candidates.
        floor: Images less similar than this may be omitted; -inf is returned in their place.
    """
    weights = to_weights(probabilities, pool)
    tiles = tiles or _tuned(centers, pool, probabilities is not None, weights)
    largest_KB, groups_KB = _best_groups(centers, pool, depth, probabilities is not None, weights, tiles)
    is_wanted_KB = torch.ones_like(groups_KB, dtype=torch.int8)
    if floor is not None:
        error_K = ERROR_16_BIT * (floor.abs() + pool.ends[-1])
        is_wanted_KB = (largest_KB >= (floor - error_K)[:, None]).to(torch.int8)
    similarity_KB = _within(*(exact or (centers, pool)), groups_KB, is_wanted_KB, probabilities is not None, weights)
    rows_KB = (groups_KB[:, :, None] * GROUP + torch.arange(GROUP, device=groups_KB.device)).flatten(1)
    # Among equal values, the smaller row comes first, regardless of the order in which the groups were found.
    order = rows_KB.sort(dim=1).indices
    rows_KB, similarity_KB = rows_KB.gather(1, order), similarity_KB.gather(1, order)
    best = similarity_KB.sort(dim=1, descending=True, stable=True).indices[:, : min(depth, len(pool))]
    return similarity_KB.gather(1, best), rows_KB.gather(1, best)


def best_exactly(
    centers: Standardized,
    pool: Standardized,
    depth: int,
    kernel: str,
    probabilities: ClassProbabilities | None,
    floor: Float[Tensor, " K"] | None = None,
) -> tuple[Float[Tensor, "K R"], Int[Tensor, "K R"]] | None:
    """Returns the same as `best_matches` for standardized descriptors, with candidates ordered in float32.

    If the kernels fail on this GPU, warns and returns None.
    """
    try:
        exact = pack(centers, kernel, torch.float32), pack(pool, kernel, torch.float32)
        return best_matches(
            pack(centers, kernel), pack(pool, kernel), depth, probabilities=probabilities, exact=exact, floor=floor
        )
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # compilers can raise any exception on unsupported GPUs
        FAILED.append(str(error))
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        warn(
            f"The Triton kernels for matching fail on this GPU, so plain PyTorch is used instead: {first}", stacklevel=4
        )
        return None


def _tuned(centers: PackedPoints, pool: PackedPoints, is_weighed: bool, weights: Weights) -> Tiles:
    """Returns the fastest tiles for these shapes, timed on the first images if there is enough work to justify it."""
    if len(centers) * len(pool) < MIN_TUNED:
        return Tiles()
    device, some = pool.rows.device, min(TUNING_GROUPS, -(-len(pool) // GROUP))
    shape = (device, len(centers).bit_length(), len(pool).bit_length(), pool.ends, pool.is_product, is_weighed)
    return tuned(shape, lambda tiles: _largest(centers, pool, 0, some, is_weighed, weights, tiles), device)


def _best_groups(
    centers: PackedPoints, pool: PackedPoints, depth: int, is_weighed: bool, weights: Weights, tiles: Tiles
) -> tuple[Float[Tensor, "K B"], Int[Tensor, "K B"]]:
    """Returns, for each center, the groups that contain its best images and their largest similarities."""
    num_groups, num_kept, per_tile = -(-len(pool) // GROUP), depth + SPARE_GROUPS, tiles.images // GROUP
    at_once = max(1, MAX_MAXIMA // len(centers) // per_tile) * per_tile
    best = []
    for first in range(0, num_groups, at_once):
        last = min(first + at_once, num_groups)
        maxima_KG = _largest(centers, pool, first, last, is_weighed, weights, tiles)
        value, group = _top(maxima_KG, num_kept)
        best.append((value, group + first))
    value, group = (torch.cat(column, dim=1) for column in zip(*best, strict=True))
    value, place = _top(value, num_kept)
    return value, group.gather(1, place)


def _largest(
    centers: PackedPoints, pool: PackedPoints, first: int, last: int, is_weighed: bool, weights: Weights, tiles: Tiles
) -> Float[Tensor, "K G"]:
    """Returns the largest similarity of each center in each of the groups `first` to `last`."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    from rarefish.ops.triton_kernels import keep_largest  # needs Triton

    device, images = pool.rows.device, pool.rows[first * GROUP : last * GROUP]
    maxima = torch.empty(len(centers), last - first, device=device)
    blocks_k, blocks_n = -(-len(centers) // tiles.centers), -(-len(images) // tiles.images)
    with on_device(device):
        keep_largest[(min(blocks_k * blocks_n, _num_processors(device)),)](
            TensorDescriptor.from_tensor(centers.rows, [tiles.centers, tiles.channels]),
            TensorDescriptor.from_tensor(images, [tiles.images, tiles.channels]),
            *(*weights, maxima, len(centers), len(images), len(pool), first * GROUP, last - first, blocks_k, blocks_n),
            ends=tuple(end // tiles.channels for end in pool.ends),
            is_product=pool.is_product,
            is_weighed=is_weighed,
            tile_k=tiles.centers,
            tile_n=tiles.images,
            tile_l=tiles.channels,
            group_size=GROUP,
            side=tiles.side,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
        )
    return maxima


def _top(values_KG: Float[Tensor, "K G"], count: int) -> tuple[Float[Tensor, "K B"], Int[Tensor, "K B"]]:
    """Returns the `count` largest values of each row and their columns; faster than `topk` for long rows.

    A long row is cut into pieces: its `count` largest values are in the `count` pieces with the largest maxima.
    """
    count, piece = min(count, values_KG.shape[1]), 64
    if values_KG.shape[1] <= 2 * piece * count:
        value, place = values_KG.topk(count, dim=1)
        return value, place
    pieces_KPG = functional.pad(values_KG, (0, -values_KG.shape[1] % piece), value=-torch.inf).unflatten(1, (-1, piece))
    chosen_KB = pieces_KPG.amax(dim=2).topk(count, dim=1).indices
    few_KBG = pieces_KPG.gather(1, chosen_KB[:, :, None].expand(-1, -1, piece))
    value, place = few_KBG.flatten(1).topk(count, dim=1)
    return value, chosen_KB.gather(1, place // piece) * piece + place % piece


def _within(
    centers: PackedPoints,
    pool: PackedPoints,
    groups_KB: Tensor,
    is_wanted_KB: Tensor,
    is_weighed: bool,
    weights: Weights,
) -> Float[Tensor, "K BG"]:
    """Returns the similarities of each center to all images of its groups; -inf for skipped groups and padding."""
    from rarefish.ops.triton_kernels import look_into_groups

    num_centers, num_groups = groups_KB.shape
    device = pool.rows.device
    found = torch.full((num_centers, num_groups, GROUP), -torch.inf, device=device)
    with on_device(device):
        look_into_groups[(num_centers, num_groups)](
            *(centers.rows, pool.rows, *weights, groups_KB.contiguous(), is_wanted_KB, found, len(pool), num_groups),
            ends=tuple(end // CHANNEL_MULTIPLE for end in pool.ends),
            is_product=pool.is_product,
            is_weighed=is_weighed,
            tile_l=CHANNEL_MULTIPLE,
            group_size=GROUP,
        )
    return found.flatten(1)


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Makes the device current, because Triton launches on the current device, wherever its arguments are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _num_processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
