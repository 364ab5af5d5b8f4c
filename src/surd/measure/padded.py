"""Padding: how a model is told of it, and what becomes of its outputs when padding holds something else."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from surd.errors import SurdError
from surd.measure.calls import dense
from surd.measure.inputs import Inputs, arguments, signature_of, tensors
from surd.measure.masked import Overflow, Scored
from surd.measure.mixing import observe_scores
from surd.measure.restore import preserved

FIRST = ("attention_mask", "src_key_padding_mask", "key_padding_mask", "padding_mask", "pad_mask", "src_mask", "mask")
"""Names of arguments that mostly tell of padding, the surest first; then any other with "mask" or "pad" in it."""
OTHERS = ("head", "decoder", "tgt", "target", "trg", "memory", "cross", "label", "causal", "ahead", "future", "sub")
OTHERS += ("pos", "layer", "image", "pixel", "masked", "prefix", "global", "patch", "time", "dec", "loss", "pad_token")
"""Parts of the names of masks that tell of something else."""
AGAIN = ("memory", "cross", "encoder", "enc_dec", "src_tgt")
"""Parts of the names of masks by which a decoder is told again what of the source is padding."""
SAME = 1e-5
"""Relative difference up to which outputs are the same."""
NO_MASK = "the forward takes no mask of padding, and no id of padding is known that it hides"

Write = Callable[[Bool[Tensor, "batch length"]], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Told:
    """A model's way of being told: an argument and how it is written, or an id among the tokens."""

    named: dict[str, Any]
    """The arguments of the call without padding."""
    content: str
    masks: tuple[str, ...]
    """Of the tower whose input is padded, and of those that read what it returns."""
    write: Write | None
    """From what is padding to the arguments."""
    padding: int | None
    """The id, where the tokens tell."""

    def inputs(self, pads: Bool[Tensor, "batch length"], seed: int | None = None) -> dict[str, Any]:
        """The arguments with some positions padded; another `seed` fills them with something else."""
        changed = dict(self.named)
        x = self.named[self.content]
        if self.write is not None:
            changed |= {mask: self.write(pads.to(x.device)) for mask in self.masks}
        if self.padding is not None:
            changed[self.content] = x.masked_fill(pads.to(x.device), self.padding)
        elif seed is not None:
            changed[self.content] = _refilled(x, pads.to(x.device), seed)
        return changed


@dataclass(frozen=True, kw_only=True)
class Padded:
    """What was seen with padding in the first row."""

    told: Told
    pads: Bool[Tensor, "batch length"]
    scores: tuple[Scored, ...]
    overflows: tuple[Overflow, ...]
    change: float | None
    """Of the outputs at real positions when padding holds something else, relative to the largest output; None where
    padding is an id and so always the same, or where the outputs stand at no positions."""
    others: float | None
    """Of the outputs of rows that have no padding, against a batch without any; None where they cannot be compared."""


def read_padding(model: nn.Module, inputs: Inputs, plain: tuple[Tensor, ...], padding: int | None) -> Padded:
    """Finds out how the model is told of padding, and pads the first row.

    Of all ways of writing a mask that the forward accepts, the one under which padding reaches nothing is the right
    one; where there is none, one is kept that means to hide just the padding, if any does, and padding leaks. `plain`
    is what it returns without padding.
    """
    named = _named(model, inputs)
    content = next((name for name, x in named.items() if _holds_positions(x)), None)
    if content is None:
        raise SurdError("no argument is a batch of tokens or of vectors: nothing can be padded")
    x = named[content]
    rows, length = x.shape[:2]
    if rows < 2 or length < 4:
        raise SurdError(f"{content} has {rows} rows of {length} positions; padding needs 2 rows of 4")
    leaking: Padded | None = None
    right: Padded | None = None
    for told in _ways(model, named, content, padding):
        for pads in _sides(rows, length):
            seen = _padded(model, told, pads, plain)
            if seen is None or (told.padding is not None and not _hides(seen)):
                break
            right = seen
            if seen.change is not None and seen.change > SAME:
                leaking = seen if leaking is None or (_fits(seen) and not _fits(leaking)) else leaking
                break
        else:
            assert right is not None, "both sides were tried"
            return right
    if leaking is None:
        raise SurdError(NO_MASK)
    return leaking


