"""A posterior over classes for pool images, trained on trusted labels and used for selection only.

Two candidates are trained on the validation set and the pool images labeled so far: a copy of the whole model, and a
linear head on the model's features. The copy is used unless the head has a clearly lower loss on held-out validation
labels. The probabilities hold for the class proportions of the validation set. In a biased pool a rare class is much
rarer, and a few percent of errors on common classes would outnumber it, so the prior is corrected to the pool's by
expectation maximization (Saerens et al., 2002). The copy is discarded; the model never sees a validation label.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.backends import cudnn
from torch.nn import functional

from rarefish.data.index_set import draw_some
from rarefish.data.reader import Data, Reader, check_labels
from rarefish.errors import ArgumentError, DataError, LabelError, list_some
from rarefish.features import View, Watch, watched
from rarefish.models.layers import check_gradients, device_of, dtype_of, setting
from rarefish.ops.cuda_graph import RecordedStep
from rarefish.progress import track
from rarefish.pseudo_labels.label_shift import class_weights, estimate_prior

SAMPLE = 5_000
"""Pool images from which its class proportions are estimated."""
MEMORY = 2_000_000_000
"""Maximum bytes of the trusted images, and of the sample; if there are more, a random subset is used."""
FEWEST = 10
"""Images that are used in any case; a smaller validation set is not enough to train a posterior."""


@dataclass(frozen=True)
class Seen:
    """Images and the model's features of them."""

    images: Float[Tensor, "T ..."]
    features: Float[Tensor, "T D"]


@dataclass(frozen=True)
class Evidence:
    """Everything that a posterior is trained on, in memory."""

    model: nn.Module
    """The model to start from; copied, never changed."""
    trusted: Seen
    """The validation set, followed by the labeled pool images."""
    labels: Int[Tensor, " T"]
    """Labels of the trusted images."""
    num_validation: int
    """The first `num_validation` trusted images are the validation set; the model was trained on the others."""
    prior: Float[Tensor, " C"]
    """Class proportions in the validation set."""
    sample: Seen
    """Unlabeled images drawn from the pool."""
    pool_size: int
    """Total number of unlabeled images."""
    generator: torch.Generator = field(repr=False)
    device: torch.device
    """Device on which the copy is trained."""
    progress: bool = False


