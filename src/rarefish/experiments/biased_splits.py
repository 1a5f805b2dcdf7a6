"""Choose the rows of a data set that form the biased pool and the validation set, from the labels alone."""

from dataclasses import dataclass

import numpy as np

from rarefish.data.imbalance import check_classes, cut_each, long_tail, mistaken, step_imbalance, stratified
from rarefish.errors import ArgumentError, list_some
from rarefish.experiments.settings import Circumstances, Experiment


@dataclass(frozen=True)
class SplitSettings:
    """The settings that decide how a data set is split; they are the same for all methods."""

    dataset: str
    image_size: int
    seed: int
    imbalance: int
    validation_size: int
    holdout: int
    validation_is_test: bool
    rare: tuple[int, ...]
    circumstances: Circumstances


@dataclass(frozen=True)
class SplitRows:
    """The rows of a data set that form the pool and the validation set."""

    pool: np.ndarray
    """Rows of the training set."""
    trusted: np.ndarray
    """Rows of the training set, or of the test set if that is also the validation set."""
    trusted_labels: np.ndarray
    """Labels of the trusted images; with label noise, some of them are wrong."""


def split_settings(experiment: Experiment, seed: int, imbalance: int, validation_size: int) -> SplitSettings:
    """Returns the split settings for one seed, imbalance and validation size of the experiment."""
    return SplitSettings(
        *(experiment.dataset, experiment.image_size, seed, imbalance, validation_size),
        *(experiment.holdout, experiment.validation_is_test, experiment.rare, experiment.circumstances),
    )


def choose_rows(train: np.ndarray, test: np.ndarray, num_classes: int, settings: SplitSettings) -> SplitRows:
    """Chooses the pool and the trusted images, given the labels of the training and test set."""
    unknown = [c for c in settings.rare if not 0 <= c < num_classes]
    if unknown:
        raise ArgumentError(
            f"No class {list_some(unknown)} can be rare: {settings.dataset} has classes 0 to {num_classes - 1}. "
            "Set rare= in the recipe."
        )
    seed, circumstances = settings.seed, settings.circumstances
    source, held = (test, np.arange(len(test))) if settings.validation_is_test else (train, _hold_out(train, settings))
    trusted = held[stratified(source[held], settings.validation_size, seed)]
    check_classes(source[trusted], num_classes, "validation set")
    if circumstances.validation_imbalance > 1:
        trusted = trusted[step_imbalance(source[trusted], settings.rare, circumstances.validation_imbalance, seed)]
    noisy_labels = mistaken(source[trusted], circumstances.validation_noise, num_classes, seed)
    all_rows = np.arange(len(train))
    rest = all_rows if settings.validation_is_test else np.setdiff1d(all_rows, held)
    return SplitRows(rest[_biased(train[rest], settings)], trusted, noisy_labels)


def _hold_out(labels: np.ndarray, settings: SplitSettings) -> np.ndarray:
    try:
        return stratified(labels, settings.holdout, settings.seed)
    except ArgumentError as error:
        raise ArgumentError(
            f"holdout={settings.holdout}: {error} Set holdout= and validation_sizes= in the recipe."
        ) from None


def _biased(labels: np.ndarray, settings: SplitSettings) -> np.ndarray:
    if settings.circumstances.long_tail:
        return long_tail(labels, settings.imbalance, settings.seed)
    return (cut_each if settings.circumstances.each_cut else step_imbalance)(
        labels, settings.rare, settings.imbalance, settings.seed
    )
