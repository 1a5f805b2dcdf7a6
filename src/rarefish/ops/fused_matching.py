# pyright: reportCallIssue=false
"""The best pool images of every center on a GPU, in Triton: the K×N similarities are never written.

Two steps. The first multiplies in 16 bits, on the tensor cores, and keeps of every group of 32 images the largest
similarity. The R best images of a center lie in at most R groups, so a few groups more than that hold them all but for
near-ties. The second step takes the images of those groups one by one, summed in float32, and in full precision where
it is given: then what it finds is ordered exactly.
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

WIDE = 128
"""A layer's channels are filled up with zeros to a multiple of this."""


@dataclass(frozen=True)
class ClassProbabilities:
    """How likely each pool image is of each class, and the numbers of `matching.weigh`."""

    posterior_NC: Float[Tensor, "N C"]
    classes_K: Int[Tensor, " K"]
    full: float
    doubtful: float
    largest: float
    last: float


@dataclass(frozen=True)
class PackedPoints:
    """Standardized points as the kernels read them: features and scores of the first layer, of the second …"""

    rows: Float[Tensor, "N W"]
    ends: tuple[int, ...]
    """Where each of these ends; what fills it up is 0."""
    is_product: bool
    """Whether features meet scores layer by layer, or all is one inner product."""

    def __len__(self) -> int:
        return len(self.rows)


