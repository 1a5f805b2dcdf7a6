"""Accuracy of the estimated class proportions of the pool, by calibration method.

    python benchmarks/pool_prior.py [--seeds 0 1 2] [--imbalance 100 10 1] [--validation 100 300 1000] [--epochs 2]

For each split of MNIST (seed), imbalance and size M of the validation set, the posterior of `labels="posterior"` is
trained from a network that was pretrained on rotations of the pool, as in the first round of an experiment. Each
variant then estimates the proportions on the same sample of the pool. One row per split and variant is appended to the
table; run the same command again to resume a run that was stopped. `rare` is the estimated share of the digits 5 to 9,
`ratio` is that share divided by the true share in the whole pool, `l1` and `kl` compare all ten proportions with the
true ones, and `nll` is the cross-entropy on the test set of the probabilities from which the variant estimates.
"""

import argparse
import csv
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from rarefish.data.reader import Reader, labels_of
from rarefish.experiments.datasets import splits_of
from rarefish.experiments.initial_models import load_starts, prepare_starts, starts_of
from rarefish.experiments.recipes import load_recipe
from rarefish.experiments.run_folder import RunFolder
from rarefish.experiments.settings import Cell, Experiment
from rarefish.experiments.source_commit import source_commit
from rarefish.pseudo_labels.label_shift import estimate_prior
from rarefish.pseudo_labels.posterior import Candidate, Evidence, Head, Posterior, Seen, fit_head, gather

COLUMNS = (
    *("dataset", "imbalance", "validation_size", "seed", "variant"),
    *("rare", "true_rare", "ratio", "l1", "kl", "nll", "temperature", "epochs", "commit"),
)
LAYERS = ("conv1", "conv2", "fc1")


@dataclass(frozen=True)
class Learned:
    """A candidate's predictions for the sample of the pool and for validation images on which it was not trained."""

    labels_V: Tensor
    out_of_fold_VC: Tensor
    fold_logits: tuple[Tensor, ...]
    """Logits of the sample by the candidate without each fold; empty for a head."""
    sample_UC: Tensor
    prior_C: Tensor
    floor: float
    temperature: float
    """The one that the library uses."""


@dataclass(frozen=True)
class Scaling:
    """Calibrated logits: scaled logits plus a bias, per class or for all classes."""

    scale_C: Tensor
    bias_C: Tensor

    def __call__(self, logits_NC: Tensor) -> Tensor:
        return logits_NC * self.scale_C + self.bias_C


