"""Stacks: encoders as they start, by where the norms stand and how the last matrix of each branch is drawn."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from surd.nn.block import EncoderLayer, Residual
from surd.nn.feedforward import ReLU
from surd.nn.init import DepthInit, Init, TransformerInit
from surd.nn.multihead import Heads, SelfAttention
from surd.nn.norm import LayerNorm, NormOrder
from surd.nn.stack import Encoder

POST, PRE, SHRUNK = "post-norm", "pre-norm", "pre-norm, 1/√(2L)"
BRANCH = 0.5
"""v²: what a branch makes of a unit input here, for attention to one token and for the feed-forward alike."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Where the norms stand, and how the last matrix of each branch is drawn."""

    order: NormOrder
    init: Init
    size: Callable[[float], float]
    """The rms of the stream behind so many layers, of two branches each."""

    def build(self, layers: int, d_model: int, heads: int, draw: torch.Generator) -> Encoder:
        """A fresh encoder."""
        norm, shape = LayerNorm(), Heads(d_model=d_model, heads=heads, d_k=d_model // heads)

        def layer() -> EncoderLayer:
            feedforward = ReLU().build(d_model, d_model)
            return EncoderLayer(
                SelfAttention(shape), feedforward, lambda: Residual(norm.build(d_model), self.order, 0.0)
            )

        last = norm.build(d_model) if self.order is NormOrder.PRE else nn.Identity()
        encoder = Encoder([layer() for _ in range(layers)], last)
        self.init(encoder, draw)
        return encoder


STACKS = {
    POST: Stack(order=NormOrder.POST, init=TransformerInit(), size=lambda layers: 1.0),
    PRE: Stack(order=NormOrder.PRE, init=TransformerInit(), size=lambda layers: math.sqrt(1 + 2 * layers * BRANCH)),
    SHRUNK: Stack(order=NormOrder.PRE, init=DepthInit(), size=lambda layers: math.sqrt(1 + BRANCH)),
}
