"""The paper's MNIST experiments: rarefish experiment recipes/mnist.py:imbalanced …"""

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
TRUE_L80 = fisher("fisher true L80 (limit)", L80, "true")

METHODS = (
    RANDOM,
    ENTROPY,
    VARIATION_RATIO,
    CORE_SET,
    BADGE,
    FEATURES_L20,
    fisher("fisher prediction L20", L20, "prediction"),
    fisher("fisher density L20", L20),
    fisher("fisher density L80", L80),
    TRUE_L80,
)


def imbalanced() -> Experiment:
    """Figure (b): the digits 5-9 together have 1/100 of the number of the others."""
    return Experiment(name="mnist 100x", dataset="mnist", model="lenet", methods=METHODS, snapshot_rounds=(3,))


def balanced() -> Experiment:
    """Figure (a): the balanced pool."""
    return replace(imbalanced(), name="mnist 1x", imbalances=(1,), snapshot_rounds=())


def ablation() -> Experiment:
    """Figure (c): label estimators and layers, from a pretrained and from a random initialization."""
    methods = (
        fisher("fisher prediction L20", L20, "prediction"),
        fisher("fisher density L20", L20),
        fisher("fisher density L80", L80),
    )
    return replace(
        imbalanced(), name="mnist ablation", methods=methods, starts=("pretrained", "random"), snapshot_rounds=()
    )


def monte_carlo() -> Experiment:
    """Figure (c), the Monte Carlo estimators: with 128 samples and ten classes they are by far the slowest."""
    methods = (fisher("fisher trace L20", L20, "trace"), fisher("fisher MI L20", L20, "mutual_information"))
    return replace(imbalanced(), name="mnist monte carlo", methods=methods, snapshot_rounds=())


def posterior() -> Experiment:
    """The posterior compared with the paper's estimator, for validation sets from large to small."""
    methods = (fisher("fisher density L80", L80), fisher("fisher posterior L80", L80, "posterior"))
    sizes = (100, 300, 1000, 10_000)
    return replace(imbalanced(), name="mnist posterior", methods=methods, validation_sizes=sizes, snapshot_rounds=())


def balanced_posterior() -> Experiment:
    """The posterior on the balanced pool; the other methods are in `balanced`."""
    methods = (fisher("fisher posterior L80", L80, "posterior"),)
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
    """Methods made for imbalance compared with the posterior, from the same initial networks."""
    methods = (*RIVALS, fisher("fisher posterior L80", L80, "posterior"))
    return replace(imbalanced(), name="mnist rivals", methods=methods, rounds=5, snapshot_rounds=())


def fashion() -> Experiment:
    """The same on Fashion-MNIST, with the best of the other methods."""
    others = (RANDOM, ENTROPY, BADGE, CORE_SET, fisher("fisher density L80", L80), TRUE_L80)
    return replace(rivals(), name="fashion rivals", dataset="fashion-mnist", methods=(*others, *rivals().methods))


ROBUSTNESS = (
    RANDOM,
    ENTROPY,
    BADGE,
    fisher("fisher density L80", L80),
    fisher("fisher posterior L80", L80, "posterior"),
)


def robustness(name: str, size: int = 1000, **circumstances: object) -> Experiment:
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


def noisy_5() -> Experiment:
    return robustness("5 % of the validation labels wrong", validation_noise=0.05)


def noisy_20() -> Experiment:
    return robustness("20 % of the validation labels wrong", validation_noise=0.2)


def biased_validation() -> Experiment:
    """The validation set has the bias of the pool, a tenth as strong."""
    return robustness("biased validation set", validation_imbalance=10)


def long_tail() -> Experiment:
    return robustness("long tail", long_tail=True)


def junk() -> Experiment:
    """One pool image in six belongs to no class."""
    return robustness("junk in the pool", junk=5000)


def apart() -> Experiment:
    """The expensive rivals of figure (b): an ensemble of four and VAAL."""
    return replace(imbalanced(), name="mnist 100x, VAAL and ensembles", methods=(VARIATION_RATIO_E4, VAAL))


def best_epoch() -> Experiment:
    """Also records the best test epoch, as the paper does, and compares the sum and product kernels."""
    methods = (
        RANDOM,
        VARIATION_RATIO,
        fisher("fisher density L80", L80),
        fisher("fisher sum density L80", L80, kernel="sum"),
        TRUE_L80,
    )
    return replace(imbalanced(), name="mnist best epoch", methods=methods, best_epoch=True, snapshot_rounds=())


def warm() -> Experiment:
    """Each round continues from the weights of the previous one, as in the paper's code."""
    methods = (fisher("fisher density L80", L80), fisher("fisher sum density L80", L80, kernel="sum"))
    return replace(best_epoch(), name="mnist warm", methods=methods, restarts=("warm",))
