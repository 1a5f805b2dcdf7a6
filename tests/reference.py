"""The obvious, slow twins: loops over images, pairs and classes, no trick."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    similarity_KN: Tensor, index: list[int], budget: int, probabilities: list[list[float]] | None = None
) -> list[tuple[int, int]]:
    """(index, center) by Algorithm 1: every center's best, then second best …, until enough are distinct.

    With the probabilities that each image is of each center's class, these weigh the kernel, and what is hardly of the
    class or unlike the center waits until all else is taken.
    """
    similarity = similarity_KN.float()
    if probabilities is not None:
        return _weighed_loop(similarity.tolist(), index, budget, probabilities)
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
    similarity: list[list[float]], index: list[int], budget: int, probabilities: list[list[float]]
) -> list[tuple[int, int]]:
    def place(k: int, n: int) -> tuple[bool, float, int]:
        doubtful = probabilities[k][n] < 0.02 or similarity[k][n] <= 0
        return doubtful, -similarity[k][n] * (1 if doubtful else min(1, probabilities[k][n] / 0.2)), index[n]

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


@dataclass(frozen=True)
class Settings:
    """What the twin of the posterior takes from `Posterior`, and the size of the pool's sample."""

    steps: int
    batch_size: int
    lr: float
    shift: float
    floor: float
    sample: int


@dataclass(frozen=True)
class Chosen:
    """What the twin of `select(labels="posterior")` finds."""

    rows: list[tuple[int, float, int, int]]
    """(index, similarity, center, pseudo-label) of each image, as `Selection.rows()`."""
    pool_mix: list[float]
    losses: tuple[float, float]
    """On the held-out labels: of the network and of the head."""
    is_network: bool
    temperature: float


def select_by_posterior(
    net: nn.Module,
    pool: Tensor,
    validation: tuple[Tensor, list[int]],
    labeled: dict[int, int],
    excluded: Sequence[int],
    budget: int,
    layers: tuple[str, ...],
    settings: Settings,
) -> Chosen:
    """The default of `select()`, step by step; all numbers are drawn from seed 0 in the order of this function."""
    (trusted, truth), num_classes = validation, net.eval()(pool[:1]).shape[1]
    left = [i for i in range(len(pool)) if i not in labeled and i not in excluded]
    prior = [truth.count(c) / len(truth) for c in range(num_classes)]
    generator = torch.Generator().manual_seed(0)
    _draw_seed(generator)  # for Monte Carlo labels
    own = torch.Generator().manual_seed(_draw_seed(generator))
    torch.randperm(len(truth), generator=own)  # the validation images that fit in memory: all
    sample = [left[row] for row in sorted(torch.randperm(len(left), generator=own)[: settings.sample].tolist())]

    shown, answers = torch.cat([trusted, pool[list(labeled)]]), [*truth, *labeled.values()]
    posterior, losses, is_network, temperature = learn_posterior(
        net, shown, answers, len(truth), prior, num_pool=len(left), layers=layers, settings=settings, generator=own
    )
    logits = posterior(pool)
    seen = [functional.softmax(one, dim=0).tolist() for one in logits]
    mix = expect_and_maximize(
        [functional.softmax(logits[i] / temperature, dim=0).tolist() for i in sample], prior, settings.floor
    )
    for i, p in enumerate(seen):
        corrected = [p[c] * mix[c] / prior[c] for c in range(num_classes)]
        seen[i] = [q / sum(corrected) for q in corrected]

    failures = [m for m, label in enumerate(truth) if int(net(trusted[m : m + 1]).argmax()) != label]
    z_v, g_v = describe_one_by_one(net, trusted[failures], torch.tensor(truth)[failures], layers)
    labels = [max(range(num_classes), key=lambda c: p[c]) for p in seen]
    z_p, g_p = describe_one_by_one(net, pool[left], torch.tensor(labels)[left], layers)
    widths = _widths(net, pool[:1], layers)

    def similarities(z_a: Tensor, g_a: Tensor, z_b: Tensor, g_b: Tensor) -> Tensor:
        pairs = [[(za, ga, zb, gb) for zb, gb in zip(z_b, g_b, strict=True)] for za, ga in zip(z_a, g_a, strict=True)]
        return torch.tensor([[kernel_value(*pair, widths, "fisher") for pair in row] for row in pairs])

    first = int(torch.randint(len(failures), (1,), generator=generator))
    rows = k_center_loop(similarities(z_v, g_v, z_v, g_v), first, budget)
    to_pool = similarities(z_v[rows], g_v[rows], z_p, g_p)
    centers = [failures[row] for row in rows]
    probabilities = [[seen[i][truth[center]] for i in left] for center in centers]
    found = []
    for i, k in distinct_loop(to_pool, left, budget, probabilities):
        value, probability = float(to_pool[k, left.index(i)]), probabilities[k][left.index(i)]
        weighed = 0.0 if probability < 0.02 or value <= 0 else value * min(1, probability / 0.2)
        found.append((i, weighed, centers[k], labels[i]))
    return Chosen(found, mix, losses, is_network, temperature)


