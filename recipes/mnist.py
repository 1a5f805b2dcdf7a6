"""The paper's MNIST experiments, as METHOD and paper give them: rarefish experiment recipes/mnist.py:imbalanced …"""

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
    """Figure (b): the digits 5-9 together are 1/100 of the others."""
    return Experiment(name="mnist 100x", dataset="mnist", model="lenet", methods=METHODS, snapshot_rounds=(3,))


def balanced() -> Experiment:
    """Figure (a): the pool as it is."""
    return replace(imbalanced(), name="mnist 1x", imbalances=(1,), snapshot_rounds=())


def ablation() -> Experiment:
    """Figure (c): label estimators and layers, from a pretrained and from a random start."""
    methods = (
        fisher("fisher prediction L20", L20, "prediction"),
        fisher("fisher density L20", L20),
        fisher("fisher density L80", L80),
    )
    return replace(
        imbalanced(), name="mnist ablation", methods=methods, starts=("pretrained", "random"), snapshot_rounds=()
    )


def monte_carlo() -> Experiment:
    """Figure (c), the Monte Carlo estimators: 128 samples and ten classes each make them by far the dearest."""
    methods = (fisher("fisher trace L20", L20, "trace"), fisher("fisher MI L20", L20, "mutual_information"))
    return replace(imbalanced(), name="mnist monte carlo", methods=methods, snapshot_rounds=())


def posterior() -> Experiment:
    """The trusted posterior beside the paper's estimator, with validation sets from large to small."""
    methods = (fisher("fisher density L80", L80), fisher("fisher posterior L80", L80, "posterior"))
    sizes = (100, 300, 1000, 10_000)
    return replace(imbalanced(), name="mnist posterior", methods=methods, validation_sizes=sizes, snapshot_rounds=())


def balanced_posterior() -> Experiment:
    """The trusted posterior where nothing is rare; the others are in `balanced`."""
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
    """Methods made for imbalance, from the same start, beside the trusted posterior."""
    methods = (*RIVALS, fisher("fisher posterior L80", L80, "posterior"))
    return replace(imbalanced(), name="mnist rivals", methods=methods, rounds=5, snapshot_rounds=())


def fashion() -> Experiment:
    """The same on Fashion-MNIST, with the best of the others."""
    others = (RANDOM, ENTROPY, BADGE, CORE_SET, fisher("fisher density L80", L80), TRUE_L80)
    return replace(rivals(), name="fashion rivals", dataset="fashion-mnist", methods=(*others, *rivals().methods))


SKEPTIC = (RANDOM, ENTROPY, BADGE, fisher("fisher density L80", L80), fisher("fisher posterior L80", L80, "posterior"))


def doubted(name: str, size: int = 1000, **doubts: object) -> Experiment:
    return replace(
        imbalanced(),
        name=f"mnist, {name}",
        methods=SKEPTIC,
        rounds=5,
        validation_sizes=(size,),
        circumstances=Circumstances(**doubts),  # pyright: ignore[reportArgumentType]
        snapshot_rounds=(),
    )


def validation_too() -> Experiment:
    """The task's model learns from the validation set as well; what is bought comes on top."""
    sizes = (100, 300, 1000, 10_000)
    return replace(doubted("trained on validation too", train_on_validation=True), validation_sizes=sizes)


def noisy_5() -> Experiment:
    return doubted("5 % of the validation labels wrong", validation_noise=0.05)


def noisy_20() -> Experiment:
    return doubted("20 % of the validation labels wrong", validation_noise=0.2)


def biased_validation() -> Experiment:
    """The validation set is biased like the pool, a tenth as much."""
    return doubted("biased validation set", validation_imbalance=10)


def long_tail() -> Experiment:
    return doubted("long tail", long_tail=True)


def junk() -> Experiment:
    """One image in six of the pool is of no class."""
    return doubted("junk in the pool", junk=5000)


def apart() -> Experiment:
    """The dear rivals of figure (b): an ensemble of four and VAAL."""
    return replace(imbalanced(), name="mnist 100x, VAAL and ensembles", methods=(VARIATION_RATIO_E4, VAAL))


def best_epoch() -> Experiment:
    """The best test epoch beside the last one, to compare like with like; and the sum beside the product."""
    methods = (
        RANDOM,
        VARIATION_RATIO,
        fisher("fisher density L80", L80),
        fisher("fisher sum density L80", L80, kernel="sum"),
        TRUE_L80,
    )
    return replace(imbalanced(), name="mnist best epoch", methods=methods, best_epoch=True, snapshot_rounds=())


def warm() -> Experiment:
    """Each round goes on from the one before, as the paper's code does."""
    methods = (fisher("fisher density L80", L80), fisher("fisher sum density L80", L80, kernel="sum"))
    return replace(best_epoch(), name="mnist warm", methods=methods, restarts=("warm",))
