"""Each rule gives both sides the labels that it promises."""

import pytest
import torch
from torch.utils.data import TensorDataset

from rarefish.errors import ArgumentError
from rarefish.features import watched
from rarefish.fisher import describe
from rarefish.kernels import similarity, standardize
from rarefish.pseudo_labels.monte_carlo import MonteCarlo
from rarefish.pseudo_labels.rules import RULES, given, label_rule, predicted
from tests.cases import Plain, images, labeled

LAYERS = ("conv1", "conv2")


def plain() -> Plain:
    torch.manual_seed(0)
    return Plain().double()


def test_density_is_the_label_of_the_most_similar_validation_image() -> None:
    net, trusted, pool = plain(), labeled(8), images(5, seed=9)
    seen = describe(net, trusted, layers=LAYERS, labels="true")
    others = describe(net, TensorDataset(pool), layers=LAYERS)
    with watched(net, LAYERS) as watch:
        labels = label_rule("density").on_pool(seen)(watch(pool), None, watch)
    full = similarity(standardize(others), standardize(seen), "features")
    assert labels.tolist() == [int(trusted.tensors[1][int(row.argmax())]) for row in full]


def test_one_rule_owns_both_sides() -> None:
    seen = describe(plain(), labeled(4), layers=LAYERS, labels="true")
    assert label_rule("true").on_validation is label_rule("true").on_pool(seen) is given
    assert label_rule("prediction").on_validation is label_rule("prediction").on_pool(seen) is predicted
    for name in ("trace", "mutual_information"):
        rule = label_rule(name, seed=5)
        assert rule.on_validation == rule.on_pool(seen) == MonteCarlo(statistic=name, seed=5)
        assert not rule.needs_validation_labels
    assert label_rule("density").on_validation is given
    assert set(RULES) == {"true", "prediction", "trace", "mutual_information", "density", "posterior"}


def test_unknown_estimators_get_a_hint() -> None:
    with pytest.raises(ArgumentError, match="no label estimator 'desnity'. Did you mean density"):
        label_rule("desnity")
