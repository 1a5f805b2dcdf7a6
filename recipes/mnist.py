"""The MNIST experiments of the paper, and further comparisons on MNIST and Fashion-MNIST.

Run: rarefish experiment recipes/mnist.py:imbalanced
"""

from dataclasses import replace

from rarefish.experiments.settings import Circumstances, Experiment, Method

L20 = ["conv2"]
L80 = ["conv1", "conv2", "fc1"]


def fisher(name: str, layers: list[str], labels: str = "density", **settings: object) -> Method:
    return Method(name=name, acquisition="fisher", settings={"layers": layers, "labels": labels, **settings})


RANDOM = Method(name="random", acquisition="random")
ENTROPY = Method(name="entropy", acquisition="entropy")
VARIATION_RATIO = Method(name="varR K128", acquisition="variation_ratio", settings={"samples": 128})
VARIATION_RATIO_E4 = Method(name="varR E4 K32", acquisition="variation_ratio", settings={"samples": 32}, members=4)
CORE_SET = Method(name="core-set", acquisition="core_set")
BADGE = Method(name="BADGE", acquisition="badge")
VAAL = Method(name="VAAL", acquisition="vaal")
FEATURES_L20 = Method(name="features L20", acquisition="features", settings={"layers": L20})
DENSITY_L80 = fisher("fisher density L80", L80)
POSTERIOR_L80 = fisher("fisher posterior L80", L80, "posterior")
TRUE_L80 = fisher("fisher true L80 (limit)", L80, "true")
ARMS = (
    Method(name="posterior quotas L80", acquisition="posterior_quotas", settings={"layers": L80}),
    Method(name="posterior likeliest L80", acquisition="posterior_likeliest", settings={"layers": L80}),
    Method(name="posterior × entropy L80", acquisition="posterior_entropy", settings={"layers": L80}),
    fisher("posterior × features L80", L80, "posterior", kernel="features"),
)
"""Parts of `fisher posterior`: the posterior with other ways to choose images by it."""
BASELINES = (
    Method(name="trusted images only", acquisition="trusted_only"),
    Method(name="posterior alone", acquisition="posterior_alone", settings={"layers": L80}),
)

METHODS = (
    RANDOM,
    ENTROPY,
    VARIATION_RATIO,
    CORE_SET,
    BADGE,
    FEATURES_L20,
    fisher("fisher prediction L20", L20, "prediction"),
    fisher("fisher density L20", L20),
    DENSITY_L80,
    TRUE_L80,
)


def imbalanced() -> Experiment:
    """Figure (b) of the paper: all images of the digits 5-9 together number 1/100 of those of the digits 0-4."""
    return Experiment(
        name="mnist 100x",
        dataset="mnist",
        model="lenet",
        methods=METHODS,
        baselines=BASELINES,
        snapshot_rounds=(3,),
    )


def headline() -> Experiment:
    """The main comparison: 1,000 trusted images, the posterior and its parts, the paper's estimator and others."""
    others = (RANDOM, ENTROPY, VARIATION_RATIO, BADGE, CORE_SET)
    methods = (*others, DENSITY_L80, *ARMS, POSTERIOR_L80, TRUE_L80)
    return replace(
        imbalanced(), name="mnist 100x, M 1000", methods=methods, validation_sizes=(1000,), snapshot_rounds=()
    )


def balanced() -> Experiment:
    """Figure (a) of the paper: the balanced pool."""
    return replace(imbalanced(), name="mnist 1x", imbalances=(1,), snapshot_rounds=())


def ablation() -> Experiment:
    """Figure (c) of the paper: label estimators and layers, with pretrained and with random initial weights."""
    methods = (
        fisher("fisher prediction L20", L20, "prediction"),
        fisher("fisher density L20", L20),
        DENSITY_L80,
    )
    return replace(
        imbalanced(), name="mnist ablation", methods=methods, starts=("pretrained", "random"), snapshot_rounds=()
    )


def monte_carlo() -> Experiment:
    """The Monte Carlo estimators of figure (c); with 128 samples and ten classes they are by far the slowest."""
    methods = (fisher("fisher trace L20", L20, "trace"), fisher("fisher MI L20", L20, "mutual_information"))
    return replace(imbalanced(), name="mnist monte carlo", methods=methods, snapshot_rounds=())


def posterior() -> Experiment:
    """The posterior compared with the paper's estimator, for validation sets of different sizes."""
    methods = (DENSITY_L80, POSTERIOR_L80)
    sizes = (100, 300, 1000, 10_000)
    return replace(imbalanced(), name="mnist posterior", methods=methods, validation_sizes=sizes, snapshot_rounds=())


