"""The table of the best pool images per center, updated batch by batch and merged across processes.

This table of R candidates for each of K centers is all that is kept of the pool. It does not depend on batch size,
order or shards, because candidates have a total order: larger similarity first, then smaller index.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rarefish.descriptors import Descriptors, gathered
from rarefish.kernels import Standardized, largest_similarity, similarity, standardize
from rarefish.ops.best_per_group import MISSING, best_in_batch, best_in_table
from rarefish.ops.fused_matching import AT_ONCE, MAX_DEPTH, ClassProbabilities, best_exactly, is_fusible


def first_occurrences(values: Int[Tensor, " N"]) -> Int[Tensor, " U"]:
    """Returns the rows where a value occurs for the first time, in order."""
    ordered, rows = values.sort(stable=True)
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return rows[is_first].sort().values


def pack(similarity: Float[Tensor, "K N"], index: Int[Tensor, "*#K N"]) -> Int[Tensor, "K N"]:
    """Returns 64-bit keys that sort by similarity, then by smaller index, so that ties do not depend on the batch.

    The upper half is the float32 similarity, with bits mapped so that they sort as integers; the lower half counts down
    from the largest index.
    """
    bits = similarity.float().view(torch.int32).long()
    ordered = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    return ordered * 2**32 + (2**32 - 1 - index)


def unpack_index(key: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Returns the index in a key made by `pack`."""
    return 2**32 - 1 - (key & 0xFFFFFFFF)


