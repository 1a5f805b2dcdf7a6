"""The initial networks, which are trained once, saved in the run and shared by all methods of a seed."""

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
from rarefish.experiments.run_folder import RunFolder
from rarefish.experiments.settings import Cell, Experiment
from rarefish.models.networks import build_model
from rarefish.training.config import Training
from rarefish.training.jobs import FitAll, fit_each
from rarefish.training.rotation import PretrainingJob, pretrain_rotation


def start_keys(cell: Cell) -> list[str]:
    """Returns the names of a cell's initial networks, one per ensemble member; all methods of a seed share them."""
    return [f"{cell.start}-s{cell.seed}-i{cell.imbalance}-m{member}" for member in range(cell.method.members)]


def starts_of(cells: Iterable[Cell]) -> dict[str, Cell]:
    """Returns the names of all initial networks that the cells need, each with one of the cells that need it."""
    return {key: cell for cell in cells for key in start_keys(cell)}


def prepare_starts(
    experiment: Experiment,
    starts: Mapping[str, Cell],
    run_folder: RunFolder,
    device: str,
    fit_all: FitAll = fit_each,
    is_writer: bool = True,
) -> None:
    """Creates the initial networks that the run does not have yet; only the process with `is_writer` saves them."""
    missing = {key: cell for key, cell in starts.items() if not run_folder.start_path(key).exists()}
    pretrainings = {}
    for key, cell in missing.items():
        splits = splits_of(experiment, cell, device)
        generator = torch.Generator().manual_seed(cell.seed + 1000 * int(key.rsplit("-m", 1)[1]))
        model = build_model(experiment.model, splits.num_classes, splits.channels, generator).to(device)
        images = pool_images(splits, device)
        checkpoint = None if lies_in_memory(splits.pool) else run_folder.pretraining_checkpoint(key)
        pretrainings[key] = PretrainingJob(model, images, splits.num_classes, generator, checkpoint)
    pretrained = {key: job for key, job in pretrainings.items() if missing[key].start == "pretrained"}
    models = pretrain_rotation(list(pretrained.values()), Training(**experiment.pretraining), fit_all)
    done = {key: job.model for key, job in pretrainings.items()} | dict(zip(pretrained, models, strict=True))
    for key, model in done.items() if is_writer else ():
        run_folder.save_start(key, model.state_dict())


def pool_images(splits: Splits[Any], device: str) -> Images:
    """Returns all images of the pool, as a tensor or as images that are read on demand."""
    if isinstance(splits.pool, TensorDataset):
        return splits.pool.tensors[0]
    return Stored(splits.pool, range(len(splits.pool)), num_workers(device))


def num_workers(device: str) -> int:
    """Returns the number of reader processes: a share of the cores with a GPU; none on a CPU, whose cores are busy."""
    if device == "cpu":
        return 0
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def load_starts(
    experiment: Experiment, cell: Cell, run_folder: RunFolder, splits: Splits[Any], device: str
) -> tuple[nn.Module, ...]:
    """Returns the initial networks of a cell."""
    models = []
    for key in start_keys(cell):
        model = build_model(experiment.model, splits.num_classes, splits.channels, torch.Generator())
        model.load_state_dict(run_folder.load_start(key))
        models.append(model.to(device))
    return tuple(models)
