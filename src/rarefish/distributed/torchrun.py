"""An executor for the processes of torchrun: one makes the plan, each matches its shards, and the tables are merged.

The table of each shard is kept on disk, so that a run can resume after it was killed or lost a process.
"""

import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

# This module uses the process group as a default argument when it is imported. If torch imported it after join(), the
# group would outlive leave(), and its threads would sometimes abort a process at exit.
import torch.distributed.nn
from torch import Tensor, nn

from rarefish.data.hashing import digest
from rarefish.distributed.executor import CoveragePlan, Plan, ShardMatcher, ShardMatches
from rarefish.distributed.fingerprints import differences
from rarefish.distributed.resume_folder import ResumeFolder
from rarefish.errors import ArgumentError, DataError, RarefishError, list_some
from rarefish.kernels import Standardized
from rarefish.matching import Matches, merge
from rarefish.ops.best_per_group import MISSING
from rarefish.pseudo_labels.head_posterior import HeadLogits
from rarefish.pseudo_labels.monte_carlo import MonteCarlo
from rarefish.pseudo_labels.posterior import Head, LinearHeadOf, Network, TrustedPosterior
from rarefish.pseudo_labels.rules import NearestTrusted, given, predicted
from rarefish.pseudo_labels.target_weights import TargetWeights
from rarefish.training.jobs import Job, fit_one
from rarefish.training.loop import Share

T = TypeVar("T")
PLAN_CLASSES = (
    *(Plan, Standardized, TrustedPosterior, Network, Head, LinearHeadOf, HeadLogits, NearestTrusted, MonteCarlo),
    *(CoveragePlan, TargetWeights, given, predicted),
)
"""Classes that a plan on disk may contain, in addition to tensors and layers of the model."""