def _sides(rows: int, length: int) -> Iterator[Bool[Tensor, "batch length"]]:
    """The end of the first row, then its beginning: behind a causal mask only that is seen."""
    count = max(1, length * 4 // 13)
    for side in (slice(length - count, None), slice(0, count)):
        pads = torch.zeros(rows, length, dtype=torch.bool)
        pads[0, side] = True
        yield pads


def _padded(model: nn.Module, told: Told, pads: Tensor, plain: tuple[Tensor, ...]) -> Padded | None:
    """None where the forward does not take it that way."""
    try:
        outputs, scores, overflows = observe_scores(model, told.inputs(pads))
        again = None if told.padding is not None else _run(model, told.inputs(pads, seed=1))
    except (SurdError, RuntimeError, IndexError, TypeError, ValueError):
        return None
    if not outputs or not plain or outputs[0].shape != plain[0].shape:
        return None
    real = _real(told, outputs[0], pads)
    change = None
    if again is not None and real is not None:
        change = _difference(outputs[0], again[0], real)
    others = None
    if outputs[0].shape[0] == pads.shape[0]:
        unpadded = torch.ones(outputs[0].shape[:1], dtype=torch.bool)
        unpadded[0] = False
        others = _difference(outputs[0], plain[0], unpadded)
    return Padded(told=told, pads=pads, scores=tuple(scores), overflows=tuple(overflows), change=change, others=others)


def _hides(seen: Padded) -> bool:
    """Whether some attention hides the padding, be it with a number that hides nothing."""
    return any(one.hidden is not None and _at_padding(one, seen.pads, one.hidden) for one in seen.scores)


def _fits(seen: Padded) -> bool:
    """Whether some attention means to hide the padding and nothing else: then the mask is written the right way."""
    places = [(one.hidden, at_padding(one, seen.pads)) for one in seen.scores if one.hidden is not None]
    return any(where is not None and torch.equal(hidden, where) for hidden, where in places)


def at_padding(one: Scored, pads: Bool[Tensor, "batch length"]) -> Tensor | None:
    """The scores of padded keys of an attention among all positions; None for windows, landmarks and other axes."""
    rows, length = pads.shape
    shape = one.scores.shape
    if not one.square or shape[-1] != length or one.scores.numel() % (rows * length * length):
        return None
    if len(shape) == 4 and shape[0] == rows:
        return pads[:, None, None, :].to(one.scores.device).expand(shape)
    if len(shape) == 3 and shape[0] % rows == 0:
        return (
            pads[:, None, None, :].to(one.scores.device).expand(rows, shape[0] // rows, length, length).reshape(shape)
        )
    return None


def _at_padding(one: Scored, pads: Tensor, hidden: Tensor) -> bool:
    where = at_padding(one, pads)
    return where is not None and bool((hidden & where).any())


def _ways(model: nn.Module, named: dict[str, Any], content: str, padding: int | None) -> Iterator[Told]:
    """Arguments that may be a mask, each written in all usual ways; then the id of padding."""
    x = named[content]
    again = _told_again(model, named)
    for name in _mask_names(model, named):
        given = named.get(name)
        for write in _writings(given if isinstance(given, Tensor) else None, name, x):
            yield Told(named=named, content=content, masks=(name,), write=write, padding=None)
            if len(again) and name not in again:
                yield Told(named=named, content=content, masks=(name, *again), write=write, padding=None)
    if padding is not None and not x.is_floating_point():
        yield Told(named=named, content=content, masks=(), write=None, padding=padding)


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


def _writings(given: Tensor | None, name: str, x: Tensor) -> Iterator[Write]:
    """True or 1 at real positions or at padding, or lowest at padding; with axes for heads and queries, or without."""
    axes = [(), (1,), (1, 1)] if given is None else [(1,) * (given.dim() - 2)] if given.dim() >= 2 else []
    kinds = [torch.bool, torch.int64] if "pad" in name else [torch.int64, torch.bool]
    kinds = [given.dtype] if given is not None and not given.is_floating_point() else kinds
    pads_first = "pad" in name
    for between in axes:
        for kind, marks_pads in product(kinds, (pads_first, not pads_first)):
            yield _writing(between, kind, marks_pads)
        yield _added(between, x)


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


def _named(model: nn.Module, inputs: Inputs) -> dict[str, Any]:
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


def _holds_positions(x: Any) -> bool:
    return isinstance(x, Tensor) and ((x.dim() == 2 and x.dtype in (torch.int32, torch.int64)) or x.dim() == 3)


def _refilled(x: Tensor, pads: Tensor, seed: int) -> Tensor:
    """Padding filled with what stands elsewhere in the batch."""
    other = x.flatten(0, 1)
    drawn = torch.randperm(len(other), generator=torch.Generator().manual_seed(seed)).to(x.device)
    mixed = other[drawn].view(x.shape)
    return torch.where(pads if x.dim() == 2 else pads[..., None], mixed, x)


def _run(model: nn.Module, inputs: dict[str, Any]) -> list[Tensor]:
    with preserved(model), torch.no_grad():
        return [dense(x.detach()).clone() for x in tensors(model(**inputs))]


def _real(told: Told, output: Tensor, pads: Tensor) -> Tensor | None:
    """Which outputs stand at real positions; all of a decoder's do. None where they stand at none."""
    others = [name for name, x in told.named.items() if name != told.content and _holds_positions(x)]
    others = [name for name in others if "mask" not in name and not told.named[name].is_floating_point()]
    later = [name for name in others if bool((told.named[name] != told.named[name].flatten()[0]).any())]
    if output.dim() < 3:
        return None
    if later:
        return torch.ones(output.shape[:2], dtype=torch.bool)
    if output.shape[:2] == pads.shape:
        return ~pads
    return ~pads.T if output.shape[:2] == pads.T.shape else None


def _difference(first: Tensor, second: Tensor, where: Tensor) -> float:
    where = where.to(first.device)
    a, b = first[where].double(), second[where].double()
    finite = a.isfinite() & b.isfinite()
    size = float(a[finite].abs().max()) if bool(finite.any()) else 0.0
    return float((a - b)[finite].abs().max()) / size if size else 0.0


def gradients_with_padding(
    model: nn.Module, inputs: dict[str, Any], real: Bool[Tensor, "batch length"]
) -> tuple[Tensor, dict[str, int]]:
    """The first output, and how many gradients of each weight are not finite when real positions alone are trained."""
    with preserved(model):
        output = next((x for x in tensors(model(**inputs)) if x.is_floating_point() and x.requires_grad), None)
        if output is None:
            raise SurdError("the forward returns nothing that has a gradient")
        shown = output[real.to(output.device)] if output.shape[:2] == real.shape else output
        names, weights = zip(*((name, p) for name, p in model.named_parameters() if p.requires_grad), strict=True)
        found = torch.autograd.grad(shown.float().square().mean(), weights, allow_unused=True)
        broken = {
            name: int((~gradient.isfinite()).sum())
            for name, gradient in zip(names, found, strict=True)
            if gradient is not None and not bool(gradient.isfinite().all())
        }
        return output.detach(), broken
