"""The obvious, slow twins: loops over images, pairs and classes, no trick."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


def describe_one_by_one(net: nn.Module, images: Tensor, labels: Tensor, layers: tuple[str, ...]):
    """Features and scores of each image alone: batch of one, gradients for all parameters, whole graph."""
    net.eval()
    outputs: dict[str, Tensor] = {}
    modules = dict(net.named_modules())

    def keep(name: str):
        def hook(module, args, output):
            output.retain_grad()
            outputs[name] = output

        return hook

    handles = [modules[name].register_forward_hook(keep(name)) for name in set(layers)]
    features, scores = [], []
    for image, label in zip(images, labels, strict=True):
        # An input that asks for a gradient keeps fused inference paths out of the twin.
        image = image.double()[None].requires_grad_()
        functional.cross_entropy(net(image), label[None]).backward()
        features.append(torch.cat([_pool(outputs[name].detach()[0]) for name in layers]))
        grads = [outputs[name].grad for name in layers]
        scores.append(torch.cat([_pool(grad[0]) for grad in grads if grad is not None]))
    for handle in handles:
        handle.remove()
    return torch.stack(features), torch.stack(scores)


def _pool(one: Tensor) -> Tensor:
    """Mean over places: (L, H, W), (tokens, L) or (L)."""
    if one.ndim == 3:
        return torch.stack([channel.sum() / channel.numel() for channel in one])
    return sum(one) / len(one) if one.ndim == 2 else one  # pyright: ignore[reportReturnType]


def correlation(x: Tensor, y: Tensor) -> float:
    x, y = x - x.mean(), y - y.mean()
    return float(x @ y / math.sqrt(float(x @ x) * float(y @ y)))


def kernel_value(za: Tensor, ga: Tensor, zb: Tensor, gb: Tensor, widths: tuple[int, ...], kernel: str) -> float:
    """The kernel of two images by the paper's formula, from Pearson correlations."""
    total = 0.0
    for z1, g1, z2, g2 in zip(za.split(widths), ga.split(widths), zb.split(widths), gb.split(widths), strict=True):
        r_z, r_g = len(z1) * correlation(z1, z2), len(g1) * correlation(g1, g2)
        total += {"fisher": r_z * r_g, "sum": r_z + r_g, "features": r_z}[kernel]
    return total


def k_center_loop(similarity: Tensor, first: int, count: int) -> list[int]:
    chosen = [first]
    while len(chosen) < count:
        left = [i for i in range(len(similarity)) if i not in chosen]
        chosen.append(min(left, key=lambda i: max(float(similarity[i, c]) for c in chosen)))
    return chosen


def distinct_loop(
    similarity_KN: Tensor, index: list[int], budget: int, chances: list[list[float]] | None = None
) -> list[tuple[int, int]]:
    """(index, center) by Algorithm 1: every center's best, then second best …, until enough are distinct.

    With the chances that each image is of each center's class, these weigh the kernel, and what is hardly of the class
    or unlike the center waits until all else is taken.
    """
    similarity = similarity_KN.float()
    if chances is not None:
        return _weighed_loop(similarity.tolist(), index, budget, chances)
    ranked = [
        sorted(range(len(index)), key=lambda n: (-float(similarity[k, n]), index[n])) for k in range(len(similarity))
    ]
    found: dict[int, int] = {}
    for rank in range(len(index)):
        row = [(k, ranked[k][rank]) for k in range(len(similarity))]
        for k, n in sorted(row, key=lambda kn: (-float(similarity[kn]), index[kn[1]], kn[0])):
            if len(found) < budget:
                found.setdefault(index[n], k)
    return list(found.items())


def _weighed_loop(
    similarity: list[list[float]], index: list[int], budget: int, chances: list[list[float]]
) -> list[tuple[int, int]]:
    def place(k: int, n: int) -> tuple[bool, float, int]:
        doubtful = chances[k][n] < 0.02 or similarity[k][n] <= 0
        return doubtful, -similarity[k][n] * (1 if doubtful else min(1, chances[k][n] / 0.2)), index[n]

    ranked = [sorted(range(len(index)), key=lambda n: place(k, n)) for k in range(len(similarity))]
    turns = []
    for rank in range(len(index)):
        turns += sorted((*place(k, ranked[k][rank]), k) for k in range(len(similarity)))
    found: dict[int, int] = {}
    for _, _, i, k in sorted(turns, key=lambda turn: turn[0]):
        found.setdefault(i, k)
    return list(found.items())[:budget]


def scores_of_class(net: nn.Module, image: Tensor, label: int, layers: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    features, scores = describe_one_by_one(net, image[None], torch.tensor([label]), layers)
    return features[0], scores[0]


def trace_statistic(z_SD: Tensor, g_SD: Tensor) -> float:
    """Trace of the cross-covariance, channel by channel."""
    return sum(float(((z - z.mean()) * (g - g.mean())).mean()) for z, g in zip(z_SD.T, g_SD.T, strict=True))


def information_by_determinant(z_SD: Tensor, g_SD: Tensor, ridge: float) -> float:
    """½ log(|C_zz| |C_gg| / |C_zg,zg|) with float64 determinants of correlation matrices plus the ridge."""

    def unit(x: Tensor) -> Tensor:
        x = x.double() - x.double().mean(dim=0)
        deviation = x.square().mean(dim=0).sqrt()
        return torch.where(deviation > 1e-12, x / deviation.clamp_min(1e-12), 0.0)

    def log_determinant(x: Tensor) -> float:
        return float(torch.linalg.slogdet(x.T @ x / len(x) + ridge * torch.eye(x.shape[1], dtype=torch.float64))[1])

    z, g = unit(z_SD), unit(g_SD)
    return 0.5 * (log_determinant(z) + log_determinant(g) - log_determinant(torch.cat([z, g], dim=1)))
