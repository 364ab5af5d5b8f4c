"""A model of ours in the shape that others have: rows of token ids in, logits out, so that a check sees all of it."""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from surd.errors import SurdError
from surd.models.language import Language
from surd.models.model import Model
from surd.models.seq2seq import Seq2Seq
from surd.nn.ragged import Ragged
from surd.nn.special import PAD, SPECIALS

ROWS, LENGTH = 6, 13
"""Of a trial: a prime length is not mistaken for a width."""
Ids = Int[Tensor, "rows length"]
Mask = Shaped[Tensor, "rows length"]
Real = Bool[Tensor, "rows length"]


class Plain(nn.Module):
    """What both share. Padding may stand anywhere in a row: the model itself never reads it.

    It is told by its id, and also by a mask of ones and zeros; arguments are called as in Hugging Face's library.
    """

    module: Model
    """By this name, sites are called as in the model itself."""

    def __init__(self, module: Model) -> None:
        super().__init__()
        self.module = module

    def trial(self) -> tuple[Ids, ...]:
        """Random tokens, without special ones; the rows of the target are not those of the source."""
        generator = torch.Generator().manual_seed(0)
        device = self.module.projection.weight.device
        return tuple(
            torch.randint(min(len(SPECIALS), size - 1), size, (ROWS, LENGTH), generator=generator).to(device)
            for size in self.module.vocabularies
        )

    def logits(self, hidden: Float[Tensor, "total d_model"], real: Real) -> Float[Tensor, "rows length vocabulary"]:
        """Each where its token stands; zeros at padding."""
        found = self.module.wide_logits(hidden)
        if bool(real.all()):
            return found.view(*real.shape, -1)
        return found.new_zeros(*real.shape, found.shape[-1]).masked_scatter(real[..., None], found)


class PlainLanguage(Plain):
    """Reads a text."""

    def forward(self, input_ids: Ids, attention_mask: Mask | None = None) -> Float[Tensor, "rows length vocabulary"]:
        real = real_tokens(input_ids, attention_mask)
        return self.logits(self.module(ragged(input_ids, real)), real)


class PlainSeq2Seq(Plain):
    """Reads a source and what has been written so far."""

    def forward(
        self, input_ids: Ids, decoder_input_ids: Ids, attention_mask: Mask | None = None
    ) -> Float[Tensor, "rows length vocabulary"]:
        source, target = real_tokens(input_ids, attention_mask), real_tokens(decoder_input_ids)
        return self.logits(self.module(ragged(input_ids, source), ragged(decoder_input_ids, target)), target)


def real_tokens(ids: Ids, mask: Mask | None = None) -> Real:
    """Which are no padding, by their ids and by a mask."""
    return ids != PAD if mask is None else (ids != PAD) & mask.bool()


def ragged(ids: Ids, real: Real) -> Ragged:
    """The rows without their padding. One of padding alone is refused: what surd reads has at least its end token."""
    lengths = real.sum(1).tolist()
    if not all(lengths):
        raise SurdError("a row is all padding; every text that surd reads or writes has at least its end token")
    return Ragged(ids[real] if not bool(real.all()) else ids.flatten(), tuple(lengths))


def plain(model: Model) -> Plain:
    """The model, in that shape."""
    if isinstance(model, Language):
        return PlainLanguage(model)
    assert isinstance(model, Seq2Seq), "there are two sorts of model"
    return PlainSeq2Seq(model)
