"""Prior-corrected entropy of the cross-fitted heads: uncertainty of a classifier that knows the validation labels."""

import torch

from rarefish.acquisitions.diversity import last_features
from rarefish.acquisitions.interface import Choice, Situation, take_largest
from rarefish.acquisitions.uncertainty import entropy
from rarefish.acquisitions.validation_features import read_validation
from rarefish.pseudo_labels.label_shift import estimate_prior
from rarefish.training.linear_head import fit_linear_head

FLOOR = 1e-3
"""Approximate lower bound on the estimated proportion of each class among the unlabeled images."""


def choose_by_corrected_entropy(situation: Situation, budget: int, generator: torch.Generator) -> Choice:
    """Chooses the images with the largest entropy, for the class proportions of the pool.

    A linear head is fitted to the validation set and the labeled images, on the features before the classifier. Its
    ridge and temperature are those with the lowest loss out of fold. The class proportions of the unlabeled images are
    estimated by expectation maximization (Saerens, Latinne and Decaestecker, 2002), and the probabilities are weighted
    by them. The model's own classifier is not used.
    """
    trusted_MF, _, truth_M = read_validation(situation)
    features, logits = last_features(situation, [*situation.labeled, *situation.unlabeled])
    labeled_LF, unlabeled_NF = features.split([len(situation.labeled), len(situation.unlabeled)])
    known = torch.tensor(situation.labels, dtype=torch.long, device=truth_M.device)
    rows = torch.cat([trusted_MF, labeled_LF[: len(known)]])
    folds = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=generator)))
    head = fit_linear_head(rows, torch.cat([truth_M, known]), logits.shape[1], generator=folds)
    probability_NC = head.probabilities(unlabeled_NF)
    share_C = estimate_prior(probability_NC, head.prior, FLOOR)
    weighted_NC = probability_NC * torch.where(head.prior > 0, share_C / head.prior, 0)
    corrected_NC = weighted_NC / weighted_NC.sum(dim=1, keepdim=True)
    passes = len(situation.validation) + len(features)
    return take_largest(situation, entropy(corrected_NC[None]), budget, generator, passes)
