"""Which pool images to label next, and why: Algorithm 1 of the paper, top to bottom."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rarefish.centers import k_center
from rarefish.checks import check_pool, check_rule, note_unreadable, settle_precision, warn_if_unstable
from rarefish.data.index_set import without
from rarefish.data.reader import UNREADABLE, Data, Reader, image_of
from rarefish.data.visualize import draw_pairs
from rarefish.descriptors import Descriptors, concatenate
from rarefish.distributed.executor import Executor, Plan, Scored, SingleProcess
from rarefish.distributed.run_inputs import run_inputs
from rarefish.fisher import Describe, describing
from rarefish.io import to_cell, write_whole
from rarefish.kernels import needs_scores, standardize
from rarefish.matching import Matches, fill, find_distinct, sensible_depth
from rarefish.models.layers import choose_layers, find_layers
from rarefish.pseudo_labels.monte_carlo import MonteCarlo
from rarefish.pseudo_labels.posterior import Evidence, Posterior, gather
from rarefish.pseudo_labels.rules import LabelRule, given, predicted

COLUMNS = ("index", "similarity", "center", "pseudo_label")
PATHS = ("path", "center_path")
"""Further columns of a file, where the data sets know where their images are."""


@dataclass(frozen=True, eq=False)
class Selection:
    """The chosen images, best first, and for each the validation failure that called for it."""

    indices: Int[Tensor, " P"]
    """Pool indices, distinct, none excluded."""
    similarities: Float[Tensor, " P"]
    """The kernel between each image and its center."""
    centers: Int[Tensor, " P"]
    """Validation index of the failure that called for each image."""
    pseudo_labels: Int[Tensor, " P"]
    """The label each image was described with."""
    layers: tuple[str, ...]
    num_failures: int
    """Validation images the model gets wrong."""
    notes: tuple[str, ...] = ()
    """What was decided on the way, in words."""
    unreadable: Mapping[int, str] = field(default_factory=dict)
    """Pool images that were left out, and why."""
    pool: Data | None = field(default=None, repr=False, compare=False)
    validation: Data | None = field(default=None, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.indices)

    def rows(self) -> list[tuple[int, float, int, int]]:
        """(index, similarity, center, pseudo_label) of each image."""
        columns = (self.indices, self.similarities, self.centers, self.pseudo_labels)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def to_frame(self) -> Any:
        """The rows as a pandas DataFrame."""
        import pandas  # not a dependency: rows() and save() do without

        return pandas.DataFrame(self.rows(), columns=list(COLUMNS))

    def save(self, path: str | Path) -> None:
        """Writes the rows as CSV, whole or not at all; with paths and class names where the data sets have them."""
        text, rows, columns = io.StringIO(newline=""), self.rows(), COLUMNS
        names = dict(enumerate(getattr(self.validation, "classes", ())))
        rows = [(*row[:3], names.get(row[3], row[3])) for row in rows]
        paths, trusted = (getattr(data, "paths", None) for data in (self.pool, self.validation))
        if paths is not None and trusted is not None:
            rows, columns = [(*row, paths[row[0]], trusted[row[2]]) for row in rows], (*COLUMNS, *PATHS)
        csv.writer(text).writerows([columns, *(map(to_cell, row) for row in rows)])
        write_whole(Path(path), text.getvalue())

    def contact_sheet(self, path: str | Path, limit: int = 100) -> None:
        """Writes a picture: each chosen image with the failure that called for it at its left."""
        assert self.pool is not None and self.validation is not None
        rows = self.rows()[: max(1, limit)]
        pairs = [(_image_or_blank(self.validation, center), _image_or_blank(self.pool, i)) for i, _, center, _ in rows]
        draw_pairs(pairs, [f"{i} as {label}" for i, _, _, label in rows]).save(path)


def _image_or_blank(data: Data, index: int) -> Any:
    """The image, or a black one where it cannot be read any more."""
    try:
        return image_of(data[index])
    except UNREADABLE:
        return torch.zeros(1, 56, 56)


def select(
    model: nn.Module,
    pool: Data,
    validation: Data,
    *,
    budget: int,
    layers: Sequence[str] | None = None,
    kernel: str = "fisher",
    labels: str | MonteCarlo | Posterior = "posterior",
    exclude: Iterable[int] | Tensor | None = (),
    labeled: Mapping[int, int] | None = None,
    failures: Bool[Tensor, " M"] | Sequence[bool] | None = None,
    batch_size: int = 256,
    device: torch.device | str | None = None,
    precision: str = "auto",
    compile: bool | None = None,
    num_workers: int = 0,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    generator: torch.Generator | None = None,
    progress: bool = True,
    strict: bool = False,
    executor: Executor | None = None,
) -> Selection:
    """The `budget` pool images that match best what the model gets wrong on the validation set.

    `kernel`: fisher, sum, features. `labels`: posterior, density (the paper's), prediction, trace, mutual_information,
    true.
    `labeled`: labels of pool images, index -> label; they are not chosen again, and the posterior learns from them.
    `precision`: auto, float32, bfloat16. `compile`: torch.compile for the pool; None: where it pays.
    `failures`, one flag an image (True: wrong), stands in for validation labels; without those, `labels` must be
    prediction, trace or mutual_information. Without a generator the seed is 0.
    `strict`: stop at a pool image that cannot be read, instead of leaving it out. `executor`: who shares the work, such as
    `distributed.TorchrunExecutor`.
    """
    executor = executor or SingleProcess()
    generator = generator or torch.Generator().manual_seed(0)
    generator_state = generator.get_state()
    reader = Reader(batch_size=batch_size, num_workers=num_workers, collate_fn=collate_fn, progress=progress)
    labeled = dict(labeled or {})
    left = executor.everywhere(lambda: check_pool(pool, validation, budget, exclude, labeled))
    rule = executor.everywhere(lambda: check_rule(labels, kernel, failures, pool, validation, generator, collate_fn))
    for data, index, name in ((pool, left, "pool"), (validation, range(len(validation)), "validation set")):
        warn_if_unstable(data, index, name, reader)
    names = executor.everywhere(
        lambda: find_layers(model, choose_layers(model, reader.first_images(validation)) if layers is None else layers)
    )
    precision = settle_precision(precision, rule)
    inputs = partial(run_inputs, model, pool, validation, left, labeled, failures, generator_state, device=device)
    settings = partial(inputs, budget=budget, kernel=kernel, labels=labels, layers=tuple(names), precision=precision)
    executor = executor.for_run(partial(settings, collate_fn=collate_fn))
    describing_here = partial(describing, model, names, reader, device, precision)
    learn = partial(gather, model, list(names), validation, pool, left, labeled, reader, generator, device, precision)
    plan = executor.once(
        lambda: make_plan(describing_here, rule, learn, validation, failures, budget, kernel, generator)
    )
    with describing_here(compile, len(left) // executor.size) as describe:

        def score(index: Sequence[int], depth: int) -> Scored:
            unreadable: dict[int, str] = {}
            look = partial(describe, with_scores=needs_scores(kernel), title="describing the pool")
            batches = look(pool, index, plan.estimate, unreadable=None if strict else unreadable)
            return Scored(fill(batches, plan.centers, plan.classes, kernel, depth), unreadable)

        def score_all(depth: int, taken: Tensor) -> Matches:
            scored = executor.score(score, without(left, taken.tolist()), depth)
            unreadable.update(scored.unreadable)
            return scored.matches

        unreadable: dict[int, str] = {}
        picks = find_distinct(score_all, sensible_depth(budget, plan.centers), budget)

    return Selection(
        indices=picks.index,
        similarities=picks.similarity,
        centers=plan.index.cpu()[picks.center],
        pseudo_labels=picks.label,
        layers=tuple(names),
        num_failures=plan.num_failures,
        notes=(*plan.notes, *note_flat(picks.similarity), *note_unreadable(unreadable, len(left))),
        unreadable=unreadable,
        pool=pool,
        validation=validation,
    )


def make_plan(
    describing_here: Callable[..., AbstractContextManager[Describe]],
    rule: LabelRule,
    learn: Callable[[], Evidence],
    validation: Data,
    failures: Tensor | Sequence[bool] | None,
    budget: int,
    kernel: str,
    generator: torch.Generator,
) -> Plan:
    """The first half of Algorithm 1, on the validation set alone: what fails, and which failures stand for all."""
    rule = rule.learned(learn()) if rule.learn else rule
    with describing_here() as describe:
        known = predicted if failures is not None and not rule.needs_validation_labels else given
        seen = concatenate(describe(validation, None, known, with_scores=False, title="reading validation"))
        failed, notes = find_failures(seen, failures, budget)

        describe = partial(describe, with_scores=needs_scores(kernel))
        described = concatenate(describe(validation, failed, rule.on_validation, title="describing failures"))
        points = standardize(described)
        rows = k_center(points, budget, kernel, generator)
    return Plan(
        centers=points[rows],
        index=described.index[rows.cpu()],
        classes=described.label[rows],
        estimate=rule.on_pool(seen),
        num_failures=0 if notes else len(failed),
        notes=(*notes, *rule.notes),
    )


def find_failures(
    seen: Descriptors, flags: Tensor | Sequence[bool] | None, budget: int
) -> tuple[list[int], tuple[str, ...]]:
    """Index of what the model gets wrong; where that is nothing, of what it is least sure of, with a note."""
    wrong_M = (torch.as_tensor(flags).bool() if flags is not None else seen.prediction != seen.label).cpu()
    if wrong_M.any():
        return seen.index[wrong_M].tolist(), ()
    unsure = seen.margin.cpu().argsort(stable=True)[:budget]
    note = (
        f"The model gets all {len(seen)} validation images right: the {len(unsure)} it is least sure of (smallest "
        "margin between its two best classes) stand in for failures."
    )
    return seen.index[unsure].tolist(), (note,)


def note_flat(similarities: Tensor) -> tuple[str, ...]:
    """A word on images that were chosen though the kernel says nothing about them."""
    count = int((similarities == 0).sum())
    return (f"{count} of the chosen images are like no failure: their features or scores are flat.",) if count else ()
