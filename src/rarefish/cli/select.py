"""`rarefish select`: a selection from files to files, by one process or by all that torchrun started."""

import sys
import time
from pathlib import Path

from rarefish.data.image_files import ImageFiles
from rarefish.data.parquet import ParquetImages, open_labeled, open_pool
from rarefish.distributed import torchrun as distributed
from rarefish.distributed.resume_folder import NAME
from rarefish.io import write_whole
from rarefish.models.loading import load_model
from rarefish.selection import Selection, select


def choose(
    address: str,
    pool: Path,
    validation: Path,
    size: tuple[int, int],
    output: Path,
    *,
    weights: Path | None,
    budget: int,
    mode: str,
    layers: str | None,
    labels: str,
    batch_size: int,
    workers: int,
    compile: bool | None,
    shard: int,
    strict: bool,
) -> Selection:
    """Chooses, and lets the first process write; finished shards are kept beside the output until then."""
    device = distributed.join()
    try:
        trusted, images = distributed.everywhere(
            lambda: (open_labeled(validation, size, mode), open_pool(pool, size, mode))
        )
        model = distributed.everywhere(lambda: load_model(address, len(trusted.classes), len(mode), weights).to(device))
        executor = distributed.TorchrunExecutor(
            model=model,
            device=device,
            folder=output / NAME,
            shard_size=shard,
            tell=_Teller(len(images)),
        )
        chosen = select(
            model,
            images,
            trusted,
            budget=budget,
            layers=tuple(name.strip() for name in layers.split(",")) if layers else None,
            labels=labels,
            batch_size=batch_size,
            device=device,
            num_workers=workers,
            compile=compile,
            progress=distributed.rank() == 0,
            strict=strict,
            executor=executor,
        )
        distributed.everywhere(lambda: None if distributed.rank() else _write(chosen, images, output))
        executor.clear()
    finally:
        distributed.leave()
    return chosen


def _write(chosen: Selection, images: ImageFiles | ParquetImages, output: Path) -> None:
    chosen.save(output / "picks.csv")
    if chosen.unreadable:
        lines = [f"{images.paths[index]}: {why}" for index, why in sorted(chosen.unreadable.items())]
        write_whole(output / "unreadable.txt", "\n".join(lines) + "\n")
    chosen.contact_sheet(output / "picks.png")
    for note in chosen.notes:
        print(note)
    print(f"{len(chosen)} images chosen: {(output / 'picks.csv').resolve()}")


class _Teller:
    """A line after each shard, from the first process: how far, how fast, how long still."""

    def __init__(self, num_images: int) -> None:
        self.num_images, self.began = num_images, time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if distributed.rank() or sys.stderr.isatty():  # on a terminal there is a bar
            return
        if done == 0:
            self.began = time.monotonic()
            return
        share, spent = done / total, time.monotonic() - self.began
        rate = self.num_images * share / max(spent, 1e-9)
        left = spent / share - spent
        print(f"scored {share:.0%} of the pool, {rate:,.0f} images/s, {left:,.0f} s left", file=sys.stderr, flush=True)
