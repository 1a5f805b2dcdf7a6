"""select(): which pool images to label next, and why; Algorithm 1 of the paper, top to bottom."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from rarefish.distributed.executor import Executor, Plan, ShardMatches, SingleProcess
from rarefish.distributed.run_inputs import run_inputs
from rarefish.fisher import Describer, DescriberConfig
from rarefish.io import to_cell, write_whole
from rarefish.kernels import needs_scores, standardize
from rarefish.matching import Search, first_depth, match_batches
from rarefish.models.layers import choose_layers, find_layers
from rarefish.pseudo_labels.monte_carlo import MonteCarlo
from rarefish.pseudo_labels.posterior import Posterior, TrustedPosterior, gather
from rarefish.pseudo_labels.rules import LabelRule, given, predicted

COLUMNS = ("index", "similarity", "center", "pseudo_label")
PATHS = ("path", "center_path")
"""Further columns of the CSV file, if the data sets have paths."""


@dataclass(frozen=True, eq=False)
class Selection:
    """The chosen images, best first, and the validation failure that each one matches."""

    indices: Int[Tensor, " P"]
    """Pool indices: distinct, without the excluded ones."""
    similarities: Float[Tensor, " P"]
    """The kernel between each image and its center."""
    centers: Int[Tensor, " P"]
    """Validation index of the failure that each image matches."""
    pseudo_labels: Int[Tensor, " P"]
    """The pseudo-label each image was described with."""
    layers: tuple[str, ...]
    """Layers that the descriptors were taken from."""
    num_failures: int
    """Validation images the model gets wrong."""
    center_predictions: Int[Tensor, " P"] | None = None
    """The model's answer for the validation image in `centers`."""
    pool_mix: Float[Tensor, " C"] | None = None
    """Share of each class in the pool, if a posterior estimated it."""
    notes: tuple[str, ...] = ()
    """Decisions made during the selection, in words."""
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
        import pandas  # not a dependency: rows() and save() do not need it

        return pandas.DataFrame(self.rows(), columns=list(COLUMNS))

    def save(self, path: str | Path) -> None:
        """Writes the rows as CSV, atomically; with paths and class names if the data sets have them."""
        text, rows, columns = io.StringIO(newline=""), self.rows(), COLUMNS
        names = dict(enumerate(getattr(self.validation, "classes", ())))
        rows = [(*row[:3], names.get(row[3], row[3])) for row in rows]
        paths, trusted = (getattr(data, "paths", None) for data in (self.pool, self.validation))
        if paths is not None and trusted is not None:
            rows, columns = [(*row, paths[row[0]], trusted[row[2]]) for row in rows], (*COLUMNS, *PATHS)
        csv.writer(text).writerows([columns, *(map(to_cell, row) for row in rows)])
        write_whole(Path(path), text.getvalue())

    def contact_sheet(self, path: str | Path, limit: int = 100) -> None:
        """Writes an image file that shows each chosen image to the right of the failure it matches."""
        assert self.pool is not None and self.validation is not None
        rows = self.rows()[: max(1, limit)]
        pairs = [(_image_or_blank(self.validation, center), _image_or_blank(self.pool, i)) for i, _, center, _ in rows]
        draw_pairs(pairs, [f"{i} as {label}" for i, _, _, label in rows]).save(path)


