"""The networks of the experiments and their classifiers."""

import torch
from torch import nn

from rarefish.fisher import describe
from rarefish.models.networks import LeNet, classifier_of, draw_weights, with_new_classifier


def test_lenet_has_the_papers_shape() -> None:
    net = LeNet()
    assert net(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert sum(p.numel() for p in net.parameters()) == 260 + 5020 + 16050 + 510
    assert describe(net, list(torch.randn(2, 1, 28, 28))).widths == (10, 20, 50)


def test_a_new_classifier_leaves_the_rest_and_the_original_alone() -> None:
    net = LeNet()
    other = with_new_classifier(net, 4, torch.Generator().manual_seed(0))
    assert classifier_of(other)[1].out_features == 4 and classifier_of(net)[1].out_features == 10
    kept = {name: value for name, value in net.state_dict().items() if not name.startswith("fc2")}
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in kept.items())
    again = with_new_classifier(net, 4, torch.Generator().manual_seed(0))
    assert torch.equal(classifier_of(other)[1].weight, classifier_of(again)[1].weight)


def test_weights_are_drawn_by_the_generator_in_torchs_range() -> None:
    one, two, other = (draw_weights(LeNet(), torch.Generator().manual_seed(s)) for s in (0, 0, 1))
    assert torch.equal(one.fc2.weight, two.fc2.weight) and not torch.equal(one.fc2.weight, other.fc2.weight)
    conv = one.conv2[0]
    assert isinstance(conv, nn.Conv2d)
    weight, bound = conv.weight.detach(), 250**-0.5
    assert float(weight.abs().max()) <= bound and float(weight.std()) > 0.4 * bound
