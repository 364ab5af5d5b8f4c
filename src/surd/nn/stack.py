"""Layers one after another; a pre-norm stack ends in a norm, a post-norm stack has it already."""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from surd.measure.signal import Signal, Tape
from surd.nn.block import CausalLayer, DecoderLayer, EncoderLayer
from surd.nn.cache import Cache, KeysValues, Past
from surd.nn.mask import causal_mask, padding_mask
from surd.nn.mixing import Sight
from surd.nn.norm import NormLayer
from surd.nn.ragged import Layout

LastNorm = NormLayer | nn.Identity
"""Of a post-norm stack, whose last layer ends in a norm, nothing."""


class Encoder(nn.Module):
    """`(total, d_model)` -> the same shape, each sequence seen only by itself."""

    layers: Sequence[EncoderLayer]

    def __init__(self, layers: list[EncoderLayer], norm: LastNorm):
        super().__init__()
        self.layers, self.norm = cast(Sequence[EncoderLayer], nn.ModuleList(layers)), norm

    @property
    def branches(self) -> int:
        """How many sub-layers add to the residual stream."""
        return 2 * len(self.layers)

    def forward(self, x: Float[Tensor, "total d_model"], layout: Layout) -> Float[Tensor, "total d_model"]:
        mask = padding_mask(layout, x.dtype)
        for layer in self.layers:
            x = layer(x, layout, mask)
        return self.norm(x)

    def expect(self, x: Signal, tape: Tape) -> Signal:
        """What `forward` does to a signal."""
        sight = Sight(torch.ones_like(x.products))
        for layer in self.layers:
            x = layer.expect(x, sight, tape)
        return _ended(self.norm, x, tape)


class Decoder(nn.Module):
    """Target positions see earlier ones of their own sequence, and the source."""

    layers: Sequence[DecoderLayer]

    def __init__(self, layers: list[DecoderLayer], norm: LastNorm):
        super().__init__()
        self.layers, self.norm = cast(Sequence[DecoderLayer], nn.ModuleList(layers)), norm

    @property
    def branches(self) -> int:
        """How many sub-layers add to the residual stream."""
        return 3 * len(self.layers)

    def forward(
        self,
        x: Float[Tensor, "total d_model"],
        layout: Layout,
        memory: Float[Tensor, "source_total d_model"],
        memory_layout: Layout,
    ) -> Float[Tensor, "total d_model"]:
        mask = causal_mask(layout.longest, x.dtype, x.device)
        memory_mask = padding_mask(memory_layout, x.dtype)
        for layer in self.layers:
            x = layer(x, layout, mask, memory, memory_layout, memory_mask)
        return self.norm(x)

    def expect(self, x: Signal, memory: Signal, tape: Tape) -> Signal:
        """What `forward` does to a signal."""
        causal = Sight(torch.ones_like(x.products).tril())
        sight = Sight(x.products.new_ones(len(x.products), len(memory.products)))
        for layer in self.layers:
            x = layer.expect(x, causal, memory, sight, tape)
        return _ended(self.norm, x, tape)

    def start(self, memory: Float[Tensor, "source_total d_model"], memory_layout: Layout, beam: int) -> Cache:
        """The cache before the first target token."""
        source = [layer.cross.keys_values(memory, memory_layout) for layer in self.layers]
        mask = padding_mask(memory_layout, memory.dtype)
        return Cache(past=[KeysValues() for _ in self.layers], source=source, mask=mask, beam=beam)

    def step(self, x: Float[Tensor, "rows d_model"], cache: Cache) -> Float[Tensor, "rows d_model"]:
        """One new target token a row."""
        for layer, past, source in zip(self.layers, cache.past, cache.source, strict=True):
            x = layer.step(x, past, source, cache.mask)
        return self.norm(x)


class CausalDecoder(nn.Module):
    """Positions see earlier ones of their own sequence; there is no source."""

    layers: Sequence[CausalLayer]

    def __init__(self, layers: list[CausalLayer], norm: LastNorm):
        super().__init__()
        self.layers, self.norm = cast(Sequence[CausalLayer], nn.ModuleList(layers)), norm

    @property
    def branches(self) -> int:
        """How many sub-layers add to the residual stream."""
        return 2 * len(self.layers)

    def forward(
        self, x: Float[Tensor, "total d_model"], layout: Layout, past: Past | None = None
    ) -> Float[Tensor, "total d_model"]:
        """`past`, empty as yet, is given what later steps need; the sequences must then be of one length."""
        mask = causal_mask(layout.longest, x.dtype, x.device)
        remembered = [None] * len(self.layers) if past is None else past.layers
        for layer, memory in zip(self.layers, remembered, strict=True):
            x = layer(x, layout, mask, memory)
        return self.norm(x)

    def expect(self, x: Signal, tape: Tape) -> Signal:
        """What `forward` does to a signal."""
        causal = Sight(torch.ones_like(x.products).tril())
        for layer in self.layers:
            x = layer.expect(x, causal, tape)
        return _ended(self.norm, x, tape)

    def start(self) -> Past:
        """Nothing read yet."""
        return Past([KeysValues() for _ in self.layers])

    def step(self, x: Float[Tensor, "rows d_model"], past: Past) -> Float[Tensor, "rows d_model"]:
        """One new token a row."""
        for layer, memory in zip(self.layers, past.layers, strict=True):
            x = layer.step(x, memory)
        return self.norm(x)


def _ended(norm: LastNorm, x: Signal, tape: Tape) -> Signal:
    """What the last norm does to a signal."""
    return x if isinstance(norm, nn.Identity) else norm.expect(x, tape)
