"""A model of ours in the shape that others have: rows of token ids in, logits out, so that a check sees all of it."""

import torch
from jaxtyping import Float, Int
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


class Plain(nn.Module):
    """What both share. Padding may stand anywhere in a row: the model itself never reads it."""

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

    def logits(self, hidden: Float[Tensor, "total d_model"], ids: Ids) -> Float[Tensor, "rows length vocabulary"]:
        """Each where its token stands; zeros at padding."""
        found = self.module.wide_logits(hidden)
        real = ids != PAD
        if bool(real.all()):
            return found.view(*ids.shape, -1)
        return found.new_zeros(*ids.shape, found.shape[-1]).masked_scatter(real[..., None], found)


class PlainLanguage(Plain):
    """Reads a text."""

    def forward(self, text: Ids) -> Float[Tensor, "rows length vocabulary"]:
        return self.logits(self.module(ragged(text)), text)


class PlainSeq2Seq(Plain):
    """Reads a source and what has been written so far."""

    def forward(self, source: Ids, target: Ids) -> Float[Tensor, "rows length vocabulary"]:
        return self.logits(self.module(ragged(source), ragged(target)), target)


def ragged(ids: Ids) -> Ragged:
    """The rows without their padding. One of padding alone is refused: what surd reads has at least its end token."""
    real = ids != PAD
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
