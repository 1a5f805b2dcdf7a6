"""A linear classifier on features, with a ridge chosen by cross-validation and probabilities calibrated out of fold.

The head is a multinomial logistic regression on scaled features. With few rows, the standard deviation of a feature is
often far too small, and dividing by it would let rare large values dominate. Therefore, features are divided by the
geometric mean of their own standard deviation and that of all features. Folds are stratified. The fold of a row depends
only on its content, so copies share a fold and the order of rows does not matter. The ridge and the temperature are
those with the lowest macro loss on held-out rows: the mean over classes of the mean cross-entropy within each class.
"""

import importlib.util
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rarefish.errors import ArgumentError, DataError, LabelError, ModelError, NotFiniteError, list_some, nearest
from rarefish.io import replace_whole
from rarefish.training.config import Training
from rarefish.training.logistic_regression import (
    BLOCK,
    Coordinates,
    Problems,
    minimize,
    ridge_path,
    to_coordinates,
)
from rarefish.training.loop import fit

FORMAT = "rarefish.linear_head 1"
RIDGES = tuple(10 ** (exponent / 2) for exponent in range(1, -9, -1))
"""Ridges to try by default, from strong to weak, as multiples of the number of features that vary."""
BALANCES = ("logit", "class", "none")
ROUGH, CLOSE, FLOAT32 = 3e-3, 1e-3, 1e-6
"""Tolerances of the folds when ridges are compared and for the chosen ridge, and the smallest one for float32."""
FEW, FEW_CLOSE = 300, 1e-4
"""With at most this many rows, the folds are solved to this tolerance, which takes a fraction of a second."""
SLACK = 0.01
"""The strongest ridge is chosen whose loss exceeds the lowest by at most this fraction, since many are as good."""
AT_ONCE = 2**25
"""Maximum number of rows × folds × classes that are solved together."""
CONSTANT = 1e-6
"""A feature whose standard deviation is below this fraction of its largest value does not vary."""
DIRECTIONS = 3
"""Number of random directions along which rows are compared."""
ROUNDING = 1e-5
"""Rows whose distance along each of them is below this fraction of the typical length are copies of each other."""
LOG_TEMPERATURES = (-3.0, 3.0)
"""Range of the logarithm of the temperature."""
HIDDEN_TRAINING = Training(
    epochs=30,
    batch_size=64,
    optimizer="adamw",
    lr=3e-3,
    weight_decay=0.05,
    cosine=True,
    lr_per_step=True,
    merge_small_batch=False,
)
"""Settings for training a head with a hidden layer; more epochs if these are fewer than `HIDDEN_STEPS` steps."""
HIDDEN_STEPS = 1000


