"""The command `rarefish layers`."""

from pathlib import Path
from typing import Any

import click

from rarefish.cli.options import (
    allow_model,
    closed_at_end,
    json_option,
    reject_unused,
    tell,
    trust_option,
    weights_option,
)
from rarefish.workspace.store import is_workspace, open_store


@click.command()
@click.argument("model")
@weights_option()
@click.option(
    "--classes", "num_classes", type=click.IntRange(min=2), default=10, show_default=True, help="Number of classes."
)
@click.option(
    "--mode", type=click.Choice(["RGB", "L"]), help="Color mode: RGB, or L for grayscale. [default: that of the model]"
)
@trust_option
@json_option
def layers(model: str, weights: Path | None, num_classes: int, mode: str | None, trust: bool, as_json: bool) -> None:
    """List a model's layers that can be used to describe images.

    A star marks the layers that are used by default. MODEL is a built-in name (efficientnet-lite0, lenet,
    resnet10, resnet18), FILE.py:FUNCTION, module:function, timm:NAME, torchvision:NAME, transformers:FOLDER, or a
    workspace.

    \b
    Example:
      rarefish layers resnet18
    """
    from rarefish.workspace.model import describe_layers

    if is_workspace(Path(model)):
        reject_unused(["weights", "num_classes", "mode"], "A workspace has its own model")
        allow_model(closed_at_end(open_store(Path(model))), trust)
    else:
        reject_unused(["trust"], "Only a workspace needs to be trusted")
    found: list[dict[str, Any]] = describe_layers(model, weights, num_classes, mode)
    width = max(len(row["name"]) for row in found)
    lines = [
        f"{'*' if row['is_chosen'] else ' '} {row['name']:<{width}}  {row['channels']:>6} channels  {row['kind']}"
        for row in found
    ]
    tell(as_json, {"layers": found}, "\n".join(lines))
