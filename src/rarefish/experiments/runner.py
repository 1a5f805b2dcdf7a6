"""Run an experiment, in several processes on a CPU or batched on a GPU. Finished rounds are never lost."""

import os
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from pathlib import Path

import torch

from rarefish.active_learning.rounds import advance, check_supply, run_rounds
from rarefish.data.reader import lies_in_memory
from rarefish.data.worker_processes import worker_pool
from rarefish.distributed.torchrun import TorchrunExecutor, fit_together, num_ranks, rank, wait_for_all
from rarefish.errors import RarefishError
from rarefish.experiments.cells import check_experiment, keep_round, load_situations, run_baselines, task_of
from rarefish.experiments.datasets import data_key, splits_of
from rarefish.experiments.initial_models import prepare_starts, start_keys, starts_of
from rarefish.experiments.run_folder import RunFolder, open_run_folder
from rarefish.experiments.settings import Cell, Experiment
from rarefish.experiments.source_commit import source_commit
from rarefish.training.cuda_streams import fit_many
from rarefish.training.jobs import fit_each

Tell = Callable[[str, int, int], None]
"""Progress callback: (description, finished rounds, total rounds)."""


class WorkerDiedError(RarefishError):
    """A worker process was killed, usually because the machine ran out of memory."""


def run_experiment(
    experiment: Experiment,
    folder: Path,
    *,
    device: str = "cpu",
    jobs: int = 0,
    together: bool = False,
    tell: Tell = lambda *_: None,
) -> RunFolder:
    """Runs every cell that is not finished in the folder, and resumes an interrupted run.

    Under torchrun, the cells are distributed among the processes; with `together`, all processes work on the same cell.
    """
    check_experiment(experiment)
    source_commit()  # call it now, before anyone edits the code that this process has imported
    is_first, run_folder = rank() == 0, RunFolder(folder)
    cells = [*experiment.baseline_cells(), *experiment.cells()]
    total = sum(map(experiment.num_records, cells))
    with run_folder.locked() if is_first else nullcontext():
        if is_first:
            open_run_folder(folder, experiment, data_key(experiment))
        wait_for_all()
        missing = {cell: experiment.num_records(cell) - len(run_folder.records(cell)) for cell in cells}
        remaining = [cell for cell in cells if missing[cell] > 0]
        done = total - sum(missing[cell] for cell in remaining)
        tell("starting", done, total)
        wait_for_all()
        if together or num_ranks() > 1:
            _prepare_all_starts(experiment, remaining, run_folder, device, together)
        if together:
            _run_together(experiment, remaining, run_folder, device, tell, done, total)
        elif device.startswith("cuda"):
            _run_packed(experiment, remaining[rank() :: num_ranks()], run_folder, device, tell, done, total)
        else:
            jobs = jobs or max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
            own = remaining[rank() :: num_ranks()]
            if jobs == 1:
                _run_here(experiment, own, run_folder, tell, done, total)
            else:
                _run_in_processes(experiment, own, run_folder, jobs, tell, done, total)
        wait_for_all()
    return run_folder


def _prepare_all_starts(
    experiment: Experiment, cells: list[Cell], run_folder: RunFolder, device: str, together: bool
) -> None:
    """Creates the initial networks before any cell starts: each process some of them, or all processes together."""
    starts = starts_of(cells)
    if together and cells and not lies_in_memory(splits_of(experiment, cells[0], device).pool):
        prepare_starts(experiment, starts, run_folder, device, fit_together, is_writer=rank() == 0)
    else:
        own = {key: starts[key] for key in sorted(starts)[rank() :: num_ranks()]}
        prepare_starts(experiment, own, run_folder, device, fit_many if device.startswith("cuda") else fit_each)
    wait_for_all()


def _run_together(
    experiment: Experiment, cells: list[Cell], run_folder: RunFolder, device: str, tell: Tell, done: int, total: int
) -> None:
    """Runs the cells one by one; all processes share the pool and the training runs, and the first one writes files."""
    for cell in cells:
        if cell.method.is_baseline:
            run_baselines(experiment, [cell], run_folder, device, fit_together, is_writer=rank() == 0)
            done += 1
            tell(f"{cell.key}, {num_ranks()} processes together", done, total)
            wait_for_all()
            continue
        task = task_of(experiment, cell, run_folder, device, TorchrunExecutor(device=device))
        (situation,) = load_situations([task], [cell], run_folder, fit_together)
        for finished in run_rounds(task, experiment.rounds, situation, fit_together):
            if rank() == 0:
                keep_round(experiment, cell, task, finished, run_folder)
            done += 1
            tell(f"{cell.key}, {num_ranks()} processes together", done, total)
        wait_for_all()


