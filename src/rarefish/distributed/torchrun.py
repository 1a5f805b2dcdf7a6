"""An executor for the processes of torchrun: one makes the plan, each matches its shards, the tables are merged.

The table of each shard is kept on disk, so that a run that lost a process, or was killed, can resume.
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

# This module takes the process group as a default argument when it is imported. If torch imported it after join(), the
# group would outlive leave(), and its threads would sometimes abort a process that ends.
import torch.distributed.nn
from torch import nn

from rarefish.distributed.executor import Plan, ShardMatcher, ShardMatches
from rarefish.distributed.resume_folder import ResumeFolder
from rarefish.distributed.run_inputs import differences
from rarefish.errors import ArgumentError, DataError, RarefishError, list_some
from rarefish.hashing import digest
from rarefish.kernels import Standardized
from rarefish.matching import Matches, merge
from rarefish.pseudo_labels.monte_carlo import MonteCarlo
from rarefish.pseudo_labels.posterior import Head, Network, TrustedPosterior
from rarefish.pseudo_labels.rules import NearestTrusted, given, predicted
from rarefish.training.jobs import Job, fit_one
from rarefish.training.loop import Share

T = TypeVar("T")
PADDING = torch.iinfo(torch.int64).min
"""Padding that sorts after all keys, for a table with fewer images than its depth."""
PLAN_CLASSES = (Plan, Standardized, TrustedPosterior, Network, Head, NearestTrusted, MonteCarlo, given, predicted)
"""Classes that a plan on disk may contain, in addition to layers of the model and tensors."""


@dataclass(frozen=True, kw_only=True)
class TorchrunExecutor:
    """All processes that torchrun started; without torchrun, one process that keeps its shards."""

    model: nn.Module | None = None
    """Its layer types may occur in a plan on disk; required with `folder`."""
    device: torch.device | str = "cpu"
    folder: Path | None = None
    """Where the plan and finished shards are kept; the same for all processes, or one per machine. It must be new or
    empty: a folder with other files is refused and left unchanged."""
    settings: str = ""
    """Anything else that the result depends on and that `select()` cannot see, as text."""
    shard_size: int = 20_000
    tell: Callable[[int, int], None] = lambda done, total: None
    """Called in each process with the numbers of its finished shards and of all its shards."""
    inputs: Mapping[str, str] | None = field(default=None, repr=False)
    """A hash of each input that the result depends on; set by `select()`."""

    def __post_init__(self) -> None:
        if self.shard_size < 1:
            raise ArgumentError(f"A shard needs at least 1 image, not {self.shard_size}. Give a larger shard_size.")

    @property
    def size(self) -> int:
        return num_ranks()

    def everywhere(self, work: Callable[[], T]) -> T:
        """Runs `work` in every process and returns its result; an error in one of them is raised in all."""
        return everywhere(work)

    def for_run(self, inputs: Callable[[], Mapping[str, str]]) -> "TorchrunExecutor":
        """The executor for a run with these inputs; raises an error if those of the processes differ."""
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
        """Runs `work` in the first process, or reads its result from disk; an error is raised in all processes."""
        if num_ranks() == 1:
            return self._kept(work)
        found = self.agree(everywhere(lambda: _to_bytes(self._kept(work)) if rank() == 0 else b""))
        # Sent by a process of this run over torchrun's connection; files on disk are read with weights_only=True.
        return torch.load(io.BytesIO(found), map_location=self.device, weights_only=False)

    def agree(self, value: T) -> T:
        """Returns the first process's value in all processes."""
        if num_ranks() == 1:
            return value
        parcel: list[Any] = [value]
        dist.broadcast_object_list(parcel, src=0, device=torch.device("cpu"))
        return parcel[0]

    def map_shards(self, match: ShardMatcher, index: Sequence[int], depth: int) -> ShardMatches:
        """Matches equal shards of the images at `index`, the same number in each process, and merges the tables."""
        # A shard belongs to the plan it was matched with; another machine may have made that plan again.
        plan = self.agree(self._plan_digest() if rank() == 0 else "")
        own = everywhere(lambda: self._match_own(match, index, depth, plan))
        return own if num_ranks() == 1 else _merge_all(own, depth)

    def _match_own(self, match: ShardMatcher, index: Sequence[int], depth: int, plan: str) -> ShardMatches:
        """The merged table of this process's shards."""
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
        """The result on disk from a run with the same inputs; otherwise runs `work` and keeps its result."""
        if self.folder is None:
            return work()
        assert self.model is not None, "a plan on disk may hold parts of the model"
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
        """Identifies the plan of a run with these inputs."""
        assert self.inputs is not None, "select() calls for_run() first"
        return digest(sorted(self.inputs.items()))

    def _plan_digest(self) -> str:
        content = ResumeFolder(self.folder).read("plan.pt") if self.folder is not None else None
        return digest([content])

    def clear(self) -> None:
        """Deletes the plan and shards once every process has called this; call it after the result is saved."""
        wait_for_all()
        if self.folder is not None:
            ResumeFolder(self.folder).remove()

    def _kept_shard(self, name: str, plan: str, work: Callable[[], ShardMatches]) -> ShardMatches:
        """The shard on disk from the same run; otherwise, or if it is damaged, runs `work` and keeps its result."""
        if self.folder is None:
            return work()
        folder, run = ResumeFolder(self.folder), digest([self._key, plan])
        name = f"{run[:16]}-{name}.pt"
        kept = _from_bytes(folder.read(name), self.device)
        if isinstance(kept, dict) and kept.get("run") == run and kept.get("name") == name:
            return ShardMatches(Matches(kept["key"], kept["label"]), kept["unreadable"])
        found = work()
        kept = {"key": found.matches.key, "label": found.matches.label, "unreadable": found.unreadable}
        folder.write(name, _to_bytes({"run": run, "name": name, **kept}))
        return found


