"""Running an experiment: over processes on a CPU, packed on a GPU; what is finished stays finished."""

import os
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from multiprocessing import get_context
from pathlib import Path

import torch

from rarefish.active_learning.rounds import advance, check_supply, run_rounds
from rarefish.data.reader import lies_in_memory
from rarefish.data.worker_processes import end_with_parent
from rarefish.distributed.torchrun import TorchrunExecutor, fit_together, num_ranks, rank, wait_for_all
from rarefish.errors import RarefishError
from rarefish.experiments.cells import check_experiment, keep_round, load_states, task_of
from rarefish.experiments.datasets import data_key, splits_of
from rarefish.experiments.initial_models import prepare_starts, start_keys, starts_of
from rarefish.experiments.run_folder import Store, open_store
from rarefish.experiments.settings import Cell, Experiment
from rarefish.training.cuda_streams import fit_many
from rarefish.training.jobs import fit_each

Tell = Callable[[str, int, int], None]
"""(what is being done, rounds finished, rounds in all)."""


class WorkerDiedError(RarefishError):
    """A worker process ended without a word: most often the machine ran out of memory."""


def run_experiment(
    experiment: Experiment,
    folder: Path,
    *,
    device: str = "cpu",
    jobs: int = 0,
    together: bool = False,
    tell: Tell = lambda *_: None,
) -> Store:
    """Runs every cell that the folder does not have yet, or takes the run up where it was left.

    The processes of torchrun share out the cells; `together`: they all work on one cell after another.
    """
    check_experiment(experiment)
    is_first, store = rank() == 0, Store(folder)
    cells = list(experiment.cells())
    total = len(cells) * experiment.rounds
    with store.held() if is_first else nullcontext():
        if is_first:
            open_store(folder, experiment, data_key(experiment))
        wait_for_all()
        left = [cell for cell in cells if len(store.records(cell)) < experiment.rounds]
        done = total - sum(experiment.rounds - len(store.records(cell)) for cell in left)
        tell("starting", done, total)
        wait_for_all()
        if together or num_ranks() > 1:
            _share_out_starts(experiment, left, store, device, together)
        if together:
            _run_together(experiment, left, store, device, tell, done, total)
        elif device.startswith("cuda"):
            _run_packed(experiment, left[rank() :: num_ranks()], store, device, tell, done, total)
        else:
            jobs = jobs or max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
            own = left[rank() :: num_ranks()]
            if jobs == 1:
                _run_here(experiment, own, store, tell, done, total)
            else:
                _run_in_processes(experiment, own, store, jobs, tell, done, total)
        wait_for_all()
    return store


def _share_out_starts(experiment: Experiment, cells: list[Cell], store: Store, device: str, together: bool) -> None:
    """Each process makes some of the starting networks before any cell begins, or all make each, from many files."""
    starts = starts_of(cells)
    if together and cells and not lies_in_memory(splits_of(experiment, cells[0], device).pool):
        prepare_starts(experiment, starts, store, device, fit_together, is_keeper=rank() == 0)
    else:
        own = {key: starts[key] for key in sorted(starts)[rank() :: num_ranks()]}
        prepare_starts(experiment, own, store, device, fit_many if device.startswith("cuda") else fit_each)
    wait_for_all()


def _run_together(
    experiment: Experiment, cells: list[Cell], store: Store, device: str, tell: Tell, done: int, total: int
) -> None:
    """One cell after another, its pool and its trainings shared by all processes; the first one keeps the books."""
    for cell in cells:
        task = task_of(experiment, cell, store, device, TorchrunExecutor(device=device))
        (state,) = load_states([task], [cell], store, fit_together)
        for finished in run_rounds(task, experiment.rounds, state, fit_together):
            if rank() == 0:
                keep_round(experiment, cell, task, finished, store)
            done += 1
            tell(f"{cell.key}, {num_ranks()} processes together", done, total)
        wait_for_all()


def _run_packed(
    experiment: Experiment, cells: list[Cell], store: Store, device: str, tell: Tell, done: int, total: int
) -> None:
    """All cells in step, round by round: each chooses, then all train in one batched call."""
    tell("learning rotations", done, total)
    prepare_starts(experiment, starts_of(cells), store, device, fit_many)
    tasks = {cell.key: task_of(experiment, cell, store, device) for cell in cells}
    loaded = load_states([tasks[cell.key] for cell in cells], cells, store, fit_many)
    states = {cell.key: state for cell, state in zip(cells, loaded, strict=True)}
    for cell in cells:
        check_supply(tasks[cell.key], experiment.rounds, states[cell.key])
    while left := [cell for cell in cells if states[cell.key].number < experiment.rounds]:
        number = min(states[cell.key].number for cell in left)
        together = [cell for cell in left if states[cell.key].number == number]
        tell(f"round {number + 1} of {len(together)} cells", done, total)
        rounds = advance([tasks[c.key] for c in together], [states[c.key] for c in together], fit_many)
        for cell, finished in zip(together, rounds, strict=True):
            keep_round(experiment, cell, tasks[cell.key], finished, store)
            states[cell.key] = finished.state
            done += 1
    tell("done", done, total)


def _run_here(experiment: Experiment, cells: list[Cell], store: Store, tell: Tell, done: int, total: int) -> None:
    """One cell after another in this process, with one thread: the same numbers as in worker processes."""
    before, threads = store.num_finished(), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        prepare_starts(experiment, starts_of(cells), store, "cpu")
        for cell in cells:
            tell(cell.key, done + store.num_finished() - before, total)
            _run_cell(experiment, cell, store)
        tell("done", done + store.num_finished() - before, total)
    finally:
        torch.set_num_threads(threads)


def _run_in_processes(
    experiment: Experiment, cells: list[Cell], store: Store, jobs: int, tell: Tell, done: int, total: int
) -> None:
    """Cells side by side, one thread each; the starts they share come first."""
    before = store.num_finished()
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_begin_worker) as pool:
        starts = {
            key: pool.submit(prepare_starts, experiment, {key: cell}, store, "cpu")
            for key, cell in starts_of(cells).items()
        }
        running: set[Future[None]] = set(starts.values())
        waiting = list(cells)
        try:
            while running:
                finished, running = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in finished:
                    future.result()
                ready = [cell for cell in waiting if all(starts[key].done() for key in start_keys(cell))]
                running |= {pool.submit(_run_cell, experiment, cell, store) for cell in ready}
                waiting = [cell for cell in waiting if cell not in ready]
                tell(f"{len(cells)} cells in {jobs} processes", done + store.num_finished() - before, total)
        except BrokenProcessPool as error:
            raise WorkerDiedError(
                "A worker process was killed, most likely for want of memory. Finished rounds are kept: run the same "
                "command again, with fewer --jobs."
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin_worker() -> None:
    torch.set_num_threads(1)
    end_with_parent()


def _run_cell(experiment: Experiment, cell: Cell, store: Store) -> None:
    task = task_of(experiment, cell, store, "cpu")
    (state,) = load_states([task], [cell], store)
    for finished in run_rounds(task, experiment.rounds, state):
        keep_round(experiment, cell, task, finished, store)
