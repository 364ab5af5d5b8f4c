"""Greedy search: the likeliest token at every step, one row to a sentence and nothing to reorder."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from surd.decode.candidates import best_continuations
from surd.decode.decoding import NOT_FINITE, Decoding, Hypothesis, Model, begin, evaluating
from surd.errors import SurdError
from surd.nn.special import BOS, EOS


def greedy(model: Model, sources: Sequence[Sequence[int]], settings: Decoding) -> list[list[Hypothesis]]:
    """One hypothesis for each source (ids with the end token), whatever `beam` is; equal tokens: the lower id."""
    if not sources:
        return []
    with evaluating(model):
        return _search(model, sources, settings)


def _search(model: Model, sources: Sequence[Sequence[int]], settings: Decoding) -> list[list[Hypothesis]]:
    found: list[list[Hypothesis]] = [[] for _ in sources]
    cache, device = begin(model, sources, beam=1)
    limits = torch.tensor([settings.limit(len(source)) for source in sources], device=device)
    numbers = torch.arange(len(sources), device=device)  # of the sentences that are still in the batch
    sums = torch.zeros(len(sources), 1, device=device)
    written = torch.full((len(sources), 1), BOS, device=device)
    while len(numbers):
        logits = model.step(written[:, -1], cache).float()
        sums, _, token = best_continuations(logits, sums, 1)
        written = torch.cat([written, token], 1)
        ended = token.squeeze(1) == EOS
        done = ended | (written.shape[1] > limits)
        if done.any():
            closed = _close(written[done, 1:], sums[done, 0], ended[done], settings)
            for number, hypothesis in zip(numbers[done].tolist(), closed, strict=True):
                found[number] = [hypothesis]
            kept = (~done).nonzero().squeeze(1)
            numbers, limits, sums, written = numbers[kept], limits[kept], sums[kept], written[kept]
            if len(kept):
                cache.keep(kept)
    return found


def _close(
    written: Int[Tensor, "sentences length"],
    sums: Float[Tensor, " sentences"],
    ended: Bool[Tensor, " sentences"],
    settings: Decoding,
) -> list[Hypothesis]:
    if not sums.isfinite().all():
        raise SurdError(NOT_FINITE)
    scores = sums / written.shape[1] ** settings.length_penalty
    rows = zip(written.tolist(), scores.tolist(), sums.tolist(), ended.tolist(), strict=True)
    return [Hypothesis(tuple(tokens[:-1] if end else tokens), score, total, end) for tokens, score, total, end in rows]
