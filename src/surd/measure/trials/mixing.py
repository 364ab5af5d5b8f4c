"""Mixing: one forward of any module, read for what positions, heads and rows of the batch pass to each other."""

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from surd.errors import SurdError, raised
from surd.measure.calling.inputs import Inputs, arguments, replaced, tensors
from surd.measure.calling.restore import Keep, preserved
from surd.measure.listeners.masked import Dropped, Masking, MaskTap, Overflow
from surd.measure.listeners.scored import Scored, read_scores
from surd.measure.reading.layout import Layout, read_layouts
from surd.measure.reading.reach import Reach, read_reaches
from surd.measure.reading.row_sums import RowSums, read_row_sums
from surd.measure.reading.streams import Carried, read_carried
from surd.measure.sites import numbered
from surd.measure.tensors import dense
from surd.measure.trace.forward import Loss
from surd.measure.trials.told import marks

Sited = TypeVar("Sited", Scored, Layout, RowSums)

TOO_LARGE = "without overflow"
"""So torch ends the message that a number does not fit a type."""


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """What was seen."""

    outputs: tuple[Tensor, ...]
    scores: tuple[Scored, ...]
    maskings: tuple[Masking, ...]
    overflows: tuple[Overflow, ...]
    dropped: tuple[Dropped, ...]
    reaches: tuple[Reach, ...]
    layouts: tuple[Layout, ...]
    row_sums: tuple[RowSums, ...]
    carried: tuple[Carried, ...]
    next_tokens: bool
    """The loss asks for ids that the inputs hold one position later."""
    filled_in: bool
    """The loss asks only for ids in whose places the inputs hold one and the same other id."""
    refused: Masking | None = None
    """A mask whose number does not fit the type of what it masks; then nothing else was seen."""


def observe(model: nn.Module, inputs: Inputs, loss: Loss | None = None) -> Mixing:
    """In eval mode; the model stays as it was."""
    given = [x for x in tensors(inputs) if not x.is_floating_point()]
    with preserved(model, tapped=True) as keep:
        try:
            tap, outputs = _heard(model, keep, inputs, loss)
        except _Refused as refused:
            return _nothing_but(refused.tap)
        notes = tap.notes
        return Mixing(
            outputs=tuple(dense(x.detach()) for x in outputs),
            scores=_numbered(read_scores(notes, tap.maskings)),
            maskings=tuple(tap.maskings),
            overflows=tuple(tap.overflows),
            dropped=tuple(tap.dropped),
            reaches=tuple(read_reaches(notes, outputs)),
            layouts=_numbered(read_layouts(notes)),
            row_sums=_numbered(read_row_sums(notes)),
            carried=tuple(read_carried(notes)),
            next_tokens=any(_shifted(target, ids) for target in tap.targets for ids in given),
            filled_in=any(_blanks(target, ids) for target in tap.targets for ids in given),
        )


def observe_scores(model: nn.Module, inputs: Inputs) -> tuple[list[Tensor], list[Scored], list[Overflow]]:
    """Of other inputs: what it returns, and what its attentions read."""
    with preserved(model, tapped=True) as keep:
        try:
            tap, outputs = _heard(model, keep, inputs, None)
        except _Refused as refused:
            raise SurdError("a mask's number does not fit the type of what it masks") from refused
        scores = list(_numbered(read_scores(tap.notes, tap.maskings)))
        return [dense(x.detach()) for x in outputs], scores, tap.overflows


def _numbered(found: list[Sited]) -> tuple[Sited, ...]:
    sites = numbered([one.site for one in found])
    return tuple(replace(one, site=site) for one, site in zip(found, sites, strict=True))


class _Refused(Exception):
    """Torch refused a mask's number."""

    def __init__(self, tap: MaskTap) -> None:
        super().__init__()
        self.tap = tap


