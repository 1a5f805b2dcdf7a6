"""Little copies of SVHN and ImageNet, laid out as the originals are, and the paper's recipes cut down to them."""

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rarefish.acquisitions.vaal import Vaal
from rarefish.experiments.recipes import load_recipe
from rarefish.experiments.settings import Experiment, Method
from rarefish.pseudo_labels.posterior import Posterior

RECIPES = Path(__file__).parents[2] / "recipes"
WNIDS = ("n01440764", "n01443537", "n01484850", "n01491361", "n01494475", "n01496331")
TRAIN, VAL = 10, 3
"""Images of each class of the little ImageNet."""
SVHN = {"train": 3, "extra": 7, "test": 2}
"""Images of each digit of the little SVHN."""

SLOW = {"epochs": 2, "batch_size": 5, "lr": 0.02, "shift": 2, "flip": True}


def write_svhn(folder: Path) -> None:
    """NAME_32x32.mat: X (32, 32, 3, N), and y with 10 for the digit 0."""
    from scipy.io import savemat

    (folder / "svhn").mkdir()
    for seed, (name, count) in enumerate(SVHN.items()):
        rng = np.random.default_rng(seed)
        labels = rng.permutation(np.repeat(np.arange(1, 11), count))
        images = rng.integers(0, 100, (32, 32, 3, len(labels))) + 15 * labels
        savemat(folder / "svhn" / f"{name}_32x32.mat", {"X": images.astype(np.uint8), "y": labels[:, None]})


def write_imagenet(folder: Path) -> None:
    """train/WNID/*.JPEG and val/WNID/*.JPEG of many sizes; among them one in grey and one in CMYK, as there are."""
    rng = np.random.default_rng(0)
    for part, count in (("train", TRAIN), ("val", VAL)):
        for number, wnid in enumerate(WNIDS):
            place = folder / "imagenet" / part / wnid
            place.mkdir(parents=True)
            for i in range(count):
                height, width = rng.integers(24, 60, 2)
                picture = Image.fromarray((rng.integers(0, 90, (height, width, 3)) + 30 * number).astype(np.uint8))
                kind = {(0, 0): "L", (1, 0): "CMYK"}.get((number, i), "RGB")
                picture.convert(kind).save(place / f"{part}_{wnid}_{i}.JPEG", format="JPEG")


def svhn(**changes: Any) -> Experiment:
    """recipes/svhn.py:svhn_paper with a few images and an epoch."""
    sizes = {"holdout": 20, "validation_sizes": (20,), "imbalances": (3,)}
    return shrink(load_recipe(f"{RECIPES / 'svhn.py'}:svhn_paper"), **{**sizes, **changes})


def imagenet(**changes: Any) -> Experiment:
    """recipes/imagenet.py:imagenet_paper with a few images of 32², an epoch, and the smaller ResNet."""
    return _imagenet("imagenet_paper", **changes)


def imagenet_posterior(**changes: Any) -> Experiment:
    """The same of imagenet_posterior, which holds two training images per class out."""
    return _imagenet(
        "imagenet_posterior", **{"holdout": 2 * len(WNIDS), "validation_sizes": (2 * len(WNIDS),), **changes}
    )


def _imagenet(recipe: str, **changes: Any) -> Experiment:
    rare = runpy.run_path(str(RECIPES / "imagenet.py"))["half_of"](len(WNIDS))
    sizes = {"rare": rare, "validation_sizes": (VAL * len(WNIDS),), "image_size": 32, "model": "resnet10"}
    return shrink(load_recipe(f"{RECIPES / 'imagenet.py'}:{recipe}"), **{**sizes, **changes})


def shrink(recipe: Experiment, **changes: Any) -> Experiment:
    """The recipe with little of everything; the precision of a CPU."""
    little = {"epochs": 1, "batch_size": 8, "precision": "float32"}
    settings = {
        "seeds": 1,
        "rounds": 2,
        "budget": 4,
        "imbalances": (5,),
        "training": {**recipe.training, **little},
        "pretraining": {**recipe.pretraining, **little, "batch_size": 32},
    }
    quick = {kind: tuple(map(quicken, getattr(recipe, kind))) for kind in ("methods", "baselines")}
    return replace(recipe, **{**quick, **settings, **changes})


def quicken(method: Method) -> Method:
    """The method with fewer steps or samples, where it has such of its own."""
    if "samples" in method.settings:
        return replace(method, settings={**method.settings, "samples": 3})
    if method.acquisition == "vaal":
        return replace(method, settings={"settings": Vaal(steps=2, batch_size=4)})
    if method.learns_trusted_labels and method.acquisition != "trusted_only":
        return replace(method, settings={**method.settings, "labels": Posterior(steps=(2, 2))})
    return method


def imagenet_in_half() -> Experiment:
    """The same in the recipe's own precision, for methods that train several networks, or other ones."""
    few = imagenet_posterior().only(("varR E4 K8", "VAAL", "fisher posterior L768"))
    half = {"precision": load_recipe(f"{RECIPES / 'imagenet.py'}:imagenet_paper").training["precision"]}
    return replace(few, training={**few.training, **half}, pretraining={**few.pretraining, **half})


def imagenet_without_norms() -> Experiment:
    """The same with a network that several processes can train as one does, but for rounding."""
    methods = (
        Method(name="random", acquisition="random"),
        Method(name="BADGE", acquisition="badge"),
        Method(name="fisher", acquisition="fisher", settings={"layers": ["conv2", "fc1"], "labels": "density"}),
    )
    return replace(imagenet(model="lenet", image_size=28, pretraining=SLOW, training=SLOW), methods=methods)


def imagenet_for_long() -> Experiment:
    """The same with epochs enough to be killed among them."""
    last = imagenet_without_norms().only(("fisher",))
    return replace(last, training={**SLOW, "epochs": 150}, pretraining={**SLOW, "epochs": 15})
