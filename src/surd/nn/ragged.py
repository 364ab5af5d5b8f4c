"""Sequences of unequal length, one after another in one flat tensor, so that position-wise work never meets padding."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from surd.nn.special import PAD


@dataclass(frozen=True)
class Layout:
    """Where each sequence lies in a flat tensor of `total` rows, and the way to the padded view `(batch, longest)`."""

    lengths: tuple[int, ...]
    device: torch.device
    multiple: int = 1
    """What `longest` is a multiple of: 16 fills the vectors of a processor, so that padding does not change how the
    numbers beside it are summed."""

    @property
    def batch(self) -> int:
        return len(self.lengths)

    @cached_property
    def total(self) -> int:
        return sum(self.lengths)

    @cached_property
    def reach(self) -> int:
        """Tokens of the longest sequence."""
        return max(self.lengths, default=0)

    @cached_property
    def longest(self) -> int:
        """Cells of a sequence in the padded view."""
        return -(-self.reach // self.multiple) * self.multiple

    @cached_property
    def full(self) -> bool:
        """True when all lengths are equal: then the padded view is the flat tensor itself, reshaped."""
        return self.total == self.batch * self.longest

    @cached_property
    def real(self) -> Bool[Tensor, "batch longest"]:
        """True at cells that hold a token, False at padding."""
        lengths = torch.tensor(self.lengths, dtype=torch.int64)
        return (torch.arange(self.longest) < lengths[:, None]).to(self.device)

    @cached_property
    def cells(self) -> Int[Tensor, " total"]:
        """For each flat row, the number of its cell in the padded view."""
        return self.real.flatten().nonzero().squeeze(1)

    @cached_property
    def rows(self) -> Int[Tensor, " cells"]:
        """For each cell of the padded view its flat row; a padding cell repeats row 0 and must be masked."""
        rows = torch.zeros(self.batch * self.longest, dtype=torch.int64, device=self.device)
        rows[self.cells] = torch.arange(self.total, device=self.device)
        return rows

    @cached_property
    def positions(self) -> Int[Tensor, " total"]:
        """For each flat row, its distance from the first token of its own sequence."""
        steps = torch.arange(self.longest, device=self.device).expand(self.batch, self.longest)
        return steps.reshape(-1)[self.cells] if not self.full else steps.reshape(-1)


def pad(flat: Tensor, layout: Layout) -> Tensor:
    """`(total, *rest)` -> `(batch, longest, *rest)`. Padding cells hold a copy of row 0 and pass no gradient back."""
    shape = (layout.batch, layout.longest, *flat.shape[1:])
    return flat.view(shape) if layout.full else _Pad.apply(flat, layout).view(shape)


def unpad(padded: Tensor, layout: Layout) -> Tensor:
    """`(batch, longest, *rest)` -> `(total, *rest)`, the inverse of `pad`."""
    cells = padded.reshape(layout.batch * layout.longest, *padded.shape[2:])
    return cells if layout.full else _Unpad.apply(cells, layout)


class _Pad(torch.autograd.Function):
    """A gather with a gather as its gradient: autograd's own would be a slow accumulating scatter."""

    @staticmethod
    def forward(ctx, flat: Tensor, layout: Layout) -> Tensor:
        ctx.layout = layout
        return flat.index_select(0, layout.rows)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return gradient.index_select(0, ctx.layout.cells), None


class _Unpad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, cells: Tensor, layout: Layout) -> Tensor:
        ctx.layout = layout
        return cells.index_select(0, layout.cells)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        layout = ctx.layout
        cells = gradient.new_zeros(layout.batch * layout.longest, *gradient.shape[1:])
        cells[layout.cells] = gradient
        return cells, None


@dataclass(frozen=True)
class Ragged:
    """Token ids of several sequences, flat.

    `tokens` is `(total,)` int64, the sequences one after another; `lengths` says where each ends (in tokens).
    """

    tokens: Int[Tensor, " total"]
    lengths: tuple[int, ...]

    def __post_init__(self):
        assert self.tokens.numel() == sum(self.lengths), "lengths must add up to the number of tokens"

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.lengths, self.tokens.device)

    @classmethod
    def from_lists(cls, sequences: Sequence[Sequence[int]]) -> "Ragged":
        flat = [token for sequence in sequences for token in sequence]
        return cls(torch.tensor(flat, dtype=torch.int64), tuple(len(sequence) for sequence in sequences))

    @classmethod
    def from_padded(cls, ids: Int[Tensor, "batch longest"], lengths: Sequence[int]) -> "Ragged":
        parts = [row[:length] for row, length in zip(ids, lengths, strict=True)]
        return cls(torch.cat(parts), tuple(int(length) for length in lengths))

    def padded(self, fill: int = PAD) -> Int[Tensor, "batch longest"]:
        layout = self.layout
        cells = torch.full((layout.batch * layout.longest,), fill, dtype=torch.int64, device=self.tokens.device)
        cells[layout.cells] = self.tokens
        return cells.view(layout.batch, layout.longest)

    def to(self, device: torch.device) -> "Ragged":
        return Ragged(self.tokens.to(device), self.lengths)

    def __len__(self) -> int:
        return len(self.lengths)
