"""Exact statistics of attention, a row at a time, in one pass over the keys: no matrix of weights is ever held."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import accumulate

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from surd.measure.softmax.flat_rows import FlatHeads, flat_sums, sum_flat
from surd.measure.softmax.logits import Logits, Tile, plan, prepare
from surd.measure.softmax.rows import Space, Sums, empty_raw, float_sums, in_float64, merge, read, sum_block

DEAD = 0.01
"""A row whose Jacobian has a smaller norm than this passes no gradient worth the name."""
FEWEST_KEYS = 8
"""Rows with fewer visible keys are left out of summaries: they are peaked whatever the logits are."""
# Block sums that wait to be merged: enough to make the merging cheap, few enough never to matter.
WAITING = 2**17


@dataclass(frozen=True, kw_only=True)
class AttentionStatistics:
    """What the softmax of each row does: p its probabilities, n its visible keys, J = diag(p) − p pᵀ its Jacobian.

    A row without a visible key has NaN everywhere and `keys` 0. Logits are as the softmax sees them: scaled, capped,
    with what the mask adds.
    """

    keys: Int[Tensor, "batch heads queries"]
    """n."""
    max: Float[Tensor, "batch heads queries"]
    """The largest logit."""
    log_sum_exp: Float[Tensor, "batch heads queries"]
    """ln Σ exp(logit)."""
    mean: Float[Tensor, "batch heads queries"]
    """Mean of the logits over the visible keys, each counting alike."""
    variance: Float[Tensor, "batch heads queries"]
    """Their population variance."""
    first: Float[Tensor, "batch heads queries"]
    """p of key 0, where attention sinks are (Xiao et al. 2023, arXiv 2309.17453)."""
    top: Float[Tensor, "batch heads queries"]
    """The largest p."""
    entropy: Float[Tensor, "batch heads queries"]
    """−Σ p ln p, in nats: ln n for a uniform row, 0 for a one-hot one."""
    square_sum: Float[Tensor, "batch heads queries"]
    """Σ p²: the output's mean square over that of independent values."""
    cube_sum: Float[Tensor, "batch heads queries"]
    """Σ p³."""
    score_variance: Float[Tensor, "batch heads queries"]
    """Variance of the logits under p: by how much the entropy falls for a relative growth of the scale."""
    trace: Float[Tensor, "batch heads queries"]
    """tr J = 1 − Σ p²."""
    jacobian_norm: Float[Tensor, "batch heads queries"]
    """Frobenius norm of J: rms gain of an isotropic gradient; at most 1/2, at two equal keys."""

    @property
    def effective_keys(self) -> Float[Tensor, "batch heads queries"]:
        """1 / Σ p²: as many keys with equal weights would mix as much."""
        return 1 / self.square_sum

    @property
    def normalised_entropy(self) -> Float[Tensor, "batch heads queries"]:
        """Entropy / ln n, from 0 (one-hot) to 1 (uniform); NaN where n < 2."""
        return self.entropy / self._choices.log()

    @property
    def normalised_trace(self) -> Float[Tensor, "batch heads queries"]:
        """tr J / (1 − 1/n), from 0 (one-hot) to 1 (uniform); NaN where n < 2."""
        return self.trace / (1 - 1 / self._choices)

    @property
    def dead(self) -> Bool[Tensor, "batch heads queries"]:
        """Whether the row's Jacobian is so small that no gradient passes."""
        return self.jacobian_norm < DEAD

    @property
    def _choices(self) -> Tensor:
        keys = self.keys.to(self.entropy.dtype)
        return keys.masked_fill(keys < 2, float("nan"))


NAMES = tuple(field.name for field in fields(AttentionStatistics))


@torch.no_grad()
def attention_statistics(
    query: Float[Tensor, "batch heads queries d_k"],
    key: Float[Tensor, "batch key_heads keys d_k"],
    *,
    scale: float | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    cap: float | None = None,
    block: tuple[int, int] | None = None,
) -> AttentionStatistics:
    """Statistics of softmax(cap · tanh(scale · Q Kᵀ / cap) + mask), exact, in memory that grows with the rows alone.

    `scale` is 1/√d_k when None. Heads that share keys lie beside each other. A bool `mask` shows keys where True, a
    float one is added and hides where it is -inf; one number that is merely very low counts as a logit. `causal`: the
    queries are the last positions of the keys, and none sees a later one. `block` (queries, keys) is the size of a
    tile; it does not change the result. Computes in fp32, or in float64 where an input is float64, under autocast too.
    """
    logits = prepare(query, key, scale, mask, causal, cap)
    width, tiles = plan(logits, block)
    statistics = logits.key.new_empty(len(NAMES), *logits.query.shape[:4])
    with torch.autocast(query.device.type, enabled=False):
        walk = _Walk(logits, width, tiles)
        for panel in _panels(logits, tiles, walk.blocks):
            ends = list(accumulate(logits.rows(tile) for tile in panel))
            places = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
            raw = empty_raw(walk.blocks, ends[-1], logits.key)
            flat, first = torch.zeros_like(raw[0], dtype=torch.bool), raw[1, 0].clone()
            for tile, place in zip(panel, places, strict=True):
                count = walk.sum(tile, raw[:, :, place], first[place])
                flat[:count, place] = True
            values = _statistics(_sums(raw, flat, width), in_float64(first))
            for tile, place in zip(panel, places, strict=True):
                target = statistics[:, tile.batch, tile.heads, :, tile.queries]
                target.copy_(values[:, place].view(target.shape))
    by_name = dict(zip(NAMES, statistics.flatten(2, 3), strict=True))
    return AttentionStatistics(**(by_name | {"keys": by_name["keys"].long()}))


