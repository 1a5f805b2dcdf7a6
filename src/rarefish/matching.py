"""The table of the best pool images per center, updated batch by batch and merged across processes.

Only this table is kept of the pool: R candidates for each of K centers. It is the same for any batch size, order of
images or split into shards, because candidates have a total order: larger similarity first, then smaller index.
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
    """Rows where a value occurs for the first time, in order."""
    ordered, rows = values.sort(stable=True)
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return rows[is_first].sort().values


def pack(similarity: Float[Tensor, "K N"], index: Int[Tensor, "*#K N"]) -> Int[Tensor, "K N"]:
    """One 64-bit key that sorts by similarity, then by smaller index, so that ties do not depend on the batch.

    The upper half is the float32 similarity, its bits mapped so that they sort as integers; the lower half counts
    down from the largest index.
    """
    bits = similarity.float().view(torch.int32).long()
    ordered = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    return ordered * 2**32 + (2**32 - 1 - index)


def unpack_index(key: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """The index in a key made by `pack`."""
    return 2**32 - 1 - (key & 0xFFFFFFFF)


def unpack_similarity(key: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The similarity in a key made by `pack`."""
    ordered = key >> 32
    bits = torch.where(ordered < 0, -ordered - 2**31, ordered)
    return bits.to(torch.int32).view(torch.float32)


FULL, DOUBTFUL = 0.2, 0.02
"""Posterior probability of the center's class from which an image counts in full, and below which it ranks last."""
LAST = 1e30
"""A similarity below minus this ranks after all plausible images."""
GROUP_IMAGES, GROUP_SIMILARITIES = 2048, 2_000_000
"""Images, and similarities, that are matched together: one large top-k costs less than many small ones."""
MAX_SIMILARITIES = 2**27
"""Largest number of similarities in memory at once: 8 GB with the tensors derived from them."""
TABLE_ENTRIES = 4_000_000
"""The table may grow to this many entries (about 50 MB): a second pass over the pool costs far more."""


@dataclass(frozen=True)
class Matches:
    """The best images of each of K centers, best first; fewer than the depth if fewer images were seen."""

    key: Int[Tensor, "K R"]
    """Similarity and index in one number (see `pack`)."""
    label: Int[Tensor, "K R"]
    """The label the image was described with."""


@dataclass(frozen=True)
class Picks:
    """Distinct images in the order they were chosen, and the center each one matches."""

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
    """The table of all batches together, updated batch by batch."""
    is_fused = is_fusible(centers, depth)
    at_once = AT_ONCE if is_fused else min(GROUP_IMAGES, GROUP_SIMILARITIES // len(centers))
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
    """The table of a single batch; if there is a posterior, the kernel is weighted by that of each center's class.

    Images whose similarity to a center is below `floor_K` may be missing.
    """
    pool, classes_K = standardize(batch), classes_K.to(batch.posterior.device)
    is_weighted, largest = batch.posterior.shape[1] > 0, batch.features.shape[1] ** 2
    if is_fusible(centers, depth):
        probabilities = (
            ClassProbabilities(batch.posterior, classes_K, FULL, DOUBTFUL, float(largest), LAST)
            if is_weighted
            else None
        )
        if found := best_exactly(centers, pool, depth, kernel, probabilities, floor_K):
            similarity_KR, row_KR = found
            return Matches(pack(similarity_KR, batch.index.to(row_KR.device)[row_KR]), batch.label[row_KR])
    largest_batch = max(1, MAX_SIMILARITIES // len(centers))
    if len(batch) > largest_batch:  # gathered for the fused kernels, which then failed
        parts = (batch[slice(first, first + largest_batch)] for first in range(0, len(batch), largest_batch))
        return merge((match(part, centers, classes_K, kernel, depth) for part in parts), depth)
    similarity_KN = similarity(centers, pool, kernel)
    if is_weighted:
        similarity_KN = weigh(similarity_KN, batch.posterior.T[classes_K], largest)
    key_KN = pack(similarity_KN, batch.index.to(similarity_KN.device))
    return _best(Matches(key_KN, batch.label.expand_as(key_KN)), depth)


def weigh(
    similarity_KN: Float[Tensor, "K N"], probability_KN: Float[Tensor, "K N"], largest: int
) -> Float[Tensor, "K N"]:
    """The kernel, at most `largest`, weighted by the probability of the center's class; from `FULL` on it counts fully.

    A weight in proportion would prefer the most certain images, from which a model learns least. Images that are
    unlikely to be of that class, or unlike the center, rank after all others, the most similar of them first.
    """
    is_plausible = (probability_KN >= DOUBTFUL) & (similarity_KN > 0)
    weighted = similarity_KN * (probability_KN / FULL).clamp_max(1).to(similarity_KN)
    return torch.where(is_plausible, weighted, (similarity_KN / largest - 3) * LAST)


def merge(tables: Iterable[Matches], depth: int) -> Matches:
    """Merges the tables of several batches or processes."""
    tables = iter(tables)
    merged = next(tables)
    for table in tables:
        both = Matches(torch.cat([merged.key, table.key], 1), torch.cat([merged.label, table.label], 1))
        merged = _best(both, depth)
    return merged


def distinct(matches: Matches, budget: int) -> Picks:
    """Up to `budget` distinct images: the centers' first choices, then second choices …, the most similar first."""
    matches = Matches(matches.key.cpu(), matches.label.cpu())
    # Rank by rank; within a rank the largest key (most similar) first. Stable: equal keys stay in order of center.
    key_RK, center_RK = matches.key.T.sort(dim=1, descending=True, stable=True)
    columns = (unpack_index(key_RK), unpack_similarity(key_RK), center_RK, matches.label.T.gather(1, center_RK))
    index, similarity, center, label = (column.flatten() for column in columns)
    implausible_last = (similarity < -LAST).sort(stable=True).indices
    first = implausible_last[first_occurrences(index[implausible_last])[:budget]]
    return Picks(index[first], similarity.where(similarity >= -LAST, 0.0)[first], center[first], label[first])


def first_depth(budget: int, centers: Standardized) -> int:
    """How many images to keep per center at first: `budget`, which always suffices, if the table stays small."""
    needed, affordable = 4 * -(-budget // len(centers)) + 16, TABLE_ENTRIES // len(centers)
    return min(budget, max(needed, min(affordable, MAX_DEPTH // 2) if is_fusible(centers) else affordable))


def _best(table: Matches, depth: int) -> Matches:
    key, column = table.key.topk(min(depth, table.key.shape[1]), dim=1)
    return Matches(key, table.label.gather(1, column))