@dataclass(frozen=True, eq=False)
class LinearHead:
    """A linear layer on features or on one hidden layer."""

    weight: Float[Tensor, "C inputs"]
    """Weight of the linear layer; it and the bias include the scaling of the features and the temperature."""
    bias: Float[Tensor, " C"]
    prior: Float[Tensor, " C"]
    """Class proportions for which the probabilities are valid; uniform over the classes with rows if balanced."""
    temperature: float
    """Temperature, which is already included in the weight and the bias."""
    ridge: float
    """L2 penalty, as in `ridge / 2 * |weight|^2` on scaled features; 0 with a hidden layer."""
    ridge_losses: dict[float, float] = field(default_factory=dict)
    """For each ridge tried, the loss on held-out rows at the best temperature."""
    out_of_fold_loss: float = math.nan
    """Macro cross-entropy of held-out rows at the temperature, or their mean cross-entropy without balance."""
    out_of_fold_accuracy: float = math.nan
    out_of_fold_recall: float = math.nan
    """Mean over classes of the fraction of held-out rows that are classified correctly."""
    out_of_fold_probabilities: Float[Tensor, "N C"] = field(default_factory=lambda: torch.empty(0, 0), repr=False)
    """Probabilities of each row from the head that was fitted without it. They are NaN for rows that were never held
    out: those with weight 0, and those of a class that has no other row."""
    hidden: tuple[Float[Tensor, "H D"], Float[Tensor, " H"]] | None = None
    """Weight and bias of a hidden layer with ReLU, if there is one."""

    @property
    def num_features(self) -> int:
        return (self.hidden[0] if self.hidden else self.weight).shape[1]

    @torch.no_grad()
    def logits(self, features: Tensor | np.ndarray) -> Float[Tensor, "N C"]:
        """Returns calibrated logits, whose softmax is `probabilities()`."""
        rows = _as_tensor(features).to(self.weight)
        if rows.ndim != 2 or rows.shape[1] != self.num_features:
            raise ArgumentError(
                f"The head needs rows of {self.num_features} features, not a shape of {tuple(rows.shape)}."
            )
        if self.hidden:
            rows = functional.linear(rows, *self.hidden).relu()
        return functional.linear(rows, self.weight, self.bias)

    def probabilities(self, features: Tensor | np.ndarray) -> Float[Tensor, "N C"]:
        """Returns the probability of each class for the class proportions in `prior`."""
        return self.logits(features).softmax(dim=1)

    def module(self) -> nn.Module:
        """Returns a copy as `nn.Linear` or, with a hidden layer, as `nn.Sequential`; its output is `logits()`."""
        if not self.hidden:
            return _linear(self.weight, self.bias)
        return nn.Sequential(_linear(*self.hidden), nn.ReLU(), _linear(self.weight, self.bias))

    def save(self, path: Path | str) -> None:
        """Writes the head to a .safetensors file, atomically."""
        _needs_safetensors(path)
        from safetensors.torch import save  # pyright: ignore[reportMissingImports]

        parts = dict(zip(("hidden_weight", "hidden_bias"), self.hidden or (), strict=False))
        tensors = {name: getattr(self, name) for name in TENSORS} | parts
        values = {name: getattr(self, name) for name in NUMBERS} | {"ridge_losses": list(self.ridge_losses.items())}
        data = save(
            {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
            {"format": FORMAT, "values": json.dumps(values)},
        )
        replace_whole(Path(path), lambda file: file.write(data))

    @staticmethod
    def load(path: Path | str) -> "LinearHead":
        """Returns a head that was written by `save()`."""
        _needs_safetensors(path)
        from safetensors import SafetensorError, safe_open  # pyright: ignore[reportMissingImports]

        if not Path(path).is_file():
            raise DataError(f"The file {path} does not exist.")
        try:
            with safe_open(str(path), framework="pt") as file:
                about = file.metadata() or {}
                tensors: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path} is damaged: {str(error).splitlines()[0]}. Save the head again.") from error
        if about.get("format") != FORMAT:
            raise ModelError(
                f"{path} does not contain a head in this version's format. Give a file written by LinearHead.save()."
            )
        values = json.loads(about["values"])
        values["ridge_losses"] = dict(values["ridge_losses"])
        hidden = tuple(tensors.pop(name) for name in ("hidden_weight", "hidden_bias") if name in tensors)
        return LinearHead(**tensors, **values, hidden=(hidden[0], hidden[1]) if hidden else None)


TENSORS = ("weight", "bias", "prior", "out_of_fold_probabilities")
NUMBERS = ("temperature", "ridge", "out_of_fold_loss", "out_of_fold_accuracy", "out_of_fold_recall")


