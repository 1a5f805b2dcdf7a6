"""Prior-corrected entropy against loops over single images."""

import math
from dataclasses import replace

import torch

from rarefish.training.linear_head import fit_linear_head
from tests.acquisitions.situations import choose, seeded, vector_situation, vectors


def test_it_chooses_the_largest_entropy_for_the_proportions_of_the_pool() -> None:
    here = vector_situation()
    (images, _), (trusted, truth) = vectors("pool").tensors, vectors("validation").tensors
    rows = torch.cat([trusted, images[list(here.labeled)]])
    labels = torch.cat([truth, torch.tensor(here.labels)])
    folds = seeded(int(torch.randint(2**62, (), generator=seeded())))
    head = fit_linear_head(rows, labels, 4, generator=folds)
    p = {i: head.probabilities(images[i : i + 1])[0].tolist() for i in here.unlabeled}

    def corrected(values: list[float], share: list[float]) -> list[float]:
        weighted = [v * s for v, s in zip(values, share, strict=True)]  # the prior of the head is uniform
        return [w / sum(weighted) for w in weighted]

    share = [0.25] * 4
    for _ in range(100):
        each = [corrected(values, share) for values in p.values()]
        share = [sum(column) / len(each) for column in zip(*each, strict=True)]
    assert max(share) > 2 * min(share)
    entropy = {i: -sum(q * math.log(q) for q in corrected(values, share)) for i, values in p.items()}
    expected = sorted(entropy, key=lambda i: -entropy[i])[:20]
    uncorrected = sorted(p, key=lambda i: sum(q * math.log(q) for q in p[i]))[:20]
    chosen = choose("corrected_entropy", here, 20)
    assert chosen.indices == expected != uncorrected and chosen.passes == 40 + 119


def test_labels_of_the_pool_and_of_the_validation_set_matter() -> None:
    here = vector_situation()
    plain = choose("corrected_entropy", here, 20).indices
    assert (
        plain != choose("corrected_entropy", replace(here, labels=tuple((y + 1) % 4 for y in here.labels)), 20).indices
    )
    model = torch.nn.Linear(12, 4)
    assert plain == choose("corrected_entropy", replace(here, models=(model,)), 20).indices


def test_a_class_without_known_images_has_no_probability() -> None:
    here = vector_situation(())
    validation = vectors("validation")
    kept = validation.tensors[1] != 3
    without = torch.utils.data.TensorDataset(*(tensor[kept] for tensor in validation.tensors))
    assert len(set(choose("corrected_entropy", replace(here, validation=without), 20).indices)) == 20
