"""select(): which pool images to label next, and why.

The method `coverage` covers the part of the pool that is like the validation set and that the model does not know
(`cover_targets`). The method `fisher` is Algorithm 1 of the paper, from top to bottom (`match_failures`).
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rarefish.centers import closeness, cover, directions, k_center
from rarefish.checks import (
    check_groups,
    check_pool,
    check_rule,
    note_unreadable,
    of_same_groups,
    settle_precision,
    warn_if_unstable,
)
from rarefish.data.embeddings import Embeddings
from rarefish.data.reader import UNREADABLE, Data, Reader, image_of, labels_of
from rarefish.data.remaining_indices import without
from rarefish.data.visualize import draw_pairs
from rarefish.descriptors import Descriptors, concatenate
from rarefish.distributed.executor import CoveragePlan, Executor, Plan, ShardMatches, SingleProcess
from rarefish.distributed.fingerprints import run_inputs
from rarefish.embedding.inputs import Source, fit_to_known, fit_to_labeled, open_sources, settle_model, untrained
from rarefish.errors import ArgumentError, LabelError, nearest
from rarefish.fisher import Describer, DescriberConfig, configure
from rarefish.io import to_cell, write_whole
from rarefish.kernels import largest_similarity, needs_scores, standardize
from rarefish.matching import (
    Picks,
    Search,
    first_depth,
    match_batches,
    sample_by_weight,
    smallest_priority,
    unpack_index,
)
from rarefish.pseudo_labels.monte_carlo import MonteCarlo
from rarefish.pseudo_labels.posterior import Evidence, Posterior, TrustedPosterior, gather
from rarefish.pseudo_labels.rules import LabelRule, given, predicted, predicted_probabilities
from rarefish.pseudo_labels.target_weights import Judged, judge, target_weights
from rarefish.training.linear_head import LinearHead

COLUMNS = ("index", "similarity", "center", "pseudo_label")
PATHS = ("path", "center_path")
"""Additional columns of the CSV file, if the datasets have paths."""


@dataclass(frozen=True, eq=False)
class Selection:
    """The chosen images, best first, with the validation failure that each one matches."""

    indices: Int[Tensor, " P"]
    """Pool indices of the chosen images: distinct, and none of the excluded ones."""
    similarities: Float[Tensor, " P"]
    """Kernel value between each image and its center; for `coverage`, (1 + cosine) / 2 of their features."""
    centers: Int[Tensor, " P"]
    """Validation index of the failure that each image matches."""
    pseudo_labels: Int[Tensor, " P"]
    """The pseudo-label with which each image was described."""
    class_probabilities: Float[Tensor, "P C"]
    """Class probabilities from the posterior, given the pool's class proportions, or else from the model; NaN for
    images that have become unreadable."""
    center_predictions: Int[Tensor, " P"]
    """The model's prediction for each validation image in `centers`."""
    layers: tuple[str, ...]
    """Layers from which the descriptors were taken."""
    num_failures: int
    """Number of validation images that the model gets wrong."""
    largest_similarity: float = 1.0
    """The largest possible similarity: that of two images with the same descriptor, before any weighting."""
    pool_mix: Float[Tensor, " C"] | None = None
    """Proportion of each class among the images that may be chosen, if a posterior estimated it."""
    pool_mix_interval: Float[Tensor, "2 C"] | None = None
    """Lower and upper bounds of a probable range of the proportions in `pool_mix`."""
    method: str = "fisher"
    """The method that chose them, `coverage` or `fisher`."""
    notes: tuple[str, ...] = ()
    """Messages about decisions made during the selection."""
    unreadable: Mapping[int, str] = field(default_factory=dict)
    """Indices of pool images that were left out, with the reasons."""
    pool: Data | None = field(default=None, repr=False, compare=False)
    validation: Data | None = field(default=None, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.indices)

    def rows(self) -> list[tuple[int, float, int, int]]:
        """Returns the (index, similarity, center, pseudo_label) of each image."""
        columns = (self.indices, self.similarities, self.centers, self.pseudo_labels)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    @property
    def relative_similarities(self) -> Float[Tensor, " P"]:
        """The similarities as fractions of the largest possible one."""
        return self.similarities / self.largest_similarity

    def to_frame(self) -> Any:
        """Returns the rows as a pandas DataFrame."""
        import pandas  # not a dependency, since rows() and save() do not need it

        return pandas.DataFrame(self.rows(), columns=list(COLUMNS))

    def save(self, path: str | Path) -> None:
        """Writes the rows to a CSV file, with paths and class names if the datasets have them.

        The similarities are fractions of the largest possible one.
        """
        text, columns = io.StringIO(newline=""), COLUMNS
        names = dict(enumerate(getattr(self.validation, "classes", ())))
        relative = [round(value, 6) for value in self.relative_similarities.tolist()]
        rows = [
            (index, similarity, center, names.get(label, label))
            for (index, _, center, label), similarity in zip(self.rows(), relative, strict=True)
        ]
        paths, trusted = (getattr(data, "paths", None) for data in (self.pool, self.validation))
        if paths is not None and trusted is not None:
            rows, columns = [(*row, paths[row[0]], trusted[row[2]]) for row in rows], (*COLUMNS, *PATHS)
        csv.writer(text).writerows([columns, *(map(to_cell, row) for row in rows)])
        write_whole(Path(path), text.getvalue())

    def contact_sheet(self, path: str | Path, limit: int = 100) -> None:
        """Writes an image file that shows each chosen image to the right of the failure that it matches."""
        assert self.pool is not None and self.validation is not None
        rows = self.rows()[: max(1, limit)]
        pairs = [(_image_or_blank(self.validation, center), _image_or_blank(self.pool, i)) for i, _, center, _ in rows]
        draw_pairs(pairs, [f"{i} as {label}" for i, _, _, label in rows]).save(path)


