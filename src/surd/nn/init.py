"""How weights start: the family of initialisations."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from surd.nn.embedding import Embedding
from surd.nn.linear import Linear, Projection
from surd.nn.special import PAD
from surd.part import Part


@dataclass(frozen=True, kw_only=True)
class TransformerInit(Part, kind="transformer"):
    """Tables N(0, 1/√d_model), Glorot for each projection by itself, gains one, biases zero, padding row zero.

    A table of standard deviation 1/√d_model gives logits of unit variance for a unit-variance hidden state and, times
    √d_model, embeddings of rms 1: one matrix at the right size on both sides.
    Source: tensor2tensor's `transformer` (a normal of d_model^-0.5 for the shared table); Glorot & Bengio 2010.
    """

    @torch.no_grad()
    def __call__(self, model: nn.Module, generator: torch.Generator | None = None) -> None:
        """Draws every weight of `model` anew; a shared Parameter is drawn once."""
        drawn: set[Tensor] = set()
        for module in model.modules():
            match module:
                case Embedding():
                    table(module.table, drawn, generator)
                case Projection():
                    table(module.weight, drawn, generator)
                case Linear():
                    glorot(module.weight, module.stacked, generator)
            if isinstance(module, Linear) and module.bias is not None:
                module.bias.zero_()


def table(weight: Tensor, drawn: set[Tensor], generator: torch.Generator | None) -> None:
    """N(0, 1/√d_model), the padding row zero; nothing if the Parameter was drawn under another name."""
    if weight not in drawn:
        weight.normal_(0, weight.shape[1] ** -0.5, generator=generator)
        weight[PAD] = 0
        drawn.add(weight)


def glorot(weight: Tensor, parts: int, generator: torch.Generator | None) -> None:
    """Uniform with variance 2 / (fan in + fan out), for `parts` projections stacked along the outputs.

    Fan out is that of one projection: a rule over the stacked matrix would make query and key √½ too small.
    """
    outputs, inputs = weight.shape
    limit = (6 / (inputs + outputs / parts)) ** 0.5
    weight.uniform_(-limit, limit, generator=generator)


Init = TransformerInit