def fit_linear_head(
    features: Tensor | np.ndarray,
    labels: Tensor | np.ndarray | Sequence[int],
    num_classes: int,
    *,
    sample_weight: Tensor | np.ndarray | None = None,
    balance: str = "logit",
    ridges: Sequence[float] | None = None,
    folds: int = 5,
    hidden: int | None = None,
    tolerance: float = FLOAT32,
    generator: torch.Generator | None = None,
) -> LinearHead:
    """Returns a head fitted to labeled features, with the ridge and temperature that are best on held-out rows.

    Args:
        features: A table (rows, features) of finite numbers of any precision.
        labels: The class of each row, from 0 to `num_classes` - 1.
        sample_weight: The weight of each row. A row with weight 2 counts as two rows; rows with weight 0 are left out.
        balance: How to compensate for class frequencies. `logit` subtracts their logarithm from the logits, `class`
            weights the rows so that all classes count equally, and `none` does nothing.
        ridges: L2 penalties on scaled features to choose from; by default ten values proportional to the number
            of features. A single value is used as it is.
        folds: Number of parts of the cross-validation. 0 means none; there must then be one ridge, and the temperature
            is 1.
        hidden: Width of a hidden layer, which is trained with AdamW and without a ridge, and takes much longer.
        tolerance: The fit ends when a step is expected to lower the loss by less than this fraction.
        generator: The random generator for the folds; by default one with seed 0.
    """
    _check_settings(balance, ridges, folds, hidden, tolerance, sample_weight is not None)
    generator = generator or torch.Generator().manual_seed(0)
    rows = _check_features(features)
    labels_N = _check_labels(labels, len(rows), num_classes).to(rows.device)
    weight_N = _check_weight(sample_weight, len(rows)).to(rows.device)
    used = (weight_N > 0).nonzero()[:, 0]
    found = labels_N[used].unique().tolist()
    if len(found) < 2:
        which = f"All {len(used)} rows belong to class {found[0]}." if found else "All rows have weight 0."
        raise LabelError(f"{which} A head needs rows of at least two classes.")
    data = _prepare(rows[used], labels_N[used], weight_N[used], num_classes, balance)
    fold_N = assign_folds(rows[used], data.labels, folds, generator)
    learner = _Hidden(data, hidden, generator) if hidden else _Linear.of(data, ridges, tolerance)
    probability = rows.new_full((len(rows), num_classes), math.nan)
    is_held = fold_N >= 0
    if not is_held.any():
        return replace(learner.finish(learner.untested(), 1.0), out_of_fold_probabilities=probability)
    held_labels, sample_weight = data.labels[is_held], data.sample_weight[is_held]
    macro_weight = equal_classes(sample_weight, held_labels)
    scoring = sample_weight if balance == "none" else macro_weight
    losses = dict[float, float]()
    good = list[_Candidate]()  # from strong to weak
    for candidate in learner.candidates(fold_N):
        _, losses[candidate.ridge] = best_temperature(candidate.logits[is_held], held_labels, scoring)
        limit = (1 + SLACK) * min(losses.values())
        good = [one for one in (*good, candidate) if losses[one.ridge] <= limit]
    best = learner.refine(good[0], fold_N)
    temperature, loss = best_temperature(best.logits[is_held], held_labels, scoring)
    is_right = (best.logits[is_held].argmax(dim=1) == held_labels).double()
    probability[used] = (best.logits / temperature).softmax(dim=1).to(probability)
    return replace(
        learner.finish(best, temperature),
        ridge_losses=losses,
        out_of_fold_loss=loss,
        out_of_fold_accuracy=float(is_right @ sample_weight / sample_weight.sum()),
        out_of_fold_recall=float(is_right @ macro_weight / macro_weight.sum()),
        out_of_fold_probabilities=probability,
    )


def assign_folds(
    features: Float[Tensor, "N D"], labels: Int[Tensor, " N"], folds: int, generator: torch.Generator
) -> Int[Tensor, " N"]:
    """Returns the fold in which each row is held out, or -1 for never; each class is spread over the folds.

    Folds depend on the content of a row, so that copies of a row are held out together. The only row of a class is
    never held out, because the head that predicts it would not know the class.
    """
    fold_N = torch.full_like(labels, -1)
    if folds == 0:
        return fold_N
    content = number_contents(features, generator).tolist()
    contents_of = defaultdict[int, set[int]](set)
    for row, label in enumerate(labels.tolist()):
        contents_of[label].add(content[row])
    fold_of = {next(iter(only)): -1 for only in contents_of.values() if len(only) == 1}
    count = 0
    for label in sorted(contents_of):
        for one in sorted(contents_of[label] - fold_of.keys()):
            fold_of[one] = count % folds
            count += 1
    return torch.tensor([fold_of[one] for one in content], device=labels.device)


