"""Monte Carlo dropout against a loop over samples and images."""

from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from rarefish.acquisitions.dropout import mc_dropout
from rarefish.errors import ModelError
from tests.acquisitions.situations import POOL, seeded, situation
from tests.cases import Plain


class Dropper(nn.Module):
    """A model with two layers in `default_dropout`."""

    default_dropout: ClassVar = {"first": 0.25, "second": 0.5}

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(2, 3, 3), nn.Conv2d(3, 4, 3), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x).relu()).relu().flatten(1))


MASKS = [(0.25, (3, 6, 6)), (0.5, (4, 4, 4))]


def test_dropout_is_on_at_scoring_only_and_its_mean_is_the_model() -> None:
    here = situation()
    images = POOL.tensors[0][:3]
    plain = here.model.eval()(images)
    with torch.no_grad(), mc_dropout(here.model, 2, seeded()) as predict:
        first, second = predict(images)
        torch.testing.assert_close(predict(images[1:2])[:, 0], torch.stack([first[1], second[1]]))
    assert not torch.equal(first, second)
    assert torch.equal(here.model(images), plain)
    linear = nn.Sequential(nn.Linear(4, 50), nn.Linear(50, 3))
    linear.default_dropout = {"0": 0.5}  # pyright: ignore[reportArgumentType]
    x = torch.ones(1, 4)
    with torch.no_grad(), mc_dropout(linear, 4000, seeded()) as predict:
        mean = predict(x).mean(dim=0)
    torch.testing.assert_close(mean, linear(x), atol=0.05, rtol=0)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_samples_equal_a_loop_over_samples_and_images(layout: torch.memory_format) -> None:
    model = Dropper().eval().to(memory_format=layout)  # pyright: ignore[reportCallIssue]
    images, generator = POOL.tensors[0][:5], seeded(3)
    keep = [torch.empty(6, *shape).bernoulli_(1 - p, generator=generator) / (1 - p) for p, shape in MASKS]
    with torch.no_grad(), mc_dropout(model, 6, seeded(3)) as predict:
        fast = predict(images)
    for s in range(6):
        for n in range(5):
            x = model.first(images[n : n + 1]) * keep[0][s]
            x = model.second(x.relu()) * keep[1][s]
            torch.testing.assert_close(fast[s, n], model.last(x.relu().flatten(1))[0], atol=1e-5, rtol=1e-5)


def test_a_models_own_dropout_layers_are_used_even_beside_a_shortcut() -> None:
    class Shortcut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.last = nn.Dropout(0.5), nn.Linear(128, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.drop(x.flatten(1)) + x.flatten(1))

    own, images = Shortcut().eval(), POOL.tensors[0][:2]
    with mc_dropout(own, 3, seeded()) as predict:
        answers = predict(images)
    assert answers.shape == (3, 2, 4) and not torch.equal(answers[0], answers[1])
    assert torch.equal(own(images), own(images))
    with pytest.raises(ModelError, match="needs a model with Dropout layers"), mc_dropout(Plain(), 2, seeded()):
        pass


def test_dropout_layers_that_are_switched_off_do_not_count() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.0), nn.Linear(128, 4)).eval()
    with pytest.raises(ModelError, match="needs a model with Dropout layers"), mc_dropout(model, 2, seeded()):
        pass
