"""Weight files of a model: safetensors, each shared matrix stored once, names and shapes checked on the way in."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from surd.errors import SurdError
from surd.files import load_tensors, save_tensors
from surd.models.model import Model


def weights_of(model: Model) -> dict[str, Tensor]:
    """The model's weights by name; of a shared Parameter only its first name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def save_weights(model: Model, path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Writes the weights to `path`, whole or not at all."""
    save_tensors(path, weights_of(model), dict(metadata or {}))


def set_weights(model: Model, weights: Mapping[str, Tensor], origin: str) -> None:
    """Copies `weights` into the model; `origin` names them in the message if names or shapes differ."""
    own = weights_of(model)
    faults = [f"{name}: missing" for name in own if name not in weights]
    faults += [f"{name}: not a weight of this model" for name in weights if name not in own]
    faults += [
        f"{name}: shape {tuple(weights[name].shape)}, expected {tuple(own[name].shape)}"
        for name in own
        if name in weights and weights[name].shape != own[name].shape
    ]
    if faults:
        raise SurdError(f"{origin} does not fit the recipe's model:\n  " + "\n  ".join(faults))
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])
    model.verify_ties()


def load_weights(model: Model, path: Path) -> None:
    """Reads `path` into the model."""
    set_weights(model, load_tensors(path), str(path))
