"""The same selection over the processes of torchrun: one makes the plan, each scores its shards, tables are merged.

What a shard gave is kept on disk, so that a run that lost a process, or was killed, goes on where it was.
"""

import hashlib
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

# It takes the group as a default argument when it is imported. If torch did that itself, after join(), then the group
# would outlive leave(), and now and then its threads would abort a process that ends.
import torch.distributed.nn
from torch import Tensor, nn

from rarefish.errors import ArgumentError, RarefishError
from rarefish.jobs import Job, fit_one
from rarefish.kernels import Standardized
from rarefish.matching import Matches, merge
from rarefish.monte_carlo import MonteCarlo
from rarefish.posterior import Head, Network, TrustedPosterior
from rarefish.pseudo_labels import NearestTrusted, given, predicted
from rarefish.resume_folder import ResumeFolder
from rarefish.team import Plan, Score, Scored
from rarefish.training import Share

T = TypeVar("T")
NOTHING = torch.iinfo(torch.int64).min
"""A key after all others: where a table has fewer images than it could hold."""
KEPT = (Plan, Standardized, TrustedPosterior, Network, Head, NearestTrusted, MonteCarlo, given, predicted)
"""What a plan on disk may be made of, beside the parts of the model and plain tensors."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """A team of processes; without torchrun, a team of one that keeps its shards."""

    model: nn.Module | None = None
    """Its weights and kinds of layers tell which plan on disk is its own; needed with a folder."""
    device: torch.device | str = "cpu"
    folder: Path | None = None
    """Where plan and finished shards are kept; the same for all processes, or one a machine. It must be empty or new:
    files of others are never touched, and a folder that holds them is refused."""
    settings: str = ""
    """All else that the plan depends on, in words: a plan on disk with others is not used."""
    shard_size: int = 20_000
    tell: Callable[[int, int], None] = lambda done, total: None
    """Told by each process how many of its own shards are done."""

    def __post_init__(self) -> None:
        if self.shard_size < 1:
            raise ArgumentError(f"A shard has at least 1 image, not {self.shard_size}.")

    @property
    def size(self) -> int:
        return num_ranks()

    def once(self, work: Callable[[], T]) -> T:
        """The first process works, or finds the work on disk; an error it makes is everyone's."""
        if num_ranks() == 1:
            return self._kept(work)
        parcel: list[Any] = [None, None]
        if rank() == 0:
            try:
                parcel[0] = _to_bytes(self._kept(work))
            except RarefishError as error:
                parcel[1] = error
        parcel = self.agree(parcel)
        if parcel[1] is not None:
            raise parcel[1]
        # From a process of our own, over torchrun's connection; what lies on disk is read with more care.
        return torch.load(io.BytesIO(parcel[0]), map_location=self.device, weights_only=False)

    def agree(self, value: T) -> T:
        """The first process's, sent to all."""
        if num_ranks() == 1:
            return value
        parcel: list[Any] = [value]
        dist.broadcast_object_list(parcel, src=0, device=torch.device("cpu"))
        return parcel[0]

    def score(self, score: Score, left: Sequence[int], depth: int) -> Scored:
        """Shards are equal parts of what is left, as many for each process; none is looked at twice."""
        turns = -(-len(left) // (self.shard_size * num_ranks()))
        count = turns * num_ranks()
        found = []
        self.tell(0, turns)
        for done, number in enumerate(range(rank(), count, num_ranks())):
            index = left[number * len(left) // count : (number + 1) * len(left) // count]
            found.append(self._shard(f"{depth}_{len(left)}-{number}-of-{count}", lambda i=index: score(i, depth)))
            self.tell(done + 1, turns)
        own = Scored(
            merge((part.matches for part in found), depth), {i: w for part in found for i, w in part.unreadable.items()}
        )
        return own if num_ranks() == 1 else _merge_all(own, depth)

    def _kept(self, work: Callable[[], T]) -> T:
        """What is on disk from a run with the same settings; else the work, which is then kept."""
        if self.folder is None:
            return work()
        assert self.model is not None
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
        """Tells plan and shards of these weights and settings from those of an earlier run, on every machine."""
        assert self.model is not None, "what is kept on disk belongs to a model"
        return fingerprint(self.model, self.settings)

    def clear(self) -> None:
        """Deletes plan and shards, once every process has come here: the answer is where it should be."""
        wait_for_all()
        if self.folder is not None:
            ResumeFolder(self.folder).remove()

    def _shard(self, name: str, work: Callable[[], Scored]) -> Scored:
        """What is on disk from the same run; else the work, which is then kept. A damaged file is made again."""
        if self.folder is None:
            return work()
        folder, name = ResumeFolder(self.folder), f"{self._key[:16]}-{name}.pt"
        kept = _from_bytes(folder.read(name), self.device)
        if isinstance(kept, dict) and kept.get("run") == self._key and kept.get("name") == name:
            return Scored(Matches(kept["key"], kept["label"]), kept["unreadable"])
        found = work()
        kept = {"key": found.matches.key, "label": found.matches.label, "unreadable": found.unreadable}
        folder.write(name, _to_bytes({"run": self._key, "name": name, **kept}))
        return found


def _merge_all(own: Scored, depth: int) -> Scored:
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
    return Scored(Matches(merged.key[:, :width], merged.label[:, :width]), together)


def fingerprint(model: nn.Module, settings: str) -> str:
    """The same for the same weights and settings."""
    digest = hashlib.sha256(settings.encode())
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        if isinstance(value, Tensor):
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


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
