"""Beam search: the best few hypotheses of every sentence grow side by side until no unfinished one can still win.

A step takes the 2·beam best one-token continuations of a sentence, in order. Those of the first `beam` that end (by the
end token, or at the length limit) are finished; the first `beam` that do not end go on. With `length_penalty` ≤ 0 a
beam of one is greedy search; above 0 it may look past an end token, for a longer output of a better score.

The stop is exact: a sentence is done when its n-th best finished hypothesis scores at least what any unfinished one can
still reach, so the result is that of a search to the limit. As log-probabilities are never positive, an unfinished sum
can at best be kept: over the longest length where α > 0, over the next one where α ≤ 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from surd.decode.candidates import best_continuations
from surd.decode.decoding import NOT_FINITE, Decoding, Hypothesis, Model, begin, evaluating
from surd.errors import SurdError
from surd.nn.special import BOS, EOS, PAD


def beam_search(
    model: Model, sources: Sequence[Sequence[int]], settings: Decoding, n_best: int = 1
) -> list[list[Hypothesis]]:
    """The `n_best` best hypotheses found for each source (ids with the end token), best first; at most the beam.

    Equal scores: the shorter one first, then the one whose beginning scored better, then the lower token id.
    """
    if not sources:
        return []
    if not 1 <= n_best <= settings.beam:
        raise SurdError(f"n_best: expected 1 to beam ({settings.beam}), found {n_best}")
    with evaluating(model):
        return _search(model, sources, settings, n_best)


@dataclass(frozen=True)
class _Beams:
    """The sentences that are still in the batch; the first axis of every tensor is the sentence."""

    numbers: Int[Tensor, " sentences"]
    """Where each stands in the caller's list."""
    limits: Int[Tensor, " sentences"]
    tokens: Int[Tensor, "sentences beam length"]
    """Unfinished hypotheses, best first, with the begin token."""
    sums: Float[Tensor, "sentences beam"]
    """Their log-probabilities; -inf where there is none."""
    finished: Int[Tensor, "sentences n_best length"]
    """The best finished hypotheses, best first, filled up with PAD."""
    finished_sums: Float[Tensor, "sentences n_best"]
    scores: Float[Tensor, "sentences n_best"]
    """Of the finished ones; -inf where there is none."""

    def select(self, sentences: Tensor) -> "_Beams":
        return replace(self, **{field.name: getattr(self, field.name)[sentences] for field in fields(self)})


def _search(model: Model, sources: Sequence[Sequence[int]], settings: Decoding, n_best: int) -> list[list[Hypothesis]]:
    found: list[list[Hypothesis]] = [[] for _ in sources]
    cache, device = begin(model, sources, settings.beam)
    limits = torch.tensor([settings.limit(len(source)) for source in sources], device=device)
    beams = _first(limits, settings.beam, n_best)
    while True:
        logits = model.step(beams.tokens[:, :, -1].flatten(), cache).float()
        beams, parents = _advance(beams, logits, settings)
        done = _cannot_improve(beams, settings)
        if done.any():
            for number, hypotheses in _collect(beams.select(done)):
                found[number] = hypotheses
            kept = (~done).nonzero().squeeze(1)
            beams, parents = beams.select(kept), parents[kept]
            if not len(kept):
                break
            cache.keep(kept)
        firsts = torch.arange(len(parents), device=device)[:, None] * settings.beam
        cache.reorder((firsts + parents).flatten())
    return found


def _first(limits: Int[Tensor, " sentences"], beam: int, n_best: int) -> _Beams:
    """One empty hypothesis a sentence; the other places of the beam are free."""
    sentences, device = len(limits), limits.device
    sums = torch.full((sentences, beam), float("-inf"), device=device)
    sums[:, 0] = 0.0
    nothing = torch.full((sentences, n_best), float("-inf"), device=device)
    return _Beams(
        numbers=torch.arange(sentences, device=device),
        limits=limits,
        tokens=torch.full((sentences, beam, 1), BOS, device=device),
        sums=sums,
        finished=torch.full((sentences, n_best, 1), PAD, device=device),
        finished_sums=nothing,
        scores=nothing,
    )