def gather(
    model: nn.Module,
    layers: Sequence[str],
    validation: Data,
    pool: Data,
    left: Sequence[int],
    labeled: Mapping[int, int],
    reader: Reader,
    generator: torch.Generator,
    device: torch.device | str | None = None,
    precision: str = "auto",
) -> Evidence:
    """Reads the trusted images and a sample of the pool into memory and computes their features."""
    generator = torch.Generator().manual_seed(  # the caller's may live on a GPU
        int(torch.randint(2**62, (), generator=generator, device=generator.device))
    )
    first = reader.first_images(validation)
    most = max(FEWEST, MEMORY // (first.numel() * 4))
    some = draw_some(most, len(validation), generator).tolist()
    trusted = list(reader.read(validation, some, title="reading validation", labels=True))
    own = list(
        reader.read(pool, list(labeled)[: max(0, most - len(some))], title="reading labeled images", unreadable={})
    )
    drawn = draw_some(min(SAMPLE, most), len(left), generator).tolist()
    bad: dict[int, str] = {}
    sample = list(reader.read(pool, [left[row] for row in drawn], title="reading some of the pool", unreadable=bad))
    if not sample:
        raise DataError(f"None of {len(bad)} pool images can be read, such as {next(iter(bad.items()))}.")
    with torch.no_grad(), watched(model, layers, device, precision) as watch:
        num_classes = watch(first).logits_NC.shape[1]
        features = [[watch(batch.images).features_ND for batch in part] for part in ([*trusted, *own], sample)]
    for batch in trusted:
        check_labels(batch, num_classes)
    odd = sorted({label for label in labeled.values() if not 0 <= label < num_classes})
    if odd:
        raise LabelError(f"labeled has the labels {list_some(odd)}; the model's classes are 0 to {num_classes - 1}.")
    labels = torch.cat([batch.labels for batch in trusted if batch.labels is not None]).cpu()
    told = torch.tensor([labeled[int(i)] for batch in own for i in batch.index], dtype=torch.long)
    return Evidence(
        model=model,
        trusted=Seen(torch.cat([batch.images for batch in [*trusted, *own]]), torch.cat(features[0])),
        labels=torch.cat([labels, told]),
        num_validation=len(labels),
        prior=labels.bincount(minlength=num_classes) / len(labels),
        sample=Seen(torch.cat([batch.images for batch in sample]), torch.cat(features[1])),
        pool_size=len(left),
        generator=generator,
        device=torch.device(device) if device is not None else device_of(model),
        progress=reader.progress,
    )


HELD_OUT, MIN_HELD_OUT = 10, 3
"""One validation label in ten, but at least three, are held out at first."""
HELD_OUT_STEPS = 0.75
"""Fraction of the steps without the held-out labels; then the candidates are compared, and all labels are used."""
RIDGE = 3.0
"""L2 penalty on the head's weights, as strong as this many labels."""

TEMPERATURES = (0.7, 1, 1.4, 2, 2.8, 4)
"""Temperatures tried when candidates are compared."""

Candidate = Callable[[Seen], Float[Tensor, "N C"]]
"""Images and their features -> logits."""


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """Settings of the posterior's training; the same for every data set."""

    epochs: float = 2.5
    """Epochs over the trusted labels, within the limits of `steps`."""
    steps: tuple[int, int] = (200, 800)
    """Minimum and maximum number of steps; half the minimum if more would cost more than describing the pool."""
    batch_size: int = 64
    lr: float = 1e-2
    shift: float = 1 / 14
    """Maximum random shift of images, as a fraction of their size."""
    floor: float = 1e-3
    """Approximate lower bound on the estimated proportion of each class in the pool."""

    def __post_init__(self) -> None:
        if not 1 <= self.steps[0] <= self.steps[1] or self.batch_size < 1 or self.lr <= 0:
            raise ArgumentError(f"A posterior needs 0 < steps[0] <= steps[1], batch_size and lr above 0, not {self}.")

    def __call__(self, evidence: Evidence) -> "TrustedPosterior":
        """Trains the posterior; dropout and other randomness in the network also come from the evidence's generator."""
        device = evidence.device
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast(device.type, enabled=False),
            setting(cudnn, "deterministic", True),
            torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        ):
            torch.manual_seed(int(torch.randint(2**62, (), generator=evidence.generator)))
            answer, note = self._choose(evidence)
        log_p_UC = answer(evidence.sample).log_softmax(dim=1)
        prior_C = evidence.prior.clamp_min(1e-6).to(log_p_UC)
        pool_mix_C = estimate_prior(log_p_UC.exp(), prior_C, self.floor)
        return TrustedPosterior(answer, (pool_mix_C / prior_C).log(), note, pool_mix_C)

    def num_steps(self, num_trusted: int, num_pool: int) -> int:
        """Returns the number of training steps for that many trusted and pool images."""
        least, most = self.steps
        wanted = min(max(round(self.epochs * num_trusted / self.batch_size), least), most)
        return min(wanted, max(num_pool // self.batch_size, least // 2, 1))

    def passes(self, num_validation: int, num_labeled: int, num_pool: int) -> int:
        """Returns how many image passes, forward or backward, training and use cost; 0 if there are too few labels.

        The count assumes that the whole network is chosen.
        """
        if num_validation < FEWEST:
            return 0
        num_trusted, num_held = num_validation + num_labeled, len(range(num_validation)[:: one_in(num_validation)])
        learning = num_trusted + num_held + 2 * self.num_steps(num_trusted, num_pool) * self.batch_size
        return learning + 2 * min(num_pool, SAMPLE) + num_pool

    def _choose(self, evidence: Evidence) -> tuple[Candidate, str]:
        """Returns the network, unless the head is clearly better on the held-out labels, and a note on their losses."""
        is_held = torch.zeros(len(evidence.labels), dtype=torch.bool)
        # Only validation labels: the model was trained on the others, so its features reveal them.
        order = torch.randperm(evidence.num_validation, generator=evidence.generator)
        is_held[order[:: one_in(len(order))]] = True
        head = fit_head(evidence, ~is_held)
        network, loss_H = self._train_network(evidence, is_held)
        head_loss_H = held_out_losses(head, evidence, is_held)
        weight_H = class_weights(evidence.labels[is_held], evidence.prior)
        weight_H = weight_H / weight_H.sum()
        behind_H = loss_H - head_loss_H
        behind = (weight_H * behind_H).sum()
        error = (weight_H * (behind_H - behind)).square().sum().sqrt()
        whole, alone = (f"{float((weight_H * loss).sum()):.2f}" for loss in (loss_H, head_loss_H))
        note = f"Loss on held-out validation labels: a copy of the model {whole}, a head on its features {alone}."
        # Few labels say little: two standard errors, or four with three labels, similar to Student's t.
        is_whole = bool(behind <= (2 + 10 / (len(behind_H) - 1) ** 2) * error)  # False if the network diverged
        return network if is_whole else fit_head(evidence, torch.ones_like(is_held)), note

    def _train_network(self, evidence: Evidence, is_held: Tensor) -> tuple[Candidate, Tensor]:
        """Trains a network on all labels; also returns its losses on held-out labels before it was trained on them."""
        network = copy.deepcopy(evidence.model).to(evidence.device).train()
        if not any(parameter.requires_grad for parameter in network.parameters()):
            network.requires_grad_(True)
        rate, on_gpu = torch.tensor(self.lr, device=evidence.device), evidence.device.type == "cuda"
        optimizer = torch.optim.AdamW(network.parameters(), lr=rate, fused=True, capturable=on_gpu)

        def learn(shown: Tensor, answers: Tensor, new_rate: Tensor) -> None:
            rate.copy_(new_rate)
            optimizer.zero_grad(set_to_none=True)
            logits = network(shown)
            check_gradients(logits)
            functional.cross_entropy(logits.float(), answers).backward()
            optimizer.step()

        num_steps = self.num_steps(len(evidence.labels), evidence.pool_size)
        step, rates = RecordedStep(learn), (self.lr * one_cycle(num_steps)).to(evidence.device)
        answer, loss_H = Network(network), torch.empty(0)
        turn = int(HELD_OUT_STEPS * num_steps)
        for number, (shown, answers) in enumerate(self._batches(evidence, ~is_held, turn, num_steps - turn)):
            if number == turn:
                network.eval()
                loss_H = held_out_losses(answer, evidence, is_held)
                network.train()
            step(shown, answers, rates[number])
        network.eval()
        return answer, loss_H

    def _batches(self, evidence: Evidence, is_kept: Tensor, before: int, after: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields batches, first of kept images, then of all, with classes as frequent as in the validation set.

        Each batch is shifted as a whole.
        """
        images, generator = evidence.trusted.images, evidence.generator
        labels = evidence.labels.to(images.device)
        rows = torch.cat(
            [
                draw(evidence, among, count * self.batch_size)
                for among, count in ((is_kept, before), (torch.ones_like(is_kept), after))
                if count
            ]
        ).to(images.device)
        most = torch.tensor([round(self.shift * size) for size in images.shape[2:]])
        shifts = ((2 * most + 1) * torch.rand(before + after, len(most), generator=generator)).long() - most
        drawn = zip(rows.split(self.batch_size), shifts.tolist(), strict=True)
        for some, shift in track(drawn, total=before + after, title="training a posterior", shown=evidence.progress):
            shown = images[some].to(evidence.device, dtype_of(evidence.model))
            yield shown.roll(shift, (2, 3)) if shown.ndim == 4 else shown, labels[some].to(evidence.device)


@dataclass(frozen=True)
class TrustedPosterior:
    """Estimator that returns class probabilities under the pool's class proportions."""

    answer: Candidate
    log_shift_C: Tensor
    """Logarithm of each class's proportion in the pool over that in the validation set."""
    note: str
    pool_mix_C: Tensor
    """Estimated share of each class in the pool."""

    def __call__(self, view: View, labels: Tensor | None, watch: Watch) -> Float[Tensor, "N C"]:
        return (self.answer(Seen(view.images, view.features_ND)).log_softmax(dim=1) + self.log_shift_C).softmax(dim=1)


@dataclass(frozen=True)
class Network:
    """The trained copy of the whole model."""

    network: nn.Module

    @torch.no_grad()
    def __call__(self, seen: Seen, at_once: int = 1000) -> Tensor:
        device, dtype = device_of(self.network), dtype_of(self.network)
        parts = seen.images.split(at_once)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            return torch.cat([self.network(part.to(device, dtype, copy=True)).float() for part in parts])


@dataclass(frozen=True)
class Head:
    """A linear layer on standardized features."""

    mean_D: Tensor
    deviation_D: Tensor
    weight_DC: Tensor
    bias_C: Tensor

    def __call__(self, seen: Seen) -> Tensor:
        return (seen.features.float() - self.mean_D) / self.deviation_D @ self.weight_DC + self.bias_C


def fit_head(evidence: Evidence, among: Tensor) -> Head:
    """Fits a logistic regression with an L2 penalty, classes weighted as in the validation set."""
    features = evidence.trusted.features[among.to(evidence.trusted.features.device)].float()
    labels, num_classes = evidence.labels[among], len(evidence.prior)
    weight_N = class_weights(labels, evidence.prior).to(features)
    head = Head(
        features.mean(dim=0),
        features.std(dim=0).clamp_min(1e-6),
        features.new_zeros(features.shape[1], num_classes, requires_grad=True),
        features.new_zeros(num_classes, requires_grad=True),
    )
    seen, answers = Seen(features, features), labels.to(features.device)
    optimizer = torch.optim.LBFGS([head.weight_DC, head.bias_C], max_iter=30, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        each = functional.cross_entropy(head(seen), answers, reduction="none")
        total = (each * weight_N).sum() / weight_N.sum() + RIDGE / len(labels) / 2 * head.weight_DC.square().sum()
        total.backward()
        return total

    optimizer.step(loss)  # pyright: ignore[reportArgumentType]
    return Head(head.mean_D, head.deviation_D, head.weight_DC.detach(), head.bias_C.detach())


def one_in(num_validation: int) -> int:
    """Returns n such that one validation label in n is held out."""
    return min(HELD_OUT, num_validation // MIN_HELD_OUT)


def held_out_losses(answer: Candidate, evidence: Evidence, among: Tensor) -> Float[Tensor, " H"]:
    """Returns the cross-entropy of the trusted labels in `among`, at the best of several temperatures.

    A network is often overconfident, which says nothing about the order of its probabilities.
    """
    images, features = evidence.trusted.images, evidence.trusted.features
    logits = answer(Seen(images[among.to(images.device)], features[among.to(features.device)])).cpu().double()
    labels = evidence.labels[among]
    each = [functional.cross_entropy(logits / t, labels, reduction="none") for t in TEMPERATURES]
    return min(each, key=lambda losses: float(losses.mean()))


def draw(evidence: Evidence, among: Tensor, count: int) -> Int[Tensor, " count"]:
    """Draws rows of trusted images so that classes are as frequent as in the validation set."""
    rows = among.nonzero().squeeze(1)
    weights = class_weights(evidence.labels[rows], evidence.prior)
    return rows[torch.multinomial(weights, count, replacement=True, generator=evidence.generator)]


def one_cycle(steps: int) -> Float[Tensor, " steps"]:
    """Returns learning rate factors: up over the first 30 % of the steps, then down to 0, each half a cosine."""
    done = (torch.arange(steps) + 0.5) / steps
    phase = torch.where(done < 0.3, 1 - done / 0.3, (done - 0.3) / 0.7)
    return (1 + torch.cos(torch.pi * phase)) / 2