def number_contents(features: Float[Tensor, "N D"], generator: torch.Generator) -> Int[Tensor, " N"]:
    """Returns a number per row that is the same for copies, even if they differ by rounding errors.

    The numbers are the ranks of the rows along a random direction, which such errors hardly ever change. Hashes of
    rounded rows would change wherever one of many features is close to the limit between two rounded values.
    """
    shape, device = (features.shape[1], DIRECTIONS), generator.device
    directions = torch.randn(shape, dtype=torch.float64, generator=generator, device=device).to(features.device)
    places_N3 = torch.cat([rows.double() @ directions for rows in features.split(BLOCK)])
    order = places_N3[:, 0].argsort(stable=True)
    distance_N3 = places_N3[order].diff(dim=0).abs()
    is_new = (distance_N3 > ROUNDING * places_N3.square().mean().sqrt()).any(dim=1)
    number = torch.zeros_like(order)
    number[order[1:]] = is_new.cumsum(dim=0)
    return number


@dataclass(frozen=True)
class _Data:
    """Rows for the fit, centered and scaled, all with positive weight."""

    features: Float[Tensor, "N D"]
    labels: Int[Tensor, " N"]
    sample_weight: Float[Tensor, " N"]
    weight: Float[Tensor, " N"]
    """Weights in the loss: those of the samples, multiplied by those of their classes if `balance` is `class`."""
    balance: str
    mean: Float[Tensor, " D"]
    scale: Float[Tensor, " D"]
    """Scale of each feature, which is infinite for features that do not vary."""
    prior: Float[Tensor, " C"]
    """Class proportions for which the head's probabilities are valid."""
    log_shift: Float[Tensor, " C"]
    """Value subtracted from the logits of a fit."""

    def unscaled(self, weight_DC: Tensor, bias_C: Tensor) -> tuple[Float[Tensor, "C D"], Float[Tensor, " C"]]:
        """Returns the weight and bias for the original features."""
        weight_CD = (weight_DC.double() / self.scale[:, None]).T.contiguous()
        return weight_CD.to(self.features), (bias_C.double() - weight_CD @ self.mean).to(self.features)


@dataclass(frozen=True)
class _Candidate:
    """A way to fit the head, with its logits for held-out rows."""

    ridge: float
    logits: Float[Tensor, "N C"]
    """Logits of held-out rows; NaN for rows that are never held out."""
    solutions: tuple[Tensor, ...] = ()
    """Solutions (K, P, C) of the folds, in groups that are solved together."""


def _prepare(features: Tensor, labels: Tensor, sample_weight: Tensor, num_classes: int, balance: str) -> _Data:
    total_C = sample_weight.new_zeros(num_classes).index_add_(0, labels, sample_weight)
    frequency_C, has_rows_C = total_C / total_C.sum(), total_C > 0
    uniform_C = has_rows_C / has_rows_C.sum()
    class_weight_C = (uniform_C / frequency_C).where(has_rows_C & (balance == "class"), 1)
    mean, deviation = _moments(features, sample_weight)
    largest = features.abs().amax(dim=0).clamp_min(torch.finfo(features.dtype).tiny)
    varies = deviation > CONSTANT * largest
    typical = deviation[varies].square().mean().sqrt()
    scale = (deviation * typical).sqrt().masked_fill(~varies, math.inf)
    return _Data(
        features=(features - mean.to(features)) / scale.to(features),
        labels=labels,
        sample_weight=sample_weight,
        weight=sample_weight * class_weight_C[labels],
        balance=balance,
        mean=mean,
        scale=scale,
        prior=frequency_C if balance == "none" else uniform_C.to(frequency_C),
        log_shift=frequency_C.log().where(has_rows_C & (balance == "logit"), 0),
    )


def _moments(features: Tensor, weight: Tensor) -> tuple[Float[Tensor, " D"], Float[Tensor, " D"]]:
    """Returns the weighted mean and standard deviation, computed in float64 block by block."""
    blocks = list(zip(features.split(BLOCK), (weight / weight.sum()).split(BLOCK), strict=True))
    mean = torch.stack([share @ rows.double() for rows, share in blocks]).sum(dim=0)
    squares = [share @ (rows.double() - mean).square() for rows, share in blocks]
    return mean, torch.stack(squares).sum(dim=0).sqrt()


