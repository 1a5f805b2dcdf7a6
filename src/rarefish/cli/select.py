"""The command `rarefish select`: a new round of a workspace, or a selection from files to files."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rarefish.cli.options import (
    allow_model,
    closed_at_end,
    json_option,
    make_running,
    parse_size,
    reject_unused,
    split_names,
    tell,
    trust_option,
)
from rarefish.errors import ArgumentError
from rarefish.io import write_whole
from rarefish.workspace.store import Store, open_store

if TYPE_CHECKING:
    from rarefish.data.image_files import ImageFiles
    from rarefish.data.parquet import ParquetImages
    from rarefish.selection import Selection

UNUSED_WITH_WORKSPACE = (
    *("address", "weights", "pool", "validation", "size", "mode"),
    *("compile", "strict", "output"),
)
UNUSED_WITH_FILES = ("device", "trust", "as_json")


@click.command()
@click.argument("workspace", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("--model", "address", help="FILE.py:FUNCTION, module:function, timm:…, or lenet, resnet10, resnet18.")
@click.option("--weights", type=click.Path(exists=True, dir_okay=False, path_type=Path), help=".pt or .safetensors.")
@click.option("--pool", type=click.Path(path_type=Path), help="A folder, a CSV (path) or Parquet files.")
@click.option(
    "--validation",
    type=click.Path(exists=True, path_type=Path),
    help="A folder with one folder per class, or a CSV (path, label).",
)
@click.option("--budget", required=True, type=click.IntRange(min=1), help="Number of images to choose.")
@click.option("--size", default="224x224", show_default=True, help="Height and width that images are resized to.")
@click.option("--mode", default="RGB", show_default=True, help="RGB, or L for grayscale.")
@click.option("--layers", help="Layer names separated by commas. [default: chosen automatically]")
@click.option(
    "--labels", default="posterior", show_default=True, help="Estimator of the pseudo-labels of the pool images."
)
@click.option("--batch-size", type=click.IntRange(min=1), default=256, show_default=True, help="Images per batch.")
@click.option(
    "--workers", type=click.IntRange(min=0), default=2, show_default=True, help="Worker processes that decode images."
)
@click.option(
    "--compile/--no-compile", default=None, help="Use torch.compile. [default: on a GPU, if it makes the run shorter]"
)
@click.option(
    "--shard", type=click.IntRange(min=1), default=20_000, show_default=True, help="Images per saved shard of the pool."
)
@click.option("--device", default="auto", show_default=True, help="With a workspace: cpu, cuda, or auto.")
@trust_option
@json_option
@click.option("--strict", is_flag=True, help="Stop at an image that cannot be read, instead of leaving it out.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("picks"),
    show_default=True,
    help="Folder for picks.csv and picks.png, without a workspace.",
)
def select(
    workspace: Path | None,
    address: str | None,
    pool: Path | None,
    validation: Path | None,
    size: str,
    output: Path,
    layers: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Choose the pool images worth labeling, as a new round of a workspace or with your own model and folders.

    With a workspace, the images wait for `rarefish label`. Without one, picks.csv and picks.png are written, with the
    validation image that each pick was matched to. The same command resumes a run that was killed. Under torchrun the
    processes share the pool.

    \b
    Example:
      rarefish select work --budget 100
      rarefish select --model net.py:make --weights net.pt --pool images --validation trusted --budget 100
      torchrun --nproc-per-node 8 -m rarefish select --model net.py:make …
    """
    names = split_names(layers) if layers else None
    if workspace:
        reject_unused(
            UNUSED_WITH_WORKSPACE,
            "With a workspace, its own model, images and image size are used, and no files are written",
        )
        store = closed_at_end(open_store(workspace))
        number = select_round(store, options["budget"], {**options, "layers": names})
        if number:
            tell(as_json, {"round": number}, round_message(store, number))
        return
    if not (address and pool and validation):
        raise ArgumentError("Name a workspace, or give --model, --pool and --validation.")
    reject_unused(UNUSED_WITH_FILES, "Only a selection with a workspace uses these options")
    options = {name: value for name, value in options.items() if name not in UNUSED_WITH_FILES}
    select_files(address, pool, validation, parse_size(size), output, layers=names, **options)


