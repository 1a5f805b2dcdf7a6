"""What an experiment is: one frozen record of settings, and the cells it falls into. Nothing here needs torch."""

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
    """An acquisition with its settings, under the name it has in charts and records."""

    name: str
    acquisition: str
    settings: dict[str, Any] = field(default_factory=dict)
    """Passed on by name: samples, kernel, labels, layers …"""
    members: int = 1
    """Networks of an ensemble."""

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """How the pool is biased, and what a skeptic asks: things that are not as the method would like them."""

    each_cut: bool = False
    """Every rare class keeps 1/imbalance of its own images, not the rare ones together 1/imbalance of the others."""
    long_tail: bool = False
    """Class sizes of the pool fall exponentially, the last class `imbalance` times smaller than the first."""
    validation_imbalance: int = 1
    """In the validation set, too, the rare classes together are 1/ratio of the number of the others."""
    validation_noise: float = 0.0
    """Share of the validation labels that name another class."""
    junk: int = 0
    """Images of no class in the pool: pool images whose quarters were mixed up. The oracle has no answer for them."""
    train_on_validation: bool = False
    """The task's model learns from the validation set as well as from what is bought."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that decides the numbers of an experiment."""

    name: str
    dataset: str
    """A name of `experiments.data.DATASETS`."""
    model: str
    methods: tuple[Method, ...]
    seeds: int = 10
    rounds: int = 10
    budget: int = 125
    rare: tuple[int, ...] = (5, 6, 7, 8, 9)
    imbalances: tuple[int, ...] = (100,)
    """The rare classes together keep 1/ratio of the number of the others."""
    validation_sizes: tuple[int, ...] = (10_000,)
    holdout: int = 10_000
    """Images kept out of the pool, from which all validation sets are drawn."""
    validation_is_test: bool = False
    """Validation sets are drawn from the test set, and nothing is held out: the paper's ImageNet has no third set.
    Whoever looks at such a validation set has seen the test images, though it learns nothing from them."""
    image_size: int = 224
    """Height and width that image files are brought to; images in arrays stay as they are."""
    starts: tuple[str, ...] = ("pretrained",)
    restarts: tuple[str, ...] = ("cold",)
    training: dict[str, Any] = field(default_factory=dict)
    """Settings of `training.Training` that differ from its defaults."""
    pretraining: dict[str, Any] = field(default_factory=lambda: {"epochs": 8, "step_size": 3})
    snapshot_rounds: tuple[int, ...] = ()
    """Rounds after which the test set's features are kept, for t-SNE; first seed only."""
    circumstances: Circumstances = Circumstances()
    best_epoch: bool = False
    """Also note the best test accuracy over all epochs, as the paper reports it: peeking, for comparison only."""

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
        """The same experiment with some of its methods, or with other settings."""
        known = {method.name: method for method in self.methods}
        for name in methods:
            if name not in known:
                raise ArgumentError(f"The experiment {self.name!r} has no method {name!r}. {nearest(name, known)}")
        chosen = tuple(known[name] for name in methods) if methods else self.methods
        return replace(self, methods=chosen, **changes)

    def cells(self) -> Iterator["Cell"]:
        """Every combination, the seeds outermost: whole comparisons come in early."""
        varied = self.imbalances, self.validation_sizes, self.starts, self.restarts, self.methods
        for seed, imbalance, size, start, restart, method in product(range(self.seeds), *varied):
            yield Cell(method, seed, imbalance, size, start, restart)

    def to_json(self) -> dict[str, Any]:
        """All settings as plain values."""
        return json.loads(json.dumps(asdict(self)))


@dataclass(frozen=True)
class Cell:
    """One run of all rounds: a method, a seed and one of each varied setting."""

    method: Method
    seed: int
    imbalance: int
    validation_size: int
    start: str
    restart: str

    @property
    def key(self) -> str:
        """A name that is the same whenever the same numbers would come out, and fits a file."""
        plain = json.dumps(asdict(self), sort_keys=True)
        name = "".join(letter if letter.isalnum() else "_" for letter in self.method.name)
        return f"{name}-s{self.seed}-{hashlib.sha256(plain.encode()).hexdigest()[:10]}"


FREE = {"name", "seeds", "methods", "rounds"}
"""May differ on resume: they add cells or rounds, and change no number that is already there. But a method of the same
name is the same method."""


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What differs between two settings, both values shown, apart from what may."""
    plain = Experiment(name="", dataset="", model="", methods=()).to_json()
    # A setting that came later had its default then.
    old = {**plain, **old, "circumstances": {**plain["circumstances"], **old.get("circumstances", {})}}
    pairs = [(f.name, old[f.name], new.get(f.name)) for f in fields(Experiment) if f.name not in FREE]
    known = {method["name"]: method for method in old["methods"]}
    pairs += [(f"method {m['name']!r}", known.get(m["name"], m), m) for m in new["methods"]]
    return [f"{name}: {then} then, {now} now" for name, then, now in pairs if then != now]


def with_methods_of(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The new settings, and behind their methods those of the old ones: what a run holds records of."""
    names = {method["name"] for method in new["methods"]}
    return new | {"methods": [*new["methods"], *(m for m in old.get("methods", ()) if m["name"] not in names)]}