@dataclass(frozen=True)
class _Linear:
    """Fits logistic regressions."""

    data: _Data
    coordinates: Coordinates
    ridges: tuple[float, ...]
    """Ridges from strong to weak."""
    ladder: tuple[float, ...]
    """Ridges from strong to weak that lead to a single one."""
    tolerance: float

    @staticmethod
    def of(data: _Data, ridges: Sequence[float] | None, tolerance: float) -> "_Linear":
        ladder = tuple(factor * max(1, int(data.scale.isfinite().sum())) for factor in RIDGES)
        chosen = tuple(sorted({float(ridge) for ridge in ridges}, reverse=True)) if ridges is not None else ladder
        return _Linear(data, to_coordinates(data.features, data.weight), chosen, ladder, tolerance)

    def candidates(self, fold_N: Tensor) -> Iterator[_Candidate]:
        """Yields a candidate per ridge, with rough solutions if there are many rows."""
        groups, tolerance = self._groups(fold_N), FEW_CLOSE if len(fold_N) <= FEW else ROUGH
        paths = [ridge_path(problems, self.ridges, tolerance) for problems in groups]
        for ridge, *solutions in zip(self.ridges, *paths, strict=True):
            yield self._candidate(ridge, groups, solutions, fold_N)

    def refine(self, candidate: _Candidate, fold_N: Tensor) -> _Candidate:
        """Returns the candidate with more accurate solutions."""
        groups, tolerance = self._groups(fold_N), FEW_CLOSE if len(fold_N) <= FEW else CLOSE
        solutions = [
            minimize(problems, candidate.ridge, start, tolerance)[0]
            for problems, start in zip(groups, candidate.solutions, strict=True)
        ]
        return self._candidate(candidate.ridge, groups, solutions, fold_N)

    def untested(self) -> _Candidate:
        """Returns a candidate with the middle ridge, for use if no row can be held out."""
        return _Candidate(self.ridges[len(self.ridges) // 2], torch.empty(0, 0))

    def finish(self, candidate: _Candidate, temperature: float) -> LinearHead:
        """Returns the head fitted to all rows."""
        data, ridge = self.data, candidate.ridge
        problems = self._problems(data.weight[:, None])
        if candidate.solutions:
            start = torch.cat(candidate.solutions, dim=1).mean(dim=1, keepdim=True)
        else:
            *_, start = ridge_path(problems, [*(step for step in self.ladder if step > ridge), ridge], ROUGH)
        theta, has_converged = minimize(problems, ridge, start, max(self.tolerance, FLOAT32))
        if self.tolerance < FLOAT32 or not has_converged:
            problems = self._problems(data.weight[:, None], torch.float64)
            theta, _ = minimize(problems, ridge, theta.double(), self.tolerance)
        theta[-1] -= data.log_shift.to(theta)
        weight_DC, bias_C = self.coordinates.to_features(problems.with_absent_classes(theta / temperature)[:, 0])
        weight, bias = data.unscaled(weight_DC, bias_C)
        return LinearHead(weight, bias, data.prior.to(data.features), temperature, ridge)

    def _problems(self, weight_NP: Tensor, dtype: torch.dtype = torch.float32) -> Problems:
        return Problems.of(self.coordinates, self.data.labels, weight_NP, len(self.data.prior), dtype)

    def _groups(self, fold_N: Tensor) -> list[Problems]:
        """Returns a problem for each fold, without its held-out rows."""
        used = fold_N[fold_N >= 0].unique()
        at_once = max(1, AT_ONCE // (len(fold_N) * len(self.data.prior)))
        return self._problems(self.data.weight[:, None] * (fold_N[:, None] != used)).split(at_once)

    def _candidate(
        self, ridge: float, groups: Sequence[Problems], solutions: Sequence[Tensor], fold_N: Tensor
    ) -> _Candidate:
        full = [problems.with_absent_classes(theta) for problems, theta in zip(groups, solutions, strict=True)]
        points, log_shift = groups[0].points, self.data.log_shift
        logits = points.new_full((len(fold_N), len(log_shift)), math.nan)
        for fold, theta in zip(fold_N[fold_N >= 0].unique(), torch.cat(full, dim=1).unbind(1), strict=True):
            logits[fold_N == fold] = points[fold_N == fold] @ theta - log_shift.to(points)
        return _Candidate(ridge, logits, tuple(solutions))


@dataclass(frozen=True)
class _Hidden:
    """Trains networks with one hidden layer."""

    data: _Data
    width: int
    generator: torch.Generator

    def candidates(self, fold_N: Tensor) -> Iterator[_Candidate]:
        """Yields one candidate with the logits of each row from the network that was trained without its fold."""
        data = self.data
        logits = data.features.new_full((len(fold_N), len(data.prior)), math.nan, dtype=torch.float32)
        for fold in fold_N[fold_N >= 0].unique():
            network, is_held = self._train(fold_N != fold), fold_N == fold
            with torch.no_grad():
                logits[is_held] = network(data.features[is_held].float()) - data.log_shift.to(logits)
        yield _Candidate(0.0, logits)

    def refine(self, candidate: _Candidate, fold_N: Tensor) -> _Candidate:
        return candidate

    def untested(self) -> _Candidate:
        return _Candidate(0.0, torch.empty(0, 0))

    @torch.no_grad()
    def finish(self, candidate: _Candidate, temperature: float) -> LinearHead:
        """Returns the head trained on all rows."""
        data = self.data
        first, _, last = self._train(torch.ones_like(data.labels, dtype=torch.bool))
        assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear)
        weight, bias = last.weight / temperature, (last.bias - data.log_shift.to(last.bias)) / temperature
        hidden = data.unscaled(first.weight.T, first.bias)
        weight, bias, prior = (tensor.to(data.features) for tensor in (weight, bias, data.prior))
        return LinearHead(weight, bias, prior, temperature, candidate.ridge, hidden=hidden)

    def _train(self, is_used: Tensor) -> nn.Sequential:
        data = self.data
        seed = int(torch.randint(2**62, (), generator=self.generator, device=self.generator.device))
        with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers = nn.Linear(data.features.shape[1], self.width), nn.ReLU(), nn.Linear(self.width, len(data.prior))
            network = nn.Sequential(*layers).to(data.features.device)
            rows = data.features[is_used].float()
            epochs = max(HIDDEN_TRAINING.epochs, math.ceil(HIDDEN_STEPS * HIDDEN_TRAINING.batch_size / len(rows)))
            training = replace(HIDDEN_TRAINING, epochs=epochs, balanced=data.balance == "class")
            fit(network, rows, data.labels[is_used], training, torch.Generator().manual_seed(seed))
        return network


def best_temperature(
    logits: Float[Tensor, "N C"], labels: Int[Tensor, " N"], weight: Float[Tensor, " N"]
) -> tuple[float, float]:
    """Returns the temperature that minimizes the weighted mean cross-entropy, and that cross-entropy.

    With few rows it stays near 1, because half the square of its logarithm counts as the loss of an additional row.
    """
    share = (weight / weight.sum()).to(logits)
    best = (math.inf, 0.0, 0.0)
    low, high = LOG_TEMPERATURES
    for _ in range(5):
        for log in torch.linspace(low, high, 9, dtype=torch.float64).tolist():
            loss = float(functional.cross_entropy(logits / math.exp(log), labels, reduction="none") @ share)
            best = min(best, (loss + log**2 / 2 / len(labels), log, loss))
        low, high = best[1] - (high - low) / 8, best[1] + (high - low) / 8
    return math.exp(best[1]), best[2]


def equal_classes(weight: Float[Tensor, " N"], labels: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Returns the weights divided by the total weight of the same class."""
    total_C = weight.new_zeros(int(labels.max()) + 1).index_add_(0, labels, weight)
    return weight / total_C[labels]


def _check_settings(
    balance: str,
    ridges: Sequence[float] | None,
    folds: int,
    hidden: int | None,
    tolerance: float,
    is_weighted: bool,
) -> None:
    if balance not in BALANCES:
        raise ArgumentError(f"There is no balance {balance!r}. {nearest(str(balance), BALANCES)}")
    if ridges is not None and (not len(ridges) or not all(0 < ridge < math.inf for ridge in ridges)):
        raise ArgumentError(f"ridges must be one or more finite numbers greater than 0, not {list(ridges)}.")
    if not 0 < tolerance < 1:
        raise ArgumentError(f"tolerance must be between 0 and 1, not {tolerance}.")
    if folds < 0 or folds == 1:
        raise ArgumentError(f"folds must be at least 2, or 0 for no cross-validation, not {folds}.")
    if folds == 0 and hidden is None and (ridges is None or len(ridges) > 1):
        raise ArgumentError(
            "Without folds, no ridge can be chosen. Give a single one, as in ridges=[100], or set folds=5."
        )
    if hidden is None:
        return
    if hidden < 1:
        raise ArgumentError(f"hidden must be at least 1, or None for no hidden layer, not {hidden}.")
    if ridges is not None or is_weighted:
        raise ArgumentError(
            "A hidden layer is trained without ridges and sample_weight. Leave out either them or hidden."
        )


def _check_features(features: Tensor | np.ndarray) -> Float[Tensor, "N D"]:
    """Returns the rows as float32, or as float64 if that is their type; raises an error if a value is not finite."""
    rows = _as_tensor(features)
    if rows.ndim != 2 or not rows.shape[0] or not rows.shape[1]:
        raise DataError(
            f"Features must be a table (rows, features) with at least one of each, not {tuple(rows.shape)}."
        )
    rows = rows if rows.dtype == torch.float64 else rows.float()
    is_bad = ~rows.isfinite().all(dim=1)
    if is_bad.any():
        raise NotFiniteError(
            f"NaN or infinity in the features of {int(is_bad.sum())} of {len(rows)} rows: "
            f"{list_some(is_bad.nonzero()[:, 0].tolist())}. Leave these rows out, or repair them."
        )
    return rows


def _check_labels(labels: Tensor | np.ndarray | Sequence[int], num_rows: int, num_classes: int) -> Int[Tensor, " N"]:
    labels_N = _as_tensor(labels)
    if labels_N.shape != (num_rows,) or labels_N.is_floating_point() or labels_N.dtype == torch.bool:
        kind = f"{tuple(labels_N.shape)} of {str(labels_N.dtype).removeprefix('torch.')}"
        raise LabelError(f"labels must be {num_rows} integers, one per row of features, not {kind}.")
    labels_N = labels_N.long()
    is_wrong = (labels_N < 0) | (labels_N >= num_classes)
    if is_wrong.any():
        values, rows = labels_N[is_wrong].unique().tolist(), is_wrong.nonzero()[:, 0].tolist()
        raise LabelError(
            f"Labels must be 0 to {num_classes - 1} for {num_classes} classes, but found {list_some(values)} in rows "
            f"{list_some(rows)}. Leave out unlabeled rows, or raise num_classes."
        )
    return labels_N


def _check_weight(weight: Tensor | np.ndarray | None, num_rows: int) -> Float[Tensor, " N"]:
    if weight is None:
        return torch.ones(num_rows, dtype=torch.float64)
    weight_N = _as_tensor(weight).double()
    if weight_N.shape != (num_rows,):
        raise ArgumentError(
            f"sample_weight has the shape {tuple(weight_N.shape)}. Give one number for each of the {num_rows} rows."
        )
    is_wrong = ~((weight_N >= 0) & weight_N.isfinite())
    if is_wrong.any():
        rows = list_some(is_wrong.nonzero()[:, 0].tolist())
        raise ArgumentError(f"sample_weight must be finite and at least 0, but is not in rows {rows}.")
    return weight_N


def _as_tensor(values: Tensor | np.ndarray | Sequence[int]) -> Tensor:
    if isinstance(values, np.ndarray) and not values.flags.writeable:
        values = values.copy()  # otherwise, PyTorch warns
    return torch.as_tensor(values)


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype, device="meta")
    layer = layer.to_empty(device=weight.device)
    layer.load_state_dict({"weight": weight, "bias": bias})
    return layer


def _needs_safetensors(path: Path | str) -> None:
    if not importlib.util.find_spec("safetensors"):
        raise ArgumentError(f"{path} needs an additional package: pip install safetensors.")
