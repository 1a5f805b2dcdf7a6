"""Multinomial logistic regression with an L2 penalty, for several weightings of the same rows at once, by L-BFGS.

The loss of a problem is `sum_n weight_n * cross_entropy_n + ridge / 2 * |weights|^2`; biases are not penalized. Three
things make the fit fast:

- The rows are rotated into the space that they span. It has at most min(rows, features) dimensions, and the curvature
  of the loss in it is almost diagonal, so that a few steps are enough after dividing by the curvature.
- All problems, such as the folds of a cross-validation, share each matrix product.
- The solution for one ridge is the starting point for the next.

Letters in tensor names: N rows, D features, K coordinates (the last one is 1, for the bias), C classes, P problems.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

ABSENT = -1e4
"""Value added to the logits of a class without rows, so that its probability is exactly 0 and it has no effect."""
HALF = 0.5
"""A class without rows gets the probability of half a row at the center of the rows."""
MEMORY = 8
"""Number of steps that L-BFGS remembers."""
MAX_STEPS = 1000
MAX_LINE_STEPS = 20
FLAT = 0.5
"""A line search ends when the slope is at most this fraction of the initial slope. It needs no matrix products, because
logits change in proportion to the step."""
MAX_GROWTH = 10
"""Maximum factor between two consecutive steps of the line search."""
RANK = 1e-10
"""Directions with less than this fraction of the largest variance are rounding errors and are left out."""
BLOCK = 8192
"""Number of rows that are converted to float64 at a time."""


@dataclass(frozen=True)
class Coordinates:
    """Rows in an orthonormal basis of the space that they span, which preserves lengths and therefore the penalty."""

    points: Float[Tensor, "N K"]
    """Coordinates of the rows; the last column is 1."""
    power: Float[Tensor, " K"]
    """Weighted sum of the squares of each column."""
    factors: tuple[Tensor, ...]
    """Matrices whose product maps coordinates (without the last one) to features."""
    center: Float[Tensor, " D"]
    """Point that is subtracted from the features."""

    def to_features(self, theta: Float[Tensor, "K C"]) -> tuple[Float[Tensor, "D C"], Float[Tensor, " C"]]:
        """Returns the weights of the features, and the biases."""
        weight_DC = torch.linalg.multi_dot([*self.factors, theta[:-1].to(self.factors[0])])
        return weight_DC, theta[-1] - self.center.to(weight_DC) @ weight_DC


def to_coordinates(features: Float[Tensor, "N D"], weight: Float[Tensor, " N"]) -> Coordinates:
    """Returns the rows, whose weights must be positive, in coordinates along their weighted principal axes."""
    root_N = weight.double().sqrt()
    center = (weight / weight.sum()).to(features) @ features  # any point would do, since biases are not penalized
    features = features - center
    if len(features) <= features.shape[1]:
        weighted = features.double() * root_N[:, None]
        power, axes = torch.linalg.eigh(weighted @ weighted.T)
        kept = power > RANK * power[-1]
        power, axes = power[kept], axes[:, kept]
        points = axes * power.sqrt() / root_N[:, None]
        factors = (weighted.T, axes / power.sqrt())
    else:
        blocks = zip(features.split(BLOCK), root_N.split(BLOCK), strict=True)
        gram = sum((part := rows.double() * root[:, None]).T @ part for rows, root in blocks)
        assert isinstance(gram, Tensor)
        power, axes = torch.linalg.eigh(gram)
        kept = power > RANK * power[-1]
        power, axes = power[kept], axes[:, kept]
        points = features @ axes.to(features)
        factors = (axes, torch.eye(axes.shape[1]).to(axes))
    ones = points.new_ones(len(points), 1)
    return Coordinates(
        torch.cat([points, ones], dim=1), torch.cat([power, weight.double().sum()[None]]), factors, center
    )


@dataclass(frozen=True)
class Problems:
    """Logistic regressions on the same rows and labels, each with its own row weights."""

    points: Float[Tensor, "N K"]
    labels: Int[Tensor, " N"]
    weight: Float[Tensor, "N P"]
    power: Float[Tensor, " K"]
    offset: Float[Tensor, "P C"]
    """`ABSENT` for classes without rows of positive weight, and 0 for others."""

    @staticmethod
    def of(
        coordinates: Coordinates,
        labels: Int[Tensor, " N"],
        weight: Float[Tensor, "N P"],
        num_classes: int,
        dtype: torch.dtype = torch.float32,
    ) -> "Problems":
        total_CP = weight.new_zeros(num_classes, weight.shape[1]).index_add_(0, labels, weight)
        offset = torch.where(total_CP.T > 0, 0.0, ABSENT)
        tensors = (coordinates.points, weight, coordinates.power, offset)
        points, weight, power, offset = (tensor.to(dtype) for tensor in tensors)
        return Problems(points, labels, weight, power, offset)

    def split(self, size: int) -> list["Problems"]:
        """Returns groups of at most `size` problems."""
        parts = zip(self.weight.split(size, dim=1), self.offset.split(size), strict=True)
        return [replace(self, weight=weight.contiguous(), offset=offset) for weight, offset in parts]

    def first_guess(self) -> Float[Tensor, "K P C"]:
        """Returns weights of 0, and biases that reproduce the class frequencies."""
        theta = self.points.new_zeros(self.points.shape[1], *self.offset.shape)
        total_PC = torch.zeros_like(self.offset).T.index_add(0, self.labels, self.weight).T
        theta[-1] = (total_PC / total_PC.sum(dim=1, keepdim=True)).log().where(total_PC > 0, 0)
        return theta

    def multiply(self, theta: Float[Tensor, "K P C"]) -> Float[Tensor, "N P C"]:
        return (self.points @ theta.flatten(1)).unflatten(1, self.offset.shape)

    def logits(self, theta: Float[Tensor, "K P C"]) -> Float[Tensor, "N P C"]:
        return self.multiply(theta).add_(self.offset)

    def residuals(self, logits: Float[Tensor, "N P C"]) -> tuple[Float[Tensor, "N P C"], Float[Tensor, " P"]]:
        """Returns weighted probabilities minus labels, and the loss; both are exact even for probabilities near 1."""
        log_p = logits.log_softmax(dim=2)
        own = self.labels[:, None, None].expand(-1, logits.shape[1], 1)
        own_log_p = log_p.gather(2, own)
        residual = log_p.exp_().scatter_(2, own, 0)
        missing = residual.sum(dim=2, keepdim=True)  # 1 - p without cancellation
        losses = torch.where(missing < HALF, -torch.log1p(-missing), -own_log_p).squeeze(2)
        residual.scatter_(2, own, -missing).mul_(self.weight[:, :, None])
        return residual, (losses * self.weight).sum(dim=0)

    def gradient(self, residual: Float[Tensor, "N P C"]) -> Float[Tensor, "K P C"]:
        return (self.points.T @ residual.flatten(1)).unflatten(1, self.offset.shape)

    def curvature(self, residual: Float[Tensor, "N P C"], ridge: float) -> Float[Tensor, "K P C"]:
        """Returns an approximate diagonal of the Hessian: the power times the mean of p (1 - p), plus the ridge."""
        weight_NP1 = self.weight[:, :, None]
        p = (residual / weight_NP1.clamp_min(torch.finfo(residual.dtype).tiny)).abs()
        spread_PC = (p * (1 - p) * weight_NP1).sum(dim=0) / self.power[
            -1
        ]  # the power of the column of ones, which is the total weight
        return self.power[:, None, None] * spread_PC + ridge

    def with_absent_classes(self, theta: Float[Tensor, "K P C"]) -> Float[Tensor, "K P C"]:
        """Returns the solution with biases for classes without rows, so that `multiply()` returns all logits.

        Their level is that of the other classes at the center of the rows, which are the origin of the coordinates. The
        logits of the rows themselves are much larger with a weak penalty, and a bias at their level would exceed all
        logits of new rows.
        """
        if not self.offset.any():
            return theta
        count_P = (self.weight > 0).sum(dim=0)
        bias_P = (theta[-1] + self.offset).logsumexp(dim=1) + (HALF / count_P).log().to(theta)
        bias_PC = torch.where(self.offset < 0, bias_P[:, None], theta[-1])
        return torch.cat([theta[:-1], bias_PC[None]])


def minimize(
    problems: Problems, ridge: float, start: Float[Tensor, "K P C"], tolerance: float
) -> tuple[Float[Tensor, "K P C"], bool]:
    """Returns the solution of each problem by L-BFGS, and whether all have converged.

    The first metric is the diagonal of the Hessian at the start.

    Args:
        tolerance: Stop when the next step is not expected to lower any loss by more than this fraction.
    """
    penalty_K11 = torch.full_like(start[:, :1, :1], ridge)
    penalty_K11[-1] = 0
    theta, logits = start, problems.logits(start)
    residual, loss_P = problems.residuals(logits)
    gradient = problems.gradient(residual) + penalty_K11 * theta
    curvature = problems.curvature(residual, ridge)
    pairs: list[tuple[Tensor, Tensor]] = []
    for _ in range(MAX_STEPS):
        value_P = loss_P + _dot(theta, penalty_K11 * theta) / 2
        if bool((_dot(gradient, gradient / curvature) / 2 <= tolerance * value_P).all()):
            return theta, True
        direction = _direction(gradient, curvature, pairs)
        along = problems.multiply(direction)
        slope_P = _dot(gradient, direction)
        fall_P, bend_P = _dot(penalty_K11 * theta, direction), _dot(penalty_K11 * direction, direction)
        step_P, low_P = torch.ones_like(slope_P), torch.zeros_like(slope_P)
        high_P = torch.full_like(slope_P, math.inf)
        for tries in range(1, MAX_LINE_STEPS + 1):
            residual, loss_P = problems.residuals(torch.addcmul(logits, along, step_P[:, None]))
            new_slope_P = (residual * along).sum(dim=(0, 2)) + fall_P + step_P * bend_P
            is_off_P = new_slope_P.abs() > -FLAT * slope_P
            if tries == MAX_LINE_STEPS or not is_off_P.any():
                break
            # The loss is convex, so its slope along the line only increases; the minimum is where it crosses 0.
            high_P = torch.where(new_slope_P > 0, step_P, high_P)
            low_P = torch.where(new_slope_P > 0, low_P, step_P)
            crossing_P = step_P * slope_P / (slope_P - new_slope_P).clamp_max(-torch.finfo(slope_P.dtype).tiny)
            far_P = high_P.clamp_max(MAX_GROWTH * step_P)
            margin_P = (far_P - low_P) / 10
            step_P = torch.where(is_off_P, crossing_P.clamp(low_P + margin_P, far_P - margin_P), step_P)
        change = direction * step_P[:, None]
        theta, logits = theta + change, torch.addcmul(logits, along, step_P[:, None])
        new_gradient = problems.gradient(residual) + penalty_K11 * theta
        pairs = [*pairs, (change, new_gradient - gradient)][-MEMORY:]
        gradient = new_gradient
    return theta, False


def _direction(gradient: Tensor, curvature: Tensor, pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Returns the direction of an L-BFGS step for each problem (Nocedal and Wright, 2006, algorithm 7.4)."""
    scales = [1 / _dot(change, difference).clamp_min(torch.finfo(gradient.dtype).tiny) for change, difference in pairs]
    direction, factors = -gradient, list[Tensor]()
    for (change, difference), scale in zip(reversed(pairs), reversed(scales), strict=True):
        factors.append(scale * _dot(change, direction))
        direction = torch.addcmul(direction, difference, -factors[-1][:, None])
    direction = direction / curvature
    if pairs:
        difference = pairs[-1][1]
        norm = _dot(difference, difference / curvature) * scales[-1]
        direction = direction / norm.clamp_min(torch.finfo(gradient.dtype).tiny)[:, None]
    for (change, difference), scale, factor in zip(pairs, scales, reversed(factors), strict=True):
        direction = torch.addcmul(direction, change, (factor - scale * _dot(difference, direction))[:, None])
    return direction


def ridge_path(problems: Problems, ridges: Sequence[float], tolerance: float) -> Iterator[Float[Tensor, "K P C"]]:
    """Yields the solutions for each ridge in turn; each fit starts from the last two, extrapolated in log(ridge)."""
    solved: list[tuple[float, Tensor]] = []
    for ridge in ridges:
        start = problems.first_guess() if not solved else solved[-1][1]
        if len(solved) == 2:
            (before, earlier), (last, latest) = solved
            ahead = min(1.0, math.log(ridge / last) / math.log(last / before))
            start = latest + ahead * (latest - earlier)
        theta, _ = minimize(problems, ridge, start, tolerance)
        solved = [*solved[-1:], (ridge, theta)]
        yield theta


def _dot(a: Float[Tensor, "K P C"], b: Float[Tensor, "K P C"]) -> Float[Tensor, " P"]:
    return (a * b).sum(dim=(0, 2))
