"""The best pool images of every center, filled batch by batch and merged across machines.

The table is all that is kept of the pool: R candidates for each of K centers. It is the same for any batch size,
order of images or split into shards, because candidates have a total order: more alike first, then smaller index.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rarefish.descriptors import Descriptors, gathered
from rarefish.kernels import Standardized, similarity, standardize
from rarefish.ops.fused_matching import AT_ONCE, MAX_DEPTH, ClassProbabilities, best_exactly, is_fusible


def first_occurrences(values: Int[Tensor, " N"]) -> Int[Tensor, " U"]:
    """Rows where a value stands for the first time, in order."""
    ordered, rows = values.sort(stable=True)
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return rows[is_first].sort().values


def pack(similarity: Float[Tensor, "K N"], index: Int[Tensor, "*#K N"]) -> Int[Tensor, "K N"]:
    """One 64-bit number that sorts as (similarity, then smaller index): ties cannot depend on the batch.

    The upper half is the float32 similarity, its bits turned so that they sort as integers; the lower half counts
    down from the largest index.
    """
    bits = similarity.float().view(torch.int32).long()
    ordered = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    return ordered * 2**32 + (2**32 - 1 - index)


def unpack_index(key: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    return 2**32 - 1 - (key & 0xFFFFFFFF)


def unpack_similarity(key: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    ordered = key >> 32
    bits = torch.where(ordered < 0, -ordered - 2**31, ordered)
    return bits.to(torch.int32).view(torch.float32)


FULL, DOUBTFUL = 0.2, 0.02
"""An image counts in full for a center whose class has at least the one chance; below the other it comes last."""
LAST = 1e30
"""Less than minus this: after all others."""
MOST_AT_ONCE, MOST_PRODUCTS = 2048, 2_000_000
"""Images, and similarities, that are looked at together: sorting out the best costs less for many than for few."""
MOST_PLAIN = 2**27
"""Similarities that are written at once at most: 8 GB with all that is made of them."""
TABLE_ENTRIES = 4_000_000
"""Depth is generous while the table stays this small (about 50 MB): a second pass over the pool costs far more."""


@dataclass(frozen=True)
class Matches:
    """For each of K centers its best images, best first; shorter than the depth while fewer images were seen."""

    key: Int[Tensor, "K R"]
    """Similarity and index in one number (see `keys.pack`)."""
    label: Int[Tensor, "K R"]
    """The label the image was described with."""


@dataclass(frozen=True)
class Picks:
    """Distinct images in the order they were found, and the center that called for each."""

    index: Int[Tensor, " P"]
    similarity: Float[Tensor, " P"]
    center: Int[Tensor, " P"]
    label: Int[Tensor, " P"]

    def __add__(self, other: "Picks") -> "Picks":
        return Picks(*(torch.cat([getattr(self, f.name), getattr(other, f.name)]) for f in fields(Picks)))


NO_PICKS = Picks(*(torch.empty(0, dtype=dtype) for dtype in (torch.long, torch.float, torch.long, torch.long)))


@dataclass(frozen=True)
class Search:
    """A search for `budget` distinct images: usually one table; more where the centers share the same best images.

    Tables get deeper; one that may not grow any more is chosen from, and the next is filled from what is left.
    """

    budget: int
    depth: int
    """Depth of the next table."""
    settled: Picks = NO_PICKS
    """Picks from tables of the largest depth; the next table leaves these images out."""
    picks: Picks = NO_PICKS
    """All picks so far."""
    is_done: bool = False

    def advance(self, table: Matches) -> "Search":
        """The search after a table of its `depth`, filled from the pool without the settled images."""
        picks = self.settled + distinct(table, self.budget - len(self.settled.index))
        deepest = min(self.budget, max(self.depth, TABLE_ENTRIES // len(table.key)))
        # If every center's list ends with implausible images, a deeper list has no further plausible ones.
        is_exhausted = bool((unpack_similarity(table.key[:, -1:]) < -LAST).all())
        is_final = self.depth >= deepest or is_exhausted or bool(picks.similarity.all())
        is_full = len(picks.index) == self.budget and is_final
        return Search(
            budget=self.budget,
            depth=min(2 * self.depth, deepest),
            settled=picks if self.depth >= deepest else self.settled,
            picks=picks,
            is_done=is_full or self.depth >= self.budget or len(picks.index) == len(self.settled.index),
        )


def match_batches(
    batches: Iterable[Descriptors], centers: Standardized, classes_K: Int[Tensor, " K"], kernel: str, depth: int
) -> Matches:
    """The table of all batches together, a batch at a time."""
    is_fused = is_fusible(centers, depth)
    at_once = AT_ONCE if is_fused else min(MOST_AT_ONCE, MOST_PRODUCTS // len(centers))
    none = torch.empty(len(centers), 0, dtype=torch.long, device=centers.features[0].device)
    table = Matches(none, none)
    for batch in gathered(batches, at_once):
        floor_K = unpack_similarity(table.key[:, -1]) if table.key.shape[1] == depth else None
        table = merge([table, match(batch, centers, classes_K, kernel, depth, floor_K)], depth)
    return table


def match(
    batch: Descriptors,
    centers: Standardized,
    classes_K: Int[Tensor, " K"],
    kernel: str,
    depth: int,
    floor_K: Float[Tensor, " K"] | None = None,
) -> Matches:
    """The table for one batch alone; where there is a posterior, that of each center's class weighs the kernel.

    Images less alike to a center than `floor_K` may be missing.
    """
    pool, classes_K = standardize(batch), classes_K.to(batch.posterior.device)
    is_weighed, largest = batch.posterior.shape[1] > 0, batch.features.shape[1] ** 2
    if is_fusible(centers, depth):
        probabilities = (
            ClassProbabilities(batch.posterior, classes_K, FULL, DOUBTFUL, float(largest), LAST) if is_weighed else None
        )
        if found := best_exactly(centers, pool, depth, kernel, probabilities, floor_K):
            similarity_KR, row_KR = found
            return Matches(pack(similarity_KR, batch.index.to(row_KR.device)[row_KR]), batch.label[row_KR])
    most = max(1, MOST_PLAIN // len(centers))
    if len(batch) > most:  # gathered for kernels that then did not work
        parts = (batch[slice(first, first + most)] for first in range(0, len(batch), most))
        return merge((match(part, centers, classes_K, kernel, depth) for part in parts), depth)
    similarity_KN = similarity(centers, pool, kernel)
    if is_weighed:
        similarity_KN = weigh(similarity_KN, batch.posterior.T[classes_K], largest)
    key_KN = pack(similarity_KN, batch.index.to(similarity_KN.device))
    return _best(Matches(key_KN, batch.label.expand_as(key_KN)), depth)


def weigh(similarity_KN: Float[Tensor, "K N"], chance_KN: Float[Tensor, "K N"], largest: int) -> Float[Tensor, "K N"]:
    """The kernel, at most `largest`, times the chance of the center's class, which counts in full from a fifth on.

    In proportion it would prefer the surest images, and they teach least. Images that are hardly of that class, or
    unlike the center, come after all others, the most alike of them first.
    """
    is_plausible = (chance_KN >= DOUBTFUL) & (similarity_KN > 0)
    weighed = similarity_KN * (chance_KN / FULL).clamp_max(1).to(similarity_KN)
    return torch.where(is_plausible, weighed, (similarity_KN / largest - 3) * LAST)


def merge(tables: Iterable[Matches], depth: int) -> Matches:
    """One table out of many, from batches or from machines."""
    tables = iter(tables)
    merged = next(tables)
    for table in tables:
        both = Matches(torch.cat([merged.key, table.key], 1), torch.cat([merged.label, table.label], 1))
        merged = _best(both, depth)
    return merged


def distinct(matches: Matches, budget: int) -> Picks:
    """Up to `budget` different images: first choices of all centers, then second choices …, the most alike first."""
    matches = Matches(matches.key.cpu(), matches.label.cpu())
    # Rank by rank; within a rank the largest key first, which is the most alike. Stable: equal keys by center.
    key_RK, center_RK = matches.key.T.sort(dim=1, descending=True, stable=True)
    columns = (unpack_index(key_RK), unpack_similarity(key_RK), center_RK, matches.label.T.gather(1, center_RK))
    index, similarity, center, label = (column.flatten() for column in columns)
    in_turn = (similarity < -LAST).sort(stable=True).indices
    first = in_turn[first_occurrences(index[in_turn])[:budget]]
    return Picks(index[first], similarity.where(similarity >= -LAST, 0.0)[first], center[first], label[first])


def first_depth(budget: int, centers: Standardized) -> int:
    """How many images to keep per center: `budget` always suffices, so all of them where the table stays small."""
    wanted, affordable = 4 * -(-budget // len(centers)) + 16, TABLE_ENTRIES // len(centers)
    return min(budget, max(wanted, min(affordable, MAX_DEPTH // 2) if is_fusible(centers) else affordable))


def _best(table: Matches, depth: int) -> Matches:
    key, column = table.key.topk(min(depth, table.key.shape[1]), dim=1)
    return Matches(key, table.label.gather(1, column))
