"""Hints and lists in error texts."""

from rarefish.errors import list_some, nearest


def test_the_nearest_names_are_offered() -> None:
    assert nearest("layer_1", ["layer1", "layer2", "conv"]) == "Did you mean layer1 or layer2?"
    assert nearest("xyz", [f"name{i}" for i in range(20)]).endswith("name11, ….")


def test_long_lists_are_cut() -> None:
    assert list_some(range(3)) == "0, 1, 2"
    assert list_some(range(10), limit=2) == "0, 1 and 8 more"
