"""Descriptors equal a per-image loop, whatever the network, the batch and the way back."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from rarefish.data.reader import Batch
from rarefish.descriptors import concatenate
from rarefish.errors import ArgumentError, LabelError, LayerError, ModelError
from rarefish.features import watched
from rarefish.fisher import describe, describe_batches
from rarefish.ops.compiled import AdaptivePass
from rarefish.pseudo_labels.monte_carlo import MonteCarlo
from rarefish.pseudo_labels.rules import given
from tests.cases import CASES, IMAGE, NUM_CLASSES, Case, Plain, images, labeled
from tests.reference import describe_one_by_one


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("batch_size", [1, 4, 11])
def test_equals_a_loop_over_images(case: Case, batch_size: int) -> None:
    net, twin = case.nets()
    net.train()  # describe() must not care
    data = labeled(11)
    seen = describe(net, data, layers=case.layers, labels="true", batch_size=batch_size)
    inputs, labels = data.tensors
    features, scores = describe_one_by_one(twin, inputs, labels, case.twin_layers or case.layers)
    assert seen.features.dtype == torch.float64
    torch.testing.assert_close(seen.features, features, atol=1e-9, rtol=0)
    torch.testing.assert_close(seen.scores, scores, atol=1e-9, rtol=0)
    assert scores.abs().max() > 1e-4
    assert seen.index.tolist() == list(range(11))
    assert sum(seen.widths) == seen.features.shape[1] and len(seen.widths) == len(case.layers)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_leaves_the_model_as_it_was(case: Case) -> None:
    net, _ = case.nets()
    net.train()
    parts = list(net.modules())
    parts[-1].eval()
    frozen = next(iter(net.parameters())).requires_grad_(False)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    describe(net, labeled(3), layers=case.layers)
    assert [part.training for part in parts] == [True] * (len(parts) - 1) + [False]
    assert not frozen.requires_grad and all(p.requires_grad for p in list(net.parameters())[1:])
    assert all(p.grad is None for p in net.parameters())
    assert all(not part._forward_hooks for part in parts)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_leaves_the_model_as_it_was_after_an_error() -> None:
    net = Plain().train()
    data = images(5)
    data[3] = torch.nan
    with pytest.raises(ArithmeticError, match=r"index 3\b"):
        describe(net, TensorDataset(data), layers=("conv1",), batch_size=2)
    assert net.training and not net.conv1._forward_hooks and all(p.requires_grad for p in net.parameters())


def test_the_way_back_ends_at_the_earliest_tap() -> None:
    """No gradient is computed below the first tapped layer or for any parameter."""
    net, visited = Plain(), []
    net.conv1.register_full_backward_hook(lambda *_: visited.append("conv1"))
    with watched(net, ("conv2",)) as watch:
        view = watch(images(2))
        assert view.maps[0].grad_fn is not None
        assert not any(p.requires_grad for p in net.parameters())
        node, depth = view.maps[0].grad_fn, 0
        while node.next_functions and node.next_functions[0][0]:
            node, depth = node.next_functions[0][0], depth + 1
        assert depth <= 1  # the start of the graph, and nothing of conv1 behind it
    assert visited == []


def test_works_inside_no_grad_and_inference_mode() -> None:
    net, data = Plain(), labeled(4)
    expected = describe(net, data, layers=("conv1",), labels="true").scores
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            fresh = TensorDataset(data.tensors[0].clone(), data.tensors[1])
            assert torch.equal(describe(net, fresh, layers=("conv1",), labels="true").scores, expected)


def test_describes_only_features_when_no_label_is_asked_for() -> None:
    seen = describe(Plain(), labeled(4), layers=("conv1",), labels=None)
    assert seen.scores.shape == (4, 0) and seen.features.shape == (4, 5)
    assert not seen.features.requires_grad


def test_labels_given_as_a_tensor() -> None:
    data, net = labeled(6), Plain()
    by_name = describe(net, data, layers=("conv2",), labels="true")
    by_value = describe(net, TensorDataset(data.tensors[0]), layers=("conv2",), labels=data.tensors[1])
    assert torch.equal(by_name.scores, by_value.scores)
    with pytest.raises(ArgumentError, match="must be 6 integers"):
        describe(net, data, layers=("conv2",), labels=torch.zeros(5, dtype=torch.long))


def test_prediction_is_the_default() -> None:
    net, data = Plain(), labeled(6)
    seen = describe(net, data, layers=("conv2",))
    assert torch.equal(seen.label, net(data.tensors[0]).argmax(dim=1))
    assert torch.equal(seen.label, seen.prediction)


def test_density_alone_is_refused() -> None:
    with pytest.raises(ArgumentError, match="needs a validation set"):
        describe(Plain(), labeled(2), layers=("conv1",), labels="density")


@pytest.mark.parametrize("bad", [-1, NUM_CLASSES])
def test_labels_out_of_range_are_named(bad: int) -> None:
    data = labeled(5)
    data.tensors[1][2] = bad
    with pytest.raises(LabelError, match=rf"4 classes, so labels must be 0 to 3, but found {bad} at index 2"):
        describe(Plain(), data, layers=("conv1",), labels="true")


def test_bfloat16_is_close_to_float32() -> None:
    net, data = Plain(), labeled(8)
    exact = describe(net, data, layers=("conv1", "conv2"), labels="true", precision="float32")
    rough = describe(net, data, layers=("conv1", "conv2"), labels="true", precision="bfloat16")
    assert rough.features.dtype == torch.float32
    torch.testing.assert_close(rough.features, exact.features, atol=0.05, rtol=0.05)
    assert torch.nn.functional.cosine_similarity(rough.scores, exact.scores).min() > 0.98


def test_confident_models_still_have_directions() -> None:
    """Scores of a sure model are tiny; they are kept, not rounded to zero."""
    net = Plain()
    nn.init.zeros_(net.fc.weight)
    net.fc.weight.data[0] = 1e-3
    net.fc.bias.data = torch.tensor([15.0, 0.0, 0.0, 0.0])
    seen = describe(net, labeled(3), layers=("conv2",), labels="prediction")
    assert (seen.scores.abs().amax(dim=1) > 0).all()


def test_batches_of_another_order_give_the_same_rows() -> None:
    net, data = Plain().double(), images(9).double()
    with watched(net, ("conv1",)) as watch:
        orders = torch.arange(9), torch.tensor([8, 2, 5, 0, 1, 3, 7, 6, 4])
        runs = [
            concatenate(
                describe_batches(
                    AdaptivePass(watch), [Batch(i, data[i], i % NUM_CLASSES) for i in order.split(4)], ("conv1",), given
                )
            )
            for order in orders
        ]
    torch.testing.assert_close(runs[0].scores[runs[1].index], runs[1].scores, atol=1e-12, rtol=0)
    assert tuple(data.shape[1:]) == IMAGE


def test_bfloat16_keeps_the_direction_of_a_sure_models_scores() -> None:
    """1 - p of a sure model is less than bfloat16 can tell from 0, unless the loss is taken in float32."""
    torch.manual_seed(0)
    net, data = Plain(), labeled(40)
    net.fc.weight.data *= 60
    exact, rough = (
        describe(net, data, layers=("conv2",), labels="prediction", precision=precision)
        for precision in ("float32", "bfloat16")
    )
    agree = exact.label == rough.label
    sure = net(data.tensors[0]).softmax(dim=1).amax(dim=1) > 0.999
    assert (agree & sure).sum() > 10
    cosine = torch.nn.functional.cosine_similarity(exact.scores, rough.scores)[agree & sure]
    assert cosine.median() > 0.9


def test_a_layer_off_the_way_is_named_in_the_error() -> None:
    class Side(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.side = nn.Conv2d(2, 3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.side(x)
            return super().forward(x)

    with pytest.raises(LayerError, match="No gradient of the logits reaches one of the layers"):
        describe(Side(), labeled(3), layers=("side",))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.transpose(0, 1), "not one map per image"),
        (lambda x: x[:, :1], "one channel has no direction"),
    ],
)
def test_maps_of_the_wrong_shape_are_refused(change: Callable, message: str) -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return change(x)

    class Net(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.odd = Odd()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x + self.odd(x).sum() * 0)

    with pytest.raises(LayerError, match=message):
        describe(Net(), labeled(3), layers=("odd",))


def test_a_model_that_normalizes_in_place_sees_the_same_images_again() -> None:
    class InPlace(Plain):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x -= 0.7
            return super().forward(x)

    class OutOfPlace(Plain):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x - 0.7)

    runs = []
    for kind in (InPlace, OutOfPlace):
        torch.manual_seed(0)
        data = labeled(20)
        runs.append(describe(kind().double(), data, layers=("conv1",), labels=MonteCarlo(samples=5, noise=0.3)))
        assert torch.equal(data.tensors[0], labeled(20).tensors[0])
    assert torch.equal(runs[0].label, runs[1].label)


def test_models_whose_layers_cannot_be_tapped() -> None:
    with pytest.raises(ModelError, match="wrapped in DataParallel. Give the inner model: model.module"):
        describe(nn.DataParallel(Plain()), labeled(2), layers=("module.conv1",))


def test_nan_images_are_named_before_a_label_is_estimated() -> None:
    data = images(4)
    data[2] = torch.nan
    with pytest.raises(ArithmeticError, match=r"index 2\."):
        describe(Plain(), TensorDataset(data), layers=("conv1",), labels="mutual_information")


def test_monte_carlo_labels_need_images() -> None:
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    with pytest.raises(ArgumentError, match=r"need images of shape \(N, C, H, W\), not \(4, 6\)"):
        describe(net, list(torch.randn(4, 6)), layers=("0",), labels="trace")


def test_weights_of_several_types() -> None:
    class Scaled(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.fc.register_parameter("scale", nn.Parameter(torch.ones((), dtype=torch.float64)))

    assert describe(Scaled(), labeled(3), layers=("conv1",)).features.dtype == torch.float32
