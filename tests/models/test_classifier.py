"""The layer of a model that a fitted head can replace."""

import pytest
import torch
from torch import Tensor, nn

from rarefish.embedding import embed
from rarefish.models.classifier import classifier_of, replaceable_classifier, with_head
from rarefish.models.loading import load_model

IMAGES = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))


class Scaled(nn.Module):
    """A network whose output is that of its linear layer, times a number."""

    def __init__(self, scale: float, bias: bool = True) -> None:
        super().__init__()
        self.hidden, self.fc, self.scale = nn.Linear(12, 5), nn.Linear(5, 3, bias=bias), scale

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.hidden(images[:, :, :2, :2].flatten(1)).relu()) * self.scale


@pytest.mark.parametrize(("address", "name"), [("resnet10", "fc"), ("lenet", "fc2")])
def test_a_head_on_the_embeddings_is_the_same_as_the_model_that_contains_it(address: str, name: str) -> None:
    model = load_model(address, 5, 3 if address == "resnet10" else 1).eval()
    images = IMAGES if address == "resnet10" else IMAGES[:, :1, :28, :28]
    assert replaceable_classifier(model, images[:1]) == name
    features = torch.from_numpy(embed(model, torch.utils.data.TensorDataset(images), progress=False).values)
    head = nn.Linear(features.shape[1], 5)
    with torch.no_grad():
        whole = with_head(model, name, head)
        torch.testing.assert_close(whole(images), head(features))
        before = whole(images)
        head.weight.zero_()
        torch.testing.assert_close(whole(images), before, msg="the head is copied")
        torch.testing.assert_close(classifier_of(whole, name)(features), before)


def test_a_model_whose_output_is_not_that_of_a_linear_layer_has_none() -> None:
    assert replaceable_classifier(Scaled(1.0), IMAGES) == "fc"
    assert replaceable_classifier(Scaled(2.0), IMAGES) is None
    assert replaceable_classifier(Scaled(1.0, bias=False), IMAGES) is None
    assert replaceable_classifier(nn.Sequential(nn.Conv2d(3, 4, 32), nn.Flatten()), IMAGES) is None
