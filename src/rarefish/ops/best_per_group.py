"""Keep only the best pool row of each group, such as the best object of a photograph, for every center."""

import torch
from jaxtyping import Int
from torch import Tensor

MISSING = torch.iinfo(torch.int64).min
"""A key that sorts after all others."""


def best_in_batch(key_KN: Int[Tensor, "K N"], group_N: Int[Tensor, " N"]) -> Int[Tensor, "K N"]:
    """Returns the keys of rows that all centers share, where all but the largest of each group are `MISSING`."""
    _, number_N = group_N.to(key_KN.device).unique(return_inverse=True)
    number_KN = number_N.expand_as(key_KN)
    best_KG = torch.full_like(key_KN[:, : int(number_N.max()) + 1], MISSING)
    best_KG = best_KG.scatter_reduce(1, number_KN, key_KN, "amax")
    return torch.where(key_KN == best_KG.gather(1, number_KN), key_KN, MISSING)


def best_in_table(key_KR: Int[Tensor, "K R"], group_KR: Int[Tensor, "K R"]) -> Int[Tensor, "K R"]:
    """Returns the keys of a table in which each center has its own rows, where all but the largest are `MISSING`."""
    order = key_KR.argsort(dim=1, descending=True)
    order = order.gather(1, group_KR.gather(1, order).argsort(dim=1, stable=True))  # by group, then by decreasing key
    group, key = group_KR.gather(1, order), key_KR.gather(1, order)
    is_again = torch.zeros_like(group, dtype=torch.bool)
    is_again[:, 1:] = group[:, 1:] == group[:, :-1]
    return key_KR.scatter(1, order, key.masked_fill(is_again, MISSING))
