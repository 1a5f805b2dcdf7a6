"""Boxes around objects: their overlap, and which detected box shows which true object."""

import numpy as np
from jaxtyping import Float, Int

from rarefish.errors import ArgumentError, list_some

NO_OBJECT = -1
"""The match of a box that shows no object."""


def box_overlaps(boxes: Float[np.ndarray, "B 4"], others: Float[np.ndarray, "T 4"]) -> Float[np.ndarray, "B T"]:
    """Returns the intersection over union (IoU) of each box with each of the others.

    A box consists of its left, top, right and bottom edges. Two boxes without area have the IoU 0.
    """
    start = np.maximum(boxes[:, None, :2], others[None, :, :2])
    end = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    shared = (end - start).clip(min=0).prod(axis=2)
    union = _areas(boxes)[:, None] + _areas(others)[None] - shared
    return shared / np.where(union > 0, union, 1)


def match_boxes(
    boxes: np.ndarray,
    scores: np.ndarray,
    true_boxes: np.ndarray,
    threshold: float = 0.5,
) -> Int[np.ndarray, " B"]:
    """Returns the row of the true box that each box of one image shows, or -1 for a box that shows none.

    The boxes choose in descending order of score. Each takes the true box with the largest overlap among those that
    are left, if it overlaps by at least the threshold. No true box is taken twice, so remove duplicates of a box first
    (non-maximum suppression). True boxes that nobody takes have no candidate.

    Args:
        boxes: The left, top, right and bottom edges of each box, in a table of shape (boxes, 4).
        scores: How certain the detector is that each box shows an object.
        true_boxes: The edges of the boxes that people drew, in the same form.
        threshold: The smallest intersection over union at which a box shows an object.
    """
    boxes, true_boxes = _checked(boxes, "boxes"), _checked(true_boxes, "true_boxes")
    scores = np.asarray(scores, dtype=np.float64)
    if scores.shape != (len(boxes),) or np.isnan(scores).any():
        raise ArgumentError(f"scores must be {len(boxes)} numbers, one per box, not an array of shape {scores.shape}.")
    if not 0 < threshold <= 1:
        raise ArgumentError(f"The threshold of the overlap must be above 0 and at most 1, not {threshold}.")
    matches = np.full(len(boxes), NO_OBJECT)
    if not len(true_boxes):
        return matches
    overlaps = box_overlaps(boxes, true_boxes)
    for row in np.argsort(-scores, kind="stable"):
        best = int(overlaps[row].argmax())
        if overlaps[row, best] >= threshold:
            matches[row] = best
            overlaps[:, best] = 0
    return matches


def _areas(boxes: Float[np.ndarray, "B 4"]) -> Float[np.ndarray, " B"]:
    return (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)


def _checked(boxes: np.ndarray, name: str) -> Float[np.ndarray, "B 4"]:
    """Returns the boxes in float64; raises ArgumentError for boxes that have no valid edges."""
    found = np.asarray(boxes, dtype=np.float64)
    if found.size == 0:
        return np.empty((0, 4))
    if found.ndim != 2 or found.shape[1] != 4:
        raise ArgumentError(f"{name} must have the shape (boxes, 4), not {found.shape}.")
    wrong = np.flatnonzero(~((found[:, :2] <= found[:, 2:]).all(axis=1) & np.isfinite(found).all(axis=1)))
    if len(wrong):
        raise ArgumentError(
            f"{len(wrong)} of {len(found)} {name} end before they start, or are not finite: {list_some(wrong.tolist())}"
            ". Give the left, top, right and bottom edges, not the width and height."
        )
    return found