def _advance(
    beams: _Beams, logits: Float[Tensor, "sentences*beam vocabulary"], settings: Decoding
) -> tuple[_Beams, Int[Tensor, "sentences beam"]]:
    """Every hypothesis one token longer, and whose continuation each of the new ones is."""
    beam, length = settings.beam, beams.tokens.shape[2]  # also the new length, as the begin token is not counted
    sums, parents, tokens = best_continuations(logits, beams.sums, 2 * beam)
    ends = (tokens == EOS) | (beams.limits <= length)[:, None]
    if ends.any():
        beams = _finish(beams, sums[:, :beam], parents[:, :beam], tokens[:, :beam], ends[:, :beam], settings)
    # At most `beam` of 2·beam continuations have the end token, one a parent: the first `beam` others exist.
    order = ends.long().argsort(dim=1, stable=True)[:, :beam]
    sums = sums.masked_fill(ends, float("-inf")).gather(1, order)
    parents, tokens = parents.gather(1, order), tokens.gather(1, order)
    return replace(beams, tokens=_continue(beams.tokens, parents, tokens), sums=sums), parents


def _finish(
    beams: _Beams,
    sums: Float[Tensor, "sentences beam"],
    parents: Int[Tensor, "sentences beam"],
    tokens: Int[Tensor, "sentences beam"],
    ends: Bool[Tensor, "sentences beam"],
    settings: Decoding,
) -> _Beams:
    """The continuations that end join the finished ones, of which the best stay; equal scores: who finished first."""
    length = beams.tokens.shape[2]
    sums = sums.masked_fill(~ends, float("-inf"))
    scores = torch.cat([beams.scores, sums / length**settings.length_penalty], 1)
    scores, order = scores.sort(dim=1, descending=True, stable=True)
    n_best = beams.scores.shape[1]
    scores, order = scores[:, :n_best], order[:, :n_best]
    earlier = F.pad(beams.finished, (0, length + 1 - beams.finished.shape[2]), value=PAD)
    both = torch.cat([earlier, _continue(beams.tokens, parents, tokens)], 1)
    return replace(
        beams,
        finished=both.gather(1, order[:, :, None].expand(-1, -1, length + 1)),
        finished_sums=torch.cat([beams.finished_sums, sums], 1).gather(1, order),
        scores=scores,
    )


def _continue(
    beginnings: Int[Tensor, "sentences beam length"],
    parents: Int[Tensor, "sentences n"],
    tokens: Int[Tensor, "sentences n"],
) -> Int[Tensor, "sentences n length+1"]:
    chosen = beginnings.gather(1, parents[:, :, None].expand(-1, -1, beginnings.shape[2]))
    return torch.cat([chosen, tokens[:, :, None]], 2)


def _cannot_improve(beams: _Beams, settings: Decoding) -> Bool[Tensor, " sentences"]:
    """Whether no unfinished hypothesis can still come among the n best (also when there is none left)."""
    penalty = settings.length_penalty
    best_length = beams.limits if penalty > 0 else torch.full_like(beams.limits, beams.tokens.shape[2])
    return ~(beams.sums[:, 0] / best_length**penalty > beams.scores[:, -1])  # so written, NaN stops too


def _collect(beams: _Beams) -> list[tuple[int, list[Hypothesis]]]:
    """The number of each sentence with its finished hypotheses."""
    rows = zip(beams.finished[:, :, 1:].tolist(), beams.scores.tolist(), beams.finished_sums.tolist(), strict=True)
    return list(zip(beams.numbers.tolist(), (_hypotheses(*row) for row in rows), strict=True))


def _hypotheses(finished: list[list[int]], scores: list[float], sums: list[float]) -> list[Hypothesis]:
    hypotheses = []
    for padded, score, total in zip(finished, scores, sums, strict=True):
        if score > float("-inf"):
            tokens = tuple(token for token in padded if token not in (PAD, EOS))
            hypotheses.append(Hypothesis(tokens, score, total, ended=EOS in padded))
    if not hypotheses:
        raise SurdError(NOT_FINITE)
    return hypotheses
