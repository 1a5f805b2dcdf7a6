"""The mutants of `mutants.py`: one-line mistakes in the method, the other methods, the statistics and the reports.

A mutant is a name, a file below `src/rarefish`, a text that occurs in it exactly once, the text that replaces it, and
the tests that should fail: files or tests below `tests`, by default the file that mirrors the module.
"""

from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True)
class Mutant:
    """A change of one place in the source, and the tests that should notice it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _mutant(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    path = PurePosixPath(file)
    return Mutant(name, file, old, new, tests or (str(path.with_name(f"test_{path.name}")),))


POSTERIOR, LABEL_SHIFT = "pseudo_labels/posterior.py", "pseudo_labels/label_shift.py"
TWIN = "test_selection.py::test_the_default_equals_its_twin"
SHOWN = "experiments/test_cells.py::test_what_the_posterior_is_shown"
ROUNDS = "active_learning/rounds.py"
WEIGHTS, SELECTION = "pseudo_labels/target_weights.py", "selection.py"
COVERS = "test_selection.py::test_coverage_equals_its_twin"
BY_HAND = "test_selection.py::test_equals_algorithm_1_written_out"

MUTANTS = (
    # The posterior: what it is shown.
    _mutant(
        "pool's prior counts labeled pool images",
        POSTERIOR,
        "prior=labels.bincount(minlength=num_classes) / len(labels)",
        "prior=torch.cat([labels, told]).bincount(minlength=num_classes) / (len(labels) + len(told))",
        TWIN,
        SHOWN,
    ),
    _mutant(
        "a uniform prior",
        POSTERIOR,
        "prior=labels.bincount(minlength=num_classes) / len(labels)",
        "prior=torch.full((num_classes,), 1 / num_classes)",
        TWIN,
    ),
    _mutant(
        "the sample is the first images of the pool",
        POSTERIOR,
        "drawn = draw_some(min(SAMPLE, most), len(left), generator).tolist()",
        "drawn = list(range(len(draw_some(min(SAMPLE, most), len(left), generator))))",
        TWIN,
    ),
    _mutant(
        "labeled pool images are not learned from",
        POSTERIOR,
        "list(labeled)[: max(0, most - len(some))]",
        "[]",
        TWIN,
    ),
    # The posterior: how it is trained.
    _mutant(
        "held-out labels learned before they judge",
        POSTERIOR,
        "self._batches(evidence, ~is_held, turn,",
        "self._batches(evidence, torch.ones_like(is_held), turn,",
        TWIN,
    ),
    _mutant(
        "held-out labels never learned",
        POSTERIOR,
        "((is_kept, before), (torch.ones_like(is_kept), after))",
        "((is_kept, before), (is_kept, after))",
        TWIN,
    ),
    _mutant(
        "labeled pool images drawn without class weights",
        POSTERIOR,
        "weights = class_weights(evidence.labels[rows], evidence.prior)",
        "weights = torch.ones(len(rows), dtype=torch.double)",
        TWIN,
    ),
    _mutant(
        "no shifts",
        POSTERIOR,
        "yield shown.roll(shift, (2, 3)) if shown.ndim == 4 else shown, labels",
        "yield shown, labels",
        TWIN,
    ),
    _mutant(
        "shifts in one direction only",
        POSTERIOR,
        "generator=generator)).long() - most",
        "generator=generator)).long()",
        TWIN,
    ),
    _mutant(
        "a constant learning rate",
        POSTERIOR,
        "(self.lr * one_cycle(num_steps))",
        "torch.full((num_steps,), self.lr)",
        TWIN,
    ),
    _mutant(
        "a learning rate that never rises",
        POSTERIOR,
        "torch.where(done < 0.3, 1 - done / 0.3,",
        "torch.where(done < 0.0, done,",
        TWIN,
    ),
    _mutant("no weight decay", POSTERIOR, "torch.optim.AdamW(", "torch.optim.Adam(", TWIN),
    _mutant(
        "the network learns in evaluation mode",
        POSTERIOR,
        "loss_H = held_out_losses(answer, evidence, is_held)\n                network.train()",
        "loss_H = held_out_losses(answer, evidence, is_held)",
        TWIN,
    ),
    _mutant(
        "the network judged in training mode",
        POSTERIOR,
        "network.eval()\n                loss_H",
        "loss_H",
        TWIN,
    ),
    _mutant(
        "the head's classes weighed alike",
        POSTERIOR,
        "weight_N = class_weights(labels, evidence.prior).to(features)",
        "weight_N = torch.ones_like(features[:, 0])",
        TWIN,
    ),
    _mutant("the head without penalty", POSTERIOR, "+ RIDGE / len(labels) / 2 *", "+ 0 *", TWIN),
    _mutant(
        "the head's penalty ignores the number of labels",
        POSTERIOR,
        "+ RIDGE / len(labels) / 2 *",
        "+ RIDGE / 2 *",
        TWIN,
    ),
    # The posterior: which candidate is taken.
    _mutant(
        "held-out labels weighed alike",
        POSTERIOR,
        "weight_H = class_weights(evidence.labels[is_held], evidence.prior)",
        "weight_H = torch.ones(int(is_held.sum()), dtype=torch.double)",
        TWIN,
    ),
    _mutant(
        "labeled pool images are held out as well",
        POSTERIOR,
        "order = torch.randperm(evidence.num_validation,",
        "order = torch.randperm(len(evidence.labels),",
        TWIN,
    ),
    _mutant(
        "the head that is used lacks the held-out labels",
        POSTERIOR,
        "fit_head(evidence, torch.ones_like(is_held)), note",
        "head, note",
        TWIN,
    ),
    _mutant(
        "a head that is a little better is taken",
        POSTERIOR,
        "behind <= (2 + 10 / (len(behind_H) - 1) ** 2) * error",
        "behind <= 0",
    ),
    _mutant(
        "the head is never taken", POSTERIOR, "return network if is_whole else", "return network if True else", TWIN
    ),
    _mutant(
        "candidates compared without temperatures",
        POSTERIOR,
        "min(each, key=lambda losses: float(losses.mean()))",
        "each[1]",
    ),
    # Label shift.
    _mutant(
        "EM without the old prior",
        LABEL_SHIFT,
        "ratio_C = torch.where(is_known, share / prior, 0)",
        "ratio_C = torch.where(is_known, share, 0)",
        "pseudo_labels/test_label_shift.py::test_em_equals_loops",
    ),
    _mutant("a single step of EM", LABEL_SHIFT, "EM_STEPS = 100", "EM_STEPS = 1"),
    _mutant("no floor under the pool's proportions", LABEL_SHIFT, ".clamp_min(floor) * is_known", " * is_known"),
    _mutant(
        "a floor too high for many classes", LABEL_SHIFT, "floor = min(floor, 0.1 / len(prior))", "floor = floor + 0"
    ),
    _mutant(
        "classes drawn equally often",
        LABEL_SHIFT,
        "(prior.to(labels.device) / counts)",
        "(torch.ones_like(prior) / counts)",
    ),
    _mutant(
        "the prior is not corrected",
        POSTERIOR,
        "(pool_mix_C / prior_C.clamp_min(1e-6)).log()",
        "torch.zeros_like(prior_C)",
        TWIN,
    ),
    _mutant(
        "the prior is corrected the wrong way",
        POSTERIOR,
        "(pool_mix_C / prior_C.clamp_min(1e-6)).log()",
        "(prior_C.clamp_min(1e-6) / pool_mix_C).log()",
        TWIN,
    ),
    _mutant(
        "pool_mix without EM",
        POSTERIOR,
        "note,\n            pool_mix_C,",
        "note,\n            prior_C,",
        TWIN,
    ),
    _mutant("EM without a temperature", POSTERIOR, "(logits[0] / held.temperature).softmax", "logits[0].softmax", TWIN),
    _mutant(
        "folds learn for all steps",
        POSTERIOR,
        "max(1, self.num_steps(num_trusted, num_pool) * (FOLDS - 1) // FOLDS)",
        "self.num_steps(num_trusted, num_pool)",
        TWIN,
    ),
    _mutant(
        "the temperature from labels that were learned",
        POSTERIOR,
        "self._train_network(evidence, is_held, num_steps, num_steps)[0]",
        "self._train_network(evidence, torch.zeros_like(is_held), num_steps, num_steps)[0]",
        TWIN,
    ),
    _mutant(
        "heads of all labels give the temperature",
        POSTERIOR,
        "candidates.append(fit_head(evidence, ~is_held))",
        "candidates.append(fit_head(evidence, torch.ones_like(is_held)))",
    ),
    _mutant(
        "a class with a single image counts for the temperature",
        POSTERIOR,
        "(labels_V.bincount()[labels_V] > 1) & logits_VC",
        "logits_VC",
    ),
    _mutant("a temperature below 1", LABEL_SHIFT, "1 / HIGHEST_TEMPERATURE, 1.0", "1 / HIGHEST_TEMPERATURE, 20.0"),
    _mutant("the inverse temperature", LABEL_SHIFT, "return 1 / high", "return high"),
    _mutant(
        "the temperature from the wrong side",
        LABEL_SHIFT,
        "(low, inverse) if is_too_sure else (inverse, high)",
        "(inverse, high) if is_too_sure else (low, inverse)",
    ),
    _mutant(
        "folds without regard to class",
        LABEL_SHIFT,
        "order[labels[order].argsort(stable=True)]",
        "order",
    ),
    _mutant(
        "a class without validation images takes the pool",
        LABEL_SHIFT,
        "share, is_known = (prior if start is None else start).clone(), prior > 0",
        "prior = prior.clamp_min(1e-6)\n    share, is_known = (prior if start is None else start).clone(), prior > 0",
    ),
    _mutant(
        "the interval of one network",
        LABEL_SHIFT,
        "probability = (logits[network][rows",
        "probability = (logits[0][rows",
    ),
    _mutant(
        "the interval with a fixed temperature",
        LABEL_SHIFT,
        "fit_temperature(known_logits[known], known_labels[known])",
        "fit_temperature(known_logits, known_labels)",
    ),
    _mutant("the interval on all images", LABEL_SHIFT, "logits[network][rows.to(estimate.device)]", "logits[network]"),
    _mutant(
        "the mix beside the validation set of today",
        "workspace/summary.py",
        'how.get("validation_mix") or [count',
        "[count",
    ),
    # Pseudo-labels of the paper.
    _mutant(
        "density takes the least similar image",
        "pseudo_labels/rules.py",
        '"features").argmax(dim=1)',
        '"features").argmin(dim=1)',
    ),
    _mutant(
        "the posterior's label is the least likely class",
        "pseudo_labels/rules.py",
        "return estimate.argmax(dim=1), estimate",
        "return estimate.argmin(dim=1), estimate",
        TWIN,
    ),
    _mutant(
        "Monte Carlo takes the class of least dependence",
        "pseudo_labels/monte_carlo.py",
        "torch.cat(values).argmax(dim=0)",
        "torch.cat(values).argmin(dim=0)",
    ),
    _mutant(
        "Monte Carlo without noise",
        "pseudo_labels/monte_carlo.py",
        "return rotated + noise_S.to(images)",
        "return rotated + 0 * noise_S.to(images)",
    ),
    _mutant(
        "Monte Carlo rotates one way",
        "pseudo_labels/monte_carlo.py",
        "(2 * torch.rand(self.samples, generator=generator) - 1)",
        "torch.rand(self.samples, generator=generator)",
    ),
    _mutant(
        "the trace is not centered",
        "pseudo_labels/monte_carlo.py",
        "(x - x.mean(dim=1, keepdim=True) for x in",
        "(x for x in",
    ),
    # Descriptors.
    _mutant(
        "Fisher scores of the mean loss",
        "features.py",
        'label_N, reduction="sum")',
        'label_N, reduction="mean")',
        "test_fisher.py",
    ),
    _mutant(
        "margins with the wrong sign",
        "fisher.py",
        ".values.diff(dim=1).neg()",
        ".values.diff(dim=1)",
        "test_selection.py::test_no_failures_fall_back_to_the_least_sure",
    ),
    _mutant(
        "layers pooled by their maximum",
        "features.py",
        "map_.flatten(2).mean(dim=2, dtype=exact)",
        "map_.flatten(2).amax(dim=2).to(exact)",
    ),
    _mutant("tokens are not averaged", "features.py", "map_.mean(dim=1, dtype=exact)", "map_[:, 0].to(exact)"),
    _mutant(
        "models describe in training mode",
        "features.py",
        "around.enter_context(evaluating(model))",
        "pass",
        "test_fisher.py",
    ),
    _mutant(
        "models may write on the images",
        "features.py",
        "self.model(images.clone())",
        "self.model(images)",
        "test_fisher.py",
        "test_features.py",
    ),
    # Kernels.
    _mutant(
        "fisher adds",
        "kernels.py",
        '"fisher": lambda z, g: _sum(z_j * g_j for',
        '"fisher": lambda z, g: _sum(z_j + g_j for',
    ),
    _mutant("sum without scores", "kernels.py", "_sum(z) + _sum(g)", "_sum(z)"),
    _mutant(
        "rows are not centered",
        "kernels.py",
        "centered = scaled - scaled.mean(dim=1, keepdim=True)",
        "centered = scaled",
    ),
    _mutant("rows are not scaled", "kernels.py", "centered / deviation.clamp_min(tiny))", "centered)"),
    _mutant(
        "rounding errors count as a direction",
        "kernels.py",
        "is_constant = deviation <= 8 *",
        "is_constant = deviation < 0 *",
    ),
    # Centers.
    _mutant(
        "k-center takes the most similar",
        "centers.py",
        "row = closest_N.argmin(dim=0, keepdim=True)",
        "row = closest_N.nan_to_num(posinf=-1e30).argmax(dim=0, keepdim=True)",
    ),
    _mutant(
        "k-center looks at the least similar center",
        "centers.py",
        "closest_N = torch.maximum(",
        "closest_N = torch.minimum(",
    ),
    _mutant(
        "k-center begins with the first",
        "centers.py",
        "torch.randint(len(points), (1,), generator=generator, device=generator.device)",
        "torch.zeros(1, dtype=torch.long)",
    ),
    # Matching.
    _mutant(
        "a probability never counts in full",
        "matching.py",
        "(probability_KN / FULL).clamp_max(1)",
        "(probability_KN / FULL)",
    ),
    _mutant(
        "probabilities do not weigh", "matching.py", "(probability_KN / FULL).clamp_max(1)", "(probability_KN > 0)"
    ),
    _mutant(
        "doubtful images do not rank last",
        "matching.py",
        "(probability_KN >= DOUBTFUL) & (similarity_KN > 0)",
        "similarity_KN > 0",
    ),
    _mutant(
        "images unlike the center do not rank last",
        "matching.py",
        "(probability_KN >= DOUBTFUL) & (similarity_KN > 0)",
        "probability_KN >= DOUBTFUL",
    ),
    _mutant(
        "implausible images in reverse",
        "matching.py",
        "(similarity_KN / largest - 3) * LAST",
        "(-similarity_KN / largest - 3) * LAST",
    ),
    _mutant(
        "implausible images in their turn",
        "matching.py",
        "(similarity < -LAST).sort(stable=True).indices",
        "torch.arange(len(similarity))",
    ),
    _mutant(
        "the probability of the image's own class",
        "matching.py",
        "batch.posterior.T[classes_K]",
        "batch.posterior.amax(dim=1).expand_as(similarity_KN)",
    ),
    _mutant(
        "the least similar first within a rank",
        "matching.py",
        "matches.key.T.sort(dim=1, descending=True, stable=True)",
        "matches.key.T.sort(dim=1, descending=False, stable=True)",
    ),
    _mutant("a table that is not deepened", "matching.py", "is_final = self.depth >= deepest or", "is_final = True or"),
    _mutant(
        "ties go to the larger index",
        "matching.py",
        "return ordered * 2**32 + (2**32 - 1 - index)",
        "return ordered * 2**32 + index",
    ),
    # Selection.
    _mutant(
        "centers weighed by their predicted class",
        "selection.py",
        "classes=described.label[rows],",
        "classes=described.prediction[rows],",
        TWIN,
    ),
    _mutant(
        "what the model gets right counts as a failure",
        "selection.py",
        "seen.prediction != seen.label)",
        "seen.prediction == seen.label)",
        BY_HAND,
    ),
    _mutant(
        "without failures the surest stand in",
        "selection.py",
        "seen.margin.cpu().argsort(stable=True)",
        "seen.margin.cpu().argsort(stable=True, descending=True)",
    ),
    _mutant(
        "centers by another kernel",
        "selection.py",
        "k_center(points, request.budget, request.kernel, request.generator)",
        'k_center(points, request.budget, "features", request.generator)',
        BY_HAND,
    ),
    # Acquisitions.
    _mutant(
        "labels of earlier rounds are not shown to the posterior",
        "acquisitions/fisher_kernel.py",
        "labeled=dict(zip(situation.labeled, situation.labels, strict=False))",
        "labeled={}",
    ),
    _mutant(
        "an experiment's posterior without labels of earlier rounds",
        "acquisitions/fisher_kernel.py",
        "labeled=dict(zip(situation.labeled, situation.labels, strict=False))",
        "labeled={}",
        SHOWN,
    ),
    _mutant(
        "acquisitions are not told the labels",
        ROUNDS,
        "acquire(replace(situation),",
        "acquire(replace(situation, labels=()),",
        SHOWN,
    ),
    _mutant(
        "an ensemble scored by its first member",
        ROUNDS,
        "task.reader) for model in situation.models]",
        "task.reader) for model in situation.models[:1]]",
        "active_learning/test_rounds.py::test_an_ensemble_reports_the_mean_of_its_members_and_the_predictions_of_the_first",
    ),
    _mutant(
        "uncertainty of the first member alone",
        "acquisitions/uncertainty.py",
        "for model in situation.models]",
        "for model in situation.models[:1]]",
    ),
    _mutant(
        "the least uncertain are chosen",
        "acquisitions/interface.py",
        "argsort(descending=True, stable=True)",
        "argsort(descending=False, stable=True)",
        "acquisitions/test_uncertainty.py",
    ),
    _mutant("VAAL's sign flipped", "acquisitions/vaal.py", "scores = -torch.cat(", "scores = torch.cat("),
    _mutant(
        "VAAL's discriminator learns the opposite", "acquisitions/vaal.py", "[:, None] < count)", "[:, None] >= count)"
    ),
    _mutant(
        "entropy's sign flipped", "acquisitions/uncertainty.py", "return -(p * p.clamp_min", "return (p * p.clamp_min"
    ),
    _mutant(
        "margin's sign flipped",
        "acquisitions/uncertainty.py",
        ".values.diff(dim=1).squeeze(1)",
        ".values.diff(dim=1).squeeze(1).neg()",
    ),
    _mutant(
        "BALD adds the mean entropy",
        "acquisitions/uncertainty.py",
        "_entropy(p.mean(dim=0)) - _entropy(p)",
        "_entropy(p.mean(dim=0)) + _entropy(p)",
    ),
    _mutant(
        "the variation ratio of the rarest vote",
        "acquisitions/uncertainty.py",
        "votes.amax(dim=1)",
        "votes.amin(dim=1)",
    ),
    _mutant(
        "one dropout mask instead of several",
        "acquisitions/dropout.py",
        "(by_sample * mask[:, None])",
        "(by_sample * mask[:1, None])",
    ),
    _mutant(
        "dropout keeps what it should drop", "acquisitions/dropout.py", ".bernoulli_(1 - rate,", ".bernoulli_(rate,"
    ),
    _mutant("dropout does not scale", "acquisitions/dropout.py", "keep.div_(1 - rate)", "keep"),
    _mutant(
        "tail first ignores the labels",
        "acquisitions/class_balance.py",
        "situation.labels if counting_labels else ()",
        "() if counting_labels else ()",
    ),
    _mutant(
        "quotas of the largest class first",
        "acquisitions/class_balance.py",
        "heapq.heappush(totals, (count + 1, c))",
        "heapq.heappush(totals, (count - 1, c))",
    ),
    _mutant(
        "SIMILAR asks for what is right",
        "acquisitions/validation_features.py",
        "logits_MC.argmax(dim=1) != truth_M",
        "logits_MC.argmax(dim=1) == truth_M",
        "acquisitions/test_class_balance.py::test_similar_covers_the_failures_greedily",
    ),
    _mutant(
        "SIMILAR without what is covered",
        "acquisitions/class_balance.py",
        "covered_Q = torch.maximum(covered_Q,",
        "covered_Q = torch.minimum(covered_Q,",
    ),
    _mutant(
        "core-set takes the nearest",
        "acquisitions/diversity.py",
        "squares_N + to_block.amin(dim=1)",
        "squares_N + to_block.amax(dim=1)",
    ),
    _mutant(
        "BADGE's gradients without the label",
        "acquisitions/diversity.py",
        "error_NC = probability_NC - torch.nn.functional.one_hot(",
        "error_NC = probability_NC - 0 * torch.nn.functional.one_hot(",
    ),
    _mutant(
        "BADGE starts with the smallest gradient",
        "acquisitions/diversity.py",
        "row = norms_N.argmax(dim=0, keepdim=True)",
        "row = norms_N.argmin(dim=0, keepdim=True)",
    ),
    _mutant(
        "EPIG's sign flipped",
        "acquisitions/epig.py",
        "take_largest(situation, torch.cat(values),",
        "take_largest(situation, -torch.cat(values),",
    ),
    _mutant(
        "EPIG's targets from the pool",
        "acquisitions/epig.py",
        "situation.reader.read(situation.validation, target_index)",
        "situation.reader.read(situation.pool, target_index)",
    ),
    _mutant(
        "GALAXY and DIRECT forget the labels",
        "acquisitions/galaxy.py",
        "labels = list(situation.labels) or situation.ask(",
        "labels = [None for _ in situation.labels] or situation.ask(",
    ),
    _mutant(
        "GALAXY's chains of the least likely class",
        "acquisitions/galaxy.py",
        "(probability_NC - best + 1e-8 * best)",
        "(best - probability_NC + 1e-8 * best)",
    ),
    _mutant(
        "GALAXY does not look at the answers",
        "acquisitions/galaxy.py",
        "chains.query([row])",
        "chains.ask([chains.indices[row]])",
    ),
    _mutant("GALAXY bisects one class only", "acquisitions/galaxy.py", "c = turn % num_classes", "c = 0"),
    _mutant(
        "DIRECT's chains the wrong way round",
        "acquisitions/direct.py",
        "most_likely_first=True)",
        "most_likely_first=False)",
    ),
    _mutant(
        "DIRECT's worst threshold",
        "acquisitions/direct.py",
        "int(accuracies(state_N).argmax())",
        "int(accuracies(state_N).argmin())",
    ),
    _mutant(
        "DIRECT searches rare classes first",
        "acquisitions/direct.py",
        "key=lambda c: -frequency[c]",
        "key=lambda c: frequency[c]",
    ),
    _mutant(
        "DIRECT spends all on one class",
        "acquisitions/direct.py",
        "share = remaining * (turn + 1) // num_classes - remaining * turn // num_classes",
        "share = remaining if turn == 0 else 0",
    ),
    _mutant("TypiClust ignores the labels", "acquisitions/typiclust.py", "(labels[c], -size[c])", "(0, -size[c])"),
    _mutant(
        "TypiClust takes the least typical",
        "acquisitions/typiclust.py",
        "int(typicality(features_NF[free[c]]).argmax())",
        "int(typicality(features_NF[free[c]]).argmin())",
    ),
    _mutant(
        "coverage ignores the labels",
        "acquisitions/pool_coverage.py",
        "scene.labeled_LF[first : first + BLOCK]",
        "scene.unlabeled_NF[:1]",
    ),
    _mutant(
        "a chosen image covers nothing",
        "acquisitions/pool_coverage.py",
        "coverage.add(scene.unlabeled_NF[best : best + 1])",
        "coverage.add(scene.unlabeled_NF[:1])",
    ),
    _mutant(
        "coverage by a bound, not by the largest gain",
        "acquisitions/pool_coverage.py",
        "if is_current_N[best] and bound_N[best] >= stale_N.amax():",
        "if is_current_N[best]:",
    ),
    _mutant(
        "an image does not cover itself",
        "acquisitions/pool_coverage.py",
        "+ own_B + self.bonus_N[rows]",
        "+ self.bonus_N[rows]",
    ),
    _mutant(
        "a target covers itself twice",
        "acquisitions/pool_coverage.py",
        "torch.arange(num_targets)] = 0",
        "torch.arange(num_targets)] += 0",
    ),
    _mutant(
        "targets do not stand for the others",
        "acquisitions/pool_coverage.py",
        "return self.scale_N[rows] * others_B",
        "return others_B",
    ),
    _mutant("MaxHerding's radius", "acquisitions/max_herding.py", "gaussian(radius)", "gaussian(2 * radius)"),
    _mutant("UHerding without uncertainty", "acquisitions/uherding.py", "1 + margin(", "1 + 0 * margin("),
    _mutant(
        "UHerding without temperature", "acquisitions/uherding.py", "(scene.logits_NC / temperature)", "scene.logits_NC"
    ),
    _mutant(
        "UHerding's radius does not adapt",
        "acquisitions/uherding.py",
        "gaussian(smallest_distance(scene.labeled_LF))",
        "gaussian(RADIUS)",
    ),
    _mutant(
        "copies shrink UHerding's radius",
        "acquisitions/uherding.py",
        "squares.masked_fill(squares <= COPIES**2, torch.inf)",
        "squares",
    ),
    _mutant(
        "ProbCover's balls are impure",
        "acquisitions/probcover.py",
        "int((1 - purity) * len(nearest_T))",
        "int(purity * (len(nearest_T) - 1))",
    ),
    _mutant(
        "ProbCover's radius without clusters",
        "acquisitions/probcover.py",
        "cluster[:, None] == cluster_T",
        "cluster[:, None] != cluster_T",
    ),
    _mutant(
        "ProbCover's ties by position", "acquisitions/probcover.py", ".to(weight_N) / 2  #", ".to(weight_N) * 0  #"
    ),
    _mutant(
        "DropQuery takes stable predictions",
        "acquisitions/dropquery.py",
        "argsort(descending=True, stable=True)",
        "argsort(stable=True)",
    ),
    _mutant(
        "DropQuery takes every change", "acquisitions/dropquery.py", "(2 * changes_N > samples)", "(changes_N > 0)"
    ),
    _mutant("DropQuery drops fewer features", "acquisitions/dropquery.py", "uniform < rate", "uniform < rate / 2"),
    _mutant(
        "DropQuery takes the farthest of a cluster",
        "acquisitions/dropquery.py",
        "order = order[distance_N.argsort(stable=True)]",
        "order = order[distance_N.argsort(descending=True)]",
    ),
    _mutant(
        "failures do not take turns",
        "acquisitions/nearest_failures.py",
        "similarity_KN[turn % len(similarity_KN)]",
        "similarity_KN[0]",
    ),
    _mutant(
        "nearest by product, not by cosine",
        "acquisitions/nearest_failures.py",
        "functional.normalize(features_NF, dim=1)",
        "features_NF",
    ),
    _mutant(
        "corrected entropy without correction",
        "acquisitions/corrected_entropy.py",
        "torch.where(head.prior > 0, share_C / head.prior, 0)",
        "1",
    ),
    _mutant(
        "corrected entropy without pool labels",
        "acquisitions/corrected_entropy.py",
        "torch.tensor(situation.labels,",
        "torch.tensor((),",
    ),
    _mutant("BAIT never removes", "acquisitions/bait.py", "round(oversampling * count)", "count"),
    _mutant("BAIT removes the most useful", "acquisitions/bait.py", "int(loss.argmin())", "int(loss.argmax())"),
    _mutant(
        "BAIT ignores the leverage",
        "acquisitions/bait.py",
        "design.effect_N / (1 + design.leverage_N)",
        "design.effect_N",
    ),
    _mutant(
        "BAIT's product drifts", "acquisitions/bait.py", "- factor * (mixed_FF + mixed_FF.T)", "- factor * mixed_FF"
    ),
    _mutant(
        "BAIT's smallest directions",
        "acquisitions/bait.py",
        "directions[:, -MAX_DIMENSIONS:]",
        "directions[:, :MAX_DIMENSIONS]",
    ),
    _mutant(
        "all validation images are failures",
        "acquisitions/validation_features.py",
        "features_MF[kept], logits_MC[kept], truth_M[kept]",
        "features_MF, logits_MC, truth_M",
    ),
    _mutant(
        "a linear head without dropout on its input",
        "acquisitions/dropout.py",
        "if isinstance(model, nn.Linear):",
        "if False:",
        "acquisitions/test_interface.py::test_embeddings_are_chosen_as_the_same_vectors_in_memory",
    ),
    # Rounds and training runs.
    _mutant("every round starts cold", ROUNDS, "(situation if task.warm else task.start).models", "task.start.models"),
    _mutant("all seeds are one", ROUNDS, "seed * 1_000_003 + number * 7919", "number * 7919"),
    _mutant("a model is scored on what it learned", ROUNDS, "return not task.learns_validation and", "return"),
    _mutant(
        "training ignores the decay of its rate",
        "training/loop.py",
        "= training.lr_at(num_done * len(sizes) + number, training.epochs * len(sizes))",
        "= training.lr",
    ),
    _mutant(
        "weight decay of biases", "training/optimizers.py", '"weight_decay": 0.0}', '"weight_decay": weight_decay}'
    ),
    # Experiments.
    _mutant(
        "validation images stay in the pool", "experiments/datasets.py", "np.setdiff1d(all_rows, held)", "all_rows"
    ),
    _mutant(
        "the test set's images are trusted",
        "experiments/datasets.py",
        "(test, np.arange(len(test))) if is_test",
        "(test, np.arange(len(test))) if True",
    ),
    _mutant(
        "the imbalance of each rare class",
        "data/imbalance.py",
        "count = int(len(common) / ratio)",
        "count = int(len(others) / ratio)",
    ),
    _mutant(
        "wrong labels are right",
        "data/imbalance.py",
        "rng.integers(1, num_classes, len(wrong))",
        "rng.integers(0, 1, len(wrong))",
    ),
    _mutant(
        "recall of all classes as that of rare ones",
        "experiments/cells.py",
        "float(score.recall[rare].mean())",
        "float(score.recall.mean())",
    ),
    _mutant(
        "precision by the pseudo-label instead of the center",
        "experiments/cells.py",
        "torch.isin(_labels(task.start.validation)[diagnosis.centers], rare)",
        "torch.isin(diagnosis.pseudo_labels, rare)",
    ),
    _mutant(
        "the confusion matrix on its side",
        "experiments/cells.py",
        "(true_labels * num_classes + score.prediction)",
        "(score.prediction * num_classes + true_labels)",
    ),
    _mutant(
        "cells learn the validation set",
        "experiments/cells.py",
        "learns_validation=experiment.circumstances.train_on_validation",
        "learns_validation=True",
        "experiments/test_cells.py",
        "experiments/test_runner.py::test_a_run_has_every_round_of_every_cell",
    ),
    _mutant(
        "the baseline is the untrained network",
        "experiments/baselines.py",
        "replace(task, learns_validation=True)",
        "task",
    ),
    _mutant(
        "the posterior alone answers under the pool's proportions",
        "experiments/baselines.py",
        "predicted.append(answer(Seen(view.images, view.features_ND)).argmax(dim=1).cpu())",
        "predicted.append(learned.estimate(view, None, watch).argmax(dim=1).cpu())",
    ),
    _mutant(
        "the posterior alone is another than that of the first round",
        "experiments/baselines.py",
        'step_generator(task.seed, 0, "select")',
        'step_generator(task.seed, 1, "select")',
    ),
    _mutant(
        "the default learns the test labels",
        "experiments/settings.py",
        '"posterior" if learns else ""',
        '""',
        "experiments/test_paper_size.py::test_nothing_is_trained_on_the_test_labels",
    ),
    _mutant(
        "a baseline has as many records as there are rounds",
        "experiments/settings.py",
        "1 if cell.method.is_baseline else self.rounds",
        "self.rounds",
        "experiments/test_baselines.py",
    ),
    # Statistics.
    _mutant(
        "the spread of the population",
        "report/curves.py",
        "ddof=1 if len(self.values) > 1",
        "ddof=0 if len(self.values) > 1",
    ),
    _mutant(
        "a dip undoes what was reached",
        "report/curves.py",
        "np.maximum.accumulate(accuracy_BR, axis=-1)",
        "accuracy_BR",
    ),
    _mutant("unfinished rounds are averaged", "report/curves.py", "last = min(max(", "last = max(max("),
    _mutant(
        "seeds in another order",
        "report/curves.py",
        "[drawn.seeds.index(seed) for seed in seeds]",
        "list(range(len(seeds)))",
        "report/test_curves.py",
        "report/test_statistics.py",
    ),
    _mutant(
        "labels saved of our own",
        "report/curves.py",
        "labels_to_reach(float(rival.mean[-1]), ours) / float(rival.labels_spent[-1])",
        "labels_to_reach(float(rival.mean[-1]), ours) / float(ours.labels_spent[-1])",
    ),
    _mutant("Bonferroni instead of Holm", "report/statistics.py", "(len(order) - rank) * p[i]", "len(p) * p[i]"),
    _mutant(
        "a one-sided test",
        "report/statistics.py",
        "np.abs(signs @ differences) / count",
        "(signs @ differences) / count",
    ),
    _mutant("sign flips drawn at random for few seeds", "report/statistics.py", "if count <= 16:", "if count <= 2:"),
    # The workspace: answers and predictions.
    _mutant("a tie settles an image", "workspace/answers.py", " and not any(other == count for _, other in rest)", ""),
    _mutant(
        "later rounds are asked about first",
        "workspace/answers.py",
        "ORDER BY pick.round, rank LIMIT",
        "ORDER BY pick.round DESC, rank LIMIT",
    ),
    _mutant("leases of one's own count", "workspace/answers.py", "lease.who <> :who)", "lease.who = :who)"),
    _mutant(
        "leases end at once",
        "workspace/answers.py",
        "(image, who, moment + LEASE_S) for",
        "(image, who, moment - 1) for",
    ),
    _mutant(
        "leases of a clock that was ahead last",
        "workspace/answers.py",
        "until < ? OR until > ?",
        "until < ? OR until < ? - 1e9",
    ),
    _mutant("skipped images never come back", "workspace/answers.py", "for again in (0, 1):", "for again in (0,):"),
    _mutant("a skip discards an answer", "workspace/answers.py", 'kind == "skip"\n', 'kind == "never"\n'),
    _mutant("a ticket is good for any answer", "workspace/answers.py", "!= (image, who, kind, number):", "== ():"),
    _mutant(
        "an answer does not close its image",
        "workspace/answers.py",
        "    refresh(connection, image)\n    assert",
        "    assert",
    ),
    _mutant(
        "undone images are given to others",
        "workspace/answers.py",
        "        _lease(connection, who, [image], time.time())\n",
        "",
    ),
    _mutant(
        "undo takes back the first answer",
        "workspace/answers.py",
        "WHERE who = ? ORDER BY id DESC LIMIT 1",
        "WHERE who = ? ORDER BY id LIMIT 1",
    ),
    _mutant(
        "two people per image by default",
        "workspace/answers.py",
        'json.loads(row["value"]) if row else 1',
        'json.loads(row["value"]) if row else 2',
    ),
    _mutant("people who agree count as split", "workspace/answers.py", "if len(said) > 1}", "if len(said) > 0}"),
    _mutant(
        "a round does not record the pool's mix",
        "workspace/active_learning.py",
        '"pool_mix": None if chosen.pool_mix is None else chosen.pool_mix.tolist(),',
        '"pool_mix": None,',
        "workspace/test_active_learning.py::test_a_round_says_what_its_selection_found",
    ),
    _mutant(
        "a round records the mix of the oldest selection",
        "workspace/summary.py",
        "for how in reversed(rounds) if",
        "for how in rounds if",
    ),
    # Coverage.
    _mutant(
        "proportions corrected in full",
        WEIGHTS,
        "posterior.reliability * posterior.log_shift_C",
        "posterior.log_shift_C",
    ),
    _mutant(
        "one network instead of four weighs the images",
        POSTERIOR,
        "candidates = (self.answer, *self.fold_candidates)",
        "candidates = (self.answer,)",
        "pseudo_labels/test_target_weights.py",
    ),
    _mutant("the networks of the folds are dropped", POSTERIOR, "            held.candidates,\n", "            (),\n"),
    _mutant("classes needed alike", WEIGHTS, "softmax(dim=1) @ need_C", "softmax(dim=1).sum(dim=1)"),
    _mutant("sure images count as much as doubtful ones", WEIGHTS, "* need_N * doubt_N)", "* need_N)"),
    _mutant(
        "the inverse density ratio",
        WEIGHTS,
        "(logits_NC.logsumexp(dim=1) - shifted_NC.logsumexp(dim=1))",
        "(shifted_NC.logsumexp(dim=1) - logits_NC.logsumexp(dim=1))",
    ),
    _mutant(
        "images judged by a posterior that knows them",
        WEIGHTS,
        "    found_VC[posterior.held_rows] = (posterior.held_logits / posterior.temperature).softmax(dim=1).float()\n",
        "",
    ),
    _mutant(
        "the model's probabilities at temperature 1",
        WEIGHTS,
        "view.logits_NC.detach().float() / self.temperature",
        "view.logits_NC.detach().float()",
        COVERS,
    ),
    _mutant(
        "known images do not cover",
        "centers.py",
        "torch.maximum(covered_N, closeness(some, points).amax(dim=0))",
        "covered_N",
    ),
    _mutant("chosen images do not cover", "centers.py", "torch.maximum(covered_N, near[row])", "covered_N"),
    _mutant(
        "the images with the largest weights instead of a sample",
        "matching.py",
        "priority_N = weight_N / fixed_uniforms(batch.index).to(weight_N)",
        "priority_N = weight_N",
    ),
    _mutant("weights of the sample are not raised", SELECTION, ".float().clamp_min(least_weight)", ".float()", COVERS),
    _mutant(
        "trusted images never count as known",
        SELECTION,
        "first_known = 0 if request.cross_fit else evidence.num_validation",
        "first_known = evidence.num_validation",
        COVERS,
    ),
    _mutant(
        "failures of the wrong class explain an image",
        SELECTION,
        "closeness(points, failures_KD) * of_class_PK.to(points)",
        "closeness(points, failures_KD)",
        COVERS,
    ),
)
