"""A whole experiment in seconds, on the bundled digits or on a quarter of them."""

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np

from rarefish.data.digits import read_digits
from rarefish.experiments.datasets import bytes_on, make_splits, read_dataset, splits_of
from rarefish.experiments.settings import Experiment, Method
from rarefish.pseudo_labels.posterior import Posterior

COMMON, TEST = 150, 400
"""Training images of each common digit, and test images, in `few()`."""
QUICK = Posterior(steps=(12, 12))
"""The posterior of `few()`: like the default one, but trained for 12 steps instead of 200."""


BASELINES = (
    Method(name="trusted images only", acquisition="trusted_only"),
    Method(name="posterior alone", acquisition="posterior_alone", settings={"layers": ["conv2"]}),
)


def small() -> Experiment:
    return Experiment(
        name="small",
        dataset="digits",
        model="lenet",
        methods=(
            Method(name="random", acquisition="random"),
            Method(name="fisher", acquisition="fisher", settings={"layers": ["conv2"]}),
            Method(name="varR E2", acquisition="variation_ratio", settings={"samples": 3}, members=2),
        ),
        seeds=2,
        rounds=3,
        budget=10,
        imbalances=(60,),
        validation_sizes=(200,),
        holdout=200,
        training={"epochs": 2},
        pretraining={"epochs": 1},
        snapshot_rounds=(2,),
    )


def few() -> Experiment:
    """The same on fewer images, with baselines and the quick posterior, for tests that run it again and again.

    `write_few` writes the images.
    """
    methods, baselines = (tuple(map(_quicken, each)) for each in (small().methods, BASELINES))
    return replace(small(), dataset="mnist", validation_sizes=(80,), methods=methods, baselines=baselines)


def _quicken(method: Method) -> Method:
    has_posterior = method.estimator == "posterior"
    return replace(method, settings={**method.settings, "labels": QUICK}) if has_posterior else method


def write_few(folder: Path) -> None:
    """The bundled digits in MNIST's files, with fewer of the common ones."""
    pool, validation, test = read_digits()
    images, labels = (
        np.concatenate([getattr(part, name) for part in (pool, validation)]) for name in ("images", "labels")
    )
    kept = np.sort(np.concatenate([np.flatnonzero(labels == digit)[:COMMON] for digit in range(10)]))
    (folder / "mnist").mkdir()
    for prefix, pixels, numbers in (
        ("train", images[kept], labels[kept]),
        ("t10k", test.images[:: len(test) // TEST], test.labels[:: len(test) // TEST]),
    ):
        for kind, values in (("images", pixels[..., 0]), ("labels", numbers)):
            head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
            with gzip.open(folder / "mnist" / f"{prefix}-{kind}.gz", "wb") as file:
                file.write(head + values.astype(np.uint8).tobytes())


def forget() -> None:
    """Empties the caches of datasets, which may hold others of the same name."""
    for cache in (read_dataset, make_splits, bytes_on):
        cache.cache_clear()


def counts(experiment: Experiment) -> list[list[int]]:
    """Returns the images per digit of the pool, validation and test set of the first cell."""
    splits = splits_of(experiment, next(experiment.cells()), "cpu")
    return [part.tensors[1].bincount(minlength=10).tolist() for part in (splits.pool, splits.validation, splits.test)]
