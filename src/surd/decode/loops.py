"""Loops: what an output that goes in circles is, and a model that repeats itself no more often than its source does.

A block of tokens that stands in a row more than `FREE` times more often than any block does in the source, and fills
`SHORTEST` tokens at least, is a loop where nothing else can be meant by it: the output came to no end, and the block is
what it was writing when the limit closed it; or the repeats take up half of the longest output there may be, which is
more than a whole one mostly has.
An output that loops is looked for again under `Guarded`; one that does not is never touched.

That likely texts go round in circles: Holtzman et al. 2020 (arXiv 1904.09751). The usual cure, to block every n-gram
that was written before (Paulus et al. 2018, arXiv 1705.04304), also blocks what the source repeats.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from surd.decode.decoding import Decoding, Hypothesis, Model
from surd.decode.steering import Steered, Written, withheld

FREE = 3
"""How many times more often than in the source a block may stand in a row."""
SHORTEST = 12
"""Tokens that a loop has at least."""


def loops(hypothesis: Hypothesis, source: Sequence[int], settings: Decoding) -> bool:
    """Whether the output of a source (ids with the end token) goes in circles."""
    tokens = hypothesis.tokens
    repeated: list[tuple[int, int]] = []  # how often a block stands in a row, and in how many tokens
    if max(Counter(tokens).values(), default=0) > FREE + 1:  # so much is seen at a glance
        for period in range(1, len(tokens) // (FREE + 2) + 1):
            stretches = list(runs(tokens, period))
            closed = stretches[-1] if not hypothesis.ended else 0
            repeated += [(run // period, run) for run in stretches if run >= settings.limit(len(source)) / 2]
            repeated.append((closed // period, closed))
    often = [count for count, length in repeated if count > FREE + 1 and length >= SHORTEST]
    return bool(often) and max(often) > FREE + most_repeats(source)


def most_repeats(tokens: Sequence[int]) -> int:
    """How often a block of tokens stands in a row at most; 1 where nothing is repeated."""
    periods = range(1, len(tokens) // 2 + 1)
    return max((run // period for period in periods for run in runs(tokens, period)), default=1)


def runs(tokens: Sequence[int], period: int) -> Iterator[int]:
    """Lengths of the stretches, last that at the end, in which each token is the one that stood `period` before it.

    The first block counts, so a stretch of length n holds n // period repeats of it.
    """
    run = period
    for place in range(period, len(tokens)):
        if tokens[place] == tokens[place - period]:
            run += 1
        else:
            yield run
            run = period
    yield run


class Guarded(Steered):
    """A model that is kept from writing a block in a row more often than one stands in the source; a prefix may."""

    def __init__(self, model: Model, sources: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]]):
        super().__init__(model)
        self.allowed = torch.tensor([most_repeats(source) for source in sources])
        self.given = torch.tensor([len(prefix) for prefix in prefixes])

    def steer(self, logits: Float[Tensor, "rows vocabulary"], cache: Written) -> Float[Tensor, "rows vocabulary"]:
        assert cache.tokens is not None, "the begin token has been read"
        hidden = torch.zeros_like(logits, dtype=torch.bool)
        sentences = zip(cache.of_rows(self.allowed).tolist(), cache.of_rows(self.given).tolist(), strict=True)
        for row, (tokens, (allowed, given)) in enumerate(zip(cache.tokens[:, 1:].tolist(), sentences, strict=True)):
            if len(tokens) >= given:
                hidden[row, next_in_circles(tokens, allowed)] = True
        return withheld(logits, hidden) if hidden.any() else logits


def next_in_circles(tokens: Sequence[int], allowed: int) -> list[int]:
    """The tokens that would complete a block for one time more than is allowed in a row."""
    found = []
    for period in range(1, (len(tokens) + 1) // (allowed + 1) + 1):
        tail = tokens[len(tokens) + 1 - (allowed + 1) * period :]
        if all(tail[place] == tail[place - period] for place in range(period, len(tail))):
            found.append(tokens[-period])
    return found
