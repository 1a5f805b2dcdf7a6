"""SVHN: the paper's experiment on train and extra, and the same on the train set alone (`svhn_small` …)."""

from dataclasses import replace

from rarefish.experiments.settings import Experiment, Method

L256 = ["layer3"]
L768 = ["layer3", "avgpool"]

PAPER = {"epochs": 35, "batch_size": 128, "lr": 0.1, "momentum": 0.9, "step_size": 15, "precision": "bfloat16"}
"""The paper gives no momentum for SVHN; 0.9 is the usual momentum for ResNets."""
MODERN = {
    "epochs": 60,
    "batch_size": 50,
    "lr": 0.05,
    "momentum": 0.9,
    "cosine": True,
    "weight_decay": 5e-4,
    "label_smoothing": 0.1,
    "shift": 2,
    "precision": "bfloat16",
}
ROTATION = {"epochs": 8, "batch_size": 128, "lr": 0.1, "momentum": 0.9, "step_size": 3, "precision": "bfloat16"}


def fisher(name: str, layers: list[str], labels: str, **settings: object) -> Method:
    return Method(name=name, acquisition="fisher", settings={"layers": layers, "labels": labels, **settings})


RANDOM = Method(name="random", acquisition="random")
VARIATION_RATIO = Method(name="varR K64", acquisition="variation_ratio", settings={"samples": 64})
VARIATION_RATIO_E4 = Method(name="varR E4 K16", acquisition="variation_ratio", settings={"samples": 16}, members=4)
BALD = Method(name="BALD K64", acquisition="bald", settings={"samples": 64})
BADGE = Method(name="BADGE", acquisition="badge")
CORE_SET = Method(name="core-set", acquisition="core_set")
VAAL = Method(name="VAAL", acquisition="vaal")
RIVALS = (RANDOM, VARIATION_RATIO, VARIATION_RATIO_E4, BALD, BADGE, CORE_SET, VAAL)

DENSITY = fisher("fisher density L768", L768, "density")
POSTERIOR = fisher("fisher posterior L768", L768, "posterior")
TRUE = fisher("fisher true L768 (limit)", L768, "true")
OURS = (
    Method(name="features L256", acquisition="features", settings={"layers": L256}),
    fisher("fisher prediction L256", L256, "prediction"),
    DENSITY,
    POSTERIOR,
    TRUE,
)


def svhn_small() -> Experiment:
    """The train set alone; the digits 5-9 together have 1/100 of the number of the others."""
    return Experiment(
        name="svhn 100x",
        dataset="svhn",
        model="resnet10",
        methods=(*RIVALS, *OURS),
        seeds=5,
        budget=250,
        validation_sizes=(1000,),
        training=PAPER,
        pretraining=ROTATION,
        snapshot_rounds=(3,),
    )


def svhn_small_trusted() -> Experiment:
    """The same with a validation set ten times as large, for the methods that use it."""
    return replace(
        svhn_small(), name="svhn 100x, M 10000", methods=OURS, validation_sizes=(10_000,), snapshot_rounds=()
    )


def svhn_small_balanced() -> Experiment:
    """The train set without imbalance."""
    return replace(svhn_small(), name="svhn 1x", imbalances=(1,), snapshot_rounds=())


def svhn_small_modern() -> Experiment:
    """The same comparison with a modern training: cosine schedule, shifts, label smoothing, weight decay."""
    methods = (RANDOM, VARIATION_RATIO, BADGE, CORE_SET, DENSITY, POSTERIOR, TRUE)
    return replace(
        svhn_small(), name="svhn 100x, modern training", methods=methods, training=MODERN, snapshot_rounds=()
    )


def svhn_paper() -> Experiment:
    """The size of the paper: 500,000 images of train and extra in the pool, 104,388 held out, balanced by digit."""
    held = 104_388
    sizes = {"budget": 1250, "validation_sizes": (held,), "holdout": held}
    return replace(svhn_small(), name="svhn-extra 100x", dataset="svhn-extra", snapshot_rounds=(), **sizes)


def svhn_paper_balanced() -> Experiment:
    """The same without imbalance."""
    return replace(svhn_paper(), name="svhn-extra 1x", imbalances=(1,))
