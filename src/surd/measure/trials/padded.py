"""Padding: what becomes of a model's outputs when padding holds something else, and of the samples beside it."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from surd.errors import SurdError
from surd.measure.calling.inputs import Inputs, arguments, replaced, tensors
from surd.measure.calling.restore import preserved
from surd.measure.listeners.masked import Overflow
from surd.measure.listeners.scored import Scored
from surd.measure.tensors import dense
from surd.measure.trials.mixing import observe_scores
from surd.measure.trials.told import FIRST, Told, holds_positions, named_arguments, ways

SAME = 1e-5
"""Relative difference up to which outputs are the same."""
BESIDE = ("label", "position", "type", "segment", "time")
"""Parts of the names of ids that stand beside the tokens, and are none."""
NO_MASK = "the forward takes no mask of padding and no lengths, and no id of padding is known that it hides"


@dataclass(frozen=True, kw_only=True)
class Padded:
    """What was seen with padding in one row."""

    told: Told
    pads: Bool[Tensor, "batch length"]
    scores: tuple[Scored, ...]
    overflows: tuple[Overflow, ...]
    change: float | None
    """Of the outputs at real positions, or of the padded row, when padding holds something else, relative to the
    largest output; None where the outputs stand at no positions."""
    others: float | None
    """Of the outputs of rows that were not padded, against the batch as it was, where they also differ from what they
    are alone; None where they cannot be compared."""
    heeded: bool
    """The argument that tells of padding changes anything at all."""
    pooled: bool
    """The output is one for a whole row: then all of it is compared, and the last position holds what it held."""


def read_padding(model: nn.Module, inputs: Inputs, plain: tuple[Tensor, ...], padding: int | None) -> Padded:
    """Finds out how the model is told of padding, and pads one row.

    Of all ways of writing a mask that the forward accepts, the one under which padding reaches nothing is the right
    one; where there is none, one is kept that means to hide just the padding, if any does, and padding leaks. `plain`
    is what it returns without padding.
    """
    named = named_arguments(model, inputs)
    # Masks without a decoder in their name are the source's, which may be sound or pixels.
    content = next((name for name, x in named.items() if holds_positions(name, x) and "decoder" not in name), None)
    if content is None:
        raise SurdError("no argument is a batch of tokens or of vectors: nothing can be padded")
    x = named[content]
    rows, length = x.shape[:2]
    if rows < 2 or length < 4:
        raise SurdError(f"{content} has {rows} rows of {length} positions; padding needs 2 rows of 4")
    asked = _asked(model, named, content, plain)
    leaking: Padded | None = None
    for group in ways(model, named, content, padding):
        for told in group:
            seen = _seen(model, told, asked, x, plain)
            if seen is None:
                continue
            if seen.change is None or seen.change <= SAME:
                return seen
            leaking = seen if leaking is None or (_fits(seen) and not _fits(leaking)) else leaking
        if leaking is not None and _fits(leaking) and _lowers(leaking):
            break  # it was understood, and hides too little: a lower number in its place would only mend it
    if leaking is None:
        raise SurdError(NO_MASK)
    return leaking if any(by_row(one, rows) for one in leaking.scores) else _heeded(model, leaking)


def _asked(model: nn.Module, named: dict[str, Any], content: str, plain: tuple[Tensor, ...]) -> Tensor | None:
    """The tokens of a decoder, at whose positions the outputs stand; targets of a loss change no output."""
    others = [(name, x) for name, x in named.items() if name != content and holds_positions(name, x)]
    for name, x in others:
        if any(part in name for part in BESIDE) or x.is_floating_point() or not bool((x != x.flatten()[0]).any()):
            continue
        try:
            turned = _run(model, named | {name: x.flip(1)})
        except (SurdError, RuntimeError, IndexError, TypeError, ValueError):
            continue
        if not turned or not plain or not torch.equal(turned[0], plain[0].to(turned[0].device)):
            return x
    return None


def _seen(model: nn.Module, told: Told, asked: Tensor | None, x: Tensor, plain: tuple[Tensor, ...]) -> Padded | None:
    """With padding on the side where it leaks, if it does; None where the forward does not take it that way."""
    right: Padded | None = None
    for pads in _sides(x, told):
        seen = _padded(model, told, asked, pads, plain)
        if seen is None or (told.padding is not None and not _fits(seen) and not _turned(seen)):
            return None
        right = seen
        if seen.pooled or (seen.change is not None and seen.change > SAME):
            break
    return right


def _sides(x: Tensor, told: Told) -> Iterator[Bool[Tensor, "batch length"]]:
    """The end of the row with the least padding, then its beginning: behind a causal mask only that is seen.

    Where lengths tell, the end of the longest row but one: what is computed from the longest keeps its shape.
    """
    rows, length = x.shape[:2]
    padding = told.padding
    if told.lengths:
        lengths = told.named[told.masks[0]]
        row = int(lengths.argsort(descending=True, stable=True)[1])
        pads = torch.zeros(rows, length, dtype=torch.bool)
        pads[row, max(1, int(lengths[row]) * 9 // 13) :] = True
        yield pads
        return
    own = None if padding is None else _already(x, padding)
    row = 0 if own is None else int(own.sum(1).argmin())
    count = max(1, length * 4 // 13)
    for side in (slice(length - count, None), slice(0, count)):
        pads = torch.zeros(rows, length, dtype=torch.bool)
        pads[row, side] = True
        if own is not None:
            pads[row] |= own[row].cpu()
        yield pads


def _already(x: Tensor, padding: int) -> Bool[Tensor, "batch length"]:
    """Which ids are padding before any is put there; some have a third axis, of one."""
    return (x == padding).reshape(*x.shape[:2], -1).all(-1)


def _padded(
    model: nn.Module, told: Told, asked: Tensor | None, pads: Tensor, plain: tuple[Tensor, ...]
) -> Padded | None:
    """None where the forward does not take it that way."""
    try:
        outputs, scores, overflows = observe_scores(model, told.inputs(pads))
        whole = asked is None and _of_rows(next((x for x in outputs if x.dim()), None), pads)
        if told.padding is None:
            again, _, _ = observe_scores(model, told.inputs(pads, seed=1, other=_but_the_last(pads) if whole else None))
        else:
            with _holding_something_else(model, told.padding):
                again, _, _ = observe_scores(model, told.inputs(pads))
    except (SurdError, RuntimeError, IndexError, TypeError, ValueError):
        return None
    outputs, again, before = ([x for x in found if x.dim()] for found in (outputs, again, plain))  # no loss
    if not outputs or not before or outputs[0].shape != before[0].shape:
        return None
    real = pads.any(1) if whole else _real(told, asked, outputs[0], pads)
    return Padded(
        told=told,
        pads=pads,
        scores=tuple(scores),
        overflows=tuple(overflows),
        change=None if real is None else _difference(outputs[0], again[0], real),
        others=_others(model, told, pads, outputs[0], before[0]),
        heeded=True,
        pooled=whole,
    )


def _of_rows(output: Tensor | None, pads: Bool[Tensor, "batch length"]) -> bool:
    """Whether an output is a vector for each row of the batch."""
    return output is not None and output.dim() == 2 and output.shape[0] == len(pads) and output.shape != pads.shape


def _but_the_last(pads: Bool[Tensor, "batch length"]) -> Bool[Tensor, "batch length"]:
    """Without the last position of a row, which an output may be read from."""
    return torch.cat([pads[:, :-1], torch.zeros_like(pads[:, -1:])], 1)


@contextmanager
def _holding_something_else(model: nn.Module, padding: int) -> Generator[None]:
    """Inside, the row that is looked up for padding is another one: what hides padding is made of ids, and stays."""

    def other(table: nn.Embedding, args: tuple[Any, ...], rows: Tensor) -> Tensor:
        ids = args[0] if args else None
        if not isinstance(ids, Tensor) or rows.shape[:-1] != ids.shape:
            return rows
        row = table.weight[(padding + 1) % table.num_embeddings].detach()
        return torch.where((ids == padding)[..., None], row.to(rows.dtype), rows)

    tables = [x for x in model.modules() if isinstance(x, nn.Embedding) and x.padding_idx == padding]
    handles = [table.register_forward_hook(other) for table in tables]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _others(model: nn.Module, told: Told, pads: Tensor, output: Tensor, plain: Tensor) -> float | None:
    """How much rows without fresh padding change, and not by its being there alone but by where it stands.

    Nothing where each is what it is alone, so only told otherwise; nor where any padding at all makes a model build a
    mask that it does without else.
    """
    rows = pads.shape[0]
    if output.shape[0] != rows:
        return None
    changes = [
        0.0 if bool(pads[row].any()) else _difference(output, plain, torch.arange(rows) == row) for row in range(rows)
    ]
    most = max(changes)
    if most <= SAME:
        return most
    row = changes.index(most)

    def one(x: Tensor) -> Tensor:
        return x[row : row + 1] if x.dim() and x.shape[0] == rows else x

    try:
        alone = _run(model, replaced(told.inputs(pads), one))[0]
        less = _run(model, told.inputs(pads & pads.roll(1, 1)))[0]
    except (SurdError, RuntimeError, IndexError, TypeError, ValueError):
        return None
    if alone.shape != output[row : row + 1].shape:
        return None
    apart = _difference(output[row : row + 1], alone, torch.ones(1, dtype=torch.bool))
    moved = _difference(output, less, torch.arange(rows) == row) if less.shape == output.shape else 0.0
    return most if min(apart, moved) > SAME else 0.0


def _heeded(model: nn.Module, seen: Padded) -> Padded:
    """The same, and whether the argument that tells of padding changes the outputs at all."""
    told = seen.told
    if told.write is None or not (told.lengths or told.masks[0] in FIRST):
        return seen
    marked, unmarked = (_run(model, told.inputs(pads)) for pads in (seen.pads, torch.zeros_like(seen.pads)))
    return replace(seen, heeded=not torch.equal(marked[0], unmarked[0]))


def _fits(seen: Padded) -> bool:
    """Whether some attention hides the padding from all queries, and nothing else: then it is told in the right way."""
    return any(_hides_just(one, seen.pads) for one in seen.scores)


def _lowers(seen: Padded) -> bool:
    """Whether what hides the padding makes scores lower, be it too little."""
    fills = [fill for one in seen.scores if _hides_just(one, seen.pads) for fill in one.fills]
    return bool(fills) and max(fills) < 0


def _hides_just(one: Scored, pads: Bool[Tensor, "batch length"]) -> bool:
    """Every query of the padded row is kept from the padding, of other rows is not, and each real key is seen."""
    where = at_padding(one, pads)
    if where is None or one.hidden is None or not bool(one.hidden[where].all()):
        return False
    seen = ~one.hidden.reshape(pads.shape[0], -1, *one.scores.shape[-2:]).any(1).to(pads.device)
    row = int(pads.any(1).int().argmax())
    elsewhere = torch.cat([seen[:row], seen[row + 1 :]]).any(1)
    return bool(elsewhere[:, pads[row]].any()) and bool(seen[row].any(0)[~pads[row]].all())


def _turned(seen: Padded) -> bool:
    return any(turned_over(one, seen.pads) for one in seen.scores)


def turned_over(one: Scored, pads: Bool[Tensor, "batch length"]) -> bool:
    """Whether the real keys of the padded row are hidden from all queries, and just the padding is seen."""
    where = at_padding(one, pads)
    if where is None or one.hidden is None:
        return False
    seen = ~one.hidden.reshape(pads.shape[0], -1, *one.scores.shape[-2:]).all(1).to(pads.device)
    row = int(pads.any(1).int().argmax())
    return torch.equal(seen[row].any(0), pads[row])


def by_row(one: Scored, rows: int) -> bool:
    """Whether a mask hides other keys in one row of the batch than in another, as one of padding does."""
    if one.hidden is None or one.hidden.numel() % rows:
        return False
    each = one.hidden.reshape(rows, -1)
    return bool((each != each[:1]).any())


def at_padding(one: Scored, pads: Bool[Tensor, "batch length"]) -> Tensor | None:
    """The scores of padded keys of an attention to all positions; None for windows and other axes."""
    rows, length = pads.shape
    shape = one.scores.shape
    if one.axis != len(shape) - 1 or shape[-1] != length or one.scores.numel() % (rows * length):
        return None
    if len(shape) == 4 and shape[0] == rows:
        return pads[:, None, None, :].to(one.scores.device).expand(shape)
    if len(shape) == 3 and shape[0] % rows == 0:
        whole = (rows, shape[0] // rows, *shape[1:])
        return pads[:, None, None, :].to(one.scores.device).expand(whole).reshape(shape)
    return None


def _run(model: nn.Module, inputs: dict[str, Any]) -> list[Tensor]:
    with preserved(model), torch.no_grad():
        return [dense(x.detach()).clone() for x in tensors(model(**inputs))]


def _real(told: Told, asked: Tensor | None, output: Tensor, pads: Tensor) -> Tensor | None:
    """Which outputs stand at real positions; all of a decoder's do. None where they stand at none."""
    if output.dim() < 3:
        return None
    if asked is not None:
        if told.padding is not None and asked.shape == output.shape[:2]:
            return (asked != told.padding).cpu()
        return torch.ones(output.shape[:2], dtype=torch.bool)
    if told.padding is not None:
        pads = pads | _already(told.named[told.content], told.padding).cpu()
    if output.shape[:2] == pads.shape:
        return ~pads
    return ~pads.T if output.shape[:2] == pads.T.shape else None