def _image_or_blank(data: Data, index: int) -> Any:
    """Returns the image, or a black one if it can no longer be read."""
    try:
        return image_of(data[index])
    except UNREADABLE:
        return torch.zeros(1, 56, 56)


@contextmanager
def without_autocast() -> Iterator[None]:
    """Turns the caller's autocast off, so that it does not change the choice; `precision` says what is in bfloat16."""
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield


@without_autocast()
def select(
    model: nn.Module | LinearHead | None,
    pool: Source,
    validation: Source,
    *,
    budget: int,
    layers: Sequence[str] | None = None,
    method: str | None = None,
    cross_fit: bool | None = None,
    kernel: str | None = None,
    labels: str | MonteCarlo | Posterior | None = None,
    exclude: Iterable[int] | Tensor | None = (),
    labeled: Mapping[int, int] | None = None,
    failures: Bool[Tensor, " M"] | Sequence[bool] | None = None,
    groups: Sequence[object] | np.ndarray | Tensor | None = None,
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
    """Returns the `budget` pool images whose labels help the model most where it fails on the validation set.

    Args:
        model: The model; on embeddings, a head such as `nn.Linear`, or None to fit one to the known labels.
        pool: A dataset of images, or embeddings: from `rarefish.embed()`, as a table, or as the path of a file.
        validation: The same, with labels; for embeddings, also as a tuple (embeddings, labels).
        method: `coverage`, or `fisher`, Algorithm 1 of the paper. By default, coverage for embeddings and `cross_fit`,
            unless `kernel`, `labels` or `failures` is given.
        cross_fit: Whether the model is trained on the validation set as well. Its failures are then found out of fold,
            by classifiers that were trained without them. By default, this is so if there is no model.
        kernel: For `fisher`: `fisher`, `sum` or `features`. A posterior weights every kernel; other labels do not
            affect `features`. The paper's baseline is kernel="features" with labels="prediction".
        labels: The pseudo-labels: `posterior`, the default, or a `Posterior` with its settings; for `fisher` also
            `density` (the paper's), `prediction`, `trace`, `mutual_information` or `true`.
        exclude: Indices of pool images that must not be chosen.
        labeled: Labels of pool images (index -> label), on which the posterior is trained; they are not chosen again.
        failures: One flag per validation image (True: wrong), instead of validation labels. If there are no labels,
            `labels` must be `prediction`, `trace` or `mutual_information`.
        groups: An id per pool row, if several rows belong to one image or video. The budget then counts groups, each
            is chosen at most once with its best row, and a row in `exclude` or `labeled` excludes its group.
        precision: `auto`, `float32` or `bfloat16`.
        compile: Whether to use torch.compile for the pool; None means if it saves time.
        generator: The random generator; by default one with seed 0.
        strict: Whether to raise an error for unreadable pool images instead of leaving them out.
        executor: Distributes the work among processes, such as `distributed.torchrun.TorchrunExecutor`.
    """
    executor = executor or SingleProcess()
    generator = generator or torch.Generator().manual_seed(0)
    state = generator.get_state()
    reader = Reader(batch_size=batch_size, num_workers=num_workers, collate_fn=collate_fn, progress=progress)
    labeled = dict(labeled or {})
    images, trusted = executor.everywhere(lambda: open_sources(pool, validation))
    group_N = executor.everywhere(lambda: check_groups(groups, images))
    remaining = executor.everywhere(lambda: check_pool(images, trusted, budget, exclude, labeled, group_N))
    cross_fit = model is None if cross_fit is None else cross_fit
    default = "coverage" if cross_fit or isinstance(images, Embeddings) else "fisher"
    method = executor.everywhere(
        lambda: settle_method(method, default, kernel, labels, failures, cross_fit and model is not None)
    )
    kernel, labels = kernel or "fisher", labels or "posterior"
    rule = executor.everywhere(lambda: check_rule(labels, kernel, failures, images, trusted, generator, collate_fn))
    method = "fisher" if rule.learn is None and not rule.needs_pool_labels else method  # too few validation images
    fit = fit_to_known if method == "fisher" else untrained if cross_fit else fit_to_labeled
    settled = executor.everywhere(lambda: settle_model(model, images, trusted, labeled, fit))
    settled = executor.agree(settled) if model is None else settled
    warn_if_unstable(images, remaining, "pool", reader)
    warn_if_unstable(trusted, range(len(trusted)), "validation set", reader)
    precision = settle_precision(precision, rule)
    config = executor.everywhere(
        lambda: configure(settled.model, layers, trusted, reader, device, precision, reduce=True)
    )
    known = (labeled, failures, settled.out_of_fold, group_N)
    request = Request(
        *(config, images, trusted, remaining, *known, budget, kernel, rule, generator),
        method=method,
        cross_fit=cross_fit,
        strict=strict,
        compile=compile,
    )
    return METHODS[method](request, executor.for_run(lambda: request.inputs(labels, state)))


def match_failures(request: "Request", executor: Executor) -> Selection:
    """Returns the images that are most similar to the failures: Algorithm 1 of the paper."""
    plan = executor.once(lambda: make_plan(request))
    search, unreadable = Search(request.budget, first_depth(request.budget, plan.centers)), dict[int, str]()
    with request.config.open(request.compile, len(request.remaining) // executor.size) as describer:
        matcher = PoolMatcher(describer, request.pool, plan, request.kernel, request.strict, request.groups)
        while not search.is_done:
            index = without(request.remaining, of_same_groups(search.settled.index.tolist(), request.groups))
            found = executor.map_shards(matcher, index, search.depth)
            unreadable |= found.unreadable
            search = search.advance(found.matches)
        parts = executor.map_parts(matcher.classify, search.picks.index.tolist())
    return to_selection(request, plan, search.picks, [batch for part in parts for batch in part], unreadable)


def cover_targets(request: "Request", executor: Executor) -> Selection:
    """Returns the images that best cover what is frequent in the validation set and unknown to the model.

    Each pool image has a weight (see `pseudo_labels.target_weights`). A sample in which images with large weights are
    more frequent contains both the candidates and the targets to be covered. Known images, on which the model is
    trained, cover targets from the start.
    """
    plan = executor.once(lambda: plan_coverage(request))
    depth = max(CANDIDATES, CANDIDATES_PER_PICK * request.budget)
    with request.config.open(request.compile, len(request.remaining) // executor.size) as describer:
        weigher = PoolWeigher(describer, request.pool, plan, request.strict, request.groups)
        found = executor.map_shards(weigher, request.remaining, depth)
        sample = unpack_index(found.matches.key[0]).tolist()
        candidates = concatenate([batch for part in executor.map_parts(weigher.describe, sample) for batch in part])
    notes = note_unreadable(found.unreadable, len(request.remaining))
    least = smallest_priority(found.matches, len(request.remaining) - len(found.unreadable))
    picks = executor.agree(choose_coverage(plan, candidates, request.budget, least))
    return to_coverage_selection(request, plan, candidates, picks, found.unreadable, notes)


METHODS: dict[str, Callable[["Request", Executor], Selection]] = {
    "coverage": cover_targets,
    "fisher": match_failures,
}
CANDIDATES, CANDIDATES_PER_PICK = 6_000, 4
"""Number of images in the sample that is covered and chosen from: at least, and per chosen image."""


def settle_method(
    method: str | None, default: str, kernel: object, labels: object, failures: object, ignores_cross_fit: bool
) -> str:
    """Returns the method; raises ArgumentError for arguments that it would ignore."""
    arguments = {"kernel": kernel, "labels": labels, "failures": failures}
    given = [name for name, value in arguments.items() if value is not None]
    settled = method or ("fisher" if given else default)
    if settled not in METHODS:
        raise ArgumentError(f"There is no method {settled!r}. {nearest(settled, METHODS)}")
    if settled == "coverage":
        is_posterior = isinstance(labels, Posterior) or labels in ("true", "posterior")
        unused = [name for name in given if not (name == "labels" and is_posterior)]
        if unused:
            raise ArgumentError(f"method='coverage' does not use {' or '.join(unused)}. Set method='fisher'.")
    if settled == "fisher" and ignores_cross_fit:
        raise ArgumentError("method='fisher' uses the failures of the model as it is. Leave out cross_fit.")
    return settled


@dataclass(frozen=True)
class Request:
    """The checked arguments of `select()`."""

    config: DescriberConfig
    pool: Data
    validation: Data
    remaining: Sequence[int]
    """Pool indices that may be chosen."""
    labeled: Mapping[int, int]
    failures: Tensor | Sequence[bool] | None
    out_of_fold: Tensor | None
    """Probabilities of the validation images from heads that were fitted without them, if the model was fitted here."""
    groups: Tensor | None
    """The number of each pool row's group."""
    budget: int
    kernel: str
    rule: LabelRule
    generator: torch.Generator
    method: str
    cross_fit: bool
    """Whether the model is trained on the validation set as well."""
    strict: bool
    """Whether an image that cannot be read is an error."""
    compile: bool | None

    def inputs(self, labels: str | MonteCarlo | Posterior, generator_state: Tensor) -> dict[str, str]:
        """Returns a hash of each input that the result depends on, given the original `labels` and generator state."""
        return run_inputs(
            self.config.model,
            self.pool,
            self.validation,
            self.remaining,
            self.labeled,
            self.failures,
            generator_state,
            groups=self.groups,
            budget=self.budget,
            method=self.method,
            cross_fit=self.cross_fit,
            kernel=self.kernel,
            labels=labels,
            layers=self.config.layers,
            precision=self.config.precision,
            device=self.config.device,
            collate_fn=self.config.reader.collate_fn,
        )


def make_plan(request: Request) -> Plan:
    """Returns the plan, the first half of Algorithm 1: finds the failures on the validation set and their centers."""
    rule, validation = learn_rule(request), request.validation
    known = predicted if request.failures is not None and not rule.needs_validation_labels else given
    with request.config.open() as describer:
        seen = concatenate(describer.batches(validation, None, known, with_scores=False, title="reading validation"))
        seen = predicted_out_of_fold(seen, request.out_of_fold)
        failed, notes = find_failures(seen, request.failures, request.budget)
        how = {"with_scores": needs_scores(request.kernel), "title": "describing failures"}
        described = concatenate(describer.batches(validation, failed, rule.on_validation, **how))
        points = standardize(described)
        rows = k_center(points, request.budget, request.kernel, request.generator)
    estimate = rule.on_pool(seen)
    learned = estimate if isinstance(estimate, TrustedPosterior) else None
    return Plan(
        centers=points[rows],
        index=described.index[rows.cpu()],
        classes=described.label[rows],
        predictions=seen.prediction[described.index[rows.cpu()]],
        estimate=estimate,
        num_failures=0 if notes else len(failed),
        notes=(*notes, *rule.notes),
        pool_mix=learned.pool_mix_C if learned else None,
        pool_mix_interval=learned.pool_mix_interval_2C if learned else None,
    )


def predicted_out_of_fold(seen: Descriptors, probabilities_MC: Tensor | None) -> Descriptors:
    """Returns the validation images with the predictions of heads that were fitted without them, if there are any."""
    if probabilities_MC is None:
        return seen
    largest_M2 = probabilities_MC.clamp_min(1e-30).log().topk(2, dim=1)
    margin_M = (largest_M2.values[:, 0] - largest_M2.values[:, 1]).to(seen.margin)
    return replace(seen, prediction=largest_M2.indices[:, 0].to(seen.prediction.device), margin=margin_M)


def learn_rule(request: Request) -> LabelRule:
    """Returns the label rule, trained on the trusted labels if it needs training."""
    return request.rule.learned(gather_evidence(request)) if request.rule.learn else request.rule


def gather_evidence(request: Request) -> Evidence:
    """Returns everything on which a posterior is trained."""
    config = request.config
    trusted = (request.validation, request.pool, request.remaining, request.labeled)
    how = (config.reader, request.generator, config.device, config.precision)
    return gather(config.model, config.layers, *trusted, *how, watching=config.watching)


@dataclass(frozen=True)
class PoolMatcher:
    """Matches the images of one shard of the pool with the centers of a plan."""

    describer: Describer
    pool: Data
    plan: Plan
    kernel: str
    strict: bool
    """Whether an image that cannot be read is an error."""
    groups: Tensor | None = None

    def __call__(self, index: Sequence[int], depth: int) -> ShardMatches:
        """Describes the images batch by batch and returns the `depth` best images for each center."""
        unreadable: dict[int, str] = {}
        batches = self.describer.batches(
            self.pool,
            index,
            self.plan.estimate,
            with_scores=needs_scores(self.kernel),
            title="describing the pool",
            unreadable=None if self.strict else unreadable,
        )
        matches = match_batches(batches, self.plan.centers, self.plan.classes, self.kernel, depth, self.groups)
        return ShardMatches(matches, unreadable)

    def classify(self, index: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Returns the indices and class probabilities of the readable images, batch by batch; used only for the picks.

        These are read again, because a table of the probabilities of all candidates would be too large.
        """
        has_posterior = isinstance(self.plan.estimate, TrustedPosterior)
        batches = self.describer.batches(
            self.pool,
            index,
            self.plan.estimate if has_posterior else predicted_probabilities,
            with_scores=False,
            title="describing the picks",
            unreadable=None if self.strict else {},
        )
        return [(batch.index, batch.posterior.float().cpu()) for batch in batches]


def plan_coverage(request: Request) -> CoveragePlan:
    """Returns what to cover, as learned from the validation set and the labeled images."""
    evidence = gather_evidence(request)
    learn = request.rule.learn or Posterior()
    posterior = learn(evidence)
    judged = judge(evidence, posterior, cross_fit=request.cross_fit)
    truth = true_labels(request) if request.rule.needs_pool_labels else None
    weights = target_weights(evidence, posterior, judged, cross_fit=request.cross_fit, pool_labels=truth)
    failed, notes = failures_of(judged, request.budget)
    sample, features = evidence.sample.features.float(), evidence.trusted.features
    mean, scale = sample.mean(dim=0), sample.std(dim=0, correction=0)
    scale = scale.clamp_min(1e-6 * float(scale.max().clamp_min(1e-30)))
    first_known = 0 if request.cross_fit else evidence.num_validation
    return CoveragePlan(
        weights=weights,
        mean=mean,
        scale=scale,
        known=directions(features[first_known:], mean, scale),
        failures=directions(features[failed.to(features.device)], mean, scale),
        index=evidence.index[failed],
        classes=judged.labels[failed],
        predictions=judged.predictions[failed],
        num_failures=0 if notes else len(failed),
        notes=(*notes, posterior.note),
    )


def true_labels(request: Request) -> Tensor:
    """Returns the true labels of the remaining pool images, for an upper bound in experiments."""
    labels = labels_of(request.pool)
    if labels is None:
        raise LabelError("labels='true' with method='coverage' needs a pool with a list of labels, such as `targets`.")
    return labels[torch.as_tensor(request.remaining)]


def failures_of(judged: Judged, budget: int) -> tuple[Tensor, tuple[str, ...]]:
    """Returns the validation rows that are classified wrongly; if there are none, the least certain, and a note."""
    failed = (judged.predictions != judged.labels).nonzero()[:, 0]
    if len(failed):
        return failed, ()
    uncertain = judged.margins.argsort(stable=True)[:budget]
    return uncertain, (note_no_failures(len(judged.labels), len(uncertain)),)


@dataclass(frozen=True)
class PoolWeigher:
    """Draws images by their weights from one shard of the pool."""

    describer: Describer
    pool: Data
    plan: CoveragePlan
    strict: bool
    groups: Tensor | None = None

    def __call__(self, index: Sequence[int], depth: int) -> ShardMatches:
        """Returns a sample of `depth` images."""
        unreadable: dict[int, str] = {}
        batches = self._batches(index, "weighing the pool", None if self.strict else unreadable)
        return ShardMatches(sample_by_weight(batches, depth, self.groups), unreadable)

    def describe(self, index: Sequence[int]) -> list[Descriptors]:
        """Returns the readable images again, with directions, since the features of the whole pool are too many."""
        batches = self._batches(index, "describing candidates", None if self.strict else {})
        mean, scale = self.plan.mean, self.plan.scale
        return [replace(batch, features=directions(batch.features, mean, scale)) for batch in batches]

    def _batches(self, index: Sequence[int], title: str, unreadable: dict[int, str] | None) -> Iterator[Descriptors]:
        how = {"with_scores": False, "title": title, "unreadable": unreadable}
        return self.describer.batches(self.pool, index, self.plan.weights, **how)


def choose_coverage(plan: CoveragePlan, candidates: Descriptors, budget: int, least_weight: float) -> Tensor:
    """Returns the rows of the candidates to choose, best first; weights are raised to at least `least_weight`."""
    budget = min(budget, len(candidates))  # some images may have become unreadable
    weight = candidates.posterior.sum(dim=1).float().clamp_min(least_weight)
    return cover(candidates.features, weight, plan.known.to(candidates.features), budget).cpu()


def to_coverage_selection(
    request: Request,
    plan: CoveragePlan,
    candidates: Descriptors,
    rows: Tensor,
    unreadable: Mapping[int, str],
    notes: tuple[str, ...],
) -> Selection:
    """Returns the selection, in which each image is matched with the closest failure of its probable class."""
    picked = candidates[rows]
    probabilities_PC = picked.posterior / picked.posterior.sum(dim=1, keepdim=True).clamp_min(1e-30)
    points = picked.features
    failures_KD = plan.failures.to(points)
    of_class_PK = probabilities_PC[:, plan.classes.to(probabilities_PC.device)]
    match = (closeness(points, failures_KD) * of_class_PK.to(points)).argmax(dim=1)
    similarity = (1 + (points * failures_KD[match]).sum(dim=1)) / 2
    posterior, match = plan.weights.posterior, match.cpu()
    return Selection(
        indices=picked.index.cpu(),
        similarities=similarity.float().clamp(0, 1).cpu(),
        centers=plan.index[match],
        pseudo_labels=picked.label.cpu(),
        class_probabilities=probabilities_PC.float().cpu(),
        center_predictions=plan.predictions[match],
        layers=request.config.layers,
        num_failures=plan.num_failures,
        method="coverage",
        pool_mix=posterior.pool_mix_C.cpu(),
        pool_mix_interval=posterior.pool_mix_interval_2C.cpu(),
        notes=(*plan.notes, *notes),
        unreadable=unreadable,
        pool=request.pool,
        validation=request.validation,
    )


def to_selection(
    request: Request,
    plan: Plan,
    picks: Picks,
    classified: Sequence[tuple[Tensor, Tensor]],
    unreadable: Mapping[int, str],
) -> Selection:
    """Returns the selection: the picks with everything that was learned about them."""
    probabilities_PC = in_order(picks.index, classified)
    notes = (
        *note_flat(picks.similarity),
        *note_unreadable(unreadable, len(request.remaining)),
        *note_unknown(probabilities_PC),
    )
    return Selection(
        indices=picks.index,
        similarities=picks.similarity,
        centers=plan.index.cpu()[picks.center],
        pseudo_labels=picks.label,
        class_probabilities=probabilities_PC,
        center_predictions=plan.predictions.cpu()[picks.center],
        layers=request.config.layers,
        num_failures=plan.num_failures,
        largest_similarity=float(sum(largest_similarity(z.shape[1], request.kernel) for z in plan.centers.features)),
        pool_mix=None if plan.pool_mix is None else plan.pool_mix.cpu(),
        pool_mix_interval=None if plan.pool_mix_interval is None else plan.pool_mix_interval.cpu(),
        notes=(*plan.notes, *notes),
        unreadable=unreadable,
        pool=request.pool,
        validation=request.validation,
    )


def in_order(index_P: Tensor, classified: Sequence[tuple[Tensor, Tensor]]) -> Float[Tensor, "P C"]:
    """Returns class probabilities in the order of the indices: NaN for missing ones, or width 0 if all are missing."""
    if not classified:
        return torch.empty(len(index_P), 0)
    index_N, probabilities_NC = (torch.cat(column) for column in zip(*classified, strict=True))
    row_of = {index: row for row, index in enumerate(index_P.tolist())}
    probabilities_PC = torch.full((len(index_P), probabilities_NC.shape[1]), torch.nan)
    probabilities_PC[[row_of[index] for index in index_N.tolist()]] = probabilities_NC
    return probabilities_PC


def find_failures(
    seen: Descriptors, flags: Tensor | Sequence[bool] | None, budget: int
) -> tuple[list[int], tuple[str, ...]]:
    """Returns the indices of images that the model gets wrong; if there are none, the least certain ones and a note."""
    wrong_M = (torch.as_tensor(flags).bool() if flags is not None else seen.prediction != seen.label).cpu()
    if wrong_M.any():
        return seen.index[wrong_M].tolist(), ()
    uncertain = seen.margin.cpu().argsort(stable=True)[:budget]
    return seen.index[uncertain].tolist(), (note_no_failures(len(seen), len(uncertain)),)


def note_no_failures(num_images: int, num_uncertain: int) -> str:
    """Returns a note that the least certain validation images are used instead of failures."""
    return (
        f"The model gets all {num_images} validation images right. The {num_uncertain} least certain ones (with the "
        "smallest margin between the two largest logits) are used instead of failures."
    )


def note_flat(similarities: Tensor) -> tuple[str, ...]:
    """Returns a note on chosen images whose similarity to every center is 0."""
    count = int((similarities == 0).sum())
    return (f"{count} chosen images resemble no failure: their features or scores are constant.",) if count else ()


def note_unknown(probabilities_PC: Tensor) -> tuple[str, ...]:
    """Returns a note on chosen images that could not be read again to compute their class probabilities."""
    count = int(probabilities_PC.isnan().all(dim=1).sum())
    return (f"{count} chosen images could not be read again: their probabilities are unknown.",) if count else ()
