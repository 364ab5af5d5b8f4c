"""Ways in which a model is told of padding: a mask and how it is written, lengths, or an id among the tokens."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from surd.errors import SurdError
from surd.measure.calling.inputs import Inputs, arguments, signature_of

FIRST = ("attention_mask", "src_key_padding_mask", "key_padding_mask", "padding_mask", "pad_mask", "src_mask", "mask")
"""Names of arguments that mostly tell of padding, the surest first; then any other with "mask" or "pad" in it."""
OTHERS = ("head", "decoder", "tgt", "target", "trg", "memory", "cross", "label", "causal", "ahead", "future", "sub")
OTHERS += ("pos", "layer", "image", "pixel", "masked", "prefix", "global", "patch", "time", "dec", "loss", "pad_token")
"""Parts of the names of masks that tell of something else."""
AGAIN = ("memory", "cross", "encoder", "enc_dec", "src_tgt")
"""Parts of the names of masks by which a decoder is told again what of the source is padding."""

Write = Callable[[Bool[Tensor, "batch length"]], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Told:
    """A model's way of being told: an argument and how it is written, or an id among the tokens."""

    named: dict[str, Any]
    """The arguments of the call without padding, or with what padding the caller has put there."""
    content: str
    masks: tuple[str, ...]
    """Of the tower whose input is padded, and of those that read what it returns."""
    write: Write | None
    """From what is padding to the arguments."""
    padding: int | None
    """The id, where the tokens tell."""
    lengths: bool = False
    """Told by how long each row is, so that padding stands at ends alone."""

    def inputs(
        self, pads: Bool[Tensor, "batch length"], seed: int | None = None, other: Bool[Tensor, "..."] | None = None
    ) -> dict[str, Any]:
        """The arguments with some positions padded; a `seed` fills these, or just `other`, with something else."""
        changed = dict(self.named)
        x = self.named[self.content]
        if self.write is not None:
            changed |= {mask: self.write(pads.to(x.device)) for mask in self.masks}
        if self.padding is not None:
            whole = pads.reshape(*pads.shape, *(1,) * (x.dim() - 2))  # ids may have an axis of one
            changed[self.content] = x.masked_fill(whole.to(x.device), self.padding)
        elif seed is not None:
            changed[self.content] = _refilled(x, (pads if other is None else other).to(x.device), seed)
        return changed


def ways(model: nn.Module, named: dict[str, Any], content: str, padding: int | None) -> Iterator[list[Told]]:
    """Arguments that may be a mask, each written in all usual ways, with what tells other towers the same beside it;
    then the id of padding."""
    x = named[content]
    again = _told_again(model, named)
    for name in [*_mask_names(model, named), *_marking(model, named, x)]:
        given = named.get(name)
        for write in _writings(given if isinstance(given, Tensor) else None, name, x, padding):
            both = [(name,), (name, *again)] if len(again) and name not in again else [(name,)]
            yield [Told(named=named, content=content, masks=masks, write=write, padding=None) for masks in both]
    for name in (name for name, given in named.items() if tells_lengths(name, given, x)):
        yield [
            Told(named=named, content=content, masks=(name,), write=_shorter(named[name]), padding=None, lengths=True)
        ]
    if padding is not None and not x.is_floating_point():
        yield [Told(named=named, content=content, masks=(), write=None, padding=padding)]


