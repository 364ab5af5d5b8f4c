"""One forward of a module under the tap, and of a loss; what they raise becomes one message."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from surd.errors import SurdError, raised
from surd.measure.calling.inputs import GIVE, Inputs, are_ids, arguments, replaced, signature_of, spelt, tensors
from surd.measure.calling.restore import Keep
from surd.measure.sites import Unseen
from surd.measure.trace.notes import Notes
from surd.measure.trace.tap import Tap

NO_GRAD = "the forward does not run without its own torch.no_grad: what stands inside could not be seen"

MOST = 6
"""Arguments that a message names."""

Loss = Callable[[Any], Tensor]
"""From what a module returns to one number."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Forward:
    """What was seen of it."""

    notes: Notes
    outputs: list[Tensor]
    loss: Tensor | None
    unseen: list[Unseen]


def forward(model: nn.Module, keep: Keep, given: Inputs, loss: Loss | None, values: bool = False) -> Forward:
    """With a graph also where the forward asks for none; a second try lets it be, if it cannot do without."""
    try:
        return _run(Tap(model, keep, _ids(given), values=values), given, loss)
    except SurdError:
        raise
    except Exception as first:
        try:
            seen = _run(Tap(model, keep, _ids(given), values=values, suspend=False), given, loss)
        except Exception:
            raise _failure(model, given, first) from first
    seen.unseen.append(Unseen(what=type(model).__name__, reason=NO_GRAD))
    return seen


def training_forward(model: nn.Module, keep: Keep, given: Inputs, loss: Loss) -> Forward:
    """With the graph that training has: nothing is undone that changes a gradient.

    Attention in one call is written out, so that the gradients of its scores can be read.
    """
    return _run(Tap(model, keep, _ids(given), suspend=False, written_out=True), given, loss)


def _run(tap: Tap, given: Inputs, loss: Loss | None) -> Forward:
    """The model's forward as a tap hears it; the loss belongs to it."""
    args, kwargs = arguments(given)
    args = tuple(_admitted(tap.notes, f"input {number}", value) for number, value in enumerate(args, 1))
    kwargs = {name: _admitted(tap.notes, name, value) for name, value in kwargs.items()}
    with tap.installed():
        output = tap.model(*args, **kwargs)
        value = None if loss is None else _evaluated(loss, output)
    return Forward(notes=tap.notes, outputs=list(tensors(output)), loss=value, unseen=[])


def _evaluated(loss: Loss, output: Any) -> Tensor:
    try:
        value = loss(output)
    except Exception as error:
        shapes = ", ".join(str(tuple(x.shape)) for x in tensors(output))
        raise SurdError(f"the loss raised {raised(error)}. It was given what the model returns: {shapes}") from error
    if not isinstance(value, Tensor) or value.numel() != 1 or value.is_complex():
        raise SurdError(f"the loss returned {_shape(value)}; expected a tensor with one real number")
    return value


def _admitted(notes: Notes, name: str, value: Any) -> Any:
    """Copies of an argument's tensors; numbers, unless they are a mask, become sources of the graph."""

    def admit(x: Tensor) -> Tensor:
        copy = x.detach().clone()
        if copy.is_floating_point() and "mask" not in name:
            copy = copy.requires_grad_().clone()  # no leaf: the forward may change it in place
            notes.admit(name, copy)
        return copy

    return replaced(value, admit)


def _ids(given: Inputs) -> list[Tensor]:
    return [x.long() if x.is_floating_point() else x for x in tensors(given) if not x.is_floating_point() or are_ids(x)]


def _failure(model: nn.Module, given: Inputs, error: Exception) -> SurdError:
    args, kwargs = arguments(given)
    signature = signature_of(model)
    named = [*((f"input {number}", value) for number, value in enumerate(args, 1)), *kwargs.items()]
    found = _listed([f"{name} {_shape(value)}" for name, value in named])
    strange = [name for name in kwargs if name not in signature.parameters]
    odd = f" No argument of it is called {_listed(strange)}." if strange else ""
    return SurdError(
        f"the forward of {type(model).__name__} raised {raised(error)}. It takes {spelt(signature)} and was given "
        f"{found}.{odd} {GIVE}"
    )


def _listed(names: Sequence[str]) -> str:
    """Not all of very many."""
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return ", ".join(names[:MOST]) + more


def _shape(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__
