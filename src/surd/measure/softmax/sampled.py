"""Attention statistics of a sample of rows: cheap enough for a training, exact for the rows that are read."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from surd.measure.softmax.rows import RAW, Space, float_sums, merge, read, sum_block
from surd.measure.softmax.statistics import DEAD, FEWEST_KEYS

SENTENCES = 4
ROWS = 32
"""Of each head in each sentence. 128 rows a head: the standard error of an entropy over ln n is below 0.003."""
UNITS = 32
"""How many pairs of sentence and head are read where the two cannot be told apart."""
TILE = 2**22
"""Logits that are held at once."""
FILL = -5e3
"""Whatever is lower was put there to hide a key: the smallest fill in use is -1e4."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Means over the sampled rows, one a head; NaN where no row sees enough keys."""

    rows: int
    largest: Float[Tensor, ""]
    """Of all rows, also those that see few keys."""
    std: Float[Tensor, " heads"]
    entropy: Float[Tensor, " heads"]
    dead: Float[Tensor, " heads"]


@torch.no_grad()
def read_logits(
    logits: Float[Tensor, "batch heads queries keys"],
    constant: Float[Tensor, "batch heads queries keys"] | None,
    units: bool = False,
) -> Reading:
    """Of what a softmax reads; `constant` is the share of it that no weight can change, such as a mask.

    `units`: sentences could not be told from heads, and all stand on the axis of the heads.
    """
    batch, heads, queries, keys = logits.shape
    rows = torch.tensor(_spread(queries, ROWS), device=logits.device)
    chosen = torch.tensor(_spread(heads, UNITS if units else heads), device=logits.device)
    tiles = []
    for sentences in _groups(batch, len(chosen) * len(rows) * keys, logits.device):
        places = (sentences[:, None, None], chosen[:, None], rows)
        whole = logits[places].float()
        content = whole
        if constant is not None:
            added = constant[places].float()
            content = whole - added.masked_fill(added <= FILL, 0.0)
        tiles.append(_read(whole, content, rows if queries == keys else None))
    return _summary(tiles)


@torch.no_grad()
def read_products(
    query: Float[Tensor, "batch heads queries d_k"],
    key: Float[Tensor, "batch key_heads keys d_k"],
    scale: float,
    mask: Tensor | None,
    causal: bool,
) -> Reading:
    """Of softmax(scale · Q Kᵀ + mask), as in torch's fused attention: query t of a `causal` one sees keys 0 … t."""
    (batch, heads, queries, _), (_, shared, keys, _) = query.shape, key.shape
    key = key.expand(batch, -1, -1, -1)
    rows = torch.tensor(_spread(queries, ROWS), device=query.device)
    tiles = []
    for sentences in _groups(batch, heads * len(rows) * keys, query.device):
        left = query[sentences][:, :, rows].float().mul_(scale).unflatten(1, (shared, -1)).flatten(2, 3)
        content = (left @ key[sentences].float().mT).view(len(sentences), heads, len(rows), keys)
        added = None
        if mask is not None:
            added = _part(mask, sentences, rows)
            if mask.requires_grad:  # a learned bias is part of what training changes
                content, added = content + added, None
        if causal:
            future = torch.arange(keys, device=query.device) > rows[:, None]
            hidden = torch.zeros(future.shape, device=query.device).masked_fill_(future, float("-inf"))
            added = hidden if added is None else added + hidden
        whole = content if added is None else content + added
        tiles.append(_read(whole, content, rows if queries == keys else None))
    return _summary(tiles)


def _spread(length: int, most: int) -> list[int]:
    """At most so many numbers below `length`, evenly spread, the first and the last among them."""
    if length <= most:
        return list(range(length))
    return [round(number * (length - 1) / (most - 1)) for number in range(most)]


def _groups(batch: int, logits: int, device: torch.device) -> Iterator[Tensor]:
    """The sentences to be read, as many at once as fit; `logits` is what each of them takes."""
    chosen = _spread(batch, SENTENCES)
    step = max(1, TILE // max(1, logits))
    for start in range(0, len(chosen), step):
        yield torch.tensor(chosen[start : start + step], device=device)


def _part(mask: Tensor, sentences: Tensor, rows: Tensor) -> Float[Tensor, "#sentences #heads #rows keys"]:
    """Some rows of a mask that broadcasts to (batch, heads, queries, keys), as numbers to be added."""
    part = mask[(None,) * (4 - mask.dim())]
    part = part[sentences] if part.shape[0] > 1 else part
    part = part[:, :, rows] if part.shape[2] > 1 else part
    if part.dtype == torch.bool:
        return torch.zeros(part.shape, device=part.device).masked_fill(~part, float("-inf"))
    return part.float()


def _read(
    logits: Float[Tensor, "sentences heads rows keys"],
    content: Float[Tensor, "sentences heads rows keys"],
    own: Tensor | None,
) -> dict[str, Tensor]:
    """Statistics of every row. `own` is the key of each query, where both are the same positions."""
    keys = logits.shape[-1]
    hidden = logits <= FILL
    blind = hidden.all(-1)
    largest = content.masked_fill(hidden, float("-inf")).amax(-1).masked_fill(blind, 0.0).abs().amax()
    tile = logits.masked_fill(hidden, float("-inf")).contiguous()
    rows = blind.numel()
    raw = tile.new_empty(RAW, 1, rows)
    sum_block(tile[None], hidden[None], Space(tile.numel(), tile), raw[:, 0])
    values = {name: value.view(blind.shape) for name, value in read(merge(float_sums(raw))).items()}
    seen = keys - hidden.sum(-1)
    valid = seen >= FEWEST_KEYS
    if own is not None:
        itself = ~hidden[:, :, torch.arange(len(own), device=own.device), own]
        # A position that may not look at itself is padding: nothing trains its row.
        valid &= itself | ~itself.flatten(1).any(-1)[:, None, None]
    norm = values["jacobian_norm"]
    return {
        "valid": valid,
        "largest": largest,
        "std": values["variance"].sqrt(),
        "entropy": values["entropy"] / seen.clamp(min=2).log().to(norm.device),
        "dead": torch.where(norm.isnan(), norm, norm < DEAD),
    }


def _summary(tiles: list[dict[str, Tensor]]) -> Reading:
    valid = torch.cat([tile["valid"] for tile in tiles])
    count = valid.sum((0, 2))

    def mean(name: str) -> Tensor:
        values = torch.cat([tile[name] for tile in tiles])
        return values.masked_fill(~valid.to(values.device), 0.0).sum((0, 2)).float() / count.to(values.device)

    largest = torch.stack([tile["largest"] for tile in tiles]).amax()
    return Reading(rows=int(count.sum()), largest=largest, std=mean("std"), entropy=mean("entropy"), dead=mean("dead"))
