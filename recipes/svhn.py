"""Experiments on the train set of SVHN, and the experiment of the paper on its train and extra sets.

Run: rarefish experiment recipes/svhn.py:svhn_small
"""

from dataclasses import replace

from rarefish.experiments.settings import Circumstances, Experiment, Method

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
ENTROPY = Method(name="entropy", acquisition="entropy")
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
ARMS = (
    Method(name="posterior quotas L768", acquisition="posterior_quotas", settings={"layers": L768}),
    Method(name="posterior likeliest L768", acquisition="posterior_likeliest", settings={"layers": L768}),
    Method(name="posterior × entropy L768", acquisition="posterior_entropy", settings={"layers": L768}),
    fisher("posterior × features L768", L768, "posterior", kernel="features"),
)
"""Parts of `fisher posterior`: the posterior with other ways to choose images by it."""
BASELINES = (
    Method(name="trusted images only", acquisition="trusted_only"),
    Method(name="posterior alone", acquisition="posterior_alone", settings={"layers": L768}),
)


def svhn_small() -> Experiment:
    """The train set only; all images of the digits 5-9 together number 1/100 of those of the digits 0-4."""
    return Experiment(
        name="svhn 100x",
        dataset="svhn",
        model="resnet10",
        methods=(*RIVALS, *OURS),
        baselines=BASELINES,
        seeds=5,
        budget=250,
        validation_sizes=(1000,),
        training=PAPER,
        pretraining=ROTATION,
        snapshot_rounds=(3,),
    )


def svhn_headline() -> Experiment:
    """The main comparison: `svhn_small` with the parts of the posterior, without the slowest of the other methods."""
    others = (RANDOM, ENTROPY, VARIATION_RATIO, BADGE, CORE_SET)
    methods = (*others, DENSITY, *ARMS, POSTERIOR, TRUE)
    return replace(svhn_small(), name="svhn 100x, M 1000", methods=methods, snapshot_rounds=())


def svhn_validation_too() -> Experiment:
    """The model is trained on the validation set as well as on the labeled pool images."""
    return replace(
        svhn_small(),
        name="svhn 100x, trained on validation too",
        methods=(RANDOM, ENTROPY, BADGE, POSTERIOR),
        rounds=5,
        circumstances=Circumstances(train_on_validation=True),
        snapshot_rounds=(),
    )


def svhn_small_trusted() -> Experiment:
    """`svhn_small` with a validation set of 10,000 images instead of 1,000, for the methods that use it."""
    return replace(
        svhn_small(), name="svhn 100x, M 10000", methods=OURS, validation_sizes=(10_000,), snapshot_rounds=()
    )


def svhn_small_balanced() -> Experiment:
    """`svhn_small` without imbalance."""
    return replace(svhn_small(), name="svhn 1x", imbalances=(1,), snapshot_rounds=())


def svhn_small_modern() -> Experiment:
    """`svhn_small` with modern training: cosine schedule, random shifts, label smoothing and weight decay."""
    methods = (RANDOM, VARIATION_RATIO, BADGE, CORE_SET, DENSITY, POSTERIOR, TRUE)
    return replace(
        svhn_small(), name="svhn 100x, modern training", methods=methods, training=MODERN, snapshot_rounds=()
    )


def svhn_paper() -> Experiment:
    """The full size of the paper: 500,000 pool images from train and extra; 104,388 held out, balanced by digit."""
    held = 104_388
    sizes = {"budget": 1250, "validation_sizes": (held,), "holdout": held}
    return replace(svhn_small(), name="svhn-extra 100x", dataset="svhn-extra", snapshot_rounds=(), **sizes)


def svhn_paper_balanced() -> Experiment:
    """`svhn_paper` without imbalance."""
    return replace(svhn_paper(), name="svhn-extra 1x", imbalances=(1,))
