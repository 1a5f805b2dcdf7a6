"""The settings of an experiment and its cells, one per combination of settings. Does not import torch."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import product
from typing import Any

from rarefish.errors import ArgumentError, nearest

STARTS = ("pretrained", "random")
RESTARTS = ("cold", "warm")
BASELINES = ("trusted_only", "posterior_alone")
"""Models without pool labels: the network trained only on the trusted images, and the posterior's classifier."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """An acquisition with its settings, and a name for charts and records."""

    name: str
    acquisition: str
    settings: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the acquisition: samples, kernel, labels, layers …"""
    members: int = 1
    """Number of networks in the ensemble."""

    @property
    def is_baseline(self) -> bool:
        return self.acquisition in BASELINES

    @property
    def estimator(self) -> str:
        """The label estimator of the acquisition, or empty if it has none."""
        if self.acquisition == "fisher_true":
            return "true"
        learns = self.acquisition == "fisher" or self.acquisition.startswith("posterior_")
        return str(self.settings.get("labels", "posterior" if learns else ""))

    @property
    def learns_trusted_labels(self) -> bool:
        """Whether a classifier is trained on the labels of the validation set."""
        return self.is_baseline or self.estimator.lower().startswith("posterior")

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """How the pool is biased, and conditions that make the task harder."""

    each_cut: bool = False
    """If True, every rare class keeps 1/imbalance of its images. Otherwise, all rare classes together have 1/imbalance
    of the number of common images."""
    long_tail: bool = False
    """Let class sizes in the pool decrease exponentially; the last is `imbalance` times smaller than the first."""
    validation_imbalance: int = 1
    """In the validation set, the rare classes together have 1/ratio of the number of common images."""
    validation_noise: float = 0.0
    """Fraction of the validation labels that are wrong."""
    junk: int = 0
    """Number of pool images of no class: images with shuffled quarters, for which the oracle has no label."""
    train_on_validation: bool = False
    """Train the model on the validation set as well as on the labeled pool images."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """All settings that determine the results of an experiment."""

    name: str
    dataset: str
    """A name in `experiments.datasets.DATASETS` or `SPLIT_DATASETS`."""
    model: str
    methods: tuple[Method, ...]
    baselines: tuple[Method, ...] = ()
    """Models without pool labels to compare with; their acquisition is one of `BASELINES`. They are measured once per
    seed and recorded as round 0. `posterior_alone` accepts the settings of `fisher`: labels, layers."""
    seeds: int = 10
    rounds: int = 10
    budget: int = 125
    rare: tuple[int, ...] = (5, 6, 7, 8, 9)
    imbalances: tuple[int, ...] = (100,)
    """The rare classes together have 1/ratio of the number of common images."""
    validation_sizes: tuple[int, ...] = (10_000,)
    holdout: int = 10_000
    """Number of images kept out of the pool, from which all validation sets are drawn."""
    validation_is_test: bool = False
    """Draw validation sets from the test set and hold out nothing, as the paper does on ImageNet. Methods that use such
    a validation set see the test images, although the model is not trained on them."""
    image_size: int = 224
    """Height and width to which image files are resized; images in arrays are not resized."""
    starts: tuple[str, ...] = ("pretrained",)
    restarts: tuple[str, ...] = ("cold",)
    training: dict[str, Any] = field(default_factory=dict)
    """Arguments of `training.config.Training` that differ from the defaults."""
    pretraining: dict[str, Any] = field(default_factory=lambda: {"epochs": 8, "step_size": 3})
    snapshot_rounds: tuple[int, ...] = ()
    """Rounds after which the features of test images are saved for t-SNE, for the first seed only."""
    circumstances: Circumstances = Circumstances()
    best_epoch: bool = False
    """Also record the best test accuracy over all epochs, as in the paper. It is optimistic: only for comparison."""

    def __post_init__(self) -> None:
        for what in ("seeds", "rounds", "budget"):
            if getattr(self, what) < 1:
                raise ArgumentError(f"{what} must be at least 1, not {getattr(self, what)}.")
        for values, known in ((self.starts, STARTS), (self.restarts, RESTARTS)):
            for value in values:
                if value not in known:
                    raise ArgumentError(f"There is no {value!r}. {nearest(value, known)}")
        if self.image_size < 1:
            raise ArgumentError(f"image_size must be at least 1, not {self.image_size}.")
        if self.validation_is_test and self.holdout:
            raise ArgumentError(f"With validation_is_test, nothing is held out. Set holdout=0, not {self.holdout}.")
        if max(self.validation_sizes) > self.holdout and not self.validation_is_test:
            raise ArgumentError(
                f"{max(self.validation_sizes)} validation images do not fit into a holdout of {self.holdout}."
            )
        names = [method.name for method in (*self.methods, *self.baselines)]
        if len(set(names)) != len(names):
            raise ArgumentError(f"Two methods have the same name: {', '.join(names)}.")
        for baseline in self.baselines:
            if not baseline.is_baseline:
                raise ArgumentError(
                    f"There is no baseline {baseline.acquisition!r}. {nearest(baseline.acquisition, BASELINES)}"
                )
        if self.validation_is_test:
            self._check_test_is_unseen()

    def _check_test_is_unseen(self) -> None:
        """Raises ArgumentError if a model would be trained on the validation set although it is the test set."""
        learning = [method.name for method in (*self.methods, *self.baselines) if method.learns_trusted_labels]
        if self.circumstances.train_on_validation:
            learning.append("train_on_validation")
        if learning:
            raise ArgumentError(
                f"{', '.join(learning)} would learn from the test labels, because validation_is_test=True. "
                "Leave them out, or draw the validation set from the training images: set validation_is_test=False and "
                "holdout= in the recipe."
            )

    def __hash__(self) -> int:
        return hash((self.name, self.dataset, self.model))

    def only(self, methods: tuple[str, ...] = (), **changes: Any) -> "Experiment":
        """Returns the experiment with only some of its methods, and with changed settings."""
        known = {method.name: method for method in self.methods}
        for name in methods:
            if name not in known:
                raise ArgumentError(f"The experiment {self.name!r} has no method {name!r}. {nearest(name, known)}")
        chosen = tuple(known[name] for name in methods) if methods else self.methods
        return replace(self, methods=chosen, **changes)

    def cells(self) -> Iterator["Cell"]:
        """Yields every combination, with seeds in the outer loop, so that complete comparisons are available early."""
        varied = self.imbalances, self.validation_sizes, self.starts, self.restarts, self.methods
        for seed, imbalance, size, start, restart, method in product(range(self.seeds), *varied):
            yield Cell(method, seed, imbalance, size, start, restart)

    def baseline_cells(self) -> Iterator["Cell"]:
        """Yields a cell per baseline, seed and setting except for restarts, since a baseline is trained only once."""
        varied = self.imbalances, self.validation_sizes, self.starts, self.baselines
        for seed, imbalance, size, start, baseline in product(range(self.seeds), *varied):
            yield Cell(baseline, seed, imbalance, size, start, self.restarts[0])

    def num_records(self, cell: "Cell") -> int:
        """Returns the number of records of a finished cell: one per round, or one for a baseline."""
        return 1 if cell.method.is_baseline else self.rounds

    def to_json(self) -> dict[str, Any]:
        """Returns all settings as plain JSON values."""
        return json.loads(json.dumps(asdict(self)))


@dataclass(frozen=True)
class Cell:
    """One run of all rounds: a method, a seed and one value of each varied setting."""

    method: Method
    seed: int
    imbalance: int
    validation_size: int
    start: str
    restart: str

    @property
    def key(self) -> str:
        """A file name that is the same for equal settings, and thus for equal results."""
        plain = json.dumps(asdict(self), sort_keys=True)
        name = "".join(letter if letter.isalnum() else "_" for letter in self.method.name)
        return f"{name}-s{self.seed}-{hashlib.sha256(plain.encode()).hexdigest()[:10]}"


MAY_DIFFER = {"name", "seeds", "methods", "baselines", "rounds"}
"""Settings that may differ when a run is resumed, because they add cells or rounds without changing existing results.
A method or baseline must still have the same settings under the same name."""


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Returns the differences between two experiments' settings with both values, except for those that may differ."""
    plain = Experiment(name="", dataset="", model="", methods=()).to_json()
    # In older runs, a setting that was added later had its default value.
    old = {**plain, **old, "circumstances": {**plain["circumstances"], **old.get("circumstances", {})}}
    pairs = [(f.name, old[f.name], new.get(f.name)) for f in fields(Experiment) if f.name not in MAY_DIFFER]
    known = {method["name"]: method for method in (*old["methods"], *old["baselines"])}
    pairs += [(f"method {m['name']!r}", known.get(m["name"], m), m) for m in (*new["methods"], *new["baselines"])]
    return [f"{name}: was {then}, is {now}" for name, then, now in pairs if then != now]


def with_methods_of(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Returns the new settings with the old methods and baselines added, since the run has records of all of them."""
    joined = {}
    for kind in ("methods", "baselines"):
        names = {method["name"] for method in new[kind]}
        joined[kind] = [*new[kind], *(m for m in old.get(kind, ()) if m["name"] not in names)]
    return new | joined
