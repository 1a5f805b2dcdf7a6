"""A trusted posterior: how likely a pool image is to be of each class, learned for selection only.

Two candidates learn from the trusted labels, the validation set and what was bought so far: a copy of the model, whole,
and a linear head on the model's features as they are. The copy is used unless the head is clearly less surprised by
validation labels held back. Its probabilities hold under the validation set's mix of classes. In a biased pool a rare
class is far rarer, and a few percent of errors on the common ones would drown it: the prior is corrected to the pool's
by expectation maximization (Saerens et al., 2002). The copy is thrown away; the model never sees a validation label.
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
"""Pool images from which its mix of classes is estimated."""
MEMORY = 2_000_000_000
"""Bytes that the trusted images may take, and the sample too; of more, some are drawn …"""
FEWEST = 10
"""… but so many images in any case: with fewer in the validation set, nothing can be learned."""


@dataclass(frozen=True)
class Seen:
    """Images and what the model makes of them."""

    images: Float[Tensor, "T ..."]
    features: Float[Tensor, "T D"]


@dataclass(frozen=True)
class Evidence:
    """All of it in memory."""

    model: nn.Module
    """Where learning starts; copied, never changed."""
    trusted: Seen
    """The validation set, then the pool images that were bought."""
    labels: Int[Tensor, " T"]
    """Of the trusted images."""
    num_validation: int
    """The first so many are the validation set's; from what was bought the model has learned."""
    prior: Float[Tensor, " C"]
    """Shares of the classes in the validation set."""
    sample: Seen
    """Unlabeled images, drawn from the pool."""
    pool_size: int
    """Unlabeled images in all."""
    generator: torch.Generator = field(repr=False)
    device: torch.device
    """Where the copy learns."""
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
    """The trusted images and a sample of the others, read into memory and shown to the model."""
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


HELD, LEAST_HELD = 10, 3
"""One validation label in ten, but at least three, are held back …"""
HELD_STEPS = 0.75
"""… for this share of the steps; then the candidates are compared, and the network learns from all labels."""
RIDGE = 3.0
"""Pull of the head's weights to 0: what so many labels weigh."""

TEMPERATURES = (0.7, 1, 1.4, 2, 2.8, 4)

