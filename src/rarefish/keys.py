"""Similarity and index in one number, so that candidates have a total order."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


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
