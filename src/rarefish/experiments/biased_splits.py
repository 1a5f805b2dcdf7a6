"""Which images of a data set are the pool and which are trusted, by labels alone."""

from dataclasses import dataclass

import numpy as np

from rarefish.data.imbalance import check_classes, cut_each, long_tail, mistaken, step_imbalance, stratified
from rarefish.errors import ArgumentError, list_some
from rarefish.experiments.settings import Circumstances, Experiment


@dataclass(frozen=True)
class Wanted:
    """What decides how a data set is cut: the same for all methods."""

    dataset: str
    image_size: int
    seed: int
    imbalance: int
    validation_size: int
    holdout: int
    validation_is_test: bool
    rare: tuple[int, ...]
    doubts: Circumstances


@dataclass(frozen=True)
class Cut:
    """Rows of a data set."""

    pool: np.ndarray
    """Of the training set."""
    trusted: np.ndarray
    """Of the training set, or of the test set where that is the validation set, too."""
    trusted_labels: np.ndarray
    """As they are told, which may be wrong."""


def wanted_by(experiment: Experiment, seed: int, imbalance: int, validation_size: int) -> Wanted:
    """For one seed, imbalance and validation size of the experiment."""
    return Wanted(
        *(experiment.dataset, experiment.image_size, seed, imbalance, validation_size),
        *(experiment.holdout, experiment.validation_is_test, experiment.rare, experiment.circumstances),
    )


def cut(train: np.ndarray, test: np.ndarray, num_classes: int, wanted: Wanted) -> Cut:
    """The pool and the trusted images, given the labels of training and test set."""
    strange = [c for c in wanted.rare if not 0 <= c < num_classes]
    if strange:
        raise ArgumentError(
            f"No class {list_some(strange)} can be rare: {wanted.dataset} has classes 0 to {num_classes - 1}. "
            "Set rare= in the recipe."
        )
    seed, doubts = wanted.seed, wanted.doubts
    source, held = (test, np.arange(len(test))) if wanted.validation_is_test else (train, _hold_out(train, wanted))
    trusted = held[stratified(source[held], wanted.validation_size, seed)]
    check_classes(source[trusted], num_classes, "validation set")
    if doubts.validation_imbalance > 1:
        trusted = trusted[step_imbalance(source[trusted], wanted.rare, doubts.validation_imbalance, seed)]
    told = mistaken(source[trusted], doubts.validation_noise, num_classes, seed)
    everything = np.arange(len(train))
    rest = everything if wanted.validation_is_test else np.setdiff1d(everything, held)
    return Cut(rest[_biased(train[rest], wanted)], trusted, told)


def _hold_out(labels: np.ndarray, wanted: Wanted) -> np.ndarray:
    try:
        return stratified(labels, wanted.holdout, wanted.seed)
    except ArgumentError as error:
        raise ArgumentError(
            f"holdout={wanted.holdout}: {error} Set holdout= and validation_sizes= in the recipe."
        ) from None


def _biased(labels: np.ndarray, wanted: Wanted) -> np.ndarray:
    if wanted.doubts.long_tail:
        return long_tail(labels, wanted.imbalance, wanted.seed)
    return (cut_each if wanted.doubts.each_cut else step_imbalance)(labels, wanted.rare, wanted.imbalance, wanted.seed)
