"""Experiments on 100 classes of Tiny-ImageNet, and the experiment of the paper on ImageNet.

Run: rarefish experiment recipes/imagenet.py:tiny_imagenet_100
"""

from dataclasses import replace
from random import Random

from rarefish.experiments.settings import Circumstances, Experiment, Method

L512 = ["avgpool"]
L768 = ["layer3", "avgpool"]

PAPER = {
    "epochs": 60,
    "batch_size": 128,
    "lr": 0.1,
    "momentum": 0.9,
    "milestones": (30, 50, 57),
    "precision": "bfloat16",
}
"""The paper gives no momentum and no weight decay; 0.9 is the usual momentum for ResNets."""
MODERN = {
    "epochs": 60,
    "batch_size": 100,
    "lr": 0.1,
    "momentum": 0.9,
    "cosine": True,
    "weight_decay": 5e-4,
    "label_smoothing": 0.1,
    "shift": 4,
    "flip": True,
    "precision": "bfloat16",
}
"""The batch size divides the number of labels of every round; with a last batch of four images, BatchNorm would lower
the accuracy by 2 percentage points."""
ROTATION = {"epochs": 8, "batch_size": 128, "lr": 0.1, "momentum": 0.9, "step_size": 3, "precision": "bfloat16"}


def fisher(name: str, layers: list[str], labels: str) -> Method:
    return Method(name=name, acquisition="fisher", settings={"layers": layers, "labels": labels})


BASELINES = (
    Method(name="trusted images only", acquisition="trusted_only"),
    Method(name="posterior alone", acquisition="posterior_alone", settings={"layers": L768}),
)
RIVALS = (
    Method(name="random", acquisition="random"),
    Method(name="varR K32", acquisition="variation_ratio", settings={"samples": 32}),
    Method(name="varR E4 K8", acquisition="variation_ratio", settings={"samples": 8}, members=4),
    Method(name="BALD K32", acquisition="bald", settings={"samples": 32}),
    Method(name="BADGE", acquisition="badge"),
    Method(name="core-set", acquisition="core_set"),
    Method(name="VAAL", acquisition="vaal"),
)
OURS = (
    Method(name="features L512", acquisition="features", settings={"layers": L512}),
    fisher("fisher prediction L512", L512, "prediction"),
    fisher("fisher density L768", L768, "density"),
    fisher("fisher posterior L768", L768, "posterior"),
    fisher("fisher true L768 (limit)", L768, "true"),
)
IMAGENET_OURS = (
    *(
        fisher("fisher prediction L768", L768, "prediction") if "prediction" in method.name else method
        for method in OURS
    ),
)


def half_of(num_classes: int) -> tuple[int, ...]:
    """Returns the rare classes: a fixed random half of all classes."""
    return tuple(sorted(Random(0).sample(range(num_classes), num_classes // 2)))


def tiny_imagenet_100() -> Experiment:
    """100 classes at 64×64 pixels, half of them reduced to 1/100; 5,000 training images are held out for validation."""
    return Experiment(
        name="tiny-imagenet-100 100x",
        dataset="tiny_imagenet_100",
        model="resnet18",
        methods=(*RIVALS, *OURS),
        baselines=BASELINES,
        seeds=3,
        rounds=6,
        budget=500,
        rare=half_of(100),
        validation_sizes=(5000,),
        holdout=5000,
        circumstances=Circumstances(each_cut=True),
        training=MODERN,
        pretraining=ROTATION,
    )


def tiny_imagenet_100_balanced() -> Experiment:
    """`tiny_imagenet_100` without imbalance."""
    return replace(tiny_imagenet_100(), name="tiny-imagenet-100 1x", imbalances=(1,))


def tiny_imagenet_100_tenth() -> Experiment:
    """Half of the classes reduced to 1/10 instead of 1/100, which leaves 45 images per rare class instead of four."""
    return replace(_the_main_methods(), name="tiny-imagenet-100 10x", imbalances=(10,))


def tiny_imagenet_100_paper() -> Experiment:
    """The main methods of `tiny_imagenet_100`, trained with the settings of the paper."""
    return replace(_the_main_methods(), name="tiny-imagenet-100 100x, the paper's training", training=PAPER)


def _the_main_methods() -> Experiment:
    names = ("random", "varR K32", "BADGE", "fisher density L768", "fisher posterior L768", "fisher true L768 (limit)")
    return tiny_imagenet_100().only(names)


def imagenet_paper() -> Experiment:
    """The full size of the paper: 1,000 classes at 224×224, half of them reduced to 1/100.

    As in the paper, `val` is both the validation and the test set. The posterior would learn the labels of the test
    set; `imagenet_posterior` holds other images out for it.
    """
    return replace(
        tiny_imagenet_100(),
        name="imagenet 100x",
        methods=(*RIVALS, *(method for method in IMAGENET_OURS if not method.learns_trusted_labels)),
        baselines=(),
        dataset="imagenet",
        seeds=1,
        rounds=10,
        budget=64_000,
        rare=half_of(1000),
        validation_sizes=(50_000,),
        holdout=0,
        validation_is_test=True,
        image_size=224,
        training=PAPER,
    )


def imagenet_posterior() -> Experiment:
    """`imagenet_paper` with the posterior; the validation set is held out of the training images, 50 per class."""
    return replace(
        imagenet_paper(),
        name="imagenet 100x, validation set held out",
        methods=(*RIVALS, *IMAGENET_OURS),
        baselines=BASELINES,
        holdout=50_000,
        validation_is_test=False,
    )


def imagenet_paper_balanced() -> Experiment:
    """`imagenet_paper` without imbalance."""
    return replace(imagenet_paper(), name="imagenet 1x", imbalances=(1,))
