"""Saved: a model written as its own library writes it, and read again, as the subject of a comparison with itself."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from surd.audit.evidence import Evidence
from surd.audit.states import Beside
from surd.audit.subject import Subject
from surd.audit.weights import ModuleWeights
from surd.errors import SurdError
from surd.interchange.hub_config import first_line, quiet
from surd.interchange.stated import is_configuration
from surd.measure.calling.fields import field
from surd.measure.probe import unwrapped


def saved(subject: Subject, anew: Callable[[], Subject] | None = None) -> Beside:
    """Saved and loaded against as it was. `anew` makes the same model once more, with first weights."""
    if subject.module is None:
        raise SurdError(f"{subject.name}: is a file already; name its folder or a factory, to be saved and loaded")
    module = unwrapped(subject.module)
    before = Evidence(replace(subject, name="before saving", loss=None))
    loaded = _round_trip(module, subject.name, anew)
    after = replace(
        subject,
        name=f"{subject.name}, saved and loaded",
        weights=ModuleWeights(loaded),
        inputs=before.inputs,
        loss=None,
    )
    return Beside(mine=Evidence(after), theirs=before)


def _round_trip(module: nn.Module, name: str, anew: Callable[[], Subject] | None) -> nn.Module:
    if is_configuration(field(module, "config")) and hasattr(module, "save_pretrained"):
        return _by_library(module, name)
    made = None if anew is None else anew().module
    if made is None or unwrapped(made) is module:
        raise SurdError(
            f"{name}: a live module cannot be made anew to be loaded into: give package.module:factory, or save and "
            "load it yourself and compare the two: surd.check(loaded, against=model)"
        )
    made = unwrapped(made)
    try:
        state = {name: _copied(value) for name, value in module.state_dict().items()}
        made.load_state_dict(state)
    except Exception as error:  # whatever a loader of its own says
        raise SurdError(f"{name}: its own weights cannot be loaded again: {first_line(error)}") from None
    return made.train(module.training)


def _copied(value: Any) -> Any:
    """As a file holds it: each name by itself. A module may keep more than tensors in its state."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else deepcopy(value)


def _by_library(module: Any, name: str) -> nn.Module:
    with quiet(), TemporaryDirectory() as folder, torch.random.fork_rng([]):
        torch.manual_seed(1)
        try:
            module.save_pretrained(folder)
            loaded = type(module).from_pretrained(Path(folder), dtype=module.dtype)
        except Exception as error:
            raise SurdError(f"{name}: cannot be saved and loaded again: {first_line(error)}") from None
    return loaded.train(module.training)