def _merge_all(own: ShardMatches, depth: int) -> ShardMatches:
    """Merges the tables of all processes, in each of them."""
    matches = own.matches
    key = torch.full((len(matches.key), depth), PADDING)
    label = torch.full((len(matches.key), depth), -1)
    key[:, : matches.key.shape[1]], label[:, : matches.key.shape[1]] = matches.key.cpu(), matches.label.cpu()
    keys, labels = ([torch.empty_like(part) for _ in range(num_ranks())] for part in (key, label))
    dist.all_gather(keys, key)
    dist.all_gather(labels, label)
    merged = merge((Matches(k, c) for k, c in zip(keys, labels, strict=True)), depth)
    width = int((merged.key[0] != PADDING).sum())
    unreadable: list[Any] = [None] * num_ranks()
    dist.all_gather_object(unreadable, own.unreadable)
    together = {i: why for part in unreadable for i, why in part.items()}
    return ShardMatches(Matches(merged.key[:, :width], merged.label[:, :width]), together)


def everywhere(work: Callable[[], T]) -> T:
    """Runs `work` in every process and returns its result once all are done.

    If it fails in some process with an error that a user can cause, all processes raise that error, so that none waits
    forever.
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
    """An error class that every process can raise, and its text."""
    if isinstance(error, RarefishError):
        return type(error), str(error)
    assert isinstance(error, OSError)
    return DataError, f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")


def gather_all(value: T) -> list[T]:
    """The values of all processes, in each of them."""
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
            f"{list_some(found, 3)}. Give every process the same; copy files with their times (rsync -a)."
        )


def join() -> torch.device:
    """Joins the process group, if torchrun started one; returns the device of this process."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        store, number, count = next(dist.rendezvous("env://"))
        # After a restart the store may still hold the addresses of processes that are gone.
        store = dist.PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        # nccl needs a GPU per process.
        has_own = on_gpu and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= torch.cuda.device_count()
        backend = "cpu:gloo,cuda:nccl" if has_own else "gloo"
        # A finished process waits for the others; torchrun notices one that has died.
        dist.init_process_group(backend, store=store, rank=number, world_size=count, timeout=timedelta(days=7))
    return device


def wait_for_all() -> None:
    """Blocks until every process has called this."""
    if dist.is_initialized():
        dist.barrier()


def fit_together(jobs: Sequence[Job]) -> None:
    """Trains each model in place, in all processes together (DDP); equal to one process up to rounding.

    BatchNorm takes its statistics from each process's part of a batch. Each process reads only its own stored images.
    """
    for job in jobs:
        fit_one(job, Share(rank(), num_ranks()))


def leave() -> None:
    """Leaves the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def num_ranks() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def _to_bytes(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _from_bytes(content: bytes | None, device: torch.device | str) -> Any:
    """The value that torch.save wrote; None if there is no file, or it is damaged or not allowed."""
    if content is None:
        return None
    try:
        return torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    except Exception:  # a file can be damaged in many ways
        return None
