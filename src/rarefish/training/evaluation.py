"""Accuracy and recall of a model on a labeled dataset."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rarefish.data.reader import Data, Reader, check_labels
from rarefish.models.layer_selection import casting, device_of, dtype_of, evaluating


@dataclass(frozen=True)
class Score:
    """Accuracy, recall per class and predictions on a dataset."""

    accuracy: float
    recall: Float[Tensor, " C"]
    """Recall of each class, or NaN for a class without images."""
    prediction: Int[Tensor, " N"]


@torch.no_grad()
def evaluate(
    model: nn.Module, data: Data, num_classes: int, reader: Reader | None = None, precision: str = "float32"
) -> Score:
    """Returns the accuracy, recall per class and predictions of a model on a labeled dataset."""
    reader = reader or Reader(batch_size=1000, progress=False)
    device, dtype = device_of(model), dtype_of(model)
    predicted, true = [], []
    with evaluating(model), casting(device, precision):
        for batch in reader.read(data, title="evaluating", labels=True):
            assert batch.labels is not None
            check_labels(batch, num_classes)
            predicted.append(model(batch.images.to(device, dtype)).argmax(dim=1))
            true.append(batch.labels)
    return score(torch.cat(predicted).cpu(), torch.cat(true).cpu(), num_classes)


def score(prediction_N: Int[Tensor, " N"], label_N: Int[Tensor, " N"], num_classes: int) -> Score:
    """Returns the score of these predictions."""
    is_right_N = (prediction_N == label_N).float()
    right_C = torch.zeros(num_classes).index_add_(0, label_N, is_right_N)
    recall_C = right_C / label_N.bincount(minlength=num_classes)
    return Score(float(is_right_N.mean()), recall_C, prediction_N)
