"""The networks that rounds start from: made once, kept in the run, shared by all methods of a seed."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from rarefish.data.lazy_images import Images, Stored
from rarefish.data.reader import lies_in_memory
from rarefish.data.splits import Splits
from rarefish.experiments.datasets import splits_of
from rarefish.experiments.run_folder import Store
from rarefish.experiments.settings import Cell, Experiment
from rarefish.models.networks import build_model
from rarefish.training.jobs import FitAll, fit_each
from rarefish.training.loop import Training
from rarefish.training.rotation import PretrainingJob, pretrain_rotation


def start_keys(cell: Cell) -> list[str]:
    """Names of the starting networks of a cell, one a member; shared by all methods of a seed and imbalance."""
    return [f"{cell.start}-s{cell.seed}-i{cell.imbalance}-m{member}" for member in range(cell.method.members)]


def starts_of(cells: Iterable[Cell]) -> dict[str, Cell]:
    """Every starting network that the cells need, by name, with one cell that does."""
    return {key: cell for cell in cells for key in start_keys(cell)}


def prepare_starts(
    experiment: Experiment,
    starts: Mapping[str, Cell],
    store: Store,
    device: str,
    fit_all: FitAll = fit_each,
    is_keeper: bool = True,
) -> None:
    """Makes those of the starting networks that the run does not have yet; the keeper writes them."""
    wanted = {key: cell for key, cell in starts.items() if not store.start_path(key).exists()}
    jobs = {}
    for key, cell in wanted.items():
        splits = splits_of(experiment, cell, device)
        generator = torch.Generator().manual_seed(cell.seed + 1000 * int(key.rsplit("-m", 1)[1]))
        model = build_model(experiment.model, splits.num_classes, splits.channels, generator).to(device)
        images = pool_images(splits, device)
        kept = None if lies_in_memory(splits.pool) else store.start_under_way(key)
        jobs[key] = PretrainingJob(model, images, splits.num_classes, generator, kept)
    pretrained = {key: job for key, job in jobs.items() if wanted[key].start == "pretrained"}
    models = pretrain_rotation(list(pretrained.values()), Training(**experiment.pretraining), fit_all)
    done = {key: job.model for key, job in jobs.items()} | dict(zip(pretrained, models, strict=True))
    for key, model in done.items() if is_keeper else ():
        store.save_start(key, model.state_dict())


def pool_images(splits: Splits[Any], device: str) -> Images:
    """All images of the pool: a tensor, or by where they are."""
    if isinstance(splits.pool, TensorDataset):
        return splits.pool.tensors[0]
    return Stored(splits.pool, range(len(splits.pool)), num_workers(device))


def num_workers(device: str) -> int:
    """Processes that read ahead: on a GPU a share of the cores; on a CPU all cores have work already."""
    if device == "cpu":
        return 0
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def load_starts(
    experiment: Experiment, cell: Cell, store: Store, splits: Splits[Any], device: str
) -> tuple[nn.Module, ...]:
    """The starting networks of a cell."""
    models = []
    for key in start_keys(cell):
        model = build_model(experiment.model, splits.num_classes, splits.channels, torch.Generator())
        model.load_state_dict(store.load_start(key))
        models.append(model.to(device))
    return tuple(models)
