"""What the model computes for the validation set: features before the classifier, logits and labels."""

from dataclasses import replace

import torch
from torch import Tensor

from rarefish.acquisitions.diversity import last_features
from rarefish.acquisitions.interface import Situation


def read_validation(situation: Situation) -> tuple[Tensor, Tensor, Tensor]:
    """Returns features, logits and labels of all validation images."""
    validation = replace(situation, pool=situation.validation, labeled=(), refused=(), labels=())
    features_MF, logits_MC = last_features(validation, validation.unlabeled)
    batches = situation.reader.read(situation.validation, labels=True)
    truth_M = torch.cat([batch.labels for batch in batches if batch.labels is not None]).to(logits_MC.device)
    return features_MF, logits_MC, truth_M


def failures_of(situation: Situation) -> tuple[Tensor, Tensor, Tensor]:
    """Returns features, logits and labels of the misclassified validation images, or of all if there are none."""
    features_MF, logits_MC, truth_M = read_validation(situation)
    is_wrong_M = logits_MC.argmax(dim=1) != truth_M
    kept = is_wrong_M if is_wrong_M.any() else torch.ones_like(is_wrong_M)
    return features_MF[kept], logits_MC[kept], truth_M[kept]
