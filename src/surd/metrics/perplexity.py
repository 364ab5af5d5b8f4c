"""Perplexity: how many equally likely tokens the model hesitates between, e to the mean loss in nats."""

import math
import sys

from surd.errors import SurdError
from surd.metrics.score import Score, own_version

_LARGEST = math.log(sys.float_info.max)


def perplexity(nll: float, tokens: int) -> Score:
    """Perplexity from a sum of negative log-likelihoods (nats, without label smoothing) over so many target tokens.

    Tokens are the model's own pieces, the end of a line counted: models with other tokenizers cannot be compared by it.
    """
    if tokens < 1:
        raise SurdError("cannot compute perplexity: there is no target token")
    mean = nll / tokens
    value = math.exp(mean) if mean < _LARGEST else math.inf
    signature = f"unit:token|log:nats|smoothing:none|denominator:tokens and line ends:{tokens}|version:{own_version()}"
    return Score(name="perplexity", value=value, signature=signature, higher_is_better=False)
