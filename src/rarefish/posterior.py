"""A trusted posterior: how likely a pool image is to be of each class, learned for selection only.

A copy of the model learns from the trusted labels: the validation set and what was bought so far. That gives p̂(y | x)
under the validation set's mix of classes. In a biased pool a rare class is far rarer, and a few percent of errors on
the common ones would drown it: the prior is corrected to the pool's by expectation maximization (Saerens et al., 2002).
The copy is thrown away; the model itself never sees a validation label.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rarefish.calibration import best_temperature, class_weights, estimate_prior
from rarefish.errors import ArgumentError, LabelError, list_some
from rarefish.features import View, Watch
from rarefish.layers import check_logits, device_of, dtype_of, evaluating
from rarefish.progress import track
from rarefish.reading import Data, Reader, check_labels
from rarefish.replay import Repeated

FOLDS = 5
SAMPLE = 10_000
"""Pool images from which its mix of classes is estimated."""
MEMORY = 2_000_000_000
"""Bytes that the trusted images may take, and the sample too; of more, some are drawn."""


@dataclass(frozen=True)
class Evidence:
    """What a posterior is learned from, all of it in memory."""

    model: nn.Module
    """Where learning starts; copied, never changed."""
    images: Float[Tensor, "T ..."]
    """Of the validation set, then of the pool images that were bought."""
    labels: Int[Tensor, " T"]
    prior: Float[Tensor, " C"]
    """Shares of the classes in the validation set."""
    sample: Float[Tensor, "U ..."]
    """Unlabeled images, drawn from the pool."""
    generator: torch.Generator = field(repr=False)
    device: torch.device
    """Where the copies learn."""
    progress: bool = False


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """How the posterior is learned; the same for every data set."""

    teachers: int = 2
    """Networks that learn, each without another fifth of the labels, by which its temperature is found."""
    steps: int = 400
    batch_size: int = 64
    lr: float = 3e-3
    shift: float = 1 / 14
    """Images are shifted by up to this share of their size."""
    floor: float = 1e-3
    """No class is thought rarer than about this in the pool."""

    def __post_init__(self) -> None:
        if not 1 <= self.teachers <= FOLDS or self.steps < 1 or self.batch_size < 1 or self.lr <= 0:
            raise ArgumentError(
                f"A posterior needs 1 to {FOLDS} teachers, steps, batch_size and lr above 0, not {self}."
            )

    def __call__(self, evidence: Evidence) -> "TrustedPosterior":
        """Learns from the evidence; chance in the network, such as dropout, comes from the evidence's generator too."""
        if len(evidence.labels) < FOLDS:
            raise ArgumentError(
                f"A posterior cannot be learned from {len(evidence.labels)} labels. Use labels='density'."
            )
        device = evidence.device
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        ):
            torch.manual_seed(int(torch.randint(2**62, (), generator=evidence.generator)))
            return self._learn(evidence)

    def _learn(self, evidence: Evidence) -> "TrustedPosterior":
        drawn = torch.randperm(len(evidence.labels), generator=evidence.generator)
        folds = [drawn[place::FOLDS] for place in range(self.teachers)]
        teachers = tuple(self._teach(evidence, held) for held in folds)
        log_p_UC = _mean_log([teacher(evidence.sample) for teacher in teachers])
        prior_C = evidence.prior.clamp_min(1e-6).to(log_p_UC)
        return TrustedPosterior(teachers, (estimate_prior(log_p_UC.exp(), prior_C, self.floor) / prior_C).log())

    def passes(self, num_trusted: int, num_pool: int) -> int:
        """Of an image through a network, forward or backward: learning, temperatures, the pool and its sample."""
        each = 2 * self.steps * self.batch_size + num_trusted // FOLDS + min(num_pool, SAMPLE) + num_pool
        return self.teachers * each

    def _teach(self, evidence: Evidence, held: Tensor) -> "Teacher":
        """A network that learned from all but the held labels, with the temperature that suits those."""
        network = copy.deepcopy(evidence.model).to(evidence.device).train()
        if not any(parameter.requires_grad for parameter in network.parameters()):
            network.requires_grad_(True)
        kept = torch.ones(len(evidence.labels), dtype=torch.bool).index_fill_(0, held, False)
        images, labels = evidence.images[kept], evidence.labels[kept].to(evidence.images.device)
        weights = class_weights(evidence.labels[kept], evidence.prior)
        rate, on_gpu = torch.tensor(self.lr, device=evidence.device), evidence.device.type == "cuda"
        optimizer = torch.optim.AdamW(network.parameters(), lr=rate, fused=on_gpu, capturable=on_gpu)

        def learn(shown: Tensor, answers: Tensor, new_rate: Tensor) -> None:
            rate.copy_(new_rate)
            optimizer.zero_grad(set_to_none=True)
            functional.cross_entropy(network(shown).float(), answers).backward()
            optimizer.step()

        step, rates = Repeated(learn), (self.lr * one_cycle(self.steps)).to(evidence.device)
        for new_rate, (shown, answers) in zip(rates, self._batches(images, labels, weights, evidence), strict=True):
            step(shown, answers, new_rate)
        network.eval()
        answers = evidence.labels[held]
        logits = Teacher(network, 1.0).logits(evidence.images[held]).cpu()
        return Teacher(network, best_temperature(logits, answers, class_weights(answers, evidence.prior)))

    def _batches(
        self, images: Tensor, labels: Tensor, weights: Tensor, evidence: Evidence
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Steps' worth of images drawn by weight, each batch shifted as a whole."""
        device, dtype = evidence.device, dtype_of(evidence.model)
        count, chance = self.steps * self.batch_size, evidence.generator
        rows = torch.multinomial(weights, count, replacement=True, generator=chance).to(images.device)
        most = torch.tensor([round(self.shift * size) for size in images.shape[2:]])
        shifts = ((2 * most + 1) * torch.rand(self.steps, len(most), generator=chance)).long() - most
        drawn = zip(rows.split(self.batch_size), shifts.tolist(), strict=True)
        for some, shift in track(drawn, total=self.steps, title="learning a posterior", shown=evidence.progress):
            shown = images[some].to(device, dtype)
            yield shown.roll(shift, (2, 3)) if shown.ndim == 4 else shown, labels[some].to(device)


def gather(
    model: nn.Module,
    validation: Data,
    pool: Data,
    left: Sequence[int],
    bought: Mapping[int, int],
    reader: Reader,
    generator: torch.Generator,
    device: torch.device | str | None = None,
) -> Evidence:
    """The trusted images and a sample of the others, read into memory."""
    generator = torch.Generator().manual_seed(  # the caller's may live on a GPU
        int(torch.randint(2**62, (), generator=generator, device=generator.device))
    )
    first = reader.first_images(validation)
    with torch.no_grad(), evaluating(model):
        num_classes = check_logits(model(first.to(device_of(model), dtype_of(model))), 1).shape[1]
    most = max(1, MEMORY // (first.numel() * 4))
    some = torch.randperm(len(validation), generator=generator)[:most].sort().values.tolist()
    trusted = list(reader.read(validation, some, title="reading validation", labels=True))
    for batch in trusted:
        check_labels(batch, num_classes)
    odd = sorted({label for label in bought.values() if not 0 <= label < num_classes})
    if odd:
        raise LabelError(f"bought has the labels {list_some(odd)}; the model's classes are 0 to {num_classes - 1}.")
    labels = torch.cat([batch.labels for batch in trusted if batch.labels is not None]).cpu()
    own = list(reader.read(pool, list(bought)[: max(0, most - len(labels))], title="reading what was bought"))
    told = torch.tensor([bought[int(i)] for batch in own for i in batch.index], dtype=torch.long)
    drawn = torch.randperm(len(left), generator=generator)[: min(SAMPLE, most)].sort().values.tolist()
    sample = [left[row] for row in drawn]
    return Evidence(
        model=model,
        images=torch.cat([batch.images for batch in [*trusted, *own]]),
        labels=torch.cat([labels, told]),
        prior=labels.bincount(minlength=num_classes) / len(labels),
        sample=torch.cat([batch.images for batch in reader.read(pool, sample, title="reading some of the pool")]),
        generator=generator,
        device=torch.device(device) if device is not None else device_of(model),
        progress=reader.progress,
    )


@dataclass(frozen=True)
class Teacher:
    """A network and the temperature that makes its answers honest."""

    network: nn.Module
    temperature: float

    def __call__(self, images: Tensor) -> Float[Tensor, "N C"]:
        """Log-probabilities."""
        return (self.logits(images) / self.temperature).log_softmax(dim=1)

    @torch.no_grad()
    def logits(self, images: Tensor, at_once: int = 1000) -> Tensor:
        device, dtype = device_of(self.network), dtype_of(self.network)
        return torch.cat([self.network(part.to(device, dtype, copy=True)).float() for part in images.split(at_once)])


@dataclass(frozen=True)
class TrustedPosterior:
    """The estimator: the most likely class under the pool's mix of classes."""

    teachers: tuple[Teacher, ...]
    log_shift_C: Tensor
    """How much rarer a class is in the pool than in the validation set, as a logarithm."""

    def __call__(self, view: View, labels: Tensor | None, watch: Watch) -> Tensor:
        return self.probabilities(view.images).argmax(dim=1)

    def probabilities(self, images: Tensor) -> Float[Tensor, "N C"]:
        """p̂(y | x)."""
        return (_mean_log([teacher(images) for teacher in self.teachers]) + self.log_shift_C).softmax(dim=1)


def one_cycle(steps: int) -> Float[Tensor, " steps"]:
    """Shares of the learning rate: up in the first 30 % of the steps, then down to nothing, each half a cosine."""
    done = (torch.arange(steps) + 0.5) / steps
    phase = torch.where(done < 0.3, 1 - done / 0.3, (done - 0.3) / 0.7)
    return (1 + torch.cos(torch.pi * phase)) / 2


def _mean_log(log_p: list[Tensor]) -> Tensor:
    """Logarithm of the mean of probabilities given as logarithms."""
    return torch.stack(log_p).logsumexp(dim=0) - torch.tensor(float(len(log_p))).log().to(log_p[0])
