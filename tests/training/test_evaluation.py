"""A score is counted right, class by class."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from rarefish.training.evaluation import evaluate


def test_recall_is_counted_per_class() -> None:
    class Says(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.one_hot(x[:, 0].long(), 4).float()

    answers, truth = torch.tensor([[0], [0], [1], [2], [1]]), torch.tensor([0, 1, 1, 2, 2])
    score = evaluate(Says(), TensorDataset(answers, truth), 4)
    assert score.accuracy == pytest.approx(3 / 5)
    assert score.recall[:3].tolist() == [1.0, 0.5, 0.5] and score.recall[3].isnan()
    assert score.prediction.tolist() == [0, 0, 1, 2, 1]


def test_the_asked_for_precision_is_used() -> None:
    seen: list[torch.dtype] = []
    net = nn.Linear(4, 3)
    net.register_forward_hook(lambda *told: seen.append(told[2].dtype))
    data = TensorDataset(torch.randn(5, 4), torch.zeros(5, dtype=torch.long))
    for precision in ("float32", "bfloat16"):
        evaluate(net, data, 3, precision=precision)
    assert seen == [torch.float32, torch.bfloat16]