def pack(points: Standardized, kernel: str = "fisher", dtype: torch.dtype = torch.float16) -> PackedPoints:
    """Ready for the kernels; standardized values never leave the range of 16 bits."""
    if kernel == "fisher":
        parts = [part for layer in zip(points.features, points.scores, strict=True) for part in layer]
    else:
        parts = [*points.features, *(points.scores if needs_scores(kernel) else ())]
    widths = [-(-part.shape[1] // WIDE) * WIDE for part in parts]
    rows = parts[0].new_zeros(len(points), sum(widths), dtype=dtype)
    for part, place in zip(parts, rows.split(widths, dim=1), strict=True):
        place[:, : part.shape[1]] = part
    is_product = kernel == "fisher"
    return PackedPoints(rows, tuple(accumulate(widths)) if is_product else (sum(widths),), is_product)


Weights = tuple[Any, ...]
"""ClassProbabilities as the kernels take them."""


def to_weights(probabilities: ClassProbabilities | None, pool: PackedPoints) -> Weights:
    if probabilities is None:
        return (pool.rows, pool.rows, 0.0, 0.0, 0.0, 0.0)
    # By class: then the threads that look at one center read neighbours.
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
"""Images of which the first step keeps the largest similarity."""
DOUBT = 2**-7
"""How far 16 bits may be wrong about a similarity, in proportion to it and to the number of channels."""
SPARE = 8
"""Groups kept beyond the R that are needed: 16 bits may swap near-ties."""
MUCH, TRIED = 2**28, 512
"""From so many similarities on tiles are tried out, which takes some seconds, on so many groups."""
AT_ONCE = 65_536
"""Images that the kernels are shown at once."""
MOST_MAXIMA = 2**26
"""Numbers that the first step may write before the best of them are taken: 256 MB."""
FEWEST_CENTERS = 512
"""Fewer are as fast without these kernels."""
MOST_DEEP = 128
"""For a longer list the second step looks at too many images."""
FAILED: list[str] = []
"""What went wrong with the kernels in this process; then they are not tried again."""


def is_fusible(centers: Standardized, depth: int = 1) -> bool:
    """Whether these kernels apply: Triton comes with torch where there is a GPU."""
    z_KL = centers.features[0]
    is_there = z_KL.is_cuda and bool(find_spec("triton")) and not FAILED
    return is_there and z_KL.dtype == torch.float32 and len(z_KL) >= FEWEST_CENTERS and depth <= MOST_DEEP


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
    """Similarity and row of the `depth` pool images most alike to each center, best first.

    `exact`: centers and pool once more, in full precision, to order the candidates by. `floor`: what is less alike than
    this need not be found; in its place comes minus infinity.
    """
    weights = to_weights(probabilities, pool)
    tiles = tiles or _tuned(centers, pool, probabilities is not None, weights)
    largest_KB, groups_KB = _best_groups(centers, pool, depth, probabilities is not None, weights, tiles)
    is_wanted_KB = torch.ones_like(groups_KB, dtype=torch.int8)
    if floor is not None:
        doubt_K = DOUBT * (floor.abs() + pool.ends[-1])
        is_wanted_KB = (largest_KB >= (floor - doubt_K)[:, None]).to(torch.int8)
    similarity_KB = _within(*(exact or (centers, pool)), groups_KB, is_wanted_KB, probabilities is not None, weights)
    rows_KB = (groups_KB[:, :, None] * GROUP + torch.arange(GROUP, device=groups_KB.device)).flatten(1)
    # Among equals the smaller row first, whatever order the groups came in.
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
    """The same of descriptors as they come, candidates ordered in float32; None, after a word, where it fails here."""
    try:
        exact = pack(centers, kernel, torch.float32), pack(pool, kernel, torch.float32)
        return best_matches(
            pack(centers, kernel), pack(pool, kernel), depth, probabilities=probabilities, exact=exact, floor=floor
        )
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a compiler may say about a GPU we have not seen
        FAILED.append(str(error))
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        warn(f"The kernels for matching do not work on this GPU, plain ones are used: {first}", stacklevel=4)
        return None


def _tuned(centers: PackedPoints, pool: PackedPoints, is_weighed: bool, weights: Weights) -> Tiles:
    """The tiles that are fastest here for such shapes, tried out on the first images where there is much to do."""
    if len(centers) * len(pool) < MUCH:
        return Tiles()
    device, some = pool.rows.device, min(TRIED, -(-len(pool) // GROUP))
    shape = (device, len(centers).bit_length(), len(pool).bit_length(), pool.ends, pool.is_product, is_weighed)
    return tuned(shape, lambda tiles: _largest(centers, pool, 0, some, is_weighed, weights, tiles), device)


def _best_groups(
    centers: PackedPoints, pool: PackedPoints, depth: int, is_weighed: bool, weights: Weights, tiles: Tiles
) -> tuple[Float[Tensor, "K B"], Int[Tensor, "K B"]]:
    """The groups that hold the best images of each center, each of GROUP consecutive rows; and their largest."""
    num_groups, kept, of_tile = -(-len(pool) // GROUP), depth + SPARE, tiles.images // GROUP
    at_once = max(1, MOST_MAXIMA // len(centers) // of_tile) * of_tile
    best = []
    for first in range(0, num_groups, at_once):
        last = min(first + at_once, num_groups)
        maxima_KG = _largest(centers, pool, first, last, is_weighed, weights, tiles)
        value, group = _top(maxima_KG, kept)
        best.append((value, group + first))
    value, group = (torch.cat(column, dim=1) for column in zip(*best, strict=True))
    value, place = _top(value, kept)
    return value, group.gather(1, place)


def _largest(
    centers: PackedPoints, pool: PackedPoints, first: int, last: int, is_weighed: bool, weights: Weights, tiles: Tiles
) -> Float[Tensor, "K G"]:
    """The largest similarity of each center in each of some groups."""
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
    """The largest values of each row and where they stand; a long row is first looked at in pieces.

    The `count` largest lie in at most as many pieces, those with the largest maxima.
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
    """Similarities of each center to all images of its groups, summed in float32; -inf where there is nothing."""
    from rarefish.ops.triton_kernels import look_into_groups

    num_centers, num_groups = groups_KB.shape
    device = pool.rows.device
    found = torch.full((num_centers, num_groups, GROUP), -torch.inf, device=device)
    with on_device(device):
        look_into_groups[(num_centers, num_groups)](
            *(centers.rows, pool.rows, *weights, groups_KB.contiguous(), is_wanted_KB, found, len(pool), num_groups),
            ends=tuple(end // WIDE for end in pool.ends),
            is_product=pool.is_product,
            is_weighed=is_weighed,
            tile_l=WIDE,
            group_size=GROUP,
        )
    return found.flatten(1)


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device, whatever its arguments are on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _num_processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