def _heard(model: nn.Module, keep: Keep, inputs: Inputs, loss: Loss | None) -> tuple[MaskTap, list[Tensor]]:
    """A forward with a graph also where it asks for none; a second try lets it be, if it cannot do without."""
    given = [x for x in tensors(inputs) if not x.is_floating_point()]
    first: Exception | None = None
    for suspend in (True, False):
        tap = MaskTap(model, keep, given, values=True, suspend=suspend)
        try:
            return tap, _run(tap, inputs, loss)
        except Exception as error:
            if TOO_LARGE in str(error) and tap.maskings:
                raise _Refused(tap) from error
            first = first or error
    raise SurdError(f"the forward raised {type(first).__name__}: {first}") from first


def _run(tap: MaskTap, inputs: Inputs, loss: Loss | None) -> list[Tensor]:
    args, kwargs = arguments(replaced(inputs, lambda x: x.detach().clone()))
    args = tuple(_admitted(tap, f"input {number}", value) for number, value in enumerate(args, 1))
    kwargs = {name: _admitted(tap, name, value) for name, value in kwargs.items()}
    with tap.installed():
        output = tap.model(*args, **kwargs)
        if loss is not None:
            loss(output)
    return list(tensors(output))


def _admitted(tap: MaskTap, name: str, value: Any) -> Any:
    """Numbers, unless they are a mask by their name or hold ones and zeros alone, become sources of the graph."""

    def admit(x: Tensor) -> Tensor:
        if x.is_floating_point() and "mask" not in name and not marks(x):
            x = x.requires_grad_().clone()  # no leaf: the forward may change it in place
            tap.notes.admit(name, x)
        return x

    return replaced(value, admit)


def _shifted(target: Tensor, ids: Tensor) -> bool:
    """Whether classes are the tokens that come next, at most of the places where both are known."""
    if ids.dim() != 2 or ids.shape[1] < 3:
        return False
    later = ids[:, 1:].flatten()
    if target.numel() == later.numel():
        return bool((target.flatten() == later).double().mean() > 0.9)
    if target.numel() == ids.numel():
        return bool((target.reshape(ids.shape)[:, :-1] == ids[:, 1:]).double().mean() > 0.9)
    return False


def _blanks(target: Tensor, ids: Tensor) -> bool:
    """Whether different classes are asked for, all of them where one and the same id stands."""
    if ids.dim() != 2 or target.numel() != ids.numel() or len(ids.unique()) < 3:  # a mask of ones is no row of ids
        return False
    asked = target.reshape(ids.shape) >= 0
    different = len(target.reshape(ids.shape)[asked].unique()) > 1
    return different and not bool(asked.all()) and len(ids[asked].unique()) == 1


def _nothing_but(tap: MaskTap) -> Mixing:
    nothing: dict[str, Any] = dict.fromkeys(
        ("outputs", "scores", "overflows", "dropped", "reaches", "layouts", "row_sums", "carried"), ()
    )
    return Mixing(**nothing, maskings=tuple(tap.maskings), next_tokens=False, filled_in=False, refused=tap.maskings[-1])


def two_forwards(model: nn.Module, inputs: Inputs) -> float:
    """How much two forwards in eval mode differ, each with its own random numbers: ‖difference‖ / ‖output‖."""

    def run() -> list[Tensor]:
        args, kwargs = arguments(replaced(inputs, lambda x: x.clone()))
        return [dense(x.detach()).clone() for x in tensors(model(*args, **kwargs)) if x.is_floating_point()]

    with preserved(model), torch.no_grad():
        try:
            first = run()
            torch.manual_seed(torch.initial_seed() + 1)
            second = run()
        except Exception as error:
            raise SurdError(f"the forward raised {raised(error)}") from error
    pairs = [(a.double(), b.double()) for a, b in zip(first, second, strict=False) if a.shape == b.shape]
    difference = sum(float((a - b).nan_to_num().square().sum()) for a, b in pairs)
    size = sum(float(a.nan_to_num().square().sum()) for a, _ in pairs)
    return (difference / size) ** 0.5 if size else 0.0
