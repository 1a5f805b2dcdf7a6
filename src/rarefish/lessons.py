"""What the models of a round learn, and by what chance."""

import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset

from rarefish.jobs import Job
from rarefish.reading import Reader, labels_of, lies_in_memory
from rarefish.scoring import evaluate
from rarefish.state import State, Task
from rarefish.stored import Images, Stored

AT_ONCE = Reader(batch_size=10_000, progress=False)
"""A peek after every epoch is many small passes: few large batches make them bearable."""


def jobs_of(task: Task, state: State, seen: list[float]) -> list[Job]:
    """The trainings of a state's models on all that is labeled; a peek at the test set adds to `seen`."""
    images, labels = lessons(task, state)
    if not len(labels):
        return []  # nothing was answered yet, so there is nothing to learn from
    reader = AT_ONCE if lies_in_memory(task.test) else task.reader
    # What was seen in epochs before a kill would be lost.
    files = None if task.peek else task.under_way

    def peek(model: nn.Module) -> None:
        seen.append(evaluate(model, task.test, task.num_classes, reader).accuracy)

    return [
        Job(
            model,
            images,
            labels,
            task.training,
            chance(task.seed, state.number, f"train {member}"),
            on_epoch=peek if task.peek and member == 0 else None,
            checkpoint=files.training(state.number, member) if files else None,
        )
        for member, model in enumerate(state.models)
    ]


def lessons(task: Task, state: State) -> tuple[Images, Tensor]:
    """What a state's models learn from, and its labels; images in files are read when their turn comes."""
    labels, trusted = torch.tensor(state.labels, dtype=torch.long), task.validation
    if task.learns_validation:
        own = labels_of(trusted)
        assert own is not None, "a validation set that is learned from has a list of labels"
        labels = torch.cat([labels, own])
    if not lies_in_memory(task.pool):
        more = range(len(task.pool), len(task.pool) + len(trusted)) if task.learns_validation else ()
        both: ConcatDataset[object] = ConcatDataset([task.pool, trusted])  # pyright: ignore[reportArgumentType]
        return Stored(both if more else task.pool, [*state.labeled, *more], task.workers), labels
    batches = [*AT_ONCE.read(task.pool, state.labeled), *(AT_ONCE.read(trusted) if task.learns_validation else ())]
    return torch.cat([batch.images for batch in batches]) if batches else torch.empty(0), labels


def chance(seed: int, number: int, purpose: str) -> torch.Generator:
    """A generator of its own for each step of each round: a run that is taken up again draws what it would have drawn.

    All methods share it, so their differences are paired by seed.
    """
    code = sum(ord(letter) * 31**place for place, letter in enumerate(purpose))
    return torch.Generator().manual_seed((seed * 1_000_003 + number * 7919 + code) % 2**63)
