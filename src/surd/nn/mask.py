"""Which keys a query may look at: numbers added to the scores, 0 where it may and -inf where not, and how many."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from surd.nn.ragged import Layout


@dataclass(frozen=True)
class Mask:
    """What hides keys, and how many each query sees."""

    added: Float[Tensor, "#batch 1 #queries keys"] | None
    """0 or -inf, to be added to the scores; None where nothing is hidden."""
    keys: Float[Tensor, "#batch 1 #queries 1"]
    """How many keys are visible."""


def causal_mask(length: int, dtype: torch.dtype, device: torch.device) -> Mask:
    """Query t sees keys 0 … t, and so none of its sequence's padding, which comes last."""
    hidden = torch.full((length, length), float("-inf"), dtype=dtype, device=device)
    keys = torch.arange(1, length + 1, dtype=torch.float32, device=device)
    return Mask(hidden.triu(1)[None, None], keys[None, None, :, None])


def padding_mask(layout: Layout, dtype: torch.dtype) -> Mask:
    """Hides the cells that hold no token."""
    keys = torch.tensor(layout.lengths, dtype=torch.float32, device=layout.device)[:, None, None, None]
    if layout.full:
        return Mask(None, keys)
    added = torch.zeros(layout.batch, layout.longest, dtype=dtype, device=layout.device)
    return Mask(added.masked_fill_(~layout.real, float("-inf"))[:, None, None], keys)
