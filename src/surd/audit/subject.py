"""The subject of a check: a module or the tensors of a file, with what is known and said of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from surd.audit.declared import NOTHING, Declared
from surd.audit.weights import ModuleWeights, Weights
from surd.measure.calling.inputs import Inputs


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is judged."""

    name: str
    weights: Weights
    inputs: Inputs | None = None
    """Arguments of one call of the module; built from its signature when None."""
    loss: Callable[[Any], Tensor] | None = None
    """From what the module returns to one number."""
    declared: Declared = NOTHING
    trained: bool | None = None
    """Whether it has been trained; found out from the weights when None."""
    notes: tuple[str, ...] = field(default=())
    """What whoever opened it has to tell: a part that was left out, code that was run."""

    unwritten: tuple[str, ...] = ()
    """Parameters that the files it was loaded from do not hold."""
    discarded: tuple[tuple[str, str, float], ...] = ()
    """Of one parameter's two names in those files: the one that counts, the other, and how far their numbers differ."""

    @property
    def module(self) -> nn.Module | None:
        """None for an open file: then only static rules can look."""
        return self.weights.module


def of_module(
    module: nn.Module,
    inputs: Inputs | None = None,
    loss: Callable[[Any], Tensor] | None = None,
    declared: Declared = NOTHING,
    trained: bool | None = None,
    name: str = "",
) -> Subject:
    """A live module."""
    return Subject(
        name=name or type(module).__name__,
        weights=ModuleWeights(module),
        inputs=inputs,
        loss=loss,
        declared=declared,
        trained=trained,
    )