def select_round(store: Store, budget: int, options: dict[str, Any]) -> int:
    """Adds a round to a workspace and returns its number."""
    from rarefish.workspace.actions import choose_round

    allow_model(store, options["trust"])
    given = {name: options[name] for name in ("labels", "layers") if options.get(name)}
    return choose_round(store, budget, running=make_running(options), **given)


def round_message(store: Store, number: int) -> str:
    """Returns the notes of a new round, how many images it has and what to do next."""
    from rarefish.workspace.history import read_round

    how, count = read_round(store, number)
    return "\n".join(
        [*how["notes"], f"Round {number}: {count} images wait for labels. Next: rarefish label {store.folder}"]
    )


def select_files(
    address: str,
    pool: Path,
    validation: Path,
    size: tuple[int, int],
    output: Path,
    *,
    weights: Path | None,
    budget: int,
    mode: str,
    layers: tuple[str, ...] | None,
    labels: str,
    batch_size: int,
    workers: int,
    compile: bool | None,
    shard: int,
    strict: bool,
) -> None:
    """Selects from files; the first process writes the picks. Finished shards are kept beside the output until then."""
    from rarefish.data.parquet import open_labeled, open_pool
    from rarefish.distributed import torchrun
    from rarefish.distributed.resume_folder import NAME
    from rarefish.models.loading import load_model
    from rarefish.selection import select as select_images

    device = torchrun.join()
    try:
        trusted, images = torchrun.everywhere(
            lambda: (open_labeled(validation, size, mode), open_pool(pool, size, mode))
        )
        model = torchrun.everywhere(lambda: load_model(address, len(trusted.classes), len(mode), weights).to(device))
        executor = torchrun.TorchrunExecutor(
            model=model,
            device=device,
            folder=output / NAME,
            shard_size=shard,
            tell=_ShardProgress(len(images), is_shown=torchrun.rank() == 0 and not sys.stderr.isatty()),
        )
        chosen = select_images(
            model,
            images,
            trusted,
            budget=budget,
            layers=layers,
            labels=labels,
            batch_size=batch_size,
            device=device,
            num_workers=workers,
            compile=compile,
            progress=torchrun.rank() == 0,
            strict=strict,
            executor=executor,
        )
        torchrun.everywhere(lambda: None if torchrun.rank() else _write(chosen, images, output))
        executor.clear()
    finally:
        torchrun.leave()


def _write(chosen: "Selection", images: "ImageFiles | ParquetImages", output: Path) -> None:
    chosen.save(output / "picks.csv")
    if chosen.unreadable:
        lines = [f"{images.paths[index]}: {why}" for index, why in sorted(chosen.unreadable.items())]
        write_whole(output / "unreadable.txt", "\n".join(lines) + "\n")
    chosen.contact_sheet(output / "picks.png")
    for note in chosen.notes:
        print(note)
    print(f"{len(chosen)} images chosen: {(output / 'picks.csv').resolve()}")


class _ShardProgress:
    """Prints a line after each shard: the share of the pool that is done, the speed and the time left.

    It is not shown on a terminal, which has a progress bar.
    """

    def __init__(self, num_images: int, is_shown: bool) -> None:
        self.num_images, self.is_shown, self.began = num_images, is_shown, time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if not self.is_shown:
            return
        if done == 0:
            self.began = time.monotonic()
            return
        share, spent = done / total, time.monotonic() - self.began
        rate = self.num_images * share / max(spent, 1e-9)
        left = spent / share - spent
        print(f"scored {share:.0%} of the pool, {rate:,.0f} images/s, {left:,.0f} s left", file=sys.stderr, flush=True)
