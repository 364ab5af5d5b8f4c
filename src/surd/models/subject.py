"""A model of ours as the subject of a check: in the shape that others have, with what its architecture states."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from surd.audit.subject import Subject, of_module
from surd.models.model import Model
from surd.models.plain import plain
from surd.models.stated import declared


def subject(
    model: Model, loss: Callable[[Any], Tensor] | None = None, trained: bool | None = None, name: str = ""
) -> Subject:
    """Called with random tokens; `name` is that of its class where none is given."""
    shown = plain(model)
    return of_module(shown, shown.trial(), loss, declared(model), trained, name or type(model).__name__)
