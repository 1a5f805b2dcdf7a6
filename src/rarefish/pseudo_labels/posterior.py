"""A posterior over classes for pool images, trained on trusted labels and used only for selection.

Two candidates are trained on the validation set and the labeled pool images: a copy of the whole model, and a linear
head on the model's features. The copy is used unless the head has a clearly lower loss on held-out validation labels.
The probabilities are valid for the class proportions of the validation set. In a biased pool, a rare class is much
rarer, and errors on a few percent of the common images would outnumber it, so the prior is corrected to that of the
pool by expectation maximization (Saerens et al., 2002). A network trained on few labels is overconfident in its
mistakes, which EM would count as images of rare classes. Therefore, EM uses probabilities at a temperature that is
fitted out of fold, to validation labels on which the networks used for this purpose were not trained. The copy is
discarded; the model sees no validation label.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.backends import cudnn
from torch.nn import functional

from rarefish.data.embeddings import Embeddings
from rarefish.data.reader import Batch, Data, Reader, check_labels
from rarefish.data.remaining_indices import draw_some
from rarefish.errors import ArgumentError, DataError, LabelError, list_some
from rarefish.features import View, Watch, watched
from rarefish.models.layer_selection import check_gradients, device_of, dtype_of, setting
from rarefish.ops.cuda_graph import RecordedStep
from rarefish.progress import track
from rarefish.pseudo_labels.head_posterior import HeadLogits, fit_head_posterior
from rarefish.pseudo_labels.label_shift import (
    class_weights,
    estimate_interval,
    estimate_prior,
    fit_temperature,
    split_folds,
)
from rarefish.training.optimizers import take_step

SAMPLE = 5_000
"""Number of pool images from which class proportions are estimated."""
MEMORY = 2_000_000_000
"""Maximum number of bytes for the trusted images, and for the sample; beyond it, a random subset is used."""
PIXELS = 2**22
"""Maximum number of values in the images that a trained copy of the model predicts at once."""
FEWEST = 10
"""Minimum number of images; a validation set with fewer is too small to train a posterior."""


@dataclass(frozen=True)
class Seen:
    """Images and their features in the model."""

    images: Float[Tensor, "T ..."]
    """The images; the features again if there are only embeddings."""
    features: Float[Tensor, "T D"]


@dataclass(frozen=True)
class Evidence:
    """Everything on which a posterior is trained, in memory."""

    model: nn.Module
    """The initial model, which is copied and never changed."""
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
    has_images: bool = True
    """Whether there are images on which a copy of the model can be trained, and not only embeddings."""
    progress: bool = False
    logits: Float[Tensor, "T_or_0 C_or_0"] = field(default_factory=lambda: torch.empty(0, 0))
    """The initial model's logits for the trusted images."""
    index: Int[Tensor, " V_or_0"] = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    """Validation index of each of the first `num_validation` trusted images."""


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
    watching: Callable[[], AbstractContextManager[Any]] | None = None,
) -> Evidence:
    """Returns the trusted images and a sample of the pool, read into memory, with their features.

    `watching`: a function that returns the context manager for the forward pass, instead of `watched`.
    """
    generator = torch.Generator().manual_seed(  # the caller's generator may be on a GPU
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
        index, why = next(iter(bad.items()))
        raise DataError(f"None of the {len(bad)} sampled pool images can be read. Image {index}: {why}")
    with torch.no_grad(), watching() if watching else watched(model, layers, device, precision) as watch:
        num_classes = watch(first).logits_NC.shape[1]
        seen = [_features_and_logits(watch(batch.images)) for batch in [*trusted, *own]]
        sample_features = [watch(batch.images).features_ND for batch in sample]
    for batch in trusted:
        check_labels(batch, num_classes)
    odd = sorted({label for label in labeled.values() if not 0 <= label < num_classes})
    if odd:
        raise LabelError(f"labeled has the labels {list_some(odd)}, but the classes are 0 to {num_classes - 1}.")
    labels = torch.cat([batch.labels for batch in trusted if batch.labels is not None]).cpu()
    told = torch.tensor([labeled[int(i)] for batch in own for i in batch.index], dtype=torch.long)
    has_images = not isinstance(pool, Embeddings)

    def join(batches: list[Batch], features: list[Tensor]) -> Seen:
        features_ND = torch.cat(features)
        return Seen(torch.cat([batch.images for batch in batches]) if has_images else features_ND, features_ND)

    return Evidence(
        model=model,
        trusted=join([*trusted, *own], [features for features, _ in seen]),
        labels=torch.cat([labels, told]),
        logits=torch.cat([logits for _, logits in seen]).float().cpu(),
        index=torch.cat([batch.index for batch in trusted]),
        num_validation=len(labels),
        prior=labels.bincount(minlength=num_classes) / len(labels),
        sample=join(sample, sample_features),
        pool_size=len(left),
        generator=generator,
        device=torch.device(device) if device is not None else device_of(model),
        progress=reader.progress,
        has_images=has_images,
    )


def _features_and_logits(view: View) -> tuple[Tensor, Tensor]:
    return view.features_ND, view.logits_NC


HELD_OUT, MIN_HELD_OUT = 10, 3
"""One in ten validation labels, but at least three, are held out at first."""
HELD_OUT_STEPS = 0.75
"""Fraction of steps without the held-out labels; after it, the candidates are compared and all labels are used."""
LARGE = 1_000_000
"""Number of parameters above which a copy of the model is trained only if a head on its features is not reliable."""
RELIABLE = 0.8
"""Macro recall out of fold, scaled to 0 for guessing, from which a head is reliable."""
RIDGE = 3.0
"""Strength of the L2 penalty on the head's weights, in number of labels."""

FOLDS = 3
"""Number of networks, each trained without one fold of the validation labels, that determine the temperature."""
TEMPERATURES = (0.7, 1, 1.4, 2, 2.8, 4)
"""Temperatures to try when candidates are compared."""

Candidate = Callable[[Seen], Float[Tensor, "N C"]]
"""Function that maps images with their features to logits."""


@dataclass(frozen=True)
class OutOfFold:
    """Predictions of candidates for validation images on which they were not trained."""

    candidates: tuple[Candidate, ...]
    """One candidate per fold."""
    logits: Float[Tensor, "V C"]
    """Logits of each image, from the candidate that was trained without its fold."""
    labels: Int[Tensor, " V"]
    rows: Int[Tensor, " V"]
    """Position of each image among the validation images of the evidence."""

    @property
    def temperature(self) -> float:
        """The temperature at which the logits are calibrated, which is at least 1."""
        return fit_temperature(self.logits, self.labels)


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """Settings for training the posterior, the same for every dataset."""

    epochs: float = 2.5
    """Number of epochs over the trusted labels, within the limits of `steps`."""
    steps: tuple[int, int] = (200, 800)
    """Minimum and maximum number of steps; half the minimum if more would cost more than describing the pool."""
    batch_size: int = 64
    lr: float = 1e-2
    shift: float = 1 / 14
    """Maximum random shift of images, as a fraction of their size."""
    floor: float = 1e-3
    """Approximate lower bound on the estimated proportion of each class in the pool."""
    network: bool = True
    """Whether a copy of the model may be trained, if there are images; otherwise, the head is cross-validated."""

    def __post_init__(self) -> None:
        if not 1 <= self.steps[0] <= self.steps[1] or self.batch_size < 1 or self.lr <= 0:
            raise ArgumentError(f"A posterior needs 0 < steps[0] <= steps[1], batch_size > 0 and lr > 0, not {self}.")

    def __call__(self, evidence: Evidence) -> "TrustedPosterior":
        """Returns the trained posterior; all random numbers, including dropout, come from the evidence's generator."""
        if not (self.network and evidence.has_images):
            return self.from_head(evidence)
        if is_large(evidence.model) and len(evidence.labels.unique()) > 1:
            # With its own random numbers, so that what follows does not depend on this trial.
            found = self.from_head(replace(evidence, generator=copy_of(evidence.generator)))
            if found.reliability >= RELIABLE:
                return replace(found, note=f"{found.note} That is enough, so no copy of the model was trained.")
        device = evidence.device
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast(device.type, enabled=False),
            setting(cudnn, "deterministic", True),
            torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        ):
            torch.manual_seed(int(torch.randint(2**62, (), generator=evidence.generator)))
            answer, note = self.choose(evidence)
            held = self.out_of_fold(evidence, answer)
        return self.corrected(answer, held, note, evidence)

    def from_head(self, evidence: Evidence) -> "TrustedPosterior":
        """Returns the posterior of a head on the features, without training a copy of the model."""
        trusted = evidence.trusted.features, evidence.labels, evidence.num_validation
        with torch.inference_mode(False), torch.autocast(evidence.device.type, enabled=False):
            fitted = fit_head_posterior(*trusted, evidence.prior, evidence.generator)
        held = OutOfFold((), fitted.held_logits, fitted.held_labels, fitted.held_rows)
        return self.corrected(LinearHeadOf(fitted.logits), held, fitted.note, evidence)

    def corrected(self, answer: Candidate, held: OutOfFold, note: str, evidence: Evidence) -> "TrustedPosterior":
        """Returns the posterior under the class proportions of the pool, which are estimated from its sample."""
        logits = [candidate(evidence.sample) for candidate in (answer, *held.candidates)]
        prior_C = evidence.prior.to(logits[0])
        pool_mix_C = estimate_prior((logits[0] / held.temperature).softmax(dim=1), prior_C, self.floor)
        interval_2C = estimate_interval(
            logits, held.logits, held.labels, prior_C, pool_mix_C, self.floor, evidence.generator
        )
        return TrustedPosterior(
            answer,
            (pool_mix_C / prior_C.clamp_min(1e-6)).log(),
            note,
            pool_mix_C,
            interval_2C,
            held.temperature,
            held.logits,
            held.labels,
            held.rows,
            held.candidates,
        )

    def num_steps(self, num_trusted: int, num_pool: int) -> int:
        """Returns the number of training steps for these numbers of trusted images and pool images."""
        least, most = self.steps
        wanted = min(max(round(self.epochs * num_trusted / self.batch_size), least), most)
        return min(wanted, max(num_pool // self.batch_size, least // 2, 1))

    def num_fold_steps(self, num_trusted: int, num_pool: int) -> int:
        """Returns the number of steps without one fold: the same number of epochs, as fewer make it less confident."""
        return max(1, self.num_steps(num_trusted, num_pool) * (FOLDS - 1) // FOLDS)

    def passes(self, num_validation: int, num_labeled: int, num_pool: int) -> int:
        """Returns the number of image passes (forward or backward) for training and use; 0 if there are too few labels.

        The number assumes that the copy of the model, not the head, is chosen.
        """
        if num_validation < FEWEST:
            return 0
        num_trusted, num_held = num_validation + num_labeled, len(range(num_validation)[:: one_in(num_validation)])
        steps = self.num_steps(num_trusted, num_pool) + FOLDS * self.num_fold_steps(num_trusted, num_pool)
        learning = num_trusted + num_held + num_validation + 2 * steps * self.batch_size
        return learning + (2 + FOLDS) * min(num_pool, SAMPLE) + num_pool

    def choose(self, evidence: Evidence) -> tuple[Candidate, str]:
        """Returns the network (or the head, if it is clearly better on held-out labels), and a note on their losses."""
        is_held = torch.zeros(len(evidence.labels), dtype=torch.bool)
        # Use only validation labels, because the model was trained on the others and its features reveal them.
        order = torch.randperm(evidence.num_validation, generator=evidence.generator)
        is_held[order[:: one_in(len(order))]] = True
        head = fit_head(evidence, ~is_held)
        num_steps = self.num_steps(len(evidence.labels), evidence.pool_size)
        network, loss_H = self._train_network(evidence, is_held, num_steps, int(HELD_OUT_STEPS * num_steps))
        head_loss_H = held_out_losses(head, evidence, is_held)
        weight_H = class_weights(evidence.labels[is_held], evidence.prior)
        weight_H = weight_H / weight_H.sum()
        behind_H = loss_H - head_loss_H
        behind = (weight_H * behind_H).sum()
        error = (weight_H * (behind_H - behind)).square().sum().sqrt()
        whole, alone = (f"{float((weight_H * loss).sum()):.2f}" for loss in (loss_H, head_loss_H))
        note = f"Loss on held-out validation labels: {whole} (copy of the model), {alone} (head on its features)."
        # Few labels are weak evidence: two standard errors, or more with few labels, similar to Student's t.
        is_whole = bool(behind <= (2 + 10 / (len(behind_H) - 1) ** 2) * error)  # False if the network diverged
        return network if is_whole else fit_head(evidence, torch.ones_like(is_held)), note

    def out_of_fold(self, evidence: Evidence, answer: Candidate) -> "OutOfFold":
        """Returns candidates of the same kind as `answer`, each trained without one fold of the validation labels."""
        labels_V, num_all = evidence.labels[: evidence.num_validation], len(evidence.labels)
        fold_V = split_folds(labels_V, FOLDS, evidence.generator)
        num_steps = self.num_fold_steps(num_all, evidence.pool_size)
        logits_VC = torch.empty(len(labels_V), len(evidence.prior), dtype=torch.double)
        candidates: list[Candidate] = []
        for fold in range(FOLDS):
            is_held = torch.zeros(num_all, dtype=torch.bool)
            is_held[: len(labels_V)] = fold_V == fold
            if isinstance(answer, Head):
                candidates.append(fit_head(evidence, ~is_held))
            else:
                candidates.append(self._train_network(evidence, is_held, num_steps, num_steps)[0])
            logits_VC[fold_V == fold] = candidates[-1](of_rows(evidence.trusted, is_held)).cpu().double()
        # A candidate knows nothing about a class whose only image was held out.
        is_used_V = (labels_V.bincount()[labels_V] > 1) & logits_VC.isfinite().all(dim=1)
        return OutOfFold(tuple(candidates), logits_VC[is_used_V], labels_V[is_used_V], is_used_V.nonzero()[:, 0])

    def _train_network(
        self, evidence: Evidence, is_held: Tensor, num_steps: int, turn: int
    ) -> tuple[Candidate, Tensor]:
        """Returns a network trained without the held-out labels for `turn` steps and then on all labels.

        Also returns its losses on the held-out labels before it was trained on them.
        """
        network = copy.deepcopy(evidence.model).to(evidence.device).train()
        if not any(parameter.requires_grad for parameter in network.parameters()):
            network.requires_grad_(True)
        rate, on_gpu = torch.tensor(self.lr, device=evidence.device), evidence.device.type == "cuda"
        optimizer = torch.optim.AdamW(network.parameters(), lr=rate, fused=True, capturable=on_gpu)

        def learn(shown: Tensor, answers: Tensor, new_rate: Tensor) -> None:
            rate.copy_(new_rate)
            logits = network(shown)
            check_gradients(logits)
            take_step(optimizer, functional.cross_entropy(logits.float(), answers))

        step, rates = RecordedStep(learn), (self.lr * one_cycle(num_steps)).to(evidence.device)
        answer, loss_H = Network(network), torch.empty(0)
        for number, (shown, answers) in enumerate(self._batches(evidence, ~is_held, turn, num_steps - turn)):
            if number == turn:
                network.eval()
                loss_H = held_out_losses(answer, evidence, is_held)
                network.train()
            step(shown, answers, rates[number])
        network.eval()
        return answer, loss_H

    def _batches(self, evidence: Evidence, is_kept: Tensor, before: int, after: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields batches, first of kept images and then of all, with classes as frequent as in the validation set.

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
    """Logarithm of the ratio of each class's proportion in the pool to that in the validation set."""
    note: str
    pool_mix_C: Tensor
    """Estimated proportion of each class in the pool."""
    pool_mix_interval_2C: Tensor
    """Lower and upper bounds of a probable range of the pool's class proportions."""
    temperature: float = 1.0
    """Temperature at which the logits of held-out validation images are calibrated."""
    held_logits: Float[Tensor, "H C_or_0"] = field(default_factory=lambda: torch.empty(0, 0))
    """Logits of validation images from candidates that were trained without them."""
    held_labels: Int[Tensor, " H"] = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    held_rows: Int[Tensor, " H"] = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    """Position of each of these images among the validation images of the evidence."""
    fold_candidates: tuple[Candidate, ...] = ()
    """Candidates that were each trained without one fold of the validation labels; none for a cross-validated head."""

    def mean_logits(self, seen: Seen) -> Float[Tensor, "N C"]:
        """Returns the logarithm of the mean probabilities of all candidates; the logits of the only one."""
        if not self.fold_candidates:
            return self.answer(seen)
        candidates = (self.answer, *self.fold_candidates)
        return torch.stack([one(seen).softmax(dim=1) for one in candidates]).mean(dim=0).clamp_min(1e-30).log()

    @property
    def reliability(self) -> float:
        """Macro recall on held-out validation images, scaled to 0 for guessing and 1 for no mistakes."""
        num_classes, labels_H = self.held_logits.shape[1], self.held_labels
        is_right_H = self.held_logits.argmax(dim=1).eq(labels_H).double()
        count_C = labels_H.bincount(minlength=num_classes)
        if not len(labels_H):
            return 0.0
        right_C = is_right_H.new_zeros(num_classes).index_add_(0, labels_H, is_right_H)
        recall = float((right_C / count_C)[count_C > 0].mean())
        return max(0.0, (recall - 1 / num_classes) / (1 - 1 / num_classes))

    def __call__(self, view: View, labels: Tensor | None, watch: Watch) -> Float[Tensor, "N C"]:
        return (self.answer(Seen(view.images, view.features_ND)).log_softmax(dim=1) + self.log_shift_C).softmax(dim=1)


def is_large(model: nn.Module) -> bool:
    """Returns whether training a copy of the model takes so long that a head on its features is tried first."""
    return sum(parameter.numel() for parameter in model.parameters()) > LARGE


def copy_of(generator: torch.Generator) -> torch.Generator:
    """Returns a generator that draws the same numbers."""
    return torch.Generator(generator.device).set_state(generator.get_state())


@dataclass(frozen=True)
class Network:
    """The trained copy of the whole model."""

    network: nn.Module

    @torch.no_grad()
    def __call__(self, seen: Seen, at_once: int = 1000) -> Tensor:
        device, dtype = device_of(self.network), dtype_of(self.network)
        parts = seen.images.split(max(1, min(at_once, PIXELS // max(1, seen.images[:1].numel()))))
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


@dataclass(frozen=True)
class LinearHeadOf:
    """A cross-validated head on the features."""

    head: HeadLogits

    def __call__(self, seen: Seen) -> Tensor:
        return self.head.of(seen.features)


def fit_head(evidence: Evidence, among: Tensor) -> Head:
    """Returns a logistic regression with an L2 penalty and classes weighted as in the validation set."""
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

    Networks are often overconfident, which says nothing about the order of their probabilities.
    """
    logits = answer(of_rows(evidence.trusted, among)).cpu().double()
    labels = evidence.labels[among]
    each = [functional.cross_entropy(logits / t, labels, reduction="none") for t in TEMPERATURES]
    return min(each, key=lambda losses: float(losses.mean()))


def of_rows(seen: Seen, among: Tensor) -> Seen:
    """Returns the images at the rows in `among`, with their features."""
    images, features = seen.images, seen.features
    return Seen(images[among.to(images.device)], features[among.to(features.device)])


def draw(evidence: Evidence, among: Tensor, count: int) -> Int[Tensor, " count"]:
    """Draws rows of trusted images such that classes are as frequent as in the validation set."""
    rows = among.nonzero().squeeze(1)
    weights = class_weights(evidence.labels[rows], evidence.prior)
    return rows[torch.multinomial(weights, count, replacement=True, generator=evidence.generator)]


def one_cycle(steps: int) -> Float[Tensor, " steps"]:
    """Returns learning rate factors that rise over the first 30 % of the steps and then fall to 0, as half cosines."""
    done = (torch.arange(steps) + 0.5) / steps
    phase = torch.where(done < 0.3, 1 - done / 0.3, (done - 0.3) / 0.7)
    return (1 + torch.cos(torch.pi * phase)) / 2
