"""Perplexity: how many equally likely tokens the model hesitates between, e to the mean loss in nats; and its kin."""

import math
import sys

from surd.errors import SurdError
from surd.metrics.score import Score, own_version

_LARGEST = math.log(sys.float_info.max)


def perplexity(nll: float, tokens: int) -> Score:
    """Perplexity from a sum of negative log-likelihoods (nats, without label smoothing) over so many target tokens.

    Tokens are the model's own pieces, the end of a line counted: models with other tokenizers cannot be compared by it.
    """
    return Score(
        name="perplexity",
        value=_exponential(_mean(nll, tokens)),
        signature=f"unit:token|log:nats|smoothing:none|{_tokens(tokens)}|version:{own_version()}",
        higher_is_better=False,
    )


def windows_described(context: int, unit: str) -> str:
    """How much a model saw before each token: windows of `context` tokens that share none of them."""
    begins = "begun by BOS at each line" if unit == "line" else "each begun by the token before it"
    return f"{context}, none overlapping, {begins}"


def nats_per_token(nll: float, tokens: int, windows: str, unknown: int = 0) -> Score:
    """Mean nll of the tokens of a text, in nats: what the loss of a language model is told in.

    `windows` says how much the model saw before each token. `unknown` of the tokens stand for characters outside the
    vocabulary, which nothing tells apart.
    """
    return _of_text("nats per token", _mean(nll, tokens), f"unit:token|log:nats|{_tokens(tokens)}", windows, unknown)


def text_scores(nll: float, tokens: int, spelt: int, windows: str, unknown: int = 0) -> tuple[Score, ...]:
    """Nats a token, which select, bits a byte and perplexity of a text, from the sum of its nll in nats.

    `spelt` is the text's length in bytes of UTF-8, one for each line end. Bits a byte are what models with different
    tokenizers can be compared by, unless characters are unknown to one of them: then they are too few.
    """
    bits = nll / math.log(2) / spelt
    by_byte = f"unit:byte|log:bits|denominator:bytes and line ends:{spelt}"
    value = _exponential(_mean(nll, tokens))
    return (
        nats_per_token(nll, tokens, windows, unknown),
        _of_text("bits per byte", bits, by_byte, windows, unknown),
        _of_text("perplexity", value, f"unit:token|log:nats|{_tokens(tokens)}", windows, unknown),
    )


def _of_text(name: str, value: float, unit: str, windows: str, unknown: int) -> Score:
    signature = f"{unit}|windows:{windows}|unknown:{unknown}|version:{own_version()}"
    return Score(name=name, value=value, signature=signature, higher_is_better=False, digits=4)


def _tokens(tokens: int) -> str:
    return f"denominator:tokens and line ends:{tokens}"


def _mean(nll: float, tokens: int) -> float:
    if tokens < 1:
        raise SurdError("cannot compute perplexity: there is no target token")
    return nll / tokens


def _exponential(mean: float) -> float:
    return math.exp(mean) if mean < _LARGEST else math.inf
