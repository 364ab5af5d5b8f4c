"""Prefix: an output is made to begin with given tokens; the search, or chance, goes on behind them.

The score of such an output is that of the whole of it: the prefix counts with the probability that the model gives it.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from surd.decode.decoding import Model
from surd.decode.steering import Steered, Written, withheld
from surd.nn.special import PAD


class Forced(Steered):
    """A model each of whose outputs begins with a prefix of its own; an empty one leaves it as it is."""

    def __init__(self, model: Model, prefixes: Sequence[Sequence[int]]):
        """`prefixes[i]`, ids without the begin token, is for the i-th source."""
        super().__init__(model)
        longest = max(map(len, prefixes), default=0)
        padded = [[*prefix, *[PAD] * (longest - len(prefix))] for prefix in prefixes]
        self.prefixes: Int[Tensor, "sentences longest"] = torch.tensor(padded, dtype=torch.int64).view(-1, longest)

    def steer(self, logits: Float[Tensor, "rows vocabulary"], cache: Written) -> Float[Tensor, "rows vocabulary"]:
        assert cache.tokens is not None, "the begin token has been read"
        place = cache.tokens.shape[1] - 1
        if place >= self.prefixes.shape[1]:
            return logits
        forced = cache.of_rows(self.prefixes[:, place].to(logits.device))[:, None]
        hidden = torch.ones_like(logits, dtype=torch.bool).scatter_(1, forced, False)
        return withheld(logits, hidden & (forced != PAD))
