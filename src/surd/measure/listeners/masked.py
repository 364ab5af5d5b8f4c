"""Masks as they are heard: which entries a forward hides, by what number, and where numbers leave their type."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.autograd.graph import Node

from surd.measure.trace.gains import HIDDEN
from surd.measure.trace.naming import Where
from surd.measure.trace.tap import ADDITIONS, Tap

FILLS = ("masked_fill", "masked_fill_")
SUBTRACTIONS = ("sub", "sub_", "__sub__", "__isub__", "subtract")
MULTIPLICATIONS = ("mul", "mul_", "__mul__", "__imul__", "__rmul__", "multiply")
CONVERSIONS = ("to", "half", "bfloat16", "type", "type_as")
TRIANGLES = ("tril", "triu", "tril_", "triu_")
FEW_VALUES = 4
"""A constant of more different values is a bias by distance, and hides nothing."""
MOST_KEPT = 20.0
"""1 / (1 - p) of a dropout that leaves anything."""
LARGEST = 2**24
"""Entries of a mask that is looked at."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Masking:
    """One call that keeps some entries of a tensor from being seen, or adds a constant to them."""

    where: Where
    node: Node | None
    """Of what it returns."""
    shape: torch.Size
    hidden: Bool[Tensor, "..."]
    fill: float
    """What the hidden entries become, or what is added to them."""
    added: bool
    dtype: torch.dtype
    """Of the tensor that is masked."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Overflow:
    """A sum of finite numbers that became infinite."""

    where: Where
    count: int
    dtype: torch.dtype
    harmless: bool
    """Scores that were hidden already were hidden again: nothing else became infinite."""
    number: float | None = None
    """Of a constant: what it should have become, and its type cannot hold."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Dropped:
    """A dropout that is at work in eval mode."""

    where: Where
    rate: float


