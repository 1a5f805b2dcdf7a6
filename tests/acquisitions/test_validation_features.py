"""Features, logits and labels of the validation set and of its failures."""

from dataclasses import replace

import torch
from torch import nn

from rarefish.acquisitions.validation_features import failures_of, read_validation
from tests.acquisitions.situations import vector_situation, vectors


def test_all_images_and_failures() -> None:
    here, (images, truth) = vector_situation(), vectors("validation").tensors
    features, logits, labels = read_validation(here)
    assert torch.equal(features, images) and torch.equal(labels, truth)
    torch.testing.assert_close(logits, here.model(images).detach())
    wrong = logits.argmax(dim=1) != truth
    assert 0 < wrong.sum() < len(wrong)
    for found, all_ in zip(failures_of(here), (features, logits, labels), strict=True):
        assert torch.equal(found, all_[wrong])


def test_all_images_if_nothing_fails() -> None:
    head = nn.Linear(12, 4)
    nn.init.zeros_(head.weight)
    with torch.no_grad():
        head.bias.copy_(torch.tensor([0.0, 0, 0, 9]))
    validation = torch.utils.data.TensorDataset(torch.randn(7, 12), torch.full((7,), 3))
    assert len(failures_of(replace(vector_situation(), models=(head,), validation=validation))[2]) == 7