def balanced_posterior() -> Experiment:
    """The posterior on the balanced pool; `balanced` has the other methods."""
    methods = (POSTERIOR_L80,)
    return replace(balanced(), name="mnist 1x, posterior", methods=methods)


RIVALS = (
    Method(name="balanced entropy", acquisition="balanced_entropy"),
    Method(name="tail first", acquisition="tail_first"),
    Method(name="SIMILAR FLQMI", acquisition="similar"),
    Method(name="GALAXY", acquisition="galaxy"),
    Method(name="DIRECT", acquisition="direct"),
    Method(name="EPIG", acquisition="epig"),
    Method(name="TypiClust", acquisition="typiclust"),
)


def rivals() -> Experiment:
    """Methods for imbalanced pools compared with the posterior, with the same initial networks."""
    methods = (*RIVALS, POSTERIOR_L80)
    return replace(imbalanced(), name="mnist rivals", methods=methods, rounds=5, snapshot_rounds=())


def fashion() -> Experiment:
    """`rivals` on Fashion-MNIST, together with the best of the other methods."""
    others = (RANDOM, ENTROPY, BADGE, CORE_SET, DENSITY_L80, TRUE_L80)
    return replace(rivals(), name="fashion rivals", dataset="fashion-mnist", methods=(*others, *rivals().methods))


ROBUSTNESS = (
    RANDOM,
    ENTROPY,
    BADGE,
    DENSITY_L80,
    POSTERIOR_L80,
)


def robustness(name: str, size: int = 1000, **circumstances: object) -> Experiment:
    """Returns an experiment under these circumstances, with validation sets of the given size."""
    return replace(
        imbalanced(),
        name=f"mnist, {name}",
        methods=ROBUSTNESS,
        rounds=5,
        validation_sizes=(size,),
        circumstances=Circumstances(**circumstances),  # pyright: ignore[reportArgumentType]
        snapshot_rounds=(),
    )


def validation_too() -> Experiment:
    """The model is trained on the validation set as well as on the labeled pool images."""
    sizes = (100, 300, 1000, 10_000)
    return replace(robustness("trained on validation too", train_on_validation=True), validation_sizes=sizes)


def cross_fit() -> Experiment:
    """The model is trained on 100 validation images as well, which also guide the selection: failures out of fold."""
    ours = Method(name="coverage L80", acquisition="coverage", settings={"layers": L80})
    corrected = Method(name="corrected entropy", acquisition="corrected_entropy")
    methods = (RANDOM, ENTROPY, BADGE, corrected, POSTERIOR_L80, ours)
    return replace(validation_too(), name="mnist, cross-fitting", methods=methods, validation_sizes=(100,), rounds=4)


def noisy_5() -> Experiment:
    """5 % of the validation labels are wrong."""
    return robustness("5 % of the validation labels wrong", validation_noise=0.05)


def noisy_20() -> Experiment:
    """20 % of the validation labels are wrong."""
    return robustness("20 % of the validation labels wrong", validation_noise=0.2)


def biased_validation() -> Experiment:
    """The validation set is imbalanced too, by a factor of 10 instead of 100."""
    return robustness("biased validation set", validation_imbalance=10)


def long_tail() -> Experiment:
    """The class sizes in the pool decrease exponentially."""
    return robustness("long tail", long_tail=True)


def junk() -> Experiment:
    """About one in six pool images belongs to no class."""
    return robustness("junk in the pool", junk=5000)


def apart() -> Experiment:
    """The most expensive methods of figure (b) of the paper: an ensemble of four networks, and VAAL."""
    return replace(imbalanced(), name="mnist 100x, VAAL and ensembles", methods=(VARIATION_RATIO_E4, VAAL))


def best_epoch() -> Experiment:
    """Also records the best epoch on the test set, as the paper does, and compares the sum and product kernels."""
    methods = (
        RANDOM,
        VARIATION_RATIO,
        DENSITY_L80,
        fisher("fisher sum density L80", L80, kernel="sum"),
        TRUE_L80,
    )
    return replace(imbalanced(), name="mnist best epoch", methods=methods, best_epoch=True, snapshot_rounds=())


def warm() -> Experiment:
    """Each round continues training from the weights of the previous round, as in the code of the paper."""
    methods = (DENSITY_L80, fisher("fisher sum density L80", L80, kernel="sum"))
    return replace(best_epoch(), name="mnist warm", methods=methods, restarts=("warm",))
