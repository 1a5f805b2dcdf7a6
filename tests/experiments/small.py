"""A whole experiment in seconds, on the bundled digits."""

from rarefish.experiments.settings import Experiment, Method


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
