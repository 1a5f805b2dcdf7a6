"""DropQuery: which predictions change, and the image nearest to the center of each cluster, against loops."""

import torch
from torch import nn

from rarefish.acquisitions import dropquery
from rarefish.acquisitions.dropquery import count_changes, one_per_cluster
from rarefish.acquisitions.typiclust import k_means
from tests.acquisitions.situations import choose, seeded, vector_situation, vectors


def slow_changes(images: torch.Tensor, model: nn.Module, generator: torch.Generator) -> list[int]:
    uniform = torch.rand(3, *images.shape, generator=generator)
    counts = []
    for n, image in enumerate(images):
        masked = [torch.tensor([float(x) * 4 if u >= 0.75 else 0.0 for x, u in zip(image, uniform[s, n], strict=True)])
                  for s in range(3)]  # fmt: skip
        own = int(model(image).argmax())
        counts.append(sum(int(model(one).argmax()) != own for one in masked))
    return counts


def slow_one_per_cluster(points: torch.Tensor, cluster: list[int]) -> set[int]:
    chosen = set()
    for c in set(cluster):
        members = [n for n, own in enumerate(cluster) if own == c]
        center = sum((points[n] for n in members), torch.zeros_like(points[0])) / len(members)
        chosen.add(min(members, key=lambda n: float((points[n] - center).norm())))
    return chosen


def test_candidates_change_their_prediction_and_each_cluster_has_one() -> None:
    here, images = vector_situation(), vectors("pool").tensors[0]
    left, generator = here.unlabeled, seeded()
    counts = slow_changes(images[left], here.model, generator)
    candidates = torch.tensor([n for n, count in enumerate(counts) if count >= 2])
    assert 20 < len(candidates) < 100
    torch.randperm(len(left), generator=generator)  # the order among equal counts is drawn next
    points = images[left][candidates]
    cluster = k_means(points, 9, generator).tolist()
    expected = {left[int(candidates[n])] for n in slow_one_per_cluster(points, cluster)}
    chosen = choose("dropquery", here, 9)
    assert set(chosen.indices) == expected and len(expected) == 9 and chosen.passes == 114


def test_the_images_with_the_most_changes_are_candidates_if_there_are_too_few() -> None:
    here, images = vector_situation(), vectors("pool").tensors[0]
    counts = slow_changes(images[here.unlabeled], here.model, seeded())
    many = sum(count >= 1 for count in counts)
    assert many > sum(count >= 2 for count in counts)
    chosen = choose("dropquery", here, many).indices
    assert set(chosen) == {i for i, count in zip(here.unlabeled, counts, strict=True) if count >= 1}


def test_without_labels_all_images_are_clustered() -> None:
    here, images = vector_situation(()), vectors("pool").tensors[0]
    cluster = k_means(images[here.unlabeled], 6, seeded()).tolist()
    expected = {here.unlabeled[n] for n in slow_one_per_cluster(images[here.unlabeled], cluster)}
    assert set(choose("dropquery", here, 6).indices) == expected


def test_masks_differ_between_images_and_samples() -> None:
    image = torch.randn(1, 30, generator=seeded())
    head = nn.Linear(30, 3)
    counts = count_changes(image.expand(dropquery.BLOCK + 500, 30), head, 4, 0.5, seeded())
    assert len(counts) == dropquery.BLOCK + 500 and {1, 2, 3} <= set(counts.tolist())


def test_copies_leave_clusters_empty() -> None:
    points = torch.tensor([[0.0, 1.0]] * 5 + [[3.0, 0.0]] * 4)
    rows = one_per_cluster(points, 4, seeded())
    assert len(rows.unique()) == 4 and {bool(row < 5) for row in rows.tolist()} == {True, False}
