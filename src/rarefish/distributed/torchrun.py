"""The same selection over the processes of torchrun: one makes the plan, each scores its shards, tables are merged.

What a shard gave is kept on disk, so that a run that lost a process, or was killed, goes on where it was.
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

# It takes the group as a default argument when it is imported. If torch did that itself, after join(), then the group
# would outlive leave(), and now and then its threads would abort a process that ends.
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
NOTHING = torch.iinfo(torch.int64).min
"""A key after all others: where a table has fewer images than it could hold."""
KEPT = (Plan, Standardized, TrustedPosterior, Network, Head, NearestTrusted, MonteCarlo, given, predicted)
"""What a plan on disk may be made of, beside the parts of the model and plain tensors."""


@dataclass(frozen=True, kw_only=True)
class TorchrunExecutor:
    """A team of processes; without torchrun, a team of one that keeps its shards."""

    model: nn.Module | None = None
    """Its weights and kinds of layers tell which plan on disk is its own; needed with a folder."""
    device: torch.device | str = "cpu"
    folder: Path | None = None
    """Where plan and finished shards are kept; the same for all processes, or one a machine. It must be empty or new:
    files of others are never touched, and a folder that holds them is refused."""
    settings: str = ""
    """Anything that the answer depends on and that `select()` cannot see, in words."""
    shard_size: int = 20_000
    tell: Callable[[int, int], None] = lambda done, total: None
    """Told by each process how many of its own shards are done."""
    inputs: Mapping[str, str] | None = field(default=None, repr=False)
    """A hash of each thing that the answer depends on; `select()` fills it in."""

    def __post_init__(self) -> None:
        if self.shard_size < 1:
            raise ArgumentError(f"A shard has at least 1 image, not {self.shard_size}.")

    @property
    def size(self) -> int:
        return num_ranks()

    def everywhere(self, work: Callable[[], T]) -> T:
        """What the work gives, done by every process; where it fails for one, all stop with that error."""
        return everywhere(work)

    def for_run(self, inputs: Callable[[], Mapping[str, str]]) -> "TorchrunExecutor":
        """The team for one run with these inputs; processes whose inputs differ stop with a sentence."""
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
        """The first process works, or finds the work on disk; an error it makes is everyone's."""
        if num_ranks() == 1:
            return self._kept(work)
        found = self.agree(everywhere(lambda: _to_bytes(self._kept(work)) if rank() == 0 else b""))
        # From a process of our own, over torchrun's connection; what lies on disk is read with more care.
        return torch.load(io.BytesIO(found), map_location=self.device, weights_only=False)

    def agree(self, value: T) -> T:
        """The first process's, sent to all."""
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
        """What is on disk from a run with the same settings; else the work, which is then kept."""
        if self.folder is None:
            return work()
        assert self.model is not None, "a plan on disk may hold parts of the model"
        folder, key = ResumeFolder(self.folder), self._key
        folder.check()
        kinds = [*KEPT, *{type(module) for module in self.model.modules()}]
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
        """Tells the plan of a run with these inputs from all others."""
        assert self.inputs is not None, "select() says what the run depends on"
        return digest(sorted(self.inputs.items()))

    def _plan_digest(self) -> str:
        content = ResumeFolder(self.folder).read("plan.pt") if self.folder is not None else None
        return digest([content])

    def clear(self) -> None:
        """Deletes plan and shards, once every process has come here: the answer is where it should be."""
        wait_for_all()
        if self.folder is not None:
            ResumeFolder(self.folder).remove()

    def _kept_shard(self, name: str, plan: str, work: Callable[[], ShardMatches]) -> ShardMatches:
        """What is on disk from the same run; else the work, which is then kept. A damaged file is made again."""
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
    """What all processes found, for all of them."""
    matches = own.matches
    key = torch.full((len(matches.key), depth), NOTHING)
    label = torch.full((len(matches.key), depth), -1)
    key[:, : matches.key.shape[1]], label[:, : matches.key.shape[1]] = matches.key.cpu(), matches.label.cpu()
    keys, labels = ([torch.empty_like(part) for _ in range(num_ranks())] for part in (key, label))
    dist.all_gather(keys, key)
    dist.all_gather(labels, label)
    merged = merge((Matches(k, c) for k, c in zip(keys, labels, strict=True)), depth)
    width = int((merged.key[0] != NOTHING).sum())
    unreadable: list[Any] = [None] * num_ranks()
    dist.all_gather_object(unreadable, own.unreadable)
    together = {i: why for part in unreadable for i, why in part.items()}
    return ShardMatches(Matches(merged.key[:, :width], merged.label[:, :width]), together)


def everywhere(work: Callable[[], T]) -> T:
    """What the work gives, done by every process; none goes on before all are done.

    Where it fails for some with an error that a user can cause, all processes stop with it and none waits for ever.
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
    """What every process can raise: a kind of error and its text."""
    if isinstance(error, RarefishError):
        return type(error), str(error)
    assert isinstance(error, OSError)
    return DataError, f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")


def gather_all(value: T) -> list[T]:
    """The value of each process, for all of them."""
    if num_ranks() == 1:
        return [value]
    values: list[Any] = [None] * num_ranks()
    dist.all_gather_object(values, value)
    return values


def check_same(inputs: Sequence[Mapping[str, str]]) -> None:
    """Complains about processes that are to work together on a run and have different inputs."""
    differing = {number: differences(inputs[0], other) for number, other in enumerate(inputs)}
    told = [f"Process {n} differs from process 0 in: {', '.join(names)}" for n, names in differing.items() if names]
    if told:
        raise ArgumentError(
            f"{list_some(told, 3)}. Give every process the same; copy files with their times (rsync -a)."
        )


def join() -> torch.device:
    """Joins the processes that torchrun started, if it did; the device that is this one's."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        store, number, count = next(dist.rendezvous("env://"))
        # After a restart the store may still hold the addresses of processes that are gone.
        store = dist.PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        # nccl wants a GPU for each process.
        has_own = on_gpu and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= torch.cuda.device_count()
        backend = "cpu:gloo,cuda:nccl" if has_own else "gloo"
        # A process that is done waits for the others; one that is gone is noticed by torchrun.
        dist.init_process_group(backend, store=store, rank=number, world_size=count, timeout=timedelta(days=7))
    return device


def wait_for_all() -> None:
    """Goes on once every process has come here."""
    if dist.is_initialized():
        dist.barrier()


def fit_together(jobs: Sequence[Job]) -> None:
    """Trains each model in place, by all processes at once (DDP): what one would do, but for rounding.

    BatchNorm takes its statistics from each process's part of a batch. Of stored images, each process reads its own.
    """
    for job in jobs:
        fit_one(job, Share(rank(), num_ranks()))


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def num_ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _to_bytes(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _from_bytes(content: bytes | None, device: torch.device | str) -> Any:
    """What torch.save wrote; None where there is nothing, or where the file is damaged or holds something else."""
    if content is None:
        return None
    try:
        return torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    except Exception:  # a file can be damaged in many ways
        return None
