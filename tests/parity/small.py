"""Small models and sentences for tests: every weight random, so that no gain of one or bias of zero hides a fault."""

import torch
from torch import nn

from surd.models.architecture import Architecture
from surd.models.language import Language
from surd.models.seq2seq import Seq2Seq
from surd.nn.ragged import Ragged
from surd.nn.special import BOS, EOS
from surd.nn.tying import Tying

VOCABULARY = 37
LENGTHS = (7, 3, 5, 1)
"""Lengths of four sequences: several paddings, and a sequence of one token."""


def shake(module: nn.Module, size: float = 0.3) -> None:
    """Adds noise to every weight, once to a shared one."""
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(size * torch.randn(weight.shape, dtype=weight.dtype) * weight.shape[-1] ** -0.5)


def small_model(dtype: torch.dtype = torch.float64, vocabulary: int = VOCABULARY, **changes) -> Seq2Seq:
    """Two layers a side, without dropout unless asked, computing in `dtype`."""
    sizes = {"d_model": 32, "heads": 4, "d_k": 8, "d_ff": 48, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
    model = Seq2Seq(Architecture(**{**sizes, **changes}), vocabulary, vocabulary)
    shake(model)
    model.compute_dtype = dtype
    return model.to(dtype)


def small_language(dtype: torch.dtype = torch.float64, vocabulary: int = VOCABULARY, **changes) -> Language:
    """A decoder without a source of that size."""
    sizes = {"d_model": 32, "heads": 4, "d_k": 8, "d_ff": 48, "decoder_layers": 2, "dropout": 0.0}
    model = Language(Architecture(**{**sizes, "tying": Tying.OUTPUT, **changes}), vocabulary)
    shake(model)
    model.compute_dtype = dtype
    return model.to(dtype)


def windows(texts: list[list[int]]) -> tuple[Ragged, torch.Tensor]:
    """Texts opened by BOS, and what follows each of their tokens, closed by EOS."""
    opened = Ragged.from_lists([[BOS, *tokens] for tokens in texts])
    return opened, Ragged.from_lists([[*tokens, EOS] for tokens in texts]).tokens


def sentences(lengths: tuple[int, ...] = LENGTHS, vocabulary: int = VOCABULARY) -> list[list[int]]:
    """Random ids without special ones."""
    return [torch.randint(4, vocabulary, (length,)).tolist() for length in lengths]


def pairs(source: list[list[int]], target: list[list[int]]) -> tuple[Ragged, Ragged, torch.Tensor]:
    """Source closed by EOS, target opened by BOS, and the labels."""
    labels = Ragged.from_lists([[*tokens, EOS] for tokens in target]).tokens
    opened = Ragged.from_lists([[BOS, *tokens] for tokens in target])
    return Ragged.from_lists([[*tokens, EOS] for tokens in source]), opened, labels
