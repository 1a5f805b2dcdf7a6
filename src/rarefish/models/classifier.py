"""Put a head that was fitted on a model's features in the place of its classifier."""

import torch
from torch import Tensor, nn

from rarefish.models.layer_selection import device_of, dtype_of, evaluating, find_classifier


def replaceable_classifier(model: nn.Module, images: Tensor) -> str | None:
    """Returns the name of the linear layer whose output is that of the model, or None if there is none.

    A head that is fitted on the input of this layer can replace it. The layer must have a bias.

    Args:
        model: The model.
        images: At least one image, on which the model is run.
    """
    name = find_classifier(model, images)
    layer = model.get_submodule(name) if name else None
    if name is None or not isinstance(layer, nn.Linear) or layer.bias is None:
        return None
    seen: list[tuple[Tensor, Tensor]] = []

    def keep(_: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append((given[0], output))

    handle = layer.register_forward_hook(keep)
    try:
        with torch.no_grad(), evaluating(model):
            logits = model(images.to(device_of(model), dtype_of(model), copy=True))
    finally:
        handle.remove()
    features, output = seen[-1]
    return name if features.ndim == 2 and torch.equal(output, logits) else None


def with_head(model: nn.Module, classifier: str, head: nn.Linear) -> nn.Module:
    """Returns the model with its classifier replaced by a copy of the head."""
    classifier_of(model, classifier).load_state_dict(head.state_dict())
    return model


def classifier_of(model: nn.Module, classifier: str) -> nn.Linear:
    """Returns the model's layer with this name."""
    own = model.get_submodule(classifier)
    assert isinstance(own, nn.Linear)
    return own
