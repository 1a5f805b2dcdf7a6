"""A quick experiment on the bundled digits. Run: rarefish experiment recipes/digits.py:quick"""

from rarefish.experiments.settings import Experiment, Method


def quick() -> Experiment:
    """Compares four acquisitions in a few minutes on two cores; needs no files."""
    return Experiment(
        name="digits 60x",
        dataset="digits",
        model="lenet",
        methods=(
            Method(name="random", acquisition="random"),
            Method(name="entropy", acquisition="entropy"),
            Method(name="BADGE", acquisition="badge"),
            Method(name="fisher", acquisition="fisher"),
        ),
        seeds=5,
        rounds=5,
        budget=40,
        imbalances=(60,),
        holdout=200,
        validation_sizes=(200,),
        pretraining={"epochs": 4, "step_size": 2},
        snapshot_rounds=(3,),
    )