def _run_packed(
    experiment: Experiment, cells: list[Cell], run_folder: RunFolder, device: str, tell: Tell, done: int, total: int
) -> None:
    """Runs all cells round by round: each selects its images, and then all are trained in one batched call."""
    tell("pretraining on rotations", done, total)
    prepare_starts(experiment, starts_of(cells), run_folder, device, fit_many)
    baselines, cells = [c for c in cells if c.method.is_baseline], [c for c in cells if not c.method.is_baseline]
    tell("baselines", done, total)
    run_baselines(experiment, baselines, run_folder, device, fit_many)
    done += len(baselines)
    tasks = {cell.key: task_of(experiment, cell, run_folder, device) for cell in cells}
    loaded = load_situations([tasks[cell.key] for cell in cells], cells, run_folder, fit_many)
    situations = {cell.key: situation for cell, situation in zip(cells, loaded, strict=True)}
    for cell in cells:
        check_supply(tasks[cell.key], experiment.rounds, situations[cell.key])
    while left := [cell for cell in cells if situations[cell.key].finished_rounds < experiment.rounds]:
        number = min(situations[cell.key].finished_rounds for cell in left)
        together = [cell for cell in left if situations[cell.key].finished_rounds == number]
        tell(f"round {number + 1} of {len(together)} cells", done, total)
        rounds = advance([tasks[c.key] for c in together], [situations[c.key] for c in together], fit_many)
        for cell, finished in zip(together, rounds, strict=True):
            keep_round(experiment, cell, tasks[cell.key], finished, run_folder)
            situations[cell.key] = finished.situation
            done += 1
    tell("done", done, total)


def _run_here(
    experiment: Experiment, cells: list[Cell], run_folder: RunFolder, tell: Tell, done: int, total: int
) -> None:
    """Runs the cells one by one in this process with one thread, which gives the same numbers as worker processes."""
    before, threads = run_folder.num_finished(), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        prepare_starts(experiment, starts_of(cells), run_folder, "cpu")
        for cell in cells:

            def tell_round(cell: Cell = cell) -> None:
                tell(cell.key, done + run_folder.num_finished() - before, total)

            tell_round()
            _run_cell(experiment, cell, run_folder, tell_round)
        tell("done", done + run_folder.num_finished() - before, total)
    finally:
        torch.set_num_threads(threads)


def _run_in_processes(
    experiment: Experiment, cells: list[Cell], run_folder: RunFolder, jobs: int, tell: Tell, done: int, total: int
) -> None:
    """Runs the cells in worker processes with one thread each, after creating the initial networks that they share."""
    before = run_folder.num_finished()
    try:
        with worker_pool(jobs, "spawn", _begin_worker) as pool:
            starts = {
                key: pool.submit(prepare_starts, experiment, {key: cell}, run_folder, "cpu")
                for key, cell in starts_of(cells).items()
            }
            running: set[Future[None]] = set(starts.values())
            waiting = list(cells)
            while running:
                finished, running = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in finished:
                    future.result()
                ready = [cell for cell in waiting if all(starts[key].done() for key in start_keys(cell))]
                running |= {pool.submit(_run_cell, experiment, cell, run_folder) for cell in ready}
                waiting = [cell for cell in waiting if cell not in ready]
                tell(f"{len(cells)} cells in {jobs} processes", done + run_folder.num_finished() - before, total)
    except BrokenProcessPool as error:
        raise WorkerDiedError(
            "A worker process was killed, most likely because memory ran out. Finished rounds are saved. Run the same "
            "command again with fewer --jobs."
        ) from error


def _begin_worker() -> None:
    source_commit()
    torch.set_num_threads(1)


def _run_cell(
    experiment: Experiment, cell: Cell, run_folder: RunFolder, on_round: Callable[[], None] = lambda: None
) -> None:
    if cell.method.is_baseline:
        run_baselines(experiment, [cell], run_folder, "cpu")
        return
    task = task_of(experiment, cell, run_folder, "cpu")
    (situation,) = load_situations([task], [cell], run_folder)
    for finished in run_rounds(task, experiment.rounds, situation):
        keep_round(experiment, cell, task, finished, run_folder)
        on_round()