@dataclass(frozen=True, kw_only=True)
class TorchrunExecutor:
    """Executor for all processes started by torchrun or, without torchrun, for one process that keeps its shards."""

    model: nn.Module | None = None
    """The model, whose layer types may occur in a plan on disk; required with `folder`."""
    device: torch.device | str = "cpu"
    folder: Path | None = None
    """Folder for the plan and finished shards; the same for all processes, or one per machine. It must be new or empty:
    a folder with other files is rejected and left unchanged."""
    settings: str = ""
    """Anything else that the result depends on but `select()` cannot see, as text."""
    shard_size: int = 20_000
    tell: Callable[[int, int], None] = lambda done, total: None
    """Called in each process with the number of its finished shards and the number of all its shards."""
    inputs: Mapping[str, str] | None = field(default=None, repr=False)
    """A hash of each input that the result depends on; set by `select()`."""

    def __post_init__(self) -> None:
        if self.shard_size < 1:
            raise ArgumentError(f"shard_size must be at least 1, not {self.shard_size}.")

    @property
    def size(self) -> int:
        return num_ranks()

    def everywhere(self, work: Callable[[], T]) -> T:
        """Runs `work` in every process and returns its result; an error in one process is raised in all."""
        return everywhere(work)

    def for_run(self, inputs: Callable[[], Mapping[str, str]]) -> "TorchrunExecutor":
        """Returns the executor for a run with these inputs; raises an error if those of the processes differ."""
        if self.folder is None and num_ranks() == 1:
            return self
        own = everywhere(lambda: self._all_inputs(inputs()))
        check_same(gather_all(own))
        return replace(self, inputs=own)

    def _all_inputs(self, inputs: Mapping[str, str]) -> Mapping[str, str]:
        if self.folder is not None:
            ResumeFolder(self.folder).check()
        return {**inputs, "settings": digest([self.settings]), "shard size": digest([self.shard_size])}

    def once(self, work: Callable[[], T]) -> T:
        """Runs `work` in the first process, or reads its result from disk, and returns it in all; so are errors."""
        if num_ranks() == 1:
            return self._kept(work)
        found = self.agree(everywhere(lambda: _to_bytes(self._kept(work)) if rank() == 0 else b""))
        # The value comes from a process of this run over torchrun's connection; files are read with weights_only=True.
        return torch.load(io.BytesIO(found), map_location=self.device, weights_only=False)

    def agree(self, value: T) -> T:
        """Returns the value of the first process in all processes."""
        if num_ranks() == 1:
            return value
        parcel: list[Any] = [value]
        dist.broadcast_object_list(parcel, src=0, device=torch.device("cpu"))
        return parcel[0]

    def map_shards(self, match: ShardMatcher, index: Sequence[int], depth: int) -> ShardMatches:
        """Returns the merged matches of the images at `index`; each process matches the same number of equal shards."""
        # A shard belongs to the plan with which it was matched; another machine may have made that plan again.
        plan = self.agree(self._plan_digest() if rank() == 0 else "")
        own = everywhere(lambda: self._match_own(match, index, depth, plan))
        return own if num_ranks() == 1 else _merge_all(own, depth)

    def map_parts(self, work: Callable[[Sequence[int]], T], index: Sequence[int]) -> list[T]:
        """Runs `work` on one part of `index` in each process and returns the results of all parts, in order."""
        first, last = (number * len(index) // num_ranks() for number in (rank(), rank() + 1))
        return gather_all(everywhere(lambda: work(index[first:last])))

    def _match_own(self, match: ShardMatcher, index: Sequence[int], depth: int, plan: str) -> ShardMatches:
        """Returns the merged table of this process's shards."""
        num_own = -(-len(index) // (self.shard_size * num_ranks()))
        count = num_own * num_ranks()
        found = []
        self.tell(0, num_own)
        for done, number in enumerate(range(rank(), count, num_ranks()), start=1):
            shard = index[number * len(index) // count : (number + 1) * len(index) // count]
            name = f"{depth}_{len(index)}-{number}-of-{count}"
            found.append(self._kept_shard(name, plan, lambda shard=shard: match(shard, depth)))
            self.tell(done, num_own)
        unreadable = {i: why for part in found for i, why in part.unreadable.items()}
        return ShardMatches(merge((part.matches for part in found), depth), unreadable)

    def _kept(self, work: Callable[[], T]) -> T:
        """Returns the result on disk from a run with the same inputs, or runs `work` and saves its result."""
        if self.folder is None:
            return work()
        assert self.model is not None, "a plan on disk may contain parts of the model"
        folder, key = ResumeFolder(self.folder), self._key
        folder.check()
        kinds = [*PLAN_CLASSES, *{type(module) for module in self.model.modules()}]
        with torch.serialization.safe_globals(kinds):
            found = _from_bytes(folder.read("plan.pt"), self.device)
        if isinstance(found, dict) and found.get("key") == key:
            return found["plan"]
        folder.clear()
        plan = work()
        folder.write("plan.pt", _to_bytes({"key": key, "plan": plan}))
        return plan

    @cached_property
    def _key(self) -> str:
        """Returns a key that identifies the plan of a run with these inputs."""
        assert self.inputs is not None, "select() calls for_run() first"
        return digest(sorted(self.inputs.items()))

    def _plan_digest(self) -> str:
        content = ResumeFolder(self.folder).read("plan.pt") if self.folder is not None else None
        return digest([content])

    def clear(self) -> None:
        """Deletes the plan and shards once every process has called this. Call it after the result is saved."""
        wait_for_all()
        if self.folder is not None:
            ResumeFolder(self.folder).remove()

    def _kept_shard(self, name: str, plan: str, work: Callable[[], ShardMatches]) -> ShardMatches:
        """Returns the shard of the same run on disk; if it is missing or damaged, runs `work` and saves its result."""
        if self.folder is None:
            return work()
        folder, run = ResumeFolder(self.folder), digest([self._key, plan])
        name = f"{run[:16]}-{name}.pt"
        kept = _from_bytes(folder.read(name), self.device)
        if isinstance(kept, dict) and kept.get("run") == run and kept.get("name") == name:
            return ShardMatches(Matches(kept["key"], kept["label"], kept["group"]), kept["unreadable"])
        found = work()
        table = found.matches
        kept = {"key": table.key, "label": table.label, "group": table.group, "unreadable": found.unreadable}
        folder.write(name, _to_bytes({"run": run, "name": name, **kept}))
        return found


def _merge_all(own: ShardMatches, depth: int) -> ShardMatches:
    """Returns the merged tables of all processes, in each of them."""
    matches = own.matches
    own_columns = [_gather_padded(matches.key, depth, MISSING), _gather_padded(matches.label, depth, -1)]
    if matches.group is not None:
        own_columns.append(_gather_padded(matches.group, depth, -1))
    merged = merge((Matches(*columns) for columns in zip(*own_columns, strict=True)), depth)
    width = int((merged.key[0] != MISSING).sum())
    unreadable: list[Any] = [None] * num_ranks()
    dist.all_gather_object(unreadable, own.unreadable)
    together = {i: why for part in unreadable for i, why in part.items()}
    group = None if merged.group is None else merged.group[:, :width]
    return ShardMatches(Matches(merged.key[:, :width], merged.label[:, :width], group), together)


def _gather_padded(column: Tensor, depth: int, padding: int) -> list[Tensor]:
    """Returns the columns of the tables of all processes, filled up to the depth."""
    own = torch.full((len(column), depth), padding)
    own[:, : column.shape[1]] = column.cpu()
    columns = [torch.empty_like(own) for _ in range(num_ranks())]
    dist.all_gather(columns, own)
    return columns


def everywhere(work: Callable[[], T]) -> T:
    """Runs `work` in every process and returns its result once all are done.

    If it fails in a process with an error that a user can cause, all processes raise that error, so that none of them
    waits forever.
    """
    if num_ranks() == 1:
        return work()
    done: list[T] = []
    error: Exception | None = None
    try:
        done.append(work())
    except (RarefishError, OSError) as raised:
        error = raised
    errors = gather_all(None if error is None else _as_own_error(error))
    failed = [(number, *found) for number, found in enumerate(errors) if found is not None]
    if not failed:
        return done[0]
    number, kind, text = failed[0]
    where = "" if all(found == (kind, text) for found in errors) else f"Process {number}: "
    raise kind(where + text) from error


def _as_own_error(error: Exception) -> tuple[type[RarefishError], str]:
    """Returns an error class that every process can raise, and its message."""
    if isinstance(error, RarefishError):
        return type(error), str(error)
    assert isinstance(error, OSError)
    return DataError, f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")


def gather_all(value: T) -> list[T]:
    """Returns the values of all processes, in each of them."""
    if num_ranks() == 1:
        return [value]
    values: list[Any] = [None] * num_ranks()
    dist.all_gather_object(values, value)
    return values


def check_same(inputs: Sequence[Mapping[str, str]]) -> None:
    """Raises an error if processes that share a run have different inputs."""
    differing = {number: differences(inputs[0], other) for number, other in enumerate(inputs)}
    found = [f"Process {n} differs from process 0 in: {', '.join(names)}" for n, names in differing.items() if names]
    if found:
        raise ArgumentError(
            f"{list_some(found, 3)}. Give all processes the same inputs; copy files with their times (rsync -a)."
        )


def join() -> torch.device:
    """Joins the process group, if torchrun started one, and returns the device of this process."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        store, number, count = next(dist.rendezvous("env://"))
        # After a restart, the store may still contain the addresses of processes that have ended.
        store = dist.PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        # nccl needs one GPU per process.
        has_own = on_gpu and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= torch.cuda.device_count()
        backend = "cpu:gloo,cuda:nccl" if has_own else "gloo"
        # A finished process waits for the others; torchrun detects processes that have died.
        dist.init_process_group(backend, store=store, rank=number, world_size=count, timeout=timedelta(days=7))
    return device


def wait_for_all() -> None:
    """Blocks until every process has called this."""
    if dist.is_initialized():
        dist.barrier()


def fit_together(jobs: Sequence[Job]) -> None:
    """Trains each model in place in all processes together (DDP), with the results of one process up to rounding.

    BatchNorm uses the statistics of each process's part of a batch. Each process reads only its own stored images.
    """
    for job in jobs:
        fit_one(job, Share(rank(), num_ranks()))


def leave() -> None:
    """Leaves the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    """Returns the number of this process, counted from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def num_ranks() -> int:
    """Returns the number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def _to_bytes(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _from_bytes(content: bytes | None, device: torch.device | str) -> Any:
    """Returns the value that torch.save wrote, or None if the file is missing, damaged or not allowed."""
    if content is None:
        return None
    try:
        return torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    except Exception:  # a file can be damaged in many ways
        return None
