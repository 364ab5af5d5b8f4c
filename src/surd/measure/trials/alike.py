"""Alike: one text in every row of a batch, which must be answered alike in every row."""

import torch
from torch import Tensor, nn

from surd.errors import raised
from surd.measure.calling.inputs import Inputs, arguments, replaced, tensors
from surd.measure.calling.restore import preserved
from surd.measure.tensors import rms


@torch.no_grad()
def row_difference(module: nn.Module, inputs: Inputs) -> float | str:
    """The largest deviation from the first row's answer, over the size of the answers; or why it cannot be told.

    The model is left as it was. Rows are the first axis of every tensor among the inputs.
    """
    rows = max((x.shape[0] for x in tensors(inputs) if x.dim() > 1), default=0)
    if rows < 2:
        return "the inputs have one row"

    def first(x: Tensor) -> Tensor:
        return x[:1].expand(x.shape).clone() if x.dim() > 0 and x.shape[0] == rows else x.clone()

    def turned(x: Tensor) -> Tensor:
        """The first row, from its end to its beginning."""
        if x.dim() < 2 or x.shape[0] != rows:
            return x.clone()
        return torch.cat([x[:1].flip(1), x[1:]])

    with preserved(module):
        try:
            once = _outputs(module, replaced(inputs, first), rows)
            differ = any(not torch.equal(x, x[:1].expand(x.shape)) for x in once)
            again = _outputs(module, replaced(inputs, first), rows) if differ else once
            plain, other = ([*_outputs(module, replaced(inputs, f), rows)] if differ else [] for f in (_same, turned))
        except Exception as error:
            return f"the forward raised {raised(error)}, for equal rows"
    if not once:
        return "no output has the batch as its first axis"
    if any(not torch.equal(x, y) for x, y in zip(once, again, strict=True)):
        return "two forwards of the same inputs differ"
    if any(not torch.equal(x[1:], y[1:]) for x, y in zip(plain, other, strict=True)):
        return "rows of the batch mix, or the first axis is that of positions: equal rows cannot be compared"
    return max(float((x - x[:1]).abs().max()) / max(rms(x), 1e-30) for x in once)


def _same(x: Tensor) -> Tensor:
    return x.clone()


def _outputs(module: nn.Module, inputs: Inputs, rows: int) -> list[Tensor]:
    args, kwargs = arguments(inputs)
    found = tensors(module(*args, **kwargs))
    return [x.detach().float() for x in found if x.is_floating_point() and x.dim() > 1 and x.shape[0] == rows]