Candidate = Callable[[Seen], Float[Tensor, "N C"]]
"""Images and their features -> logits."""


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """How the posterior is learned; the same for every data set."""

    epochs: float = 2.5
    """Passes over the trusted labels, but …"""
    steps: tuple[int, int] = (200, 800)
    """… at least and at most so many steps; half of the least, if more would cost more than describing the pool."""
    batch_size: int = 64
    lr: float = 1e-2
    shift: float = 1 / 14
    """Images are shifted by up to this share of their size."""
    floor: float = 1e-3
    """No class is thought rarer than about this in the pool."""

    def __post_init__(self) -> None:
        if not 1 <= self.steps[0] <= self.steps[1] or self.batch_size < 1 or self.lr <= 0:
            raise ArgumentError(f"A posterior needs steps (least, most), batch_size and lr above 0, not {self}.")

    def __call__(self, evidence: Evidence) -> "TrustedPosterior":
        """Learns from the evidence; chance in the network, such as dropout, comes from the evidence's generator too."""
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
        log_shift_C = (estimate_prior(log_p_UC.exp(), prior_C, self.floor) / prior_C).log()
        return TrustedPosterior(answer, log_shift_C, note)

    def num_steps(self, num_trusted: int, num_pool: int) -> int:
        least, most = self.steps
        wanted = min(max(round(self.epochs * num_trusted / self.batch_size), least), most)
        return min(wanted, max(num_pool // self.batch_size, least // 2, 1))

    def passes(self, num_validation: int, num_bought: int, num_pool: int) -> int:
        """Of an image through a network, forward or backward, if the whole network is chosen; 0 if none can learn."""
        if num_validation < FEWEST:
            return 0
        num_trusted, num_held = num_validation + num_bought, len(range(num_validation)[:: one_in(num_validation)])
        learning = num_trusted + num_held + 2 * self.num_steps(num_trusted, num_pool) * self.batch_size
        return learning + 2 * min(num_pool, SAMPLE) + num_pool

    def _choose(self, evidence: Evidence) -> tuple[Candidate, str]:
        """The network, unless the head is clearly better on the labels held back; and how they compared."""
        is_held = torch.zeros(len(evidence.labels), dtype=torch.bool)
        # Not of what was bought: the features know those labels, since the model learned them.
        order = torch.randperm(evidence.num_validation, generator=evidence.generator)
        is_held[order[:: one_in(len(order))]] = True
        head = fit_head(evidence, ~is_held)
        network, loss_H = self._teach(evidence, is_held)
        head_loss_H = surprise(head, evidence, is_held)
        weight_H = class_weights(evidence.labels[is_held], evidence.prior)
        weight_H = weight_H / weight_H.sum()
        behind_H = loss_H - head_loss_H
        behind = (weight_H * behind_H).sum()
        error = (weight_H * (behind_H - behind)).square().sum().sqrt()
        whole, alone = (f"{float((weight_H * loss).sum()):.2f}" for loss in (loss_H, head_loss_H))
        note = f"Loss on validation labels held back: a copy of the model {whole}, a head on its features {alone}."
        # A few held labels say little: two standard errors, of three labels four, as in Student's t, nearly.
        is_whole = bool(behind <= (2 + 10 / (len(behind_H) - 1) ** 2) * error)  # not where a network diverged
        return network if is_whole else fit_head(evidence, torch.ones_like(is_held)), note

    def _teach(self, evidence: Evidence, is_held: Tensor) -> tuple[Candidate, Tensor]:
        """A network that learned from all labels, and its surprise at the held ones before it saw them."""
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
        turn = int(HELD_STEPS * num_steps)
        for number, (shown, answers) in enumerate(self._batches(evidence, ~is_held, turn, num_steps - turn)):
            if number == turn:
                network.eval()
                loss_H = surprise(answer, evidence, is_held)
                network.train()
            step(shown, answers, rates[number])
        network.eval()
        return answer, loss_H

    def _batches(self, evidence: Evidence, is_kept: Tensor, before: int, after: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches, first some of kept images alone, then of all, classes as often as in the validation set; each is
        shifted as a whole."""
        images, chance = evidence.trusted.images, evidence.generator
        labels = evidence.labels.to(images.device)
        rows = torch.cat(
            [
                draw(evidence, among, count * self.batch_size)
                for among, count in ((is_kept, before), (torch.ones_like(is_kept), after))
                if count
            ]
        ).to(images.device)
        most = torch.tensor([round(self.shift * size) for size in images.shape[2:]])
        shifts = ((2 * most + 1) * torch.rand(before + after, len(most), generator=chance)).long() - most
        drawn = zip(rows.split(self.batch_size), shifts.tolist(), strict=True)
        for some, shift in track(drawn, total=before + after, title="learning a posterior", shown=evidence.progress):
            shown = images[some].to(evidence.device, dtype_of(evidence.model))
            yield shown.roll(shift, (2, 3)) if shown.ndim == 4 else shown, labels[some].to(evidence.device)


@dataclass(frozen=True)
class TrustedPosterior:
    """The estimator: how likely each class is under the pool's mix of classes."""

    answer: Candidate
    log_shift_C: Tensor
    """How much rarer a class is in the pool than in the validation set, as a logarithm."""
    note: str

    def __call__(self, view: View, labels: Tensor | None, watch: Watch) -> Float[Tensor, "N C"]:
        return (self.answer(Seen(view.images, view.features_ND)).log_softmax(dim=1) + self.log_shift_C).softmax(dim=1)


@dataclass(frozen=True)
class Network:
    """The whole model, taught."""

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
    """Logistic regression with a little pull to 0, every class as heavy as in the validation set."""
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
    """One validation label in so many is held back."""
    return min(HELD, num_validation // LEAST_HELD)


def surprise(answer: Candidate, evidence: Evidence, among: Tensor) -> Float[Tensor, " H"]:
    """Cross-entropy of each of some trusted labels.

    Of a few temperatures the best counts: a network is often too sure, which says nothing about its order.
    """
    images, features = evidence.trusted.images, evidence.trusted.features
    logits = answer(Seen(images[among.to(images.device)], features[among.to(features.device)])).cpu().double()
    labels = evidence.labels[among]
    each = [functional.cross_entropy(logits / t, labels, reduction="none") for t in TEMPERATURES]
    return min(each, key=lambda losses: float(losses.mean()))


def draw(evidence: Evidence, among: Tensor, count: int) -> Int[Tensor, " count"]:
    """Rows of trusted images, drawn so that the classes come as often as in the validation set."""
    rows = among.nonzero().squeeze(1)
    weights = class_weights(evidence.labels[rows], evidence.prior)
    return rows[torch.multinomial(weights, count, replacement=True, generator=evidence.generator)]


def one_cycle(steps: int) -> Float[Tensor, " steps"]:
    """Shares of the learning rate: up in the first 30 % of the steps, then down to nothing, each half a cosine."""
    done = (torch.arange(steps) + 0.5) / steps
    phase = torch.where(done < 0.3, 1 - done / 0.3, (done - 0.3) / 0.7)
    return (1 + torch.cos(torch.pi * phase)) / 2