class _Walk:
    """Goes over the keys of one tile after another, in few passes where rows are flat."""

    def __init__(self, logits: Logits, width: int, tiles: list[Tile]):
        self.logits, self.width = logits, width
        self.blocks = max(1, -(-logits.key.shape[2] // width))
        self.space = Space(max((logits.rows(tile) for tile in tiles), default=0) * width, logits.key)
        self.heads: FlatHeads | None = None
        """Of the sentences and heads that `at` tells; None where others of their rows were not flat."""
        self.at: tuple[int, int] | None = None

    def sum(self, tile: Tile, raw: Float[Tensor, "raw blocks rows"], first: Float[Tensor, " rows"]) -> int:
        """Writes the numbers of each block of keys, and the logit of key 0; how many of the first were flat."""
        flat, until = self._sum_flat(tile, raw, first), self.logits.until(tile)
        if flat * self.width >= until:
            return flat
        query = self.logits.scaled_query(tile)
        for block in range(flat, -(-until // self.width)):
            keys = slice(block * self.width, min((block + 1) * self.width, until))
            filled, hidden = self.logits.fill(query, tile, keys, self.space)
            if block == 0:
                first.copy_(filled[..., 0].flatten())
            sum_block(filled, hidden, self.space, raw[:, block])
        return flat

    def _sum_flat(self, tile: Tile, raw: Tensor, first: Tensor) -> int:
        count = self.logits.open(tile) // self.width
        if not count:
            return 0
        at = tile.batch.start, tile.heads.start
        if self.at != at:
            self.at, self.heads = at, FlatHeads.of(*self.logits.heads(tile), self.width)
        if self.heads is None or not sum_flat(self.heads, tile.queries, self.space, raw[:, :count]):
            self.heads = None
            return 0
        first.copy_(self.heads.first[:, :, tile.queries].flatten())
        return count


def _sums(raw: Tensor, flat: Bool[Tensor, "blocks rows"], width: int) -> Sums:
    """What was written, whichever way."""
    if flat.all():
        return flat_sums(raw, width)
    sums = float_sums(raw)
    if flat.any():
        chosen = zip(flat_sums(raw, width), sums, strict=True)
        sums = Sums(*(torch.where(flat.to(ours.device), ours, other) for ours, other in chosen))
    return sums


def _statistics(sums: Sums, first: Tensor) -> Float[Tensor, "statistics rows"]:
    merged = merge(sums)
    values = read(merged)
    values |= {"keys": merged.keys, "first": (first - values["log_sum_exp"]).exp()}
    return torch.stack([values[name] for name in NAMES])


def _panels(logits: Logits, tiles: list[Tile], blocks: int) -> Iterator[list[Tile]]:
    """Tiles whose block sums are merged together: a merge is many small calls, one tile would not be worth them."""
    panel: list[Tile] = []
    rows = 0
    for tile in tiles:
        if panel and (rows + logits.rows(tile)) * blocks > WAITING:
            yield panel
            panel, rows = [], 0
        panel.append(tile)
        rows += logits.rows(tile)
    if panel:
        yield panel


@dataclass(frozen=True, kw_only=True)
class HeadSummary:
    """One number a head for each statistic, by its name, over the rows that see enough keys; NaN where none does."""

    rows: Int[Tensor, " heads"]
    """How many rows that are."""
    mean: dict[str, Float[Tensor, " heads"]]
    """Means; of `dead`, the share of dead rows."""
    median: dict[str, Float[Tensor, " heads"]]
    """Medians: gradients are heavy-tailed over rows, and a few of them make the mean."""


DERIVED = ("effective_keys", "normalised_entropy", "normalised_trace", "dead")


def summarise(statistics: AttentionStatistics, fewest_keys: int = FEWEST_KEYS) -> HeadSummary:
    """Means and medians a head, over all sentences' rows with at least `fewest_keys` visible keys.

    A row whose logits are not finite makes its head's numbers NaN, rather than being left out unseen.
    """
    chosen = [keys >= fewest_keys for keys in statistics.keys.unbind(1)]
    mean, median = {}, {}
    for name in (*NAMES, *DERIVED):
        by_head = getattr(statistics, name).to(statistics.entropy.dtype).unbind(1)
        rows = [values[among] for values, among in zip(by_head, chosen, strict=True)]
        mean[name] = torch.stack([values.mean() for values in rows])
        median[name] = torch.stack([_median(values) for values in rows])
    return HeadSummary(rows=torch.stack([among.sum() for among in chosen]), mean=mean, median=median)


def _median(values: Float[Tensor, " rows"]) -> Float[Tensor, ""]:
    if not values.numel() or values.isnan().any():
        return values.new_tensor(float("nan"))
    ordered = values.sort().values  # torch.median takes the lower of the two in the middle
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
