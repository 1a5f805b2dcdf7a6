# pyright: reportCallIssue=false
"""The best pool images of every center on a GPU, in Triton: the K×N similarities are never written.

Two steps. The first multiplies in 16 bits, on the tensor cores, and keeps of every tile of similarities the largest of
each group of 32 images; a center's best groups stay in registers. The R best images of a center lie in at most R
groups, so a few groups more than that hold them all but for near-ties. The second step takes the images of those
groups one by one, summed in float32, and in full precision where it is given: then what it finds is ordered exactly.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from warnings import warn

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rarefish.descriptors import Descriptors, concatenate
from rarefish.kernels import Standardized

GROUP = 32
"""Images of which the first step keeps the largest similarity."""
SPARE = 8
"""Groups kept beyond the R that are needed: 16 bits may swap near-ties."""
SLICE = 64
"""Channels multiplied at once; a layer's are filled up to a multiple."""
AT_ONCE = 32_768
"""Images that the kernels are shown at once."""
FEWEST_CENTERS = 512
"""Fewer are as fast without these kernels."""
MOST_DEEP = 64
"""A longer list does not stay in registers."""
FAILED: list[str] = []
"""What went wrong with the kernels in this process; then they are not tried again."""
KINDS = {"fisher": 0, "sum": 1, "features": 2}


def is_fusible(centers: Standardized) -> bool:
    """Whether these kernels apply: Triton comes with torch where there is a GPU."""
    z_KL = centers.features[0]
    is_there = z_KL.is_cuda and bool(find_spec("triton")) and not FAILED
    return is_there and z_KL.dtype == torch.float32 and len(z_KL) >= FEWEST_CENTERS


def gathered(batches: Iterable[Descriptors], at_least: int = AT_ONCE) -> Iterator[Descriptors]:
    """The same rows in larger batches: a GPU that multiplies a few images by thousands of centers mostly waits."""
    waiting: list[Descriptors] = []
    for batch in batches:
        waiting.append(batch)
        if sum(map(len, waiting)) >= at_least:
            yield concatenate(waiting)
            waiting = []
    if waiting:
        yield concatenate(waiting)


@dataclass(frozen=True)
class Chances:
    """How likely each pool image is of each class, and the numbers of `matching.weigh`."""

    posterior_NC: Float[Tensor, "N C"]
    classes_K: Int[Tensor, " K"]
    full: float
    doubtful: float
    largest: float
    last: float


@dataclass(frozen=True)
class Tiles:
    """How the first step is cut: centers and images of a tile, warps and loads under way at once."""

    centers: int = 128
    images: int = 128
    warps: int = 8
    stages: int = 3
    chunks: int = 0
    """Parts of the pool that are looked at side by side; 0: as many as fill the device a few times over."""


@dataclass(frozen=True)
class Laid:
    """Standardized features and scores as the kernels read them: all layers side by side, each filled up with zeros."""

    features: Float[Tensor, "N W"]
    scores: Float[Tensor, "N W"]
    """The features again for a kernel without scores."""
    widths: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.features)


