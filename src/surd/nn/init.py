"""How weights start: the family of initialisations."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from surd.nn.attention import CrossAttention, SelfAttention
from surd.nn.embedding import Embedding
from surd.nn.linear import Linear, Projection
from surd.nn.special import PAD
from surd.part import Part


@dataclass(frozen=True, kw_only=True)
class TransformerInit(Part, kind="transformer"):
    """Tables N(0, 1/√d_model), Glorot for each projection by itself, biases zero, padding row zero.

    A table of standard deviation 1/√d_model gives logits of unit variance for a unit-variance hidden state and, times
    √d_model, embeddings of rms 1: one matrix at the right size on both sides.
    Source: tensor2tensor's `transformer` (a normal of d_model^-0.5 for the shared table); Glorot & Bengio 2010.
    """

    attention_gain: float = 0.5**0.5
    """Factor on Glorot's bound for the projections to query, key and value; √½ starts scores at standard deviation ½.

    It is what Glorot's rule gives over the three stacked in one matrix (torch.nn.MultiheadAttention, fairseq). One
    post-norm translator learnt clearly faster from it than from 1: see docs/decisions/0007-attention-gain.md.
    """

    @torch.no_grad()
    def __call__(self, model: nn.Module, generator: torch.Generator | None = None) -> None:
        """Draws every weight of `model` anew; a shared Parameter is drawn once."""
        drawn: set[Tensor] = set()
        attentions = [m for m in model.modules() if isinstance(m, SelfAttention | CrossAttention)]
        readers = {reader for attention in attentions for reader in attention.readers()}
        for module in model.modules():
            match module:
                case Embedding():
                    table(module.table, drawn, generator)
                case Projection():
                    table(module.weight, drawn, generator)
                case Linear():
                    gain = self.attention_gain if module in readers else 1.0
                    glorot(module.weight, module.stacked, gain, generator)
            if isinstance(module, Linear) and module.bias is not None:
                module.bias.zero_()


def table(weight: Tensor, drawn: set[Tensor], generator: torch.Generator | None) -> None:
    """N(0, 1/√d_model), the padding row zero; nothing if the Parameter was drawn under another name."""
    if weight not in drawn:
        weight.normal_(0, weight.shape[1] ** -0.5, generator=generator)
        weight[PAD] = 0
        drawn.add(weight)


def glorot(weight: Tensor, parts: int, gain: float, generator: torch.Generator | None) -> None:
    """Uniform with variance gain² · 2 / (fan in + fan out), for `parts` projections stacked along the outputs.

    Fan out is that of one projection, so that fusing projections changes nothing.
    """
    outputs, inputs = weight.shape
    limit = gain * (6 / (inputs + outputs / parts)) ** 0.5
    weight.uniform_(-limit, limit, generator=generator)


Init = TransformerInit