def _image_or_blank(data: Data, index: int) -> Any:
    """The image, or a black one if it can no longer be read."""
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
    """Returns the `budget` pool images that best match what the model gets wrong on the validation set.

    `kernel`: fisher, sum, features. `labels`: posterior, density (the paper's), prediction, trace, mutual_information,
    true.
    `labeled`: labels of pool images, index -> label; these are not chosen again, and the posterior learns from them.
    `precision`: auto, float32, bfloat16. `compile`: torch.compile for the pool; None: if it pays.
    `failures`: one flag per image (True: wrong), instead of validation labels; without those, `labels` must be
    prediction, trace or mutual_information. `generator`: the default has seed 0.
    `strict`: raise an error for a pool image that cannot be read, instead of leaving it out.
    `executor`: several processes that share the work, such as `distributed.torchrun.TorchrunExecutor`.
    """
    executor = executor or SingleProcess()
    generator = generator or torch.Generator().manual_seed(0)
    generator_state = generator.get_state()
    reader = Reader(batch_size=batch_size, num_workers=num_workers, collate_fn=collate_fn, progress=progress)
    labeled = dict(labeled or {})
    remaining = executor.everywhere(lambda: check_pool(pool, validation, budget, exclude, labeled))
    rule = executor.everywhere(lambda: check_rule(labels, kernel, failures, pool, validation, generator, collate_fn))
    for data, index, name in ((pool, remaining, "pool"), (validation, range(len(validation)), "validation set")):
        warn_if_unstable(data, index, name, reader)
    names = executor.everywhere(
        lambda: find_layers(model, choose_layers(model, reader.first_images(validation)) if layers is None else layers)
    )
    config = DescriberConfig(model, tuple(names), reader, device, settle_precision(precision, rule))
    inputs = partial(run_inputs, model, pool, validation, remaining, labeled, failures, generator_state)
    inputs = partial(inputs, budget=budget, kernel=kernel, labels=labels, device=device, collate_fn=collate_fn)
    executor = executor.for_run(partial(inputs, layers=config.layers, precision=config.precision))
    learn = partial(learn_rule, rule, config, validation, pool, remaining, labeled, generator)
    plan = executor.once(lambda: make_plan(config, learn(), validation, failures, budget, kernel, generator))

    search, unreadable = Search(budget, first_depth(budget, plan.centers)), dict[int, str]()
    with config.open(compile, len(remaining) // executor.size) as describer:
        matcher = PoolMatcher(describer, pool, plan, kernel, strict)
        while not search.is_done:
            index = without(remaining, search.settled.index.tolist())
            found = executor.map_shards(matcher, index, search.depth)
            unreadable |= found.unreadable
            search = search.advance(found.matches)

    picks = search.picks
    return Selection(
        indices=picks.index,
        similarities=picks.similarity,
        centers=plan.index.cpu()[picks.center],
        center_predictions=plan.predictions.cpu()[picks.center],
        pseudo_labels=picks.label,
        layers=config.layers,
        num_failures=plan.num_failures,
        pool_mix=None if plan.pool_mix is None else plan.pool_mix.cpu(),
        notes=(*plan.notes, *note_flat(picks.similarity), *note_unreadable(unreadable, len(remaining))),
        unreadable=unreadable,
        pool=pool,
        validation=validation,
    )


def learn_rule(
    rule: LabelRule,
    config: DescriberConfig,
    validation: Data,
    pool: Data,
    remaining: Sequence[int],
    labeled: Mapping[int, int],
    generator: torch.Generator,
) -> LabelRule:
    """The label rule, after it has learned from the trusted labels if it needs to."""
    if not rule.learn:
        return rule
    how = (config.reader, generator, config.device, config.precision)
    return rule.learned(gather(config.model, config.layers, validation, pool, remaining, labeled, *how))


def make_plan(
    config: DescriberConfig,
    rule: LabelRule,
    validation: Data,
    failures: Tensor | Sequence[bool] | None,
    budget: int,
    kernel: str,
    generator: torch.Generator,
) -> Plan:
    """The first half of Algorithm 1: finds the failures on the validation set, and centers among them."""
    known = predicted if failures is not None and not rule.needs_validation_labels else given
    with config.open() as describer:
        seen = concatenate(describer.batches(validation, None, known, with_scores=False, title="reading validation"))
        failed, notes = find_failures(seen, failures, budget)
        how = {"with_scores": needs_scores(kernel), "title": "describing failures"}
        described = concatenate(describer.batches(validation, failed, rule.on_validation, **how))
        points = standardize(described)
        rows = k_center(points, budget, kernel, generator)
    estimate = rule.on_pool(seen)
    return Plan(
        centers=points[rows],
        index=described.index[rows.cpu()],
        classes=described.label[rows],
        predictions=described.prediction[rows],
        estimate=estimate,
        num_failures=0 if notes else len(failed),
        notes=(*notes, *rule.notes),
        pool_mix=estimate.pool_mix_C if isinstance(estimate, TrustedPosterior) else None,
    )


@dataclass(frozen=True)
class PoolMatcher:
    """Matches the images of one shard of the pool with the centers of a plan."""

    describer: Describer
    pool: Data
    plan: Plan
    kernel: str
    strict: bool
    """Whether an image that cannot be read is an error."""

    def __call__(self, index: Sequence[int], depth: int) -> ShardMatches:
        """Describes the images batch by batch and keeps the `depth` best of each center."""
        unreadable: dict[int, str] = {}
        batches = self.describer.batches(
            self.pool,
            index,
            self.plan.estimate,
            with_scores=needs_scores(self.kernel),
            title="describing the pool",
            unreadable=None if self.strict else unreadable,
        )
        matches = match_batches(batches, self.plan.centers, self.plan.classes, self.kernel, depth)
        return ShardMatches(matches, unreadable)


def find_failures(
    seen: Descriptors, flags: Tensor | Sequence[bool] | None, budget: int
) -> tuple[list[int], tuple[str, ...]]:
    """Indices of the images the model gets wrong; if there are none, of the least certain ones, with a note."""
    wrong_M = (torch.as_tensor(flags).bool() if flags is not None else seen.prediction != seen.label).cpu()
    if wrong_M.any():
        return seen.index[wrong_M].tolist(), ()
    uncertain = seen.margin.cpu().argsort(stable=True)[:budget]
    note = (
        f"The model gets all {len(seen)} validation images right: the {len(uncertain)} it is least sure of (smallest "
        "margin between its two best classes) stand in for failures."
    )
    return seen.index[uncertain].tolist(), (note,)


def note_flat(similarities: Tensor) -> tuple[str, ...]:
    """A note on chosen images whose similarity to every center is 0."""
    count = int((similarities == 0).sum())
    return (f"{count} of the chosen images are like no failure: their features or scores are flat.",) if count else ()
