"""Which keys a query may look at, as numbers added to the scores: 0 where it may, -inf where it may not."""

import torch
from jaxtyping import Float
from torch import Tensor

from surd.nn.ragged import Layout


def causal_mask(length: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "1 1 length length"]:
    """Query t sees keys 0 … t, and so none of its sequence's padding, which comes last."""
    hidden = torch.full((length, length), float("-inf"), dtype=dtype, device=device)
    return hidden.triu(1)[None, None]


def padding_mask(layout: Layout, dtype: torch.dtype) -> Float[Tensor, "batch 1 1 longest"] | None:
    """Hides the cells that hold no token; None when there are none."""
    if layout.full:
        return None
    mask = torch.zeros(layout.batch, layout.longest, dtype=dtype, device=layout.device)
    return mask.masked_fill_(~layout.real, float("-inf"))[:, None, None]