def lay_out(points: Standardized, dtype: torch.dtype = torch.float16) -> Laid:
    """Ready for the kernels; standardized values never leave the range of 16 bits."""
    widths = tuple(-(-z.shape[1] // SLICE) * SLICE for z in points.features)

    def side_by_side(layers: tuple[Tensor, ...]) -> Tensor:
        whole = layers[0].new_zeros(len(points), sum(widths), dtype=dtype)
        for layer, place in zip(layers, whole.split(widths, dim=1), strict=True):
            place[:, : layer.shape[1]] = layer
        return whole

    features = side_by_side(points.features)
    return Laid(features, side_by_side(points.scores) if points.scores else features, widths)


def best_matches(
    centers: Laid,
    pool: Laid,
    depth: int,
    kernel: str = "fisher",
    *,
    chances: Chances | None = None,
    exact: tuple[Laid, Laid] | None = None,
    tiles: Tiles | None = None,
) -> tuple[Float[Tensor, "K R"], Int[Tensor, "K R"]]:
    """Similarity and row of the `depth` pool images most alike to each center, best first.

    `exact`: centers and pool once more, in full precision, to order the candidates by.
    """
    groups_KB = _best_groups(centers, pool, depth, kernel, chances, tiles or Tiles())
    similarity_KB = _within(*(exact or (centers, pool)), groups_KB, kernel, chances)
    rows_KB = (groups_KB[:, :, None] * GROUP + torch.arange(GROUP, device=groups_KB.device)).flatten(1)
    # Among equals the smaller row first, whatever order the groups came in.
    order = rows_KB.sort(dim=1).indices
    rows_KB, similarity_KB = rows_KB.gather(1, order), similarity_KB.gather(1, order)
    best = similarity_KB.sort(dim=1, descending=True, stable=True).indices[:, : min(depth, len(pool))]
    return similarity_KB.gather(1, best), rows_KB.gather(1, best).long()


def best_exactly(
    centers: Standardized, pool: Standardized, depth: int, kernel: str, chances: Chances | None
) -> tuple[Float[Tensor, "K R"], Int[Tensor, "K R"]] | None:
    """The same of descriptors as they come, candidates ordered in float32; None, after a word, where it fails here."""
    exact = lay_out(centers, torch.float32), lay_out(pool, torch.float32)
    try:
        return best_matches(lay_out(centers), lay_out(pool), depth, kernel, chances=chances, exact=exact)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a compiler may say about a GPU we have not seen
        FAILED.append(str(error))
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        warn(f"The kernels for matching do not work on this GPU, plain ones are used: {first}", stacklevel=4)
        return None


def _best_groups(
    centers: Laid, pool: Laid, depth: int, kernel: str, chances: Chances | None, tiles: Tiles
) -> Int[Tensor, "K B"]:
    """The groups that hold the best images of each center, each of GROUP consecutive rows."""
    from rarefish.fused_kernels import keep_best_groups  # needs Triton

    num_centers, num_images, device = len(centers), len(pool), pool.features.device
    num_groups = -(-num_images // GROUP)
    kept = 1 << (depth + SPARE - 1).bit_length()  # Triton's lists are powers of two long
    blocks, images = -(-num_centers // tiles.centers), -(-num_images // tiles.images)
    chunks = min(images, tiles.chunks or max(1, 4 * _num_processors(device) // blocks))
    value = torch.empty(chunks, num_centers, kept, device=device)
    group = torch.empty(chunks, num_centers, kept, device=device, dtype=torch.int32)
    with on_device(device):
        keep_best_groups[(blocks * chunks,)](
            *(centers.features, centers.scores, pool.features, pool.scores, *_weights(chances, pool), value, group),
            *(num_centers, num_images, -(-images // chunks) * tiles.images, blocks),
            widths=pool.widths,
            total=sum(pool.widths),
            kind=KINDS[kernel],
            is_weighed=chances is not None,
            tile_k=tiles.centers,
            tile_n=tiles.images,
            tile_l=SLICE,
            group_size=GROUP,
            kept=kept,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
        )
    value, group = (part.movedim(0, 1).flatten(1) for part in (value, group))
    best = value.topk(min(kept, num_groups, value.shape[1]), dim=1).indices
    return group.gather(1, best)


def _within(
    centers: Laid, pool: Laid, groups_KB: Tensor, kernel: str, chances: Chances | None
) -> Float[Tensor, "K BG"]:
    """Similarities of each center to all images of its groups, summed in float32; -inf past the last image."""
    from rarefish.fused_kernels import look_into_groups

    num_centers, num_groups = groups_KB.shape
    device = pool.features.device
    found = torch.empty(num_centers, num_groups, GROUP, device=device)
    with on_device(device):
        look_into_groups[(num_centers, num_groups)](
            *(centers.features, centers.scores, pool.features, pool.scores, *_weights(chances, pool)),
            *(groups_KB.contiguous(), found, len(pool), num_groups),
            widths=pool.widths,
            total=sum(pool.widths),
            kind=KINDS[kernel],
            is_weighed=chances is not None,
            tile_l=SLICE,
            group_size=GROUP,
        )
    return found.flatten(1)


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device, whatever its arguments are on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _weights(chances: Chances | None, pool: Laid) -> tuple[Tensor | float, ...]:
    if chances is None:
        return (pool.features, pool.features, 0.0, 0.0, 0.0, 0.0)
    # By class: then the threads that look at one center read neighbours.
    posterior_CN = chances.posterior_NC.float().T.contiguous()
    classes = chances.classes_K.to(posterior_CN.device, torch.int32)
    return (posterior_CN, classes, 1 / chances.full, chances.doubtful, 1 / chances.largest, chances.last)


def _num_processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