def named_arguments(model: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """The arguments of a call by their names."""
    args, kwargs = arguments(inputs)
    try:
        bound = signature_of(model).bind(*args, **kwargs)
    except TypeError as error:
        raise SurdError(f"the arguments do not fit the forward: {error}") from error
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            raise SurdError("the forward takes any number of arguments: none can be told to be a mask")
        named |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    return named


def holds_positions(name: str, x: Any) -> bool:
    """Whether an argument is a batch of tokens or of vectors."""
    if not isinstance(x, Tensor) or x.dtype == torch.bool or "mask" in name:
        return False
    return (x.dim() == 2 and x.dtype in (torch.int32, torch.int64)) or x.dim() == 3


def _mask_names(model: nn.Module, named: dict[str, Any]) -> list[str]:
    names = [name for name in signature_of(model).parameters if "mask" in name or "pad" in name]
    names = [name for name in names if not any(part in name for part in OTHERS)]
    ranks = {name: FIRST.index(name) if name in FIRST else len(FIRST) for name in names}
    return sorted(names, key=lambda name: ranks[name])[:2]


def _told_again(model: nn.Module, named: dict[str, Any]) -> tuple[str, ...]:
    """Masks of the source that a decoder takes besides; of padding those, where some say so in their names."""
    names = [x for x in signature_of(model).parameters if ("mask" in x or "pad" in x) and x not in named]
    again = [name for name in names if any(part in name for part in AGAIN) and "is_causal" not in name]
    return tuple([name for name in again if "pad" in name] or again)


def _marking(model: nn.Module, named: dict[str, Any], x: Tensor) -> list[str]:
    """Arguments of another name whose ones and zeros mark the ends, or the beginnings, of some rows of `x`."""
    names = [name for name in named if "mask" not in name and "pad" not in name]
    names = [name for name in names if not any(part in name for part in OTHERS)]
    return [name for name in names if isinstance(given := named[name], Tensor) and _marks_ends(given, x)][:1]


def _marks_ends(given: Tensor, x: Tensor) -> bool:
    if given is x or given.shape != x.shape[:2] or not marks(given):
        return False
    turns = (given[:, 1:] != given[:, :-1]).sum(1)
    edge = next((edge for edge in (given[:, 0], given[:, -1]) if bool((edge == edge[0]).all())), None)
    return edge is not None and int(turns.max()) == 1 and int(turns.min()) == 0


def marks(x: Tensor) -> bool:
    """Whether it holds ones and zeros, one for each position: it marks some, and is no content."""
    return x.dim() == 2 and {0.0, 1.0} == set(x.unique().tolist())


def tells_lengths(name: str, given: Any, x: Tensor) -> bool:
    """Whether an argument says how long each row is."""
    if not isinstance(given, Tensor) or given.dim() != 1 or "len" not in name or given.is_floating_point():
        return False
    fits = given.shape[0] == x.shape[0] and given.dtype != torch.bool and not any(part in name for part in OTHERS)
    return fits and bool((given > 0).all()) and int(given.max()) == x.shape[1]


def _shorter(given: Tensor) -> Write:
    """Lengths of rows, less in those that are padded; nobody makes a row of no length."""

    def write(pads: Tensor) -> Tensor:
        real = (~pads).sum(1).clamp(min=1).to(given.dtype).to(given.device)
        return torch.where(pads.any(1).to(given.device), real, given)

    return write


def _said(given: Tensor, x: Tensor, padding: int | None) -> bool | None:
    """Whether a mask of ones and zeros marks padding, as what it was given with says; None where nothing does.

    A row of one value is a row without padding. Else padding is where the id of padding stands, and it alone.
    """
    if not bool(((given == 0) | (given == 1)).all()):
        return None
    marked = given != 0
    whole = marked.flatten(1)
    full, none = bool(whole.all(1).any()), bool((~whole).all(1).any())
    if full != none and given.shape[0] == x.shape[0]:
        return none
    if padding is None or x.dim() != 2 or marked.shape != x.shape:
        return None
    return True if torch.equal(x == padding, marked) else False if torch.equal(x == padding, ~marked) else None


def _writings(given: Tensor | None, name: str, x: Tensor, padding: int | None) -> Iterator[Write]:
    """True or 1 at real positions or at padding, or lowest at padding; with axes for heads and queries, or without."""
    pads_first = "pad" in name
    if given is not None:
        if given.dim() < 2 or given.shape[-1] != x.shape[1] or given.shape[0] not in (1, x.shape[0]):
            return
        said = _said(given, x, padding)
        for marks_pads in (pads_first, not pads_first) if said is None else (said,):
            yield _rewriting(given, int(marks_pads), int(not marks_pads))
        if given.is_floating_point() and not bool((given > 0).any()):  # ones and zeros are not added
            yield _rewriting(given, torch.finfo(given.dtype).min, 0)
        return
    kinds = [torch.bool, torch.int64] if pads_first else [torch.int64, torch.bool]
    for between in [(), (1,), (1, 1)]:
        for kind, marks_pads in product(kinds, (pads_first, not pads_first)):
            yield _writing(between, kind, marks_pads)
        yield _added(between, x)


def _rewriting(given: Tensor, hidden: float, visible: float) -> Write:
    """A mask that was given, changed in the rows that are padded; what it says of other samples stays."""

    def write(pads: Tensor) -> Tensor:
        rows, length = pads.shape
        mask = given.expand(rows, *given.shape[1:]).clone()
        padded = pads.any(1)
        between = (1,) * (given.dim() - 2)
        fresh = torch.full_like(mask, visible).masked_fill(pads.view(rows, *between, length), hidden)
        return torch.where(padded.view(rows, *between, 1), fresh, mask)

    return write


def _writing(between: tuple[int, ...], kind: torch.dtype, marks_pads: bool) -> Write:
    def write(pads: Tensor) -> Tensor:
        marked = pads if marks_pads else ~pads
        return marked.reshape(pads.shape[0], *between, pads.shape[1]).to(kind)

    return write


def _added(between: tuple[int, ...], x: Tensor) -> Write:
    kind = x.dtype if x.is_floating_point() else torch.float32

    def write(pads: Tensor) -> Tensor:
        lowest = torch.zeros(pads.shape, dtype=kind, device=pads.device).masked_fill(pads, torch.finfo(kind).min)
        return lowest.reshape(pads.shape[0], *between, pads.shape[1])

    return write


def _refilled(x: Tensor, pads: Tensor, seed: int) -> Tensor:
    """Padding filled with what stands elsewhere in the batch."""
    other = x.flatten(0, 1)
    drawn = torch.randperm(len(other), generator=torch.Generator().manual_seed(seed)).to(x.device)
    mixed = other[drawn].view(x.shape)
    return torch.where(pads if x.dim() == 2 else pads[..., None], mixed, x)
