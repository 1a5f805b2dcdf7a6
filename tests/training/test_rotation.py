"""Rotation pretraining: the task itself, and that it is learned."""

from dataclasses import replace

import torch

from rarefish.data.digits import load_digits
from rarefish.models.networks import LeNet, classifier_of
from rarefish.training.config import Training
from rarefish.training.loop import fit
from rarefish.training.rotation import ROTATION, PretrainingJob, pretrain_rotation, show_rotations


def test_all_four_rotations() -> None:
    image = torch.tensor([[[[1, 2], [3, 4]]]])
    turned, turns = show_rotations(image, torch.zeros(1))
    assert turned[:, 0].tolist() == [[[1, 2], [3, 4]], [[2, 4], [1, 3]], [[4, 3], [2, 1]], [[3, 1], [4, 2]]]
    assert turns.tolist() == [0, 1, 2, 3]


def test_features_that_know_rotations_come_out() -> None:
    images = load_digits().pool.tensors[0][:1000]
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    (start,) = pretrain_rotation([PretrainingJob(LeNet(), images, 10, generator)], replace(ROTATION, epochs=3))
    assert classifier_of(start)[1].out_features == 10 and not start.training
    # A linear classifier on the frozen features tells rotations of unseen digits apart; on random ones it does not.
    assert rotation_accuracy(start) > 0.85 > 0.8 > rotation_accuracy(LeNet())


def rotation_accuracy(net: torch.nn.Module) -> float:
    pool = load_digits().pool.tensors[0]
    assert isinstance(net, LeNet)
    with torch.no_grad():
        (seen, answers), (unseen, truth) = (show_rotations(pool[a:b], pool) for a, b in ((1000, 1500), (1500, 2000)))
        features = [net.fc1(net.conv2(net.conv1(x))) for x in (seen, unseen)]
    torch.manual_seed(0)
    probe = torch.nn.Linear(50, 4)
    fit(probe, features[0], answers, Training(epochs=3), torch.Generator().manual_seed(0))
    return float((probe(features[1]).argmax(dim=1) == truth).float().mean())
