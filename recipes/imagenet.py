"""ImageNet as in the paper, and 100 classes of Tiny-ImageNet, half of them reduced to 1/100 (`tiny_imagenet_100` …)."""

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
"""100 divides the labels of every round: batch norm over a last batch of four images would cost 2 points per round."""
ROTATION = {"epochs": 8, "batch_size": 128, "lr": 0.1, "momentum": 0.9, "step_size": 3, "precision": "bfloat16"}


def fisher(name: str, layers: list[str], labels: str) -> Method:
    return Method(name=name, acquisition="fisher", settings={"layers": layers, "labels": labels})


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


def half_of(num_classes: int) -> tuple[int, ...]:
    """Returns the rare classes: a fixed random half of all classes."""
    return tuple(sorted(Random(0).sample(range(num_classes), num_classes // 2)))


def tiny_imagenet_100() -> Experiment:
    """100 classes at 64², half of them reduced to 1/100, with 5,000 images held out of train as validation set."""
    return Experiment(
        name="tiny-imagenet-100 100x",
        dataset="tiny_imagenet_100",
        model="resnet18",
        methods=(*RIVALS, *OURS),
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
    """The same experiment without imbalance."""
    return replace(tiny_imagenet_100(), name="tiny-imagenet-100 1x", imbalances=(1,))


def tiny_imagenet_100_tenth() -> Experiment:
    """Half of the classes reduced to 1/10 only, so that 45 images of each are left instead of four."""
    return replace(_the_main_methods(), name="tiny-imagenet-100 10x", imbalances=(10,))


def tiny_imagenet_100_paper() -> Experiment:
    """Returns the training settings of the paper."""
    return replace(_the_main_methods(), name="tiny-imagenet-100 100x, the paper's training", training=PAPER)


def _the_main_methods() -> Experiment:
    names = ("random", "varR K32", "BADGE", "fisher density L768", "fisher posterior L768", "fisher true L768 (limit)")
    return tiny_imagenet_100().only(names)


def imagenet_paper() -> Experiment:
    """The size of the paper: 1,000 classes at 224², half of them reduced to 1/100; `val` is validation and test set."""
    features, _, *others = OURS
    return replace(
        tiny_imagenet_100(),
        name="imagenet 100x",
        methods=(*RIVALS, features, fisher("fisher prediction L768", L768, "prediction"), *others),
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


def imagenet_paper_balanced() -> Experiment:
    """The same experiment without imbalance."""
    return replace(imagenet_paper(), name="imagenet 1x", imbalances=(1,))
