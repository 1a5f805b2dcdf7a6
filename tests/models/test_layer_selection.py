"""Layers found by name or chosen, and models that give something else than logits."""

import pytest
import torch
from torch import Tensor, nn

from rarefish import select
from rarefish.errors import LayerError, ModelError
from rarefish.models.layer_selection import check_logits, choose_layers, find_layers
from rarefish.models.networks import LeNet
from tests.cases import Plain, Residual, Transformer, Vector, images, labeled


@pytest.mark.parametrize(
    ("net", "chosen"),
    [(Plain(), ("conv1", "conv2")), (Residual(), ("relu",)), (Vector(), ("flat", "fc1"))],
)
def test_two_scales_are_chosen(net: nn.Module, chosen: tuple[str, ...]) -> None:
    assert choose_layers(net, images(1)) == chosen
    assert net.training and not any(module._forward_hooks for module in net.modules())


def test_a_transformer_is_described_below_its_head() -> None:
    assert choose_layers(Transformer(), images(1))[-1] == "block2"


def test_a_stage_is_called_by_its_short_name() -> None:
    class Staged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer3 = nn.Sequential(nn.Sequential(nn.Conv2d(2, 3, 1), nn.ReLU()))
            self.layer4 = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
            self.avgpool = nn.AdaptiveAvgPool2d(1)
            self.fc = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.avgpool(self.layer4(self.layer3(x))).flatten(1))

    assert choose_layers(Staged(), images(1)) == ("layer3", "avgpool")


def test_a_model_may_name_its_own() -> None:
    assert choose_layers(LeNet(), torch.zeros(1, 1, 28, 28)) == ("conv1", "conv2", "fc1")


def test_nothing_to_choose_from() -> None:
    with pytest.raises(LayerError, match="no layer below the logits"):
        choose_layers(nn.Linear(3, 2), torch.zeros(1, 3))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (("conv_1",), "no layer 'conv_1'. Did you mean conv1 or conv2"),
        (("zzz",), "no layer 'zzz'. Known: conv1, conv2, fc"),
        ((), "at least one name"),
        ("conv1", "must be a sequence"),
        (("conv1", "conv1"), "contains a name twice"),
        (("",), "no layer ''"),
    ],
)
def test_bad_names(layers: tuple[str, ...] | str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        find_layers(Plain(), layers)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({"logits": torch.zeros(2, 3)}, "returns a dict with logits, not a tensor of logits. Wrap it"),
        ((torch.zeros(2, 3),), "returns a tuple"),
        (torch.zeros(2, 3, 4), r"shape \(2, 3, 4\) for 2 images; logits must be \(2, classes\)"),
        (torch.zeros(2), r"shape \(2,\)"),
        (torch.zeros(2, 1), "at least 2 classes"),
        (torch.zeros(3, 4), r"shape \(3, 4\) for 2 images"),
    ],
)
def test_outputs_that_are_not_logits(output: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        check_logits(output, 2)


def test_the_logits_themselves_are_not_chosen() -> None:
    class Cooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Plain()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x) / 2

    assert choose_layers(Cooled(), images(1)) == ("net.conv1", "net.conv2")
    assert choose_layers(nn.Sequential(Plain(), nn.LogSoftmax(dim=1)), images(1)) == ("0.conv1", "0.conv2")


def test_layers_off_the_way_are_not_chosen() -> None:
    class Side(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.side = nn.Conv2d(2, 9, 3)

        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            self.side(x)
            return out

    assert choose_layers(Side(), images(1)) == ("conv1", "conv2")


@pytest.mark.parametrize("off", [torch.no_grad(), torch.inference_mode()])
def test_a_model_that_turns_gradients_off_is_told_so(off: torch.no_grad | torch.inference_mode) -> None:
    class Deployed(Plain):
        def forward(self, x: Tensor) -> Tensor:
            with off:
                return super().forward(x)

    model, pool, validation = Deployed(), labeled(12), labeled(12, 1)
    for layers in (None, ("conv1",)):
        for labels in ("posterior", "density"):
            with pytest.raises(ModelError, match=r"runs under torch\.no_grad\(\) or torch\.inference_mode\(\)"):
                select(model, pool, validation, budget=2, layers=layers, labels=labels, progress=False)
