"""Boxes are matched as by a loop over pixels and pairs."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from rarefish.data.boxes import box_overlaps, match_boxes
from rarefish.errors import ArgumentError
from tests.reference import match_boxes_one_by_one

EDGES = st.tuples(*(st.integers(0, 6) for _ in range(4))).map(
    lambda e: (min(e[0], e[2]), min(e[1], e[3]), max(e[0], e[2]), max(e[1], e[3]))
)


def array(boxes: list[tuple[int, ...]]) -> np.ndarray:
    return np.array(boxes, dtype=float).reshape(-1, 4)


@settings(max_examples=300, deadline=None)
@given(
    found=st.lists(st.tuples(EDGES, st.sampled_from([0.1, 0.5, 0.9])), max_size=6),
    true_boxes=st.lists(EDGES, max_size=5),
    threshold=st.sampled_from([0.05, 0.25, 0.5, 1.0]),
)
def test_matches_equal_their_twin(
    found: list[tuple[tuple[int, ...], float]], true_boxes: list[tuple[int, ...]], threshold: float
) -> None:
    boxes, scores = [box for box, _ in found], [score for _, score in found]
    expected = match_boxes_one_by_one(boxes, scores, true_boxes, threshold)
    assert match_boxes(array(boxes), np.array(scores), array(true_boxes), threshold).tolist() == expected


def test_the_better_score_takes_the_object_and_the_other_box_is_false() -> None:
    boxes = array([(0, 0, 10, 10), (1, 0, 11, 10), (50, 50, 60, 60)])
    assert match_boxes(boxes, np.array([0.6, 0.9, 0.8]), array([(0, 0, 10, 10)])).tolist() == [-1, 0, -1]


def test_a_box_takes_the_next_object_if_its_best_is_taken() -> None:
    boxes, true_boxes = array([(0, 0, 10, 10), (0, 0, 10, 9)]), array([(0, 0, 10, 10), (0, 3, 10, 10)])
    assert match_boxes(boxes, np.array([0.9, 0.8]), true_boxes).tolist() == [0, 1]


def test_overlap_is_the_intersection_over_the_union() -> None:
    one = array([(0, 0, 4, 4), (2, 2, 2, 2)])
    others = array([(2, 0, 6, 4), (0, 0, 4, 4), (8, 8, 9, 9), (2, 2, 2, 2)])
    assert box_overlaps(one, others).tolist() == [[8 / 24, 1, 0, 0], [0, 0, 0, 0]]


BOX = array([(0, 0, 1, 1)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones((1, 3)), np.ones(1), BOX), r"boxes must have the shape \(boxes, 4\), not \(1, 3\)"),
        ((BOX, np.ones(1), array([(5, 5, 2, 2)])), r"1 of 1 true_boxes end before they start, or are not finite: 0"),
        ((BOX * np.nan, np.ones(1), BOX), r"1 of 1 boxes end before"),
        ((BOX, np.ones(2), BOX), r"scores must be 1 numbers, one per box, not an array of shape \(2,\)"),
        ((BOX, np.array([np.nan]), BOX), r"scores must be 1 numbers"),
        ((BOX, np.ones(1), BOX, 0.0), r"must be above 0 and at most 1, not 0.0"),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        match_boxes(*arguments)