def fit_scaling(learned: Learned, per_class_bias: bool, per_class_scale: bool, ridge: float) -> Scaling:
    """Fits a temperature (optionally a bias, and one scale per class) by cross-entropy.

    The ridge pulls biases to 0 and scales to their mean; it has the weight of this many labels.
    """
    num_classes = len(learned.prior_C)
    log_scale = torch.zeros(num_classes if per_class_scale else 1, dtype=torch.double, requires_grad=True)
    bias_C = torch.zeros(num_classes, dtype=torch.double, requires_grad=per_class_bias)
    free = [parameter for parameter in (log_scale, bias_C) if parameter.requires_grad]
    optimizer = torch.optim.LBFGS(free, max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        logits = learned.out_of_fold_VC * log_scale.exp() + bias_C
        penalty = bias_C.square().sum() + (log_scale - log_scale.mean()).square().sum()
        total = functional.cross_entropy(logits, learned.labels_V) + ridge / 2 / len(logits) * penalty
        total.backward()
        return total

    optimizer.step(loss)  # pyright: ignore[reportArgumentType]
    return Scaling(log_scale.detach().exp(), bias_C.detach())


def em(learned: Learned, logits_UC: Tensor) -> Tensor:
    return estimate_prior(logits_UC.softmax(dim=1), learned.prior_C, learned.floor)


def by_map(learned: Learned, alpha: float) -> Tensor:
    """Returns the proportions by EM with a Dirichlet prior of this concentration, at the library's temperature."""
    probability_UC = (learned.sample_UC / learned.temperature).softmax(dim=1)
    share_C = learned.prior_C.clone()
    for _ in range(100):
        weighed = probability_UC * share_C / learned.prior_C
        counts = (weighed / weighed.sum(dim=1, keepdim=True)).sum(dim=0) + alpha - 1
        share_C = (counts / len(weighed)).clamp_min(learned.floor)
        share_C = share_C / share_C.sum()
    return share_C


def by_confusion(learned: Learned, ridge: float, is_soft: bool) -> Tensor:
    """Returns the proportions under which the out-of-fold confusion matrix yields the mean prediction on the pool.

    This is BBSE (Lipton et al., 2018) with nonnegative weights or, with a ridge on the distance of the weights from 1,
    RLLS (Azizzadenesheli et al., 2019), computed by projected gradient descent.
    """
    answers = [learned.out_of_fold_VC.softmax(dim=1), learned.sample_UC.softmax(dim=1)]
    if not is_soft:
        answers = [functional.one_hot(p.argmax(dim=1), p.shape[1]).double() for p in answers]
    truth_VC = functional.one_hot(learned.labels_V, len(learned.prior_C)).double()
    confusion_CC = answers[0].T @ truth_VC / len(truth_VC)
    missing_C = answers[1].mean(dim=0) - confusion_CC.sum(dim=1)
    step = 1 / (torch.linalg.matrix_norm(confusion_CC, 2) ** 2 + ridge)
    change_C = torch.zeros_like(learned.prior_C)
    for _ in range(3000):
        slope = confusion_CC.T @ (confusion_CC @ change_C - missing_C) + ridge * change_C
        change_C = (change_C - step * slope).clamp_min(-1)
    share_C = ((1 + change_C) * learned.prior_C).clamp_min(learned.floor)
    return share_C / share_C.sum()


SCALINGS: dict[str, Callable[[Learned], Callable[[Tensor], Tensor]]] = {
    "none": lambda learned: Scaling(torch.ones(1), torch.zeros(1)),
    "temperature": lambda learned: Scaling(torch.tensor(1 / learned.temperature), torch.zeros(1)),
    "temperature, may be below 1": lambda learned: fit_scaling(learned, False, False, 0),
    "BCTS, ridge 1": lambda learned: fit_scaling(learned, True, False, 1),
    "BCTS, ridge 5": lambda learned: fit_scaling(learned, True, False, 5),
    "vector, ridge 1": lambda learned: fit_scaling(learned, True, True, 1),
    "vector, ridge 5": lambda learned: fit_scaling(learned, True, True, 5),
}
"""Calibrations that scale logits; those of ensembles and of the head are made from them."""
OTHERS: dict[str, Callable[[Learned], Tensor]] = {
    "MAP, alpha 0.5": lambda learned: by_map(learned, 0.5),
    "MAP, alpha 2": lambda learned: by_map(learned, 2),
    "BBSE, hard": lambda learned: by_confusion(learned, 1e-6, is_soft=False),
    "BBSE, soft": lambda learned: by_confusion(learned, 1e-6, is_soft=True),
    "RLLS, ridge 0.001": lambda learned: by_confusion(learned, 1e-3, is_soft=True),
}


def rows_of(experiment: Experiment, cell: Cell, run_folder: RunFolder, epochs: int) -> list[list[object]]:
    """Trains the posterior of one split and returns one row per variant."""
    splits = splits_of(experiment, cell, "cpu")
    prepare_starts(experiment, starts_of([cell]), run_folder, "cpu")
    (model,) = load_starts(experiment, cell, run_folder, splits, "cpu")
    pool_labels = labels_of(splits.pool)
    assert pool_labels is not None
    truth_C = pool_labels.bincount(minlength=splits.num_classes).double() / len(pool_labels)
    posterior, generator = Posterior(), torch.Generator().manual_seed(cell.seed)
    left = range(len(pool_labels))
    reader = Reader(batch_size=1000, progress=False)
    evidence = gather(
        *(model, LAYERS, splits.validation, splits.pool, left, {}, reader, generator), precision="float32"
    )
    torch.manual_seed(cell.seed)
    network, note = posterior.choose(evidence)
    head = fit_head(evidence, torch.ones(len(evidence.labels), dtype=torch.bool))
    test = splits.test.tensors
    found: list[list[object]] = []

    def add(variant: str, mix_C: Tensor, temperature: float, test_logits: Tensor | None = None) -> None:
        rare, true_rare = (float(share_C[list(experiment.rare)].sum()) for share_C in (mix_C, truth_C))
        numbers = (
            *(rare, true_rare, rare / true_rare, float((mix_C - truth_C).abs().sum())),
            float((truth_C * (truth_C / mix_C).log()).sum()),
            float("nan") if test_logits is None else float(functional.cross_entropy(test_logits, test[1])),
        )
        texts = ["" if number != number else f"{number:.5f}" for number in numbers]
        names = [experiment.dataset, cell.imbalance, cell.validation_size, cell.seed, variant]
        found.append([*names, *texts, f"{temperature:.3f}", epochs, source_commit()])

    for name, candidate in (("", network), ("head, ", head)):
        if not name and isinstance(network, Head):
            print(note)
        learned, members = learn(posterior, evidence, candidate)
        tested = None if isinstance(candidate, Head) else candidate(Seen(test[0], test[0])).double()
        for kind in SCALINGS if not name else ("none", "temperature", "BCTS, ridge 5"):
            calibrate = SCALINGS[kind](learned)
            logits_UC = calibrate(learned.sample_UC)
            scaled = None if tested is None else calibrate(tested)
            add(f"{name}{kind}", em(learned, logits_UC), learned.temperature, scaled)
            if members and kind in ("none", "temperature", "BCTS, ridge 5"):
                together = torch.stack([calibrate(part).softmax(dim=1) for part in learned.fold_logits])
                parts = torch.stack([calibrate(member(Seen(test[0], test[0])).double()) for member in members])
                mean = parts.softmax(dim=2).mean(dim=0).log()
                add(f"fold ensemble, {kind}", em(learned, together.mean(dim=0).log()), learned.temperature, mean)
        for kind, estimate in OTHERS.items() if not name else ():
            add(kind, estimate(learned), learned.temperature)
    return found


def learn(posterior: Posterior, evidence: Evidence, candidate: Candidate) -> tuple[Learned, Sequence[Candidate]]:
    """Returns the candidate's predictions and, if it is a network, the candidates trained without each fold."""
    held = posterior.out_of_fold(evidence, candidate)
    members = () if isinstance(candidate, Head) else held.candidates
    return (
        Learned(
            labels_V=held.labels,
            out_of_fold_VC=held.logits,
            fold_logits=tuple(member(evidence.sample).double() for member in members),
            sample_UC=candidate(evidence.sample).double(),
            prior_C=evidence.prior.double(),
            floor=posterior.floor,
            temperature=held.temperature,
        ),
        members,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)), help="one cut each")
    parser.add_argument("--imbalance", type=int, nargs="+", default=[100, 10, 1])
    parser.add_argument("--validation", type=int, nargs="+", default=[100, 300, 1000], help="sizes M")
    parser.add_argument("--epochs", type=int, default=2, help="of the pretraining; experiments take 8")
    parser.add_argument("--folder", type=Path, default=Path("runs/pool_prior"), help="of the pretrained networks")
    parser.add_argument("--output", type=Path, default=Path("docs/results/pool_prior.csv"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run_folder = RunFolder(arguments.folder)
    (arguments.folder / "starts").mkdir(parents=True, exist_ok=True)
    recipe = load_recipe(f"{Path(__file__).parents[1] / 'recipes' / 'mnist.py'}:posterior")
    experiment = replace(
        recipe.only(("fisher posterior L80",)),
        seeds=max(arguments.seeds) + 1,
        imbalances=tuple(arguments.imbalance),
        validation_sizes=tuple(arguments.validation),
        pretraining={"epochs": arguments.epochs, "step_size": max(1, arguments.epochs * 3 // 8)},
    )
    cells = [cell for cell in experiment.cells() if cell.seed in arguments.seeds]
    for cell in sorted(cells, key=lambda cell: -cell.imbalance):
        if key_of(cell) not in finished(arguments.output):
            append(arguments.output, rows_of(experiment, cell, run_folder, arguments.epochs))
            print(*key_of(cell), flush=True)


def key_of(cell: Cell) -> tuple[str, ...]:
    return str(cell.imbalance), str(cell.validation_size), str(cell.seed)


def finished(path: Path) -> set[tuple[str, ...]]:
    """Returns the splits that the table already contains."""
    if not path.exists():
        return set()
    with path.open(newline="", encoding="utf-8") as file:
        return {(row["imbalance"], row["validation_size"], row["seed"]) for row in csv.DictReader(file)}


def append(path: Path, rows: Sequence[Sequence[object]]) -> None:
    """Appends the rows of one split in a single write, so that the table contains either all of its rows or none."""
    lines = rows if path.exists() else [COLUMNS, *rows]
    with path.open("a", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    main()
