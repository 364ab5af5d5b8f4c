"""Masks as they are heard: which scores a forward hides, by what number, and how much of the softmax stays on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.graph import Node

from surd.measure.reading.factors import products_behind
from surd.measure.sites import Role, Site
from surd.measure.trace.calls import Fused, Softmax
from surd.measure.trace.gains import HIDDEN
from surd.measure.trace.graph import Place, walk_back
from surd.measure.trace.naming import Where
from surd.measure.trace.notes import Notes
from surd.measure.trace.tap import ADDITIONS, Tap
from surd.measure.trace.written import few, for_all_heads

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


@dataclass(frozen=True, kw_only=True, eq=False)
class Scored:
    """The scores of one attention, and what of them the forward means to hide."""

    site: Site
    scores: Float[Tensor, "..."]
    """What the softmax reads."""
    axis: int
    hidden: Bool[Tensor, "..."] | None
    """None where no mask was heard."""
    fills: tuple[float, ...]
    """Of the masks that were heard, one each."""
    dtype: torch.dtype

    @property
    def square(self) -> bool:
        """As many queries as keys."""
        return (
            self.axis == self.scores.dim() - 1
            and self.scores.dim() > 1
            and self.scores.shape[-1] == self.scores.shape[-2]
        )

    @property
    def empty(self) -> int:
        """How many rows see no key at all."""
        return int((self.scores == -torch.inf).all(self.axis).sum())

    @property
    def seen(self) -> Bool[Tensor, "..."]:
        """What really takes part in the softmax."""
        return (self.scores > HIDDEN) & self.scores.isfinite()

    @property
    def meant(self) -> Bool[Tensor, "..."]:
        """What is meant to take part."""
        return self.seen if self.hidden is None else self.seen & ~self.hidden

    def mass(self, hidden: Bool[Tensor, "..."]) -> tuple[float, float] | None:
        """Mean mass of probability on hidden keys, and their mean share of the keys, over rows with both kinds."""
        weights = torch.softmax(self.scores.double(), self.axis)
        hidden = hidden.expand(self.scores.shape)
        # A row whose visible keys are as low as a mask makes them is hidden by another one: it is nobody's.
        empty = self.scores.masked_fill(hidden, -torch.inf).amax(self.axis) <= torch.finfo(self.dtype).min / 4
        rows = hidden.any(self.axis) & ~hidden.all(self.axis) & ~weights.isnan().any(self.axis) & ~empty
        if not bool(rows.any()):
            return None
        mass = weights.masked_fill(~hidden, 0.0).sum(self.axis)[rows]
        return float(mass.mean()), float(hidden.double().mean(self.axis)[rows].mean())

    def gap(self) -> float | None:
        """How far the highest hidden score stays below the lowest one that is meant to be seen, at least."""
        if self.hidden is None:
            return None
        hidden = self.hidden
        lowest = self.scores.masked_fill(hidden, torch.inf).amin(self.axis)
        highest = self.scores.masked_fill(~hidden, -torch.inf).amax(self.axis)
        rows = hidden.any(self.axis) & ~hidden.all(self.axis) & lowest.isfinite() & (highest < torch.inf)
        return float((lowest - highest)[rows].double().min()) if bool(rows.any()) else None


def read_scores(notes: Notes, maskings: Sequence[Masking]) -> list[Scored]:
    """Every attention whose scores are known, in the order of the calls."""
    found = []
    for call in notes.attention:
        one = _of_fused(call) if isinstance(call, Fused) else _of_softmax(notes, call, maskings)
        if one is not None:
            found.append(one)
    return found


def _of_fused(call: Fused) -> Scored | None:
    query, key = call.query.value, call.key.value
    if query is None or key is None or call.scale is None or call.backend != "sdpa" or not few(query, key):
        return None
    scores = query.float() @ for_all_heads(key, query).float().mT * call.scale
    hidden, fills = None, []
    if call.bias is not None:
        bias = call.bias.detach()
        scores = scores + bias.float()
        if (parts := parts_of(bias)) is not None:
            hidden, fills = parts[0].expand(scores.shape), [parts[1]]
    return Scored(
        site=_site(call), scores=scores, axis=scores.dim() - 1, hidden=hidden, fills=tuple(fills), dtype=query.dtype
    )


def _of_softmax(notes: Notes, call: Softmax, maskings: Sequence[Masking]) -> Scored | None:
    products = products_behind(notes, call)
    if not products or call.scores.place is None:
        return None
    scores = call.values.detach()
    hidden, fills = None, []
    for masking in _on_the_way(notes, call, maskings):
        if (mask := _in_shape(masking, scores.shape)) is not None:
            hidden = mask if hidden is None else hidden | mask
            fills.append(masking.fill)
    return Scored(
        site=_site(call), scores=scores.float(), axis=call.axis, hidden=hidden, fills=tuple(fills), dtype=scores.dtype
    )


def _all_products(notes: Notes) -> dict[Node, Place]:
    return {node: product.place for node, product in notes.products.items()}


def _on_the_way(notes: Notes, call: Softmax, maskings: Sequence[Masking]) -> list[Masking]:
    """Not those of a layer below, to which the ways of relative positions lead."""
    assert call.scores.place is not None, "products lie behind it"
    scores, products, beginnings = call.scores.place, _all_products(notes), notes.beginnings
    met, passed = walk_back([scores.node], {**beginnings, **products})
    nodes = {*met, *passed}  # a product may hold a bias of its own

    def of_all(masking: Masking) -> bool:
        """Not where a number that is no low one is written over one of several summands: the others stay seen."""
        if masking.added or masking.fill <= HIDDEN or masking.node is None or masking.node in products:
            return True
        beside, _ = walk_back([scores.node], {**beginnings, **products, masking.node: scores})
        return not any(node in products for node in beside)

    return [masking for masking in maskings if masking.node in nodes and of_all(masking)]


def _in_shape(masking: Masking, shape: torch.Size) -> Tensor | None:
    """The mask at every score, whatever axes were joined or parted since."""
    if masking.shape.numel() != shape.numel():
        return None
    try:
        return masking.hidden.expand(masking.shape).reshape(shape)
    except RuntimeError:
        return None


def _site(call: Fused | Softmax) -> Site:
    return Site(path=call.where.path, role=Role.SCORE, file=call.where.file, line=call.where.line)
