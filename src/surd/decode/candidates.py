"""The best continuations of a beam, exactly, without ever sorting or normalising the vocabulary.

The vocabulary is read once, for its log-sum-exp and for the maximum of each chunk of columns. The best `count`
continuations lie in the `count` chunks with the best maxima, so only those chunks are looked into.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from surd.nn.special import BOS, PAD

CHUNK = 64
"""Columns in a chunk: with fewer, more maxima to choose from; with more, more columns to look into."""

CACHED = 1 << 18
"""Numbers exponentiated at once on a CPU: 1 MiB of them."""

NEVER = [PAD, BOS]
"""Never generated. They keep their share of the probability, so that a score is that of the model as trained."""


def best_continuations(
    logits: Float[Tensor, "sentences*beam vocabulary"], sums: Float[Tensor, "sentences beam"], count: int
) -> tuple[Float[Tensor, "sentences count"], Int[Tensor, "sentences count"], Int[Tensor, "sentences count"]]:
    """The `count` best of all one-token continuations of a sentence: their log-probabilities, parents and tokens.

    Ordered by log-probability; equal ones by parent, then by token id. `logits` is overwritten.
    """
    (sentences, beam), vocabulary = sums.shape, logits.shape[1]
    never = logits[:, NEVER].logsumexp(1)
    logits[:, NEVER] = float("-inf")
    maxima, rest = _read(logits)
    chunks = maxima.shape[1]
    shifts = sums - torch.logaddexp(rest, never).view(sentences, beam)

    ranks = (maxima.view(sentences, beam, chunks) + shifts[:, :, None]).flatten(1)
    chosen = _top(ranks, min(count, beam * chunks)).sort(1).values  # ascending: ties fall to the lower id below as well
    parents = chosen // chunks
    columns = (chosen % chunks * CHUNK)[:, :, None] + torch.arange(CHUNK, device=logits.device)
    places = parents[:, :, None] * vocabulary + columns.clamp(max=vocabulary - 1)
    values = logits.view(sentences, -1).gather(1, places.flatten(1)).view_as(places)
    values = values + shifts.gather(1, parents)[:, :, None]
    values = values.masked_fill(columns >= vocabulary, float("-inf")).flatten(1)

    best = _top(values, count)
    places = places.flatten(1).gather(1, best)
    return values.gather(1, best), places // vocabulary, places % vocabulary


def best_continuations_plainly(
    logits: Float[Tensor, "sentences*beam vocabulary"], sums: Float[Tensor, "sentences beam"], count: int
) -> tuple[Float[Tensor, "sentences count"], Int[Tensor, "sentences count"], Int[Tensor, "sentences count"]]:
    """The same by normalising and sorting everything: several times slower, and easier to believe."""
    shifts = sums.view(-1) - logits.logsumexp(1)
    logits[:, NEVER] = float("-inf")
    values = (logits + shifts[:, None]).view(len(sums), -1)
    values, places = values.sort(dim=1, descending=True, stable=True)
    return values[:, :count], places[:, :count] // logits.shape[1], places[:, :count] % logits.shape[1]


def _read(
    logits: Float[Tensor, "rows vocabulary"],
) -> tuple[Float[Tensor, "rows chunks"], Float[Tensor, " rows"]]:
    """Maximum of each chunk, log-sum-exp of each row; on a CPU of so few rows at once that they stay in its cache."""
    rows, vocabulary = logits.shape
    maxima, normalisers = [], []
    for block in logits.split(max(1, CACHED // vocabulary) if logits.device.type == "cpu" else rows):
        maxima.append(_chunk_maxima(block))
        highest = maxima[-1].amax(1, keepdim=True)
        normalisers.append((block - highest).exp_().sum(1).log_().add_(highest[:, 0]))
    return torch.cat(maxima), torch.cat(normalisers)


def _chunk_maxima(logits: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, "rows chunks"]:
    """The last chunk may be a short one."""
    rows, vocabulary = logits.shape
    whole = vocabulary // CHUNK
    maxima = logits[:, : whole * CHUNK].view(rows, whole, CHUNK).amax(2)
    if vocabulary == whole * CHUNK:
        return maxima
    return torch.cat([maxima, logits[:, whole * CHUNK :].amax(1, keepdim=True)], 1)


def _top(values: Float[Tensor, "rows n"], count: int) -> Int[Tensor, "rows count"]:
    """Where the `count` largest values of each row are, largest first, equal ones in the order they stand in.

    `topk` promises nothing about equal values, and logits computed in bfloat16 are often equal. So it gets integers
    instead: above, the bits of the number (in the order of the numbers once the negative ones are turned round); below,
    how far from the end it stands.
    """
    width = values.shape[1]
    bits = values.view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    from_end = torch.arange(width - 1, -1, -1, device=values.device)
    keys = (ordered.long() << 32) | from_end
    return width - 1 - (keys.topk(count, 1).values & 0xFFFFFFFF)
