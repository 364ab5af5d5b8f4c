"""Projections: rules by which the weights of queries and keys are drawn, and what each means for the scores."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from surd.nn.init import Init, KerasInit, Matrix, SmallInit, TorchInit, TransformerInit


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What a rule for the weights of queries and keys means for inputs of rms 1."""

    init: Init | None
    """The rule as a part of this package; None for T5's, whose queries are drawn smaller instead of scaled."""
    query: Callable[[int, int, int], float]
    """The rms of a query, from d_model, heads and d_k."""
    law: Callable[[int, int, int], float]
    """Standard deviation of a row's scores, from the same."""
    formula: str
    """The law in words."""

    def stds(self, d_model: int, heads: int, d_k: int) -> tuple[float, float]:
        """Standard deviations of the weights of queries and keys."""
        if self.init is None:
            return (d_model * d_k) ** -0.5, d_model**-0.5
        matrix = Matrix(role="query", inputs=d_model, outputs=heads * d_k, heads=heads)
        return (self.init.spread(matrix).std,) * 2


def _glorot(init: Init, stacked: int, formula: str) -> Rule:
    def law(d: int, h: int, k: int) -> float:
        return 2 * d / (d + stacked * h * k)

    return Rule(init=init, query=lambda d, h, k: math.sqrt(law(d, h, k)), law=law, formula=formula)


OLD, NEW, STACKED, SMALL, EACH, T5 = (
    "Keras to 3.14",
    "Keras from 3.15",
    "Glorot over three stacked",
    "N(0, 0.02)",
    "Glorot for each",
    "T5, not scaled",
)
RULES = {
    OLD: Rule(
        init=KerasInit(version="3.14"),
        query=lambda d, h, k: math.sqrt(2 / (h + k)),
        law=lambda d, h, k: 2 / (h + k),
        formula="2 / (h + d_k)",
    ),
    NEW: _glorot(KerasInit(), 1, "2 d / (d + h d_k)"),
    STACKED: _glorot(TorchInit(), 3, "2 d / (d + 3 h d_k)"),
    SMALL: Rule(
        init=SmallInit(),
        query=lambda d, h, k: 0.02 * math.sqrt(d),
        law=lambda d, h, k: 0.02**2 * d,
        formula="0.02² d",
    ),
    EACH: _glorot(TransformerInit(attention_gain=1.0), 1, "2 d / (d + h d_k)"),
    T5: Rule(
        init=None, query=lambda d, h, k: k**-0.5, law=lambda d, h, k: 1.0, formula="√d_k · d_k^-½ · 1, without 1/√d_k"
    ),
}
