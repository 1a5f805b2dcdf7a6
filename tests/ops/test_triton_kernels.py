"""Each Triton kernel against plain matrices: on a GPU where there is one, else in Triton's interpreter."""

import importlib

import pytest
import torch

from rarefish.kernels import similarity
from rarefish.matching import DOUBTFUL, FULL, LAST, weigh
from tests.ops.test_fused_matching import DEVICE, TILES, points

pytest.importorskip("triton", reason="Triton is not installed")
fused = importlib.import_module("rarefish.ops.fused_matching")
WIDTHS = (40, 30)


@pytest.mark.parametrize("kernel", ["fisher", "sum"])
@pytest.mark.parametrize("is_weighed", [False, True])
def test_keep_largest_is_the_maximum_of_each_group(kernel: str, is_weighed: bool) -> None:
    centers, pool = points(5, WIDTHS, 0), points(150, WIDTHS, 1)
    expected_KN, probabilities = similarity(centers, pool, kernel), None
    if is_weighed:
        expected_KN, probabilities = weighed(expected_KN)
    packed = fused.pack(centers, kernel), fused.pack(pool, kernel)
    weights = fused.to_weights(probabilities, packed[1])
    found_KG = fused._largest(*packed, 1, 5, is_weighed, weights, TILES)  # the last group has 22 images
    expected_KG = torch.stack([group.amax(dim=1) for group in expected_KN.split(fused.GROUP, dim=1)[1:]], dim=1)
    torch.testing.assert_close(found_KG, expected_KG, rtol=5e-3, atol=0.5)


@pytest.mark.parametrize("kernel", ["fisher", "sum"])
@pytest.mark.parametrize("is_weighed", [False, True])
def test_look_into_groups_computes_each_similarity_of_the_wanted_groups(kernel: str, is_weighed: bool) -> None:
    centers, pool = points(5, WIDTHS, 0), points(70, WIDTHS, 1)
    expected_KN, probabilities = similarity(centers, pool, kernel), None
    if is_weighed:
        expected_KN, probabilities = weighed(expected_KN)
    packed = tuple(fused.pack(side, kernel, torch.float32) for side in (centers, pool))
    groups_KB = torch.tensor([[2, 0]], device=DEVICE).repeat(5, 1)
    is_wanted_KB = torch.ones(5, 2, dtype=torch.int8, device=DEVICE)
    is_wanted_KB[3, 1] = 0
    weights = fused.to_weights(probabilities, packed[1])
    found_KBG = fused._within(*packed, groups_KB, is_wanted_KB, is_weighed, weights).unflatten(1, (2, fused.GROUP))
    expected_KBG = torch.full((5, 2, fused.GROUP), -torch.inf, device=DEVICE)
    expected_KBG[:, 0, :6] = expected_KN[:, 64:]  # the last group has 6 images
    expected_KBG[:, 1] = expected_KN[:, :32]
    expected_KBG[3, 1] = -torch.inf
    torch.testing.assert_close(found_KBG, expected_KBG, rtol=1e-4, atol=1e-3)


def weighed(similarity_KN: torch.Tensor) -> tuple[torch.Tensor, object]:
    num_centers, num_images = similarity_KN.shape
    posterior_NC = torch.rand(num_images, 4, generator=torch.Generator().manual_seed(2)).pow(3).to(DEVICE)
    classes_K, largest = (torch.arange(num_centers) % 4).to(DEVICE), sum(WIDTHS) ** 2
    probabilities = fused.ClassProbabilities(posterior_NC, classes_K, FULL, DOUBTFUL, float(largest), LAST)
    return weigh(similarity_KN, posterior_NC.T[classes_K], largest), probabilities
