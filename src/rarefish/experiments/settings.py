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


@dataclass(frozen=True, kw_only=True)
class Method:
    """An acquisition with its settings, and its name in charts and records."""

    name: str
    acquisition: str
    settings: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the acquisition: samples, kernel, labels, layers …"""
    members: int = 1
    """Number of networks in the ensemble."""

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """How the pool is biased, and conditions that make the task harder for the method."""

    each_cut: bool = False
    """Every rare class keeps 1/imbalance of its images; otherwise all rare classes together have 1/imbalance of the
    number of common images."""
    long_tail: bool = False
    """Class sizes in the pool decrease exponentially; the last class is `imbalance` times smaller than the first."""
    validation_imbalance: int = 1
    """The rare classes together have 1/ratio of the number of common images in the validation set too."""
    validation_noise: float = 0.0
    """Fraction of the validation labels that are wrong."""
    junk: int = 0
    """Number of pool images without a class: images with shuffled quarters, for which the oracle has no label."""
    train_on_validation: bool = False
    """The model is trained on the validation set as well as on the labeled pool images."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """All settings that determine the results of an experiment."""

    name: str
    dataset: str
    """A name in `experiments.datasets.DATASETS`."""
    model: str
    methods: tuple[Method, ...]
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
    """Draw validation sets from the test set and hold nothing out, as the paper does on ImageNet. A method that uses
    such a validation set sees the test images, although it is not trained on them."""
    image_size: int = 224
    """Height and width that image files are resized to; images in arrays are not resized."""
    starts: tuple[str, ...] = ("pretrained",)
    restarts: tuple[str, ...] = ("cold",)
    training: dict[str, Any] = field(default_factory=dict)
    """Arguments of `training.loop.Training` that differ from the defaults."""
    pretraining: dict[str, Any] = field(default_factory=lambda: {"epochs": 8, "step_size": 3})
    snapshot_rounds: tuple[int, ...] = ()
    """Rounds after which the features of test images are saved for t-SNE, for the first seed only."""
    circumstances: Circumstances = Circumstances()
    best_epoch: bool = False
    """Also record the best test accuracy over all epochs, as in the paper; it is optimistic, for comparison only."""

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
            raise ArgumentError(f"Validation sets come from the test set: set holdout=0, not {self.holdout}.")
        if max(self.validation_sizes) > self.holdout and not self.validation_is_test:
            raise ArgumentError(
                f"{max(self.validation_sizes)} validation images do not fit a holdout of {self.holdout}."
            )
        names = [method.name for method in self.methods]
        if len(set(names)) != len(names):
            raise ArgumentError(f"Two methods have the same name: {', '.join(names)}.")

    def only(self, methods: tuple[str, ...] = (), **changes: Any) -> "Experiment":
        """Returns the experiment with only some of its methods, or with changed settings."""
        known = {method.name: method for method in self.methods}
        for name in methods:
            if name not in known:
                raise ArgumentError(f"The experiment {self.name!r} has no method {name!r}. {nearest(name, known)}")
        chosen = tuple(known[name] for name in methods) if methods else self.methods
        return replace(self, methods=chosen, **changes)

    def cells(self) -> Iterator["Cell"]:
        """Yields every combination with the seeds outermost, so that complete comparisons are available early."""
        varied = self.imbalances, self.validation_sizes, self.starts, self.restarts, self.methods
        for seed, imbalance, size, start, restart, method in product(range(self.seeds), *varied):
            yield Cell(method, seed, imbalance, size, start, restart)

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
        """A file name that is the same for equal settings and so for equal results."""
        plain = json.dumps(asdict(self), sort_keys=True)
        name = "".join(letter if letter.isalnum() else "_" for letter in self.method.name)
        return f"{name}-s{self.seed}-{hashlib.sha256(plain.encode()).hexdigest()[:10]}"


MAY_DIFFER = {"name", "seeds", "methods", "rounds"}
"""Settings that may differ when a run is resumed: they add cells or rounds and change no existing result. A method
must still have the same settings under the same name."""


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Returns the differences between two settings, with both values, except for those that may differ."""
    plain = Experiment(name="", dataset="", model="", methods=()).to_json()
    # A setting that was added later had its default value in older runs.
    old = {**plain, **old, "circumstances": {**plain["circumstances"], **old.get("circumstances", {})}}
    pairs = [(f.name, old[f.name], new.get(f.name)) for f in fields(Experiment) if f.name not in MAY_DIFFER]
    known = {method["name"]: method for method in old["methods"]}
    pairs += [(f"method {m['name']!r}", known.get(m["name"], m), m) for m in new["methods"]]
    return [f"{name}: {then} then, {now} now" for name, then, now in pairs if then != now]


def with_methods_of(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Returns the new settings with the old methods appended, since the run has records of all of them."""
    names = {method["name"] for method in new["methods"]}
    return new | {"methods": [*new["methods"], *(m for m in old.get("methods", ()) if m["name"] not in names)]}