def unpack_similarity(key: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Returns the similarity in a key made by `pack`."""
    ordered = key >> 32
    bits = torch.where(ordered < 0, -ordered - 2**31, ordered)
    return bits.to(torch.int32).view(torch.float32)


FULL, DOUBTFUL = 0.2, 0.02
"""Posterior probability of the center's class at which an image counts in full, and below which it ranks last."""
LAST = 1e30
"""Images with a similarity below minus this value rank after all plausible images."""
GROUP_IMAGES, GROUP_SIMILARITIES = 2048, 2_000_000
"""Numbers of images and similarities to match together, since one large top-k costs less than many small ones."""
MAX_SIMILARITIES = 2**27
"""Maximum number of similarities in memory at once: 8 GB with the tensors derived from them."""
TABLE_ENTRIES = 4_000_000
"""The table may grow to this many entries (about 50 MB), since a second pass over the pool costs far more."""


@dataclass(frozen=True)
class Matches:
    """The best images for each of K centers, best first; fewer than the depth if fewer images were seen."""

    key: Int[Tensor, "K R"]
    """Similarity and index in one number (see `pack`)."""
    label: Int[Tensor, "K R"]
    """The label with which the image was described."""
    group: Int[Tensor, "K R"] | None = None
    """The group of the image, if images belong to groups; then each center has at most one image of a group."""


@dataclass(frozen=True)
class Picks:
    """Distinct images in the order in which they were chosen, with the center that each one matches."""

    index: Int[Tensor, " P"]
    similarity: Float[Tensor, " P"]
    center: Int[Tensor, " P"]
    label: Int[Tensor, " P"]

    def __add__(self, other: "Picks") -> "Picks":
        return Picks(*(torch.cat([getattr(self, f.name), getattr(other, f.name)]) for f in fields(Picks)))


NO_PICKS = Picks(*(torch.empty(0, dtype=dtype) for dtype in (torch.long, torch.float, torch.long, torch.long)))


@dataclass(frozen=True)
class Search:
    """A search for `budget` distinct images, with one table, or several if many centers share the same best images.

    Tables get deeper up to a limit; then images are chosen, and the next table is filled from the remaining ones.
    """

    budget: int
    depth: int
    """Depth of the next table."""
    settled: Picks = NO_PICKS
    """Picks from tables of the largest depth; the next table leaves out these images."""
    picks: Picks = NO_PICKS
    """All picks so far."""
    is_done: bool = False

    def advance(self, table: Matches) -> "Search":
        """Returns the search after a table of its `depth` was filled from the pool without the settled images."""
        picks = self.settled + distinct(table, self.budget - len(self.settled.index))
        deepest = min(self.budget, max(self.depth, TABLE_ENTRIES // len(table.key)))
        # If the list of every center ends with implausible images, deeper lists contain no further plausible ones.
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
    batches: Iterable[Descriptors],
    centers: Standardized,
    classes_K: Int[Tensor, " K"],
    kernel: str,
    depth: int,
    groups: Int[Tensor, " pool"] | None = None,
) -> Matches:
    """Returns the table of all batches, updated batch by batch; `groups` has the group of every pool image."""
    is_fused = groups is None and is_fusible(centers, depth)
    at_once = AT_ONCE if is_fused else min(GROUP_IMAGES, GROUP_SIMILARITIES // len(centers))
    none = torch.empty(len(centers), 0, dtype=torch.long, device=centers.features[0].device)
    table = Matches(none, none, None if groups is None else none)
    for batch in gathered(batches, at_once):
        floor_K = unpack_similarity(table.key[:, -1]) if table.key.shape[1] == depth else None
        table = merge([table, match(batch, centers, classes_K, kernel, depth, floor_K, groups)], depth)
    return table


def match(
    batch: Descriptors,
    centers: Standardized,
    classes_K: Int[Tensor, " K"],
    kernel: str,
    depth: int,
    floor_K: Float[Tensor, " K"] | None = None,
    groups: Int[Tensor, " pool"] | None = None,
) -> Matches:
    """Returns the table of a single batch; a posterior, if any, weights the kernel by the center's class.

    Images whose similarity to a center is below `floor_K` may be missing.
    """
    pool, classes_K = standardize(batch), classes_K.to(batch.posterior.device)
    is_weighted, largest = batch.posterior.shape[1] > 0, largest_similarity(batch.features.shape[1], kernel)
    if groups is None and is_fusible(centers, depth):
        probabilities = (
            ClassProbabilities(batch.posterior, classes_K, FULL, DOUBTFUL, float(largest), LAST)
            if is_weighted
            else None
        )
        if found := best_exactly(centers, pool, depth, kernel, probabilities, floor_K):
            similarity_KR, row_KR = found
            return Matches(pack(similarity_KR, batch.index.to(row_KR.device)[row_KR]), batch.label[row_KR])
    largest_batch = max(1, MAX_SIMILARITIES // len(centers))
    if len(batch) > largest_batch:  # the batch was gathered for the fused kernels, which then failed
        parts = (batch[slice(first, first + largest_batch)] for first in range(0, len(batch), largest_batch))
        return merge((match(part, centers, classes_K, kernel, depth, None, groups) for part in parts), depth)
    similarity_KN = similarity(centers, pool, kernel)
    if is_weighted:
        similarity_KN = weigh(similarity_KN, batch.posterior.T[classes_K], largest)
    key_KN = pack(similarity_KN, batch.index.to(similarity_KN.device))
    if groups is None:
        return _best(Matches(key_KN, batch.label.expand_as(key_KN)), depth)
    group_N = groups[batch.index].to(key_KN.device)
    key_KN = best_in_batch(key_KN, group_N)
    return _best(Matches(key_KN, batch.label.expand_as(key_KN), group_N.expand_as(key_KN)), depth)


def sample_by_weight(batches: Iterable[Descriptors], depth: int, groups: Int[Tensor, " pool"] | None = None) -> Matches:
    """Returns a table with a single row: a sample of images whose weights are the sums of their posteriors.

    The images with the largest priorities are kept, where the priority of an image is its weight divided by a number
    between 0 and 1 that depends only on its index. If the weight of each kept image is raised to at least the smallest
    priority, sums over the sample estimate sums over the pool without bias (Duffield, Lund and Thorup, 2007). Of each
    group, only the image with the largest priority is kept.
    """
    table = None
    for batch in gathered(batches, GROUP_IMAGES):
        weight_N = batch.posterior.sum(dim=1)
        priority_N = weight_N / fixed_uniforms(batch.index).to(weight_N)
        key_1N = pack(priority_N[None], batch.index.to(weight_N.device))
        group_N = None if groups is None else groups[batch.index].to(key_1N.device)
        key_1N = key_1N if group_N is None else best_in_batch(key_1N, group_N)
        found = _best(Matches(key_1N, batch.label[None], None if group_N is None else group_N[None]), depth)
        table = found if table is None else merge([table, found], depth)
    if table is None:
        none = torch.empty(1, 0, dtype=torch.long)
        return Matches(none, none, None if groups is None else none)
    return table


def smallest_priority(table: Matches, num_images: int) -> float:
    """Returns the smallest priority in a sample of this number of images, or 0 if it contains all of them."""
    return float(unpack_similarity(table.key[0, -1])) if table.key.shape[1] < num_images else 0.0


def fixed_uniforms(index: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Returns a number above 0 and up to 1 for each index, as if drawn at random (the mixing steps of SplitMix64)."""
    x = (index + 1) * -7046029254386353131
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        x = (x ^ (x >> shift & (1 << 64 - shift) - 1)) * factor
    x = x ^ (x >> 31 & (1 << 33) - 1)
    return ((x >> 11 & (1 << 53) - 1) + 1).double() / 2**53


def weigh(
    similarity_KN: Float[Tensor, "K N"], probability_KN: Float[Tensor, "K N"], largest: int
) -> Float[Tensor, "K N"]:
    """Returns the kernel (at most `largest`) weighted by the probability of the center's class, up to `FULL`.

    Proportional weights would prefer the most certain images, from which a model learns least. Images that are unlikely
    to be of that class, or dissimilar to the center, rank after all others, the most similar of them first.
    """
    is_plausible = (probability_KN >= DOUBTFUL) & (similarity_KN > 0)
    weighted = similarity_KN * (probability_KN / FULL).clamp_max(1).to(similarity_KN)
    return torch.where(is_plausible, weighted, (similarity_KN / largest - 3) * LAST)


def merge(tables: Iterable[Matches], depth: int) -> Matches:
    """Returns the merged table of several batches or processes."""
    tables = iter(tables)
    merged = next(tables)
    for table in tables:
        merged = _best(_side_by_side(merged, table), depth)
    return merged


def _side_by_side(one: Matches, other: Matches) -> Matches:
    """Returns all entries of both tables, but of each center's entries of the same group only the best."""
    key, label = torch.cat([one.key, other.key], 1), torch.cat([one.label, other.label], 1)
    if one.group is None or other.group is None:
        return Matches(key, label)
    group = torch.cat([one.group, other.group], 1)
    return Matches(best_in_table(key, group), label, group)


def distinct(matches: Matches, budget: int) -> Picks:
    """Returns up to `budget` distinct images or groups: all first choices of the centers, then second choices, …"""
    matches = Matches(matches.key.cpu(), matches.label.cpu(), None if matches.group is None else matches.group.cpu())
    # By rank, then by decreasing key (similarity). The sort is stable, so equal keys stay in the order of centers.
    key_RK, center_RK = matches.key.T.sort(dim=1, descending=True, stable=True)
    columns = (unpack_index(key_RK), unpack_similarity(key_RK), center_RK, matches.label.T.gather(1, center_RK))
    index, similarity, center, label = (column.flatten() for column in columns)
    implausible_last = (similarity < -LAST).sort(stable=True).indices
    what = index if matches.group is None else matches.group.T.gather(1, center_RK).flatten()
    first = implausible_last[first_occurrences(what[implausible_last])[:budget]]
    return Picks(index[first], similarity.where(similarity >= -LAST, 0.0)[first], center[first], label[first])


def first_depth(budget: int, centers: Standardized) -> int:
    """Returns the initial number of images per center: `budget`, which always suffices, if the table stays small."""
    needed, affordable = 4 * -(-budget // len(centers)) + 16, TABLE_ENTRIES // len(centers)
    return min(budget, max(needed, min(affordable, MAX_DEPTH // 2) if is_fusible(centers) else affordable))


def _best(table: Matches, depth: int) -> Matches:
    count = table.key.shape[1]
    if table.group is not None:  # every center has seen the same groups
        count = int((table.key[0] != MISSING).sum())
    key, column = table.key.topk(min(depth, count), dim=1)
    return Matches(key, table.label.gather(1, column), None if table.group is None else table.group.gather(1, column))
