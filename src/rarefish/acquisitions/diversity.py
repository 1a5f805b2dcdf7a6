"""Acquisitions for diversity: core-set and BADGE."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rarefish.acquisitions.interface import Choice, Situation
from rarefish.acquisitions.random_sampling import choose_random
from rarefish.models.layer_selection import casting, device_of, evaluating
from rarefish.models.networks import classifier_of

CANDIDATES = 2048
"""Number of candidates whose features fit into a CPU cache."""


def choose_core_set(situation: Situation, budget: int, generator: torch.Generator) -> Choice:
    """Chooses images by greedy k-center on the features before the classifier (Sener and Savarese, 2018).

    Each image is the one farthest from all images on which the model is trained and all chosen ones. Without any, the
    first image is random.
    """
    features_NF, _, num_known = known_and_unlabeled(situation)
    rows = farthest_first(features_NF, num_known, budget, generator)
    return Choice([situation.unlabeled[row - num_known] for row in rows.tolist()], passes=len(features_NF))


def choose_badge(situation: Situation, budget: int, generator: torch.Generator) -> Choice:
    """Chooses images by k-means++ on the gradients of the classifier for the predicted class (Ash et al., 2020).

    Such a gradient is (p - 1_ŷ) ⊗ z. Only its factors are stored, never a tensor of size images × (classes · features).
    """
    if not situation.is_trained:
        return choose_random(situation, budget, generator)
    features_NF, logits_NC = last_features(situation, situation.unlabeled)
    probability_NC = logits_NC.softmax(dim=1)
    error_NC = probability_NC - torch.nn.functional.one_hot(probability_NC.argmax(dim=1), probability_NC.shape[1])
    rows = spread_out(error_NC, features_NF, budget, generator)
    return Choice([situation.unlabeled[row] for row in rows.tolist()], passes=len(situation.unlabeled))


def farthest_first(
    points: Float[Tensor, "N F"],
    num_given: int,
    count: int,
    generator: torch.Generator,
    num_candidates: int = CANDIDATES,
) -> Int[Tensor, " count"]:
    """Returns `count` rows, each the farthest from the first `num_given` rows and the rows chosen before it.

    Distances only decrease. As long as the farthest of a few candidates is farther than every other point was at the
    last update, the other points need no update. They are later updated for all new rows in one matrix product.
    """
    squares_N = torch.einsum("nf,nf->n", points, points)  # without a copy of the points
    distance_N = torch.full_like(points[:, 0], torch.inf)
    drawn = torch.randint(num_given, len(points), (1,), generator=generator).to(points.device)
    rows = drawn[:0] if num_given else drawn
    fresh = torch.arange(num_given, device=points.device) if num_given else drawn
    # The stopping test synchronizes with the device at each step, so on a GPU, it is faster to use all points.
    num_candidates = len(points) if points.is_cuda else min(num_candidates, len(points))
    while True:
        for block in fresh.split(256):
            to_block = torch.addmm(squares_N[block].expand(len(points), -1), points, points[block].T, alpha=-2)
            distance_N = torch.minimum(distance_N, squares_N + to_block.amin(dim=1))
        distance_N[fresh] = -torch.inf
        if len(rows) >= count:
            return rows[:count]
        candidates = distance_N.topk(num_candidates).indices.sort().values
        others_N = distance_N.index_fill(0, candidates, -torch.inf)
        floor = others_N.amax() if num_candidates < len(points) else None
        found = _farthest(points[candidates], squares_N[candidates], distance_N[candidates], count - len(rows), floor)
        fresh = candidates[found]
        rows = torch.cat([rows, fresh])


def _farthest(points: Tensor, squares_N: Tensor, distance_N: Tensor, count: int, floor: Tensor | None) -> Tensor:
    """Returns up to `count` rows, each the farthest from the rows before it; stops at a distance of `floor` or less."""
    rows: list[Tensor] = []
    while len(rows) < count:
        row = distance_N.argmax(dim=0, keepdim=True)
        if rows and floor is not None and distance_N[row] <= floor:
            break
        rows.append(row)
        to_row_N = torch.addmv(squares_N + squares_N[row], points, points[row[0]], alpha=-2)
        distance_N = torch.minimum(distance_N, to_row_N).index_fill_(0, row, -torch.inf)
    return torch.cat(rows)


def spread_out(
    left: Float[Tensor, "N C"], right: Float[Tensor, "N F"], count: int, generator: torch.Generator
) -> Int[Tensor, " count"]:
    """Draws rows by k-means++ on the outer products left ⊗ right: first the largest, then by squared distance.

    |a⊗x - b⊗y|² = |a|²|x|² + |b|²|y|² - 2 (a·b)(x·y), so a step costs two matrix-vector products.
    """
    norms_N = left.square().sum(dim=1) * right.square().sum(dim=1)
    distance_N = torch.full_like(norms_N, torch.inf)
    row = norms_N.argmax(dim=0, keepdim=True)
    uniforms = torch.rand(count, generator=generator, dtype=torch.float64).to(left.device)
    rows = []
    for uniform in uniforms:
        rows.append(row)
        products_N = (left @ left[row[0]]) * (right @ right[row[0]])
        to_row_N = (norms_N + norms_N[row] - 2 * products_N).clamp_min(0)
        distance_N = torch.minimum(distance_N, to_row_N).index_fill_(0, row, 0)
        row = _draw_row(distance_N, torch.cat(rows), uniform)
    return torch.cat(rows)


def _draw_row(weight_N: Tensor, taken: Tensor, uniform: Tensor) -> Tensor:
    """Draws a row with probability proportional to its weight, or the first free row if all weights are zero."""
    total_N = weight_N.double().cumsum(dim=0)
    drawn = torch.searchsorted(total_N, uniform * total_N[-1], right=True).clamp_max(len(weight_N) - 1)
    is_free_N = torch.ones_like(weight_N).index_fill_(0, taken, 0)
    return torch.where(weight_N[drawn] > 0, drawn, is_free_N.argmax(dim=0)).reshape(1)


def known_and_unlabeled(situation: Situation) -> tuple[Float[Tensor, "N F"], Float[Tensor, "N C"], int]:
    """Returns features and logits of the images on which the model is trained, then of the unlabeled ones.

    The former are the labeled images and, if the model is trained on it, the validation set. Their number is returned
    last.
    """
    features_NF, logits_NC = last_features(situation, [*situation.labeled, *situation.unlabeled])
    if not situation.trained_on_validation:
        return features_NF, logits_NC, len(situation.labeled)
    trusted = replace(situation, pool=situation.validation, labeled=(), refused=(), labels=())
    trusted_MF, trusted_MC = last_features(trusted, trusted.unlabeled)
    num_known = len(trusted_MF) + len(situation.labeled)
    return torch.cat([trusted_MF, features_NF]), torch.cat([trusted_MC, logits_NC]), num_known


@torch.no_grad()
def last_features(situation: Situation, index: list[int]) -> tuple[Tensor, Tensor]:
    """Returns the input features of the classifier and its logits for the pool images at `index`."""
    device = device_of(situation.model)
    features, logits = [], []
    with (
        evaluating(situation.model),
        classifier_input(situation.model) as last,
        casting(device, situation.precision),
    ):
        for batch in situation.reader.read(situation.pool, index):
            logits.append(situation.model(batch.images.to(device)).float())
            features.append(last().float())
    return torch.cat(features), torch.cat(logits)


@contextmanager
def classifier_input(model: nn.Module) -> Iterator[Callable[[], Tensor]]:
    """Yields a function that returns the input of the last linear layer in the latest forward pass."""
    latest: list[Tensor] = []

    def keep(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        latest[:] = [inputs[0].flatten(1)]

    handle = classifier_of(model)[1].register_forward_pre_hook(keep)
    try:
        yield lambda: latest[0]
    finally:
        handle.remove()