def learn_posterior(
    net: nn.Module,
    shown: Tensor,
    answers: list[int],
    num_validation: int,
    prior: list[float],
    *,
    num_pool: int,
    layers: tuple[str, ...],
    settings: Settings,
    generator: torch.Generator,
) -> tuple[Any, tuple[float, float], bool, float]:
    """Images -> logits, the losses of both candidates on the held-out labels, whether it is the network, and its
    temperature.

    A fraction of the validation labels is held out until the candidates have been compared, then learned as well.
    """
    _draw_seed(generator)  # for dropout
    one_in = min(10, num_validation // 3)
    held = torch.randperm(num_validation, generator=generator).tolist()[::one_in]
    kept, all_rows = [row for row in range(len(answers)) if row not in held], list(range(len(answers)))
    num_steps = min(settings.steps, max(num_pool // settings.batch_size, settings.steps // 2, 1))
    turn = int(0.75 * num_steps)
    phases = [(kept, turn), (all_rows, num_steps - turn)]
    before, after = learn_in_phases(net, shown, answers, prior, phases, settings, generator)

    features, _ = describe_one_by_one(net, shown, torch.tensor(answers), layers)
    head = head_by_newton(features[kept], [answers[row] for row in kept], prior)
    true = [answers[row] for row in held]
    with torch.no_grad():
        losses_network, losses_head = (
            tempered_losses(before(shown[held]), true),
            tempered_losses(head(features[held]), true),
        )
    weights = balance(true, prior)
    means = [sum(w * x for w, x in zip(weights, losses, strict=True)) for losses in (losses_network, losses_head)]
    behind = [a - b for a, b in zip(losses_network, losses_head, strict=True)]
    spread = math.sqrt(sum((w * (x - means[0] + means[1])) ** 2 for w, x in zip(weights, behind, strict=True)))
    is_network = means[0] - means[1] <= (2 + 10 / (len(held) - 1) ** 2) * spread

    def learn_without(rows: list[int]) -> Any:
        """The network's or the head's logits of the rows that it has not learned."""
        others = [row for row in all_rows if row not in rows]
        if not is_network:
            return head_by_newton(features[others], [answers[row] for row in others], prior)(features[rows])
        phase = (others, max(1, num_steps * 2 // 3))
        return learn_in_phases(net, shown, answers, prior, [phase], settings, generator)[1](shown[rows])

    logits, true = [], []
    for rows in three_folds(answers[:num_validation], generator):
        logits += list(learn_without(rows).detach())
        true += [answers[row] for row in rows]
    counted = [n for n, label in enumerate(true) if true.count(label) > 1]
    temperature = best_temperature(torch.stack(logits)[counted], [true[n] for n in counted])
    if is_network:
        return after, (means[0], means[1]), True, temperature
    head = head_by_newton(features, answers, prior)

    def by_head(images: Tensor) -> Tensor:
        return head(describe_one_by_one(net, images, torch.zeros(len(images), dtype=torch.long), layers)[0])

    return by_head, (means[0], means[1]), False, temperature


def learn_in_phases(
    net: nn.Module,
    shown: Tensor,
    answers: list[int],
    prior: list[float],
    phases: list[tuple[list[int], int]],
    settings: Settings,
    generator: torch.Generator,
) -> tuple[nn.Module, nn.Module]:
    """The network after the first phase and at the end; a phase is the rows that are learned, and the steps."""
    rows: list[int] = []
    for some, steps in phases:
        rows += draw_balanced(some, answers, prior, steps * settings.batch_size, generator)
    num_steps = sum(steps for _, steps in phases)
    most = [round(settings.shift * size) for size in shown.shape[2:]]
    places = torch.rand(num_steps, len(most), generator=generator).tolist()
    batches = []
    for step in range(num_steps):
        drawn = rows[step * settings.batch_size : (step + 1) * settings.batch_size]
        by = [int((2 * m + 1) * place) - m for m, place in zip(most, places[step], strict=True)]
        batches.append((shift_around(shown[drawn], *by), [answers[row] for row in drawn]))
    rates = [settings.lr * rise_and_fall((step + 0.5) / num_steps) for step in range(num_steps)]
    return train_by_adam(net, batches, rates, phases[0][1])


def three_folds(labels: list[int], generator: torch.Generator) -> list[list[int]]:
    """Rows dealt out to three folds, class by class, those of a class in random order."""
    order = torch.randperm(len(labels), generator=generator).tolist()
    dealt = [row for label in sorted(set(labels)) for row in order if labels[row] == label]
    return [sorted(dealt[fold::3]) for fold in range(3)]


def best_temperature(logits: Tensor, answers: list[int]) -> float:
    """The temperature from 1 to 20 with the smallest loss, by ternary search over its inverse."""

    def loss(inverse: float) -> float:
        log_p = (logits.double() * inverse).log_softmax(dim=1)
        return -sum(float(log_p[n, label]) for n, label in enumerate(answers))

    low, high = 1 / 20, 1.0
    for _ in range(100):
        third = (high - low) / 3
        low, high = (low, high - third) if loss(low + third) < loss(high - third) else (low + third, high)
    return 2 / (low + high)


def balance(labels: list[int], prior: list[float]) -> list[float]:
    """Weights that sum to 1, under which classes are as frequent as in the prior."""
    weights = [prior[label] / labels.count(label) for label in labels]
    return [weight / sum(weights) for weight in weights]


def draw_balanced(
    rows: list[int], answers: list[int], prior: list[float], count: int, generator: torch.Generator
) -> list[int]:
    weights = torch.tensor(balance([answers[row] for row in rows], prior), dtype=torch.float64)
    return [rows[k] for k in torch.multinomial(weights, count, replacement=True, generator=generator).tolist()]


def shift_around(images: Tensor, down: int, across: int) -> Tensor:
    """What leaves on one side comes in on the other."""
    shifted, (height, width) = torch.empty_like(images), images.shape[2:]
    for row in range(height):
        for column in range(width):
            shifted[:, :, (row + down) % height, (column + across) % width] = images[:, :, row, column]
    return shifted


def rise_and_fall(done: float) -> float:
    """From 0 to 1 in the first 30 % of the training and back to 0, each half a cosine."""
    return (1 - math.cos(math.pi * done / 0.3)) / 2 if done < 0.3 else (1 + math.cos(math.pi * (done - 0.3) / 0.7)) / 2


def train_by_adam(
    net: nn.Module, batches: list[tuple[Tensor, list[int]]], rates: list[float], turn: int
) -> tuple[nn.Module, nn.Module]:
    """The network as it was after `turn` steps, and at the end: AdamW's formulas with its usual constants."""
    network = before = copy.deepcopy(net).train()
    weights = list(network.parameters())
    first, second = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
    for step, ((shown, answers), rate) in enumerate(zip(batches, rates, strict=True)):
        if step == turn:
            before = copy.deepcopy(network).eval()
        log_p = network(shown).log_softmax(dim=1)
        loss = -sum(log_p[n, label] for n, label in enumerate(answers)) / len(answers)
        assert isinstance(loss, Tensor)
        with torch.no_grad():
            for j, slope in enumerate(torch.autograd.grad(loss, weights)):
                first[j] = 0.9 * first[j] + 0.1 * slope
                second[j] = 0.999 * second[j] + 0.001 * slope**2
                mean, square = first[j] / (1 - 0.9 ** (step + 1)), second[j] / (1 - 0.999 ** (step + 1))
                weights[j].sub_(rate * 0.01 * weights[j] + rate * mean / (square.sqrt() + 1e-8))
    return before, network.eval()


def head_by_newton(features: Tensor, answers: list[int], prior: list[float]) -> Any:
    """Features -> logits of the logistic regression on standardized features whose weights have an L2 penalty of 3."""
    mean = features.mean(dim=0)
    deviation = ((features - mean).square().sum(dim=0) / (len(features) - 1)).sqrt()
    z, weights, num_classes = (features - mean) / deviation, balance(answers, prior), len(prior)

    def loss(flat: Tensor) -> Tensor:
        weight, bias = flat[num_classes:].view(-1, num_classes), flat[:num_classes]
        log_p = (z @ weight + bias).log_softmax(dim=1)
        fit = -sum(w * log_p[n, label] for n, (w, label) in enumerate(zip(weights, answers, strict=True)))
        return fit + 3 / len(answers) / 2 * weight.square().sum()

    flat = torch.zeros((z.shape[1] + 1) * num_classes, dtype=z.dtype)
    for _ in range(8):
        slope = torch.autograd.functional.jacobian(loss, flat)
        curvature = torch.autograd.functional.hessian(loss, flat)
        flat = flat - torch.linalg.pinv(curvature, rtol=1e-12, hermitian=True) @ slope
    weight, bias = flat[num_classes:].view(-1, num_classes), flat[:num_classes]
    return lambda others: (others - mean) / deviation @ weight + bias


def tempered_losses(logits: Tensor, answers: list[int]) -> list[float]:
    """The losses of single images, at the temperature with the smallest mean."""
    tried = []
    for temperature in (0.7, 1, 1.4, 2, 2.8, 4):
        log_p = (logits / temperature).log_softmax(dim=1)
        tried.append([-float(log_p[n, label]) for n, label in enumerate(answers)])
    return min(tried, key=sum)


def expect_and_maximize(
    probabilities: list[list[float]],
    prior: list[float],
    floor: float,
    start: list[float] | None = None,
    steps: int = 100,
) -> list[float]:
    """Class proportions by a hundred steps of EM: the mean of the posteriors, corrected from the old prior."""
    num_classes = len(prior)
    floor, share = min(floor, 0.1 / num_classes), list(start or prior)
    for _ in range(steps):
        total = [0.0] * num_classes
        for p in probabilities:
            corrected = [p[c] * share[c] / prior[c] for c in range(num_classes)]
            total = [total[c] + corrected[c] / sum(corrected) for c in range(num_classes)]
        share = [max(floor, t / len(probabilities)) for t in total]
        share = [s / sum(share) for s in share]
    return share


def _draw_seed(generator: torch.Generator) -> int:
    return int(torch.randint(2**62, (), generator=generator))


def _widths(net: nn.Module, image: Tensor, layers: tuple[str, ...]) -> tuple[int, ...]:
    found = [describe_one_by_one(net, image, torch.zeros(1, dtype=torch.long), (name,))[0] for name in layers]
    return tuple(features.shape[1] for features in found)


def cover_by_loops(
    posterior: list[list[float]],
    model: list[list[float]],
    features: list[list[float]],
    known: list[list[float]],
    prior: list[float],
    mix: list[float],
    reliability: float,
    need: list[float],
    count: int,
    uniforms: list[float],
    candidates: int,
) -> list[int]:
    """The method `coverage` for one pool: weights image by image, and each choice by the gain of every candidate.

    `posterior` has probabilities for the proportions in `prior`, `model` those of the model; features are standardized.
    Candidates have the largest weights divided by `uniforms`, and weights of at least the smallest such ratio.
    """
    weights = []
    for p, q in zip(posterior, model, strict=True):
        target = sum(p[c] * need[c] for c in range(len(p)))
        pool = sum(p[c] * (mix[c] / prior[c]) ** reliability for c in range(len(p)))
        first, second = sorted(q)[::-1][:2]
        weights.append(target / pool * (1 - first + second))
    priorities = [w / u for w, u in zip(weights, uniforms, strict=True)]
    kept = sorted(range(len(weights)), key=lambda n: (-priorities[n], n))[:candidates]
    if len(kept) < len(weights):
        weights = [max(w, priorities[kept[-1]]) for w in weights]

    def close(a: list[float], b: list[float]) -> float:
        dot, aa, bb = (sum(x * y for x, y in zip(u, v, strict=True)) for u, v in ((a, b), (a, a), (b, b)))
        return math.exp((dot / math.sqrt(aa * bb) - 1) / 0.8)

    covered = {n: max((close(one, features[n]) for one in known), default=0.0) for n in kept}
    chosen: list[int] = []
    while len(chosen) < count:
        gains = {
            n: sum(weights[t] * max(0.0, close(features[n], features[t]) - covered[t]) for t in kept)
            for n in kept
            if n not in chosen
        }
        best = max(gains, key=lambda n: gains[n])
        chosen.append(best)
        covered = {t: max(covered[t], close(features[best], features[t])) for t in kept}
    return chosen


def match_boxes_one_by_one(
    boxes: Sequence[Sequence[int]], scores: Sequence[float], true_boxes: Sequence[Sequence[int]], threshold: float
) -> list[int]:
    """The true box of each box, or -1: overlaps by counting pixels, the best score chooses first."""

    def pixels(box: Sequence[int]) -> set[tuple[int, int]]:
        return {(x, y) for x in range(box[0], box[2]) for y in range(box[1], box[3])}

    matches = [-1] * len(boxes)
    for row in sorted(range(len(boxes)), key=lambda row: (-scores[row], row)):
        best = threshold
        for number, true_box in enumerate(true_boxes):
            union = pixels(boxes[row]) | pixels(true_box)
            overlap = len(pixels(boxes[row]) & pixels(true_box)) / len(union) if union else 0.0
            if number not in matches and overlap >= best and (overlap > best or matches[row] == -1):
                matches[row], best = number, overlap
    return matches
