"""Taps: what is kept, from which call, in which shape."""

from contextlib import ExitStack

import pytest
import torch
from torch import Tensor, nn

from rarefish.errors import ArgumentError, LayerError
from rarefish.features import spatial_mean, tapped, watched
from rarefish.models.layer_selection import channels_last, evaluating
from tests.cases import Plain, Shared, Vector, images


def test_spatial_mean_of_maps_tokens_and_vectors() -> None:
    map_ = torch.arange(24.0).reshape(1, 2, 3, 4)
    assert spatial_mean(map_).tolist() == [[5.5, 17.5]]
    assert spatial_mean(map_.flatten(1)).shape == (1, 24)
    assert spatial_mean(torch.tensor([[[1.0, 2.0], [3.0, 6.0]]])).tolist() == [[2.0, 4.0]]
    assert spatial_mean(torch.ones(1, 2, 3, 3, dtype=torch.bfloat16)).dtype == torch.float32
    assert spatial_mean(torch.ones(1, 2, 3, 3, dtype=torch.float64)).dtype == torch.float64


def test_a_layer_that_runs_twice_is_kept_as_the_last_time() -> None:
    net = Shared().eval()
    shown = images(2)
    with torch.no_grad(), tapped(net, ("act",)) as taps:
        net(shown)
        once = net.act(net.conv(net.stem(shown)))
        twice = net.act(net.conv(once))
        net(shown)
    torch.testing.assert_close(taps.maps["act"], twice)


def test_a_layer_without_a_tensor_is_refused() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    net = nn.Sequential(Two())
    with pytest.raises(LayerError, match=r"'0' returned a tuple \(Two\), not one map per image"), tapped(net, ("0",)):
        net(images(1))
    assert not net[0]._forward_hooks


def test_a_layer_that_takes_no_part_is_refused() -> None:
    net = Plain()
    net.add_module("spare", nn.Conv2d(1, 1, 1))
    with (
        pytest.raises(LayerError, match="'spare' did not run"),
        watched(net, ("spare",)) as watch,
    ):
        watch(images(1))


def test_evaluating_gives_back_each_parts_own_mode() -> None:
    net = nn.Sequential(nn.BatchNorm2d(2), nn.Dropout())
    net.train()
    net[0].eval()
    with evaluating(net):
        assert not net[1].training
    with pytest.raises(ZeroDivisionError), evaluating(net):
        _ = 1 / 0
    assert net.training and net[1].training and not net[0].training


def test_unknown_precision_is_refused() -> None:
    with (
        pytest.raises(ArgumentError, match="no precision 'bfloat8'. Did you mean bfloat16"),
        watched(Plain(), ("conv1",), precision="bfloat8"),
    ):
        pass


def test_images_are_taken_to_the_models_type() -> None:
    with watched(Plain().double(), ("conv1",)) as watch:
        assert watch((images(1) * 50).byte()).logits_NC.dtype == torch.float64


def test_the_callers_images_stay_out_of_the_graph() -> None:
    shown = images(2)
    with watched(Vector(), ("flat",)) as watch:
        assert watch(shown).maps[0].requires_grad
    assert not shown.requires_grad and shown.grad_fn is None


def test_a_model_that_calls_view_is_shown_plain_images() -> None:
    """As on a GPU, where channels come last."""

    class Viewing(Plain):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 0 * self.conv1(x).view(len(x), -1).sum(dim=1, keepdim=True)

    net, shown = Viewing().eval(), images(2)
    weight = net.conv1.weight.data
    with watched(net, ("conv1",)) as watch:
        plain = watch(shown)
        watch.layout = ExitStack()
        watch.layout.enter_context(channels_last(net))
        assert net.conv1.weight.data is not weight
        torch.testing.assert_close(watch(shown).logits_NC, plain.logits_NC)
        assert watch.layout is None
    assert net.conv1.weight.data_ptr() == weight.data_ptr()
