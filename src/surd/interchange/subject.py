"""Opens the subject of a check, recognised from what it is: a live module, a run, a folder, a file, a factory."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from surd.audit.declared import NOTHING, Declared
from surd.audit.subject import Subject, of_module
from surd.errors import SurdError
from surd.interchange.own_options import declared_by_options
from surd.interchange.stated import declared, is_configuration, ties
from surd.measure.calling.fields import field
from surd.measure.calling.inputs import Inputs
from surd.measure.ledger import Telling
from surd.measure.probe import unwrapped

Loss = Callable[[Any], Tensor]


def subject(
    model: Any,
    inputs: Inputs | None = None,
    loss: Loss | None = None,
    *,
    trained: bool | None = None,
    static: bool = False,
    name: str = "",
) -> Subject:
    """Anything that can be checked. `static` opens weights without building what they are weights of.

    In a report a live module has `name`, or that of its class.
    """
    if isinstance(model, Path | str):
        from surd.interchange.opening import opened

        return opened(model, inputs, loss, trained=trained, static=static)
    inner = getattr(model, "model", None)
    if not isinstance(model, nn.Module) and isinstance(inner, nn.Module):  # what `surd.load` returns, or a pipeline
        model = inner
    if _is_keras(model):
        from surd.interchange.keras import live

        return live(model, inputs, loss, trained, name)
    if not isinstance(model, nn.Module):
        raise SurdError(
            f"check: expected a module, the path of a model, or package.module:factory; found a {type(model).__name__}"
        )
    return of_live(model, inputs, loss, trained, name)


def of_live(
    model: nn.Module, inputs: Inputs | None, loss: Loss | None, trained: bool | None, name: str = ""
) -> Subject:
    """A module in memory, with what its own parts or its configuration state of it."""
    bare = unwrapped(model)
    name = name or type(bare).__name__
    if isinstance(bare, Telling) and inputs is None:
        return _of_ours(bare, loss, trained, name)
    return of_module(model, inputs, loss, stated(bare), trained, name)


def _of_ours(model: Telling, loss: Loss | None, trained: bool | None, name: str) -> Subject:
    """A model of ours, in the shape that others have: from rows of ids to logits."""
    from surd.models.model import Model
    from surd.models.subject import subject as of_ours

    assert isinstance(model, Model), "no other model tells what its parts do"
    return of_ours(model, loss, trained, name)


def stated(model: nn.Module) -> Declared:
    """What a model of ours, or one with a configuration of Hugging Face's library, says of itself."""
    if isinstance(model, Telling):
        from surd.models.model import Model
        from surd.models.stated import declared as of_ours

        return of_ours(model) if isinstance(model, Model) else NOTHING
    config = field(model, "config")
    if not is_configuration(config) or "transformers" not in sys.modules:
        return declared_by_options(model)
    return ties(model, declared(config, type(model).__name__))


def _is_keras(model: Any) -> bool:
    """Whether it is a layer or a model of Keras, told without importing it."""
    return any(kind.__module__.partition(".")[0] in ("keras", "tf_keras") for kind in type(model).__mro__)
