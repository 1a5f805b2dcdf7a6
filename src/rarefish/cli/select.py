"""The command `rarefish select`: adds a round to a workspace, or selects from a folder or files."""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rarefish.cli.options import (
    MODEL_HELP,
    allow_model,
    closed_at_end,
    json_option,
    make_running,
    near_copies_option,
    parse_size,
    reject_unused,
    split_names,
    tell,
    trust_option,
    weights_option,
    workers_option,
)
from rarefish.errors import ArgumentError
from rarefish.io import write_whole
from rarefish.workspace.store import Store, open_store

if TYPE_CHECKING:
    import torch
    from torch import nn

    from rarefish.data.image_files import ImageFiles
    from rarefish.data.parquet import ParquetImages
    from rarefish.selection import Selection

UNUSED_WITH_WORKSPACE = (
    *("address", "weights", "pool", "validation", "size", "mode"),
    *("compile", "strict", "output"),
)
UNUSED_WITH_FILES = ("device", "trust", "as_json", "allow_near_copies")


@click.command()
@click.argument("workspace", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("--model", "address", help=MODEL_HELP)
@weights_option()
@click.option(
    "--pool", type=click.Path(path_type=Path), help="Folder of images, CSV file with a path column, or Parquet files."
)
@click.option(
    "--validation",
    type=click.Path(exists=True, path_type=Path),
    help="Folder with one subfolder per class, or CSV file with the columns path and label.",
)
@click.option("--budget", required=True, type=click.IntRange(min=1), help="Number of images to select.")
@click.option("--size", help="HEIGHTxWIDTH to which images are resized. [default: that of the model]")
@click.option(
    "--mode", type=click.Choice(["RGB", "L"]), help="Color mode: RGB, or L for grayscale. [default: that of the model]"
)
@click.option("--layers", help="Comma-separated layer names. [default: chosen automatically]")
@click.option(
    "--method",
    type=click.Choice(["coverage", "fisher"]),
    help="Selection method; fisher is the paper's. [default: coverage]",
)
@click.option("--labels", help="Estimator of the pseudo-labels for --method fisher. [default: posterior]")
@click.option(
    "--batch-size", type=click.IntRange(min=1), default=256, show_default=True, help="Number of images per batch."
)
@workers_option
@click.option("--compile/--no-compile", default=None, help="Use torch.compile. [default: on a GPU, if it saves time]")
@click.option(
    "--shard",
    type=click.IntRange(min=1),
    default=20_000,
    show_default=True,
    help="Number of images per saved shard of the pool.",
)
@click.option(
    "--device", default="auto", show_default=True, help="With a workspace: cpu, cuda, or auto (cuda if available)."
)
@near_copies_option
@trust_option
@json_option
@click.option("--strict", is_flag=True, help="Fail on an unreadable image instead of leaving it out.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("picks"),
    show_default=True,
    help="Without a workspace: folder for picks.csv and picks.png.",
)
def select(
    workspace: Path | None,
    address: str | None,
    pool: Path | None,
    validation: Path | None,
    size: str | None,
    output: Path,
    layers: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Select the pool images worth labeling.

    With a workspace, the images become a new round that you label with `rarefish label`. Without one, pass your own
    model and folders; picks.csv and picks.png then show the selected images, each with the validation image that it
    matches. Run the same command again to resume a run that was killed. Under torchrun, the processes share the pool.

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
            "A workspace has its own model, images and image size, and the command writes no files",
        )
        store = closed_at_end(open_store(workspace))
        number = select_round(store, options["budget"], {**options, "layers": names})
        if number:
            tell(as_json, {"round": number}, round_message(store, number))
        return
    if not (address and pool and validation):
        raise ArgumentError("Name a workspace, or give --model, --pool and --validation.")
    reject_unused(UNUSED_WITH_FILES, "These options apply only to a workspace")
    options = {name: value for name, value in options.items() if name not in UNUSED_WITH_FILES}
    select_files(address, pool, validation, parse_size(size) if size else None, output, layers=names, **options)


def select_round(store: Store, budget: int, options: dict[str, Any]) -> int:
    """Adds a round to a workspace and returns its number."""
    from rarefish.workspace.active_learning import choose_round

    allow_model(store, options["trust"])
    given = {name: options[name] for name in ("labels", "layers", "allow_near_copies") if options.get(name)}
    return choose_round(store, budget, running=make_running(options), **given)


def round_message(store: Store, number: int) -> str:
    """Returns the text for a new round: its notes, its number of images and the next step."""
    from rarefish.workspace.round_history import read_round

    how, count = read_round(store, number)
    return "\n".join([*how["notes"], f"Round {number}: {count} images to label. Next: rarefish label {store.folder}"])


def select_files(
    address: str,
    pool: Path,
    validation: Path,
    size: tuple[int, int] | None,
    output: Path,
    *,
    weights: Path | None,
    budget: int,
    mode: str | None,
    layers: tuple[str, ...] | None,
    method: str | None,
    labels: str | None,
    batch_size: int,
    workers: int,
    compile: bool | None,
    shard: int,
    strict: bool,
) -> None:
    """Selects from files. The first process writes the picks; until then, finished shards are kept in its folder."""
    from rarefish.distributed import torchrun
    from rarefish.distributed.resume_folder import NAME
    from rarefish.selection import select as select_images

    device = torchrun.join()
    try:
        model, trusted, images = torchrun.everywhere(
            lambda: _open(address, weights, pool, validation, size, mode, device)
        )
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
            method=method,
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


def _open(
    address: str,
    weights: Path | None,
    pool: Path,
    validation: Path,
    size: tuple[int, int] | None,
    mode: str | None,
    device: "torch.device",
) -> "tuple[nn.Module, ImageFiles, ImageFiles | ParquetImages]":
    """Returns the model, the validation set and the pool, with images in the form that the model expects."""
    from rarefish.data.open_dataset import open_labeled, open_pool
    from rarefish.models.loading import load_model
    from rarefish.models.preprocessing import Input, channels_of, input_of

    any_size = Input().size
    trusted, images = open_labeled(validation, any_size), open_pool(pool, any_size)
    model = load_model(address, len(trusted.classes), channels_of(address, mode), weights)
    wanted = input_of(address, model, size=size, mode=mode)
    scaled = {"size": wanted.size, "mode": wanted.mode, "mean": wanted.mean, "std": wanted.std}
    return model.to(device), replace(trusted, **scaled), replace(images, **scaled)


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
    """Prints a line after each shard: the fraction of the pool that is done, the speed and the time left.

    Nothing is printed on a terminal, which shows a progress bar instead.
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
