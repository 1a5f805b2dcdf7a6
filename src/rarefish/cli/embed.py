"""The command `rarefish embed`."""

from typing import Any

import click

from rarefish.cli.options import (
    allow_model,
    json_option,
    machine_options,
    make_running,
    tell,
    trust_option,
    workspace_argument,
)
from rarefish.errors import ArgumentError, printable
from rarefish.workspace.store import Store


@click.command()
@workspace_argument
@click.option(
    "--backend",
    type=click.Choice(["auto", "onnx", "torch"]),
    default="auto",
    show_default=True,
    help="onnx (ONNX Runtime), torch, or auto: the faster one that is available.",
)
@click.option("--again", is_flag=True, help="Compute all embeddings again, for example after the model has changed.")
@machine_options(batch_size="256")
@trust_option
@json_option
def embed(store: Store, backend: str, again: bool, as_json: bool, **how: Any) -> None:
    """Compute the embeddings of a workspace's images.

    An embedding is the input of a pretrained model's classifier. With embeddings, selecting and training take seconds.
    They are stored in the folder embeddings of the workspace and identified by the content of their image, so they are
    computed for new images only. `rarefish next`, `select` and `train` also compute what is missing. Run the same
    command again to resume a run that was killed. Near-copies among the images are reported.

    \b
    Example:
      rarefish embed work
      rarefish embed work --backend torch --device cuda
    """
    from rarefish.workspace.embeddings import FOLDER, embed_images, head_model, remove_embeddings, why_network
    from rarefish.workspace.near_copies import copy_lines, find_near_copies

    allow_model(store, how["trust"])
    head = head_model(store)
    if head is None:
        why = why_network(store.settings()) or "because its last layer is not a linear layer with a bias"
        raise ArgumentError(
            f"This workspace trains the whole network, {why}, so it needs no embeddings. Use a pretrained model, or "
            "run rarefish init … --no-finetune."
        )
    if again:
        remove_embeddings(store)
    parts = embed_images(store, head, make_running(how), backend=backend)
    groups = find_near_copies(store).groups()
    found = {
        name: {"embedded": len(part.ids), "new": part.num_new, "unreadable": len(part.unreadable)}
        for name, part in parts.items()
    }
    num_new, seconds = (sum(getattr(part, name) for part in parts.values()) for name in ("num_new", "seconds"))
    speed = f" in {seconds:,.0f} s ({num_new / seconds:,.0f} images/s)" if num_new else ""
    lines = [
        f"{len(parts['pool'].ids):,} pool images and {len(parts['validation'].ids):,} validation images have "
        f"embeddings; {num_new:,} were computed now{speed}: {(store.folder / FOLDER).resolve()}"
    ]
    for name, part in parts.items():
        if part.unreadable:
            why = printable(next(iter(part.unreadable.values())))
            lines.append(f"  {len(part.unreadable):,} images of the {name} cannot be read, such as {why}")
    lines += [*copy_lines(groups), f"Next: rarefish next {store.folder}"]
    copies = [[{"part": one.part, "image": one.image} for one in group] for group in groups]
    tell(as_json, {**found, "seconds": round(seconds, 2), "near_copies": copies}, "\n".join(lines))