class MaskTap(Tap):
    """Hears masks and dropouts besides."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.maskings: list[Masking] = []
        self.overflows: list[Overflow] = []
        self.dropped: list[Dropped] = []
        self.targets: list[Tensor] = []
        """Classes that a loss was given."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").split(".")[0]
        if self._deaf or not args:
            return super().__torch_function__(func, types, args, kwargs)
        found = _constant(name, args, kwargs)
        if "dropout" in name:
            self._drops(name, args, kwargs)
        if name in ("cross_entropy", "nll_loss") and len(operands := [*args, *kwargs.values()]) > 1:
            self.targets += [x for x in operands if isinstance(x, Tensor) and not x.is_floating_point()]
        sums = [x for x in args[:2] if isinstance(x, Tensor)] if name in ADDITIONS + SUBTRACTIONS else []
        watched = len(sums) == 2 and all(x.is_floating_point() for x in sums)
        watched = watched and min(x.dim() for x in sums) > 1 and not all(x.requires_grad for x in sums)
        before = _sums(*sums) if watched else None
        if name in MULTIPLICATIONS:
            self._drops_by_hand(args)
        written_over = name in ("mul_", "__imul__") and isinstance(args[0], Tensor) and not args[0].requires_grad
        factors = (args[0].clone(), *args[1:]) if written_over and args[0].numel() <= LARGEST else args
        noted = len(self.maskings)
        if found is not None and name in FILLS:
            self._mask(args[0], args[0].shape, found)  # before the call, which may refuse the number
        out = super().__torch_function__(func, types, args, kwargs)
        target = out if isinstance(out, Tensor) else args[0]
        if not isinstance(target, Tensor) or not target.is_floating_point():
            return out
        if name in (*MULTIPLICATIONS, *CONVERSIONS) and not target.requires_grad and 0 < target.numel() <= LARGEST:
            self._beyond(name, target, factors)
        if before is not None and bool((burst := target.detach().isinf() & before.finite).any()):
            twice = burst & before.filled
            self.overflows.append(
                Overflow(
                    where=self.notes.names.here(),
                    count=int(burst.sum()),
                    dtype=target.dtype,
                    harmless=not before.masks and bool((burst == twice).all()),
                )
            )
        if found is not None:
            del self.maskings[noted:]
            self._mask(target, target.shape, found)
        return out

    def _beyond(self, name: str, out: Tensor, operands: Sequence[Any]) -> None:
        """A constant of finite numbers that its type cannot hold."""
        sides = operands[: 2 if name in MULTIPLICATIONS else 1]
        if not all(isinstance(x, Tensor | int | float) for x in sides) or not bool(out.isinf().any()):
            return
        exact = [x.detach().double() if isinstance(x, Tensor) else x for x in sides]
        meant = exact[0] if len(exact) == 1 else exact[0] * exact[1]
        if not isinstance(meant, Tensor) or meant.shape != out.shape:
            return
        if bool((burst := out.isinf() & meant.isfinite()).any()):
            numbers = meant[burst]
            self.overflows.append(
                Overflow(
                    where=self.notes.names.here(),
                    count=int(burst.sum()),
                    dtype=out.dtype,
                    harmless=False,
                    number=float(numbers[numbers.abs().argmax()]),
                )
            )

    def _fused(self, run: Any, *args: Any, **kwargs: Any) -> Tensor:
        rate = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
        if rate:
            self.dropped.append(Dropped(where=self.notes.names.here(), rate=float(rate)))
        return super()._fused(run, *args, **kwargs)

    def _mask(self, x: Tensor, shape: torch.Size, found: tuple[Tensor, float, bool]) -> None:
        hidden, fill, added = found
        if x.requires_grad and x.dim() > 1 and hidden.numel() <= LARGEST:
            self.maskings.append(
                Masking(
                    where=self.notes.names.here(),
                    node=x.grad_fn,
                    shape=shape,
                    hidden=hidden,
                    fill=fill,
                    added=added,
                    dtype=x.dtype,
                )
            )

    def _drops(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        rate = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
        if training and rate:
            self.dropped.append(Dropped(where=self.notes.names.here(), rate=float(rate)))

    def _drops_by_hand(self, operands: Sequence[Any]) -> None:
        """A constant of zeros and 1 / (1 - p) may be one; whether it is random, two forwards tell."""
        for x in operands[:2]:
            if isinstance(x, Tensor) and x.is_floating_point() and not x.requires_grad and x.dim() > 1 and x.numel():
                most = float(x.max())
                if 1 < most <= MOST_KEPT and bool(((x == 0) | (x == most)).all()) and bool((x == 0).any()):
                    self.dropped.append(Dropped(where=self.notes.names.here(), rate=1 - 1 / most))


@dataclass(frozen=True)
class _Summands:
    finite: Tensor
    filled: Tensor
    """Some summand is as low as a mask."""
    masks: bool
    """Neither of them comes from the input."""


def _sums(first: Tensor, second: Tensor) -> _Summands | None:
    try:
        finite = first.detach().isfinite() & second.detach().isfinite()
    except RuntimeError:
        return None  # the shapes do not fit, as the call itself will say
    live = [x for x in (first, second) if x.requires_grad]
    filled = torch.zeros_like(finite)
    for x in live:
        filled = filled | (x.detach() <= torch.finfo(x.dtype).min / 2)
    return _Summands(finite, filled, not live)


def _constant(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, float, bool] | None:
    """What a call hides by a constant: where, by what number, and whether that is added; None for other calls."""
    given = [*args, *kwargs.values()]
    if name in FILLS and len(given) > 2 and isinstance(given[1], Tensor) and given[1].dtype == torch.bool:
        return given[1], _number(given[2]), False
    if name == "where" and len(given) > 2 and isinstance(given[0], Tensor):
        first, second = given[1:3]
        if _is_live(first) and not _is_live(second):
            return ~given[0].bool(), _number(second), False
        return (given[0].bool(), _number(first), False) if _is_live(second) and not _is_live(first) else None
    if name == "__setitem__" and isinstance(given[1], Tensor) and given[1].dtype == torch.bool:
        return (given[1], _number(given[2]), False) if given[1].shape == given[0].shape else None
    if name in TRIANGLES and _is_live(given[0]) and given[0].dim() > 1:
        kept = torch.ones(given[0].shape[-2:], dtype=torch.bool, device=given[0].device)
        diagonal = int(given[1]) if len(given) > 1 else 0
        return ~(kept.tril(diagonal) if name.startswith("tril") else kept.triu(diagonal)), 0.0, False
    if name in (*ADDITIONS, *SUBTRACTIONS, *MULTIPLICATIONS) or name.startswith("baddbmm"):
        # Where the sum is taken 0 times, nobody has written what it holds.
        return None if kwargs.get("beta", 1) == 0 else _combined(name, given)
    return None


def _combined(name: str, given: Sequence[Any]) -> tuple[Tensor, float, bool] | None:
    """A constant tensor that is added to something live, or multiplies it."""
    sides = [x for x in given[:2] if isinstance(x, Tensor)]
    constants = [x for x in sides if not x.requires_grad and x.dim() > 1 and x.numel() <= LARGEST]
    if len(sides) != 2 or len(constants) != 1 or (name in SUBTRACTIONS and constants[0] is not sides[1]):
        return None
    if name.startswith("baddbmm") and constants[0] is not sides[0]:
        return None
    constant = constants[0].detach()
    if name in MULTIPLICATIONS:
        zero = constant == 0
        hides = bool((zero | (constant == 1)).all()) and bool(zero.any()) and _like_a_mask(zero)
        return (zero, 0.0, False) if hides else None
    parts = parts_of(-constant if name in SUBTRACTIONS else constant)
    return None if parts is None else (*parts, True)


def parts_of(constant: Tensor) -> tuple[Bool[Tensor, "..."], float] | None:
    """Where a constant that is added to scores hides, and by how much at least; None for a bias that hides nothing."""
    if not constant.is_floating_point():
        return None
    strong = constant <= HIDDEN
    if bool(strong.any()):
        return strong, float(constant[strong].max())
    zero = constant == 0
    if not bool(zero.any()) or bool(zero.all()):
        return None
    values = constant[~zero].unique()
    if len(values) > FEW_VALUES or constant.shape[-1] < 2 * FEW_VALUES:
        return None
    hidden = zero if values.tolist() == [1.0] else ~zero  # ones and zeros: a mask that was added as it is
    return (hidden, 0.0 if hidden is zero else float(values.max())) if _like_a_mask(hidden) else None


def _like_a_mask(hidden: Bool[Tensor, "*batch queries keys"]) -> bool:
    """Whether keys are hidden from all queries, or else from the earlier, or the later ones."""
    padding = hidden.all(-2, keepdim=True)
    rest = hidden & ~padding
    if not bool(rest.any()):
        return True
    whole = torch.ones(hidden.shape[-2:], dtype=torch.bool, device=hidden.device)
    triangles = [whole.triu(more) for more in range(-1, 4)] + [whole.tril(-more) for more in range(-1, 4)]
    return any(torch.equal(rest, (triangle & ~padding).expand(rest.shape)) for triangle in triangles)


def _is_live(x: object) -> bool:
    return isinstance(x, Tensor) and x.requires_grad


def _number(x: object) -> float:
    if isinstance(x, Tensor):
        return float(x.detach().max()) if x.numel() else 0.0
    return float(x) if isinstance(x, int | float) else 0.0
