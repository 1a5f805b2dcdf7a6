"""The nearest images of each failure in turn, against loops."""

import torch

from tests.acquisitions.situations import choose, seeded, vector_situation, vectors


def slow_turns(queries: list[torch.Tensor], candidates: dict[int, torch.Tensor], count: int) -> list[int]:
    chosen: list[int] = []
    while len(chosen) < count:
        for query in queries[: count - len(chosen)]:
            free = [i for i in candidates if i not in chosen]
            chosen.append(max(free, key=lambda i: float(torch.cosine_similarity(query, candidates[i], dim=0))))
    return chosen


def test_failures_take_turns() -> None:
    here = vector_situation()
    (images, _), (trusted, truth) = vectors("pool").tensors, vectors("validation").tensors
    with torch.no_grad():
        wrong = (here.model(trusted).argmax(dim=1) != truth).nonzero()[:, 0]
    assert 3 < len(wrong) < 40
    budget = len(wrong) + 5
    order = wrong[torch.randperm(len(wrong), generator=seeded())].tolist()
    expected = slow_turns([trusted[m] for m in order], {i: images[i] for i in here.unlabeled}, budget)
    chosen = choose("nearest_failures", here, budget)
    assert chosen.indices == expected and chosen.passes == 40 + 114
    assert choose("nearest_failures", here, 3).indices == expected[:3]  # only some of the failures have a turn
