"""What incremental decoding remembers: keys and values of past tokens, and those of the source where there is one."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from surd.nn.mask import Mask

GROWTH = 16
"""By how many positions a full cache grows: a copy every sixteen steps instead of every step."""


class KeysValues:
    """Keys and values of the tokens seen so far in one layer, `(rows, heads, seen, d_k)` each."""

    def __init__(self):
        self.seen = 0
        self.store: Tensor | None = None  # (2, rows, heads, capacity, d_k)

    def append(
        self, key: Float[Tensor, "rows heads new d_k"], value: Float[Tensor, "rows heads new d_k"]
    ) -> tuple[Float[Tensor, "rows heads seen d_k"], Float[Tensor, "rows heads seen d_k"]]:
        """Adds the next positions, mostly one, and returns all of them."""
        rows, heads, new, d_k = key.shape
        end = self.seen + new
        if self.store is None or end > self.store.shape[3]:
            grown = key.new_empty(2, rows, heads, end - 1 + GROWTH, d_k)
            if self.store is not None:
                grown[:, :, :, : self.seen] = self.store[:, :, :, : self.seen]
            self.store = grown
        self.store[0, :, :, self.seen : end] = key
        self.store[1, :, :, self.seen : end] = value
        self.seen = end
        return self.store[0, :, :, :end], self.store[1, :, :, :end]

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Row i continues what row `rows[i]` was."""
        if self.store is not None:
            self.store = self.store.index_select(1, rows)


@dataclass
class Cache:
    """Everything that one decoding step needs besides its tokens; rows are sentence-major, `beam` to a sentence."""

    past: list[KeysValues]
    """One a layer."""
    source: list[tuple[Tensor, Tensor]]
    """Of the source, a layer: `(sentences, heads, longest, d_k)` each, one copy a sentence whatever the beam."""
    mask: Mask
    """Hides the padding of the sources."""
    beam: int

    @property
    def position(self) -> int:
        """How many target tokens have been read."""
        return self.past[0].seen

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """New row i continues old row `rows[i]`; both must belong to the same sentence."""
        for layer in self.past:
            layer.select(rows)

    def keep(self, sentences: Int[Tensor, " kept"]) -> None:
        """Forgets all sentences but these (and their beams)."""
        rows = (sentences[:, None] * self.beam + torch.arange(self.beam, device=sentences.device)).flatten()
        self.reorder(rows)
        self.source = [(key[sentences], value[sentences]) for key, value in self.source]
        added = self.mask.added
        self.mask = Mask(None if added is None else added[sentences], self.mask.keys[sentences])


@dataclass
class Past:
    """What a decoder without a source needs besides its tokens; every row has read as many of them."""

    layers: list[KeysValues]

    @property
    def position(self) -> int:
        """How many tokens have been read."""
        return self.layers[0].seen

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Forgets all rows but these."""
        for layer in self.layers:
            layer.select(rows)