def _difference(first: Tensor, second: Tensor, where: Tensor) -> float:
    where = where.to(first.device)
    a, b = first[where].double(), second[where].double()
    finite = a.isfinite() & b.isfinite()
    size = float(a[finite].abs().max()) if bool(finite.any()) else 0.0
    return float((a - b)[finite].abs().max()) / size if size else 0.0


def gradients(
    model: nn.Module, inputs: Inputs, real: Bool[Tensor, "batch length"] | None = None
) -> tuple[Tensor, dict[str, int]]:
    """The first output, and how many gradients of each weight are not finite when real positions alone are trained."""
    args, kwargs = arguments(inputs)
    with preserved(model):
        output = next((x for x in tensors(model(*args, **kwargs)) if x.is_floating_point() and x.requires_grad), None)
        if output is None:
            raise SurdError("the forward returns nothing that has a gradient")
        shown = output if real is None or output.shape[:2] != real.shape else output[real.to(output.device)]
        names, weights = zip(*((name, p) for name, p in model.named_parameters() if p.requires_grad), strict=True)
        found = torch.autograd.grad(shown.float().square().mean(), weights, allow_unused=True)
        broken = {
            name: int((~gradient.isfinite()).sum())
            for name, gradient in zip(names, found, strict=True)
            if gradient is not None and not bool(torch.linalg.vector_norm(gradient, torch.inf).isfinite())
        }
        return output.detach(), broken
