"""Ways to choose: one signature, one table of names."""

from rarefish.acquisitions.chance import choose_random
from rarefish.acquisitions.fisher_kernel import choose_fisher
from rarefish.acquisitions.situation import Acquisition, Choice, Situation
from rarefish.acquisitions.uncertainty import choose_entropy
from rarefish.errors import ArgumentError, nearest

ACQUISITIONS: dict[str, Acquisition] = {
    "random": choose_random,
    "entropy": choose_entropy,
    "fisher": choose_fisher,
}

__all__ = ["ACQUISITIONS", "Acquisition", "Choice", "Situation", "find_acquisition"]


def find_acquisition(name: str) -> Acquisition:
    """The acquisition of that name."""
    if name not in ACQUISITIONS:
        raise ArgumentError(f"There is no acquisition {name!r}. {nearest(name, ACQUISITIONS)}")
    return ACQUISITIONS[name]
