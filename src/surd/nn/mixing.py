"""What attention does to signals: the sizes of scores, weights and mixed values, and of the gradients back to each.

Letters in products: a and b are two queries, j and k two keys.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from surd.measure.moments import Smooth, normal_series
from surd.measure.signal import Kernel, Signal, Tape
from surd.measure.softmax.gaussian import nearly
from surd.nn.score import soft_cap

SATURATED = 10.0
"""Standard deviation of scores from which gradients are called unknown. Rows are one-hot then: which keys they meet,
and where two scores nearly tie so that a gradient passes, is another matter in each draw."""
Rows = Float[Tensor, " queries"]
Pairs = Float[Tensor, "queries queries"]
Quads = Float[Tensor, "queries queries keys keys"]


class Sight:
    """Which keys each query sees: all, or the first few, so that of two queries one sees all that the other sees."""

    def __init__(self, seen: Float[Tensor, "queries keys"]):
        """`seen` is 1 where a query sees a key, else 0."""
        self.seen, self.counts = seen, seen.sum(1)
        self.share = seen / self.counts[:, None]

    def weights(self, same: Pairs) -> Quads:
        """E p[a,j] p[b,k], where two queries put together the weight `same` on one key, and the rest evenly."""
        common = torch.minimum(self.counts[:, None], self.counts)
        others = (self.counts[:, None] * self.counts - common).clamp(min=1)
        rest = ((1 - same) / others)[..., None, None] * self.seen[:, None, :, None] * self.seen[:, None]
        return rest.diagonal_scatter((same / common)[..., None] * self.seen[:, None] * self.seen, dim1=2, dim2=3)

    def apart(self, products: Kernel | Quads) -> Quads:
        """Products of keys after the mean over the keys that query a sees is taken from j, and b's from k."""
        of_all = products.expand(len(self.seen), len(self.seen), *products.shape[-2:])
        left = of_all - torch.einsum("aj,abjk->abk", self.share, of_all)[:, :, None]
        return left - torch.einsum("bk,abjk->abj", self.share, left)[..., None]

    def spread(self, x: Signal) -> Rows:
        """Variance of a feature among the keys of a query, as independent keys would have it before they are seen."""
        inside = torch.einsum("aajj,aj->a", self.apart(x.products), self.share)
        return inside.clamp(min=0) * self.counts / (self.counts - 1).clamp(min=1)


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Rows of scores at the start, and the way back to queries and keys."""

    squares: Rows
    """Mean squares of a score."""
    within: Rows
    """Variance among the keys of a query: all that a softmax sees."""
    alike: Pairs
    """Correlation of the scores of two queries, but for what a row has in common."""
    back: Callable[[Quads, Quads], None]
    """Takes weights and mean products of values, whose product is that of the gradients of the scores. Those of a row
    add up to 0, so what all keys have in common does not reach the query."""


def scores_of_products(query: Signal, key: Signal, d_k: int, scale: float, sight: Sight, group: int) -> Scores:
    """scale · q·k; `group` queries share a key."""
    squares = scale**2 * d_k * query.squares * (sight.share @ key.squares)

    def back(weights: Quads, values: Quads) -> None:
        keys = sight.apart(key.products)
        # Key and value of a position come from the same features: where those are alike by chance, both are.
        chance = key.chance * _across(values) * _across(keys)
        query.gradients += scale**2 * (weights * (values * keys + chance)).sum((2, 3))
        key.gradients += group * scale**2 * torch.einsum("abjk,ab->jk", weights * values, query.products)

    return Scores(
        squares=squares,
        within=scale**2 * d_k * query.squares * sight.spread(key),
        alike=query.products / _roots(query.squares),
        back=back,
    )


def scores_of_sums(query: Signal, key: Signal, d_k: int, sight: Sight, group: int) -> Scores:
    """Σ w · tanh(q + k), with w of standard deviation 1/√d_k; forwards all pairs of positions are taken to be alike."""
    q, k = query.squares.mean().item(), key.squares.mean().item()
    q_shared, k_shared = _shared(query.products), _shared(key.products)
    # A score with itself, those of two keys with one query, those of two queries with one key, and of neither.
    sums = torch.tensor([q + k, q + k_shared, q_shared + k, q_shared + k_shared], dtype=torch.float64)
    square, keys, queries, neither = normal_series(torch.tanh, (q + k) ** 0.5, sums / (q + k)).tolist()

    def back(weights: Quads, values: Quads) -> None:
        likeness = (query.products[..., None, None] + key.products) / (q + k)
        slopes = normal_series(lambda z: 1 - torch.tanh(z).square(), (q + k) ** 0.5, likeness.clamp(-1, 1)) / d_k
        gradients = weights * values
        query.gradients += (gradients * sight.apart(slopes)).sum((2, 3))
        key.gradients += group * (gradients * slopes).sum((0, 1))

    rows, alike = torch.ones_like(query.squares), (queries - neither) / (square - keys)
    pairs = alike + (1 - alike) * torch.eye(len(rows), dtype=rows.dtype)
    return Scores(squares=square * rows, within=(square - keys) * rows, alike=pairs, back=back)


def capped(scores: Scores, cap: float) -> Scores:
    """cap · tanh(score / cap)."""
    bend = Smooth(lambda z: soft_cap(z, cap))
    squares, within, slopes = [], [], []
    for square, inner in zip(scores.squares.tolist(), scores.within.tolist(), strict=True):
        two_keys = torch.tensor([[square, square - inner], [square - inner, square]], dtype=torch.float64)
        bent = bend.values(two_keys)
        squares.append(bent[0, 0])
        within.append(bent[0, 0] - bent[0, 1])
        slopes.append(bend.slopes(two_keys)[0, 0])
    slope = _roots(torch.stack(slopes))[..., None, None]
    return Scores(
        squares=torch.stack(squares),
        within=torch.stack(within),
        alike=scores.alike,
        back=lambda weights, values: scores.back(weights * slope, values),
    )


def mixed(scores: Scores, value: Signal, d_v: int, sight: Sight, group: int, tape: Tape) -> tuple[Signal, Signal]:
    """The scores as a signal, without what a row has in common, and softmax(scores) V.

    `group` heads of queries share the values. The scores that a query sees are taken for independent normal numbers:
    the sums of their softmax are known exactly.
    """
    rows = zip(scores.within.tolist(), sight.counts.tolist(), strict=True)
    squares, jacobians = torch.tensor([nearly(within**0.5, int(n)) for within, n in rows], dtype=torch.float64).T
    # Σ over keys of p p' for two queries: 1/n if their scores have nothing in common, Σ p² if everything.
    peaked = (squares * sight.counts).log().clamp(min=0)
    same = (scores.alike.clamp(0, 1) * _roots(peaked)).exp() / torch.maximum(sight.counts[:, None], sight.counts)
    weights = sight.weights(same)
    # What two queries put on the same few values is alike by chance as often as two draws of so many numbers are.
    fresh = value.fresh + 1 / max(1.0, sight.counts.mean().item() - 1)
    out = Signal(torch.einsum("abjk,jk->ab", weights, value.products), fresh=fresh)
    shown = Signal((scores.within * (1 - 1 / sight.counts)).diag())

    def back() -> None:
        arriving = out.gradients.where(scores.within.max() < SATURATED**2, float("nan"))
        value.gradients += group * torch.einsum("abjk,ab->jk", weights, arriving)
        # p (g·v - mean) is the whole gradient of a flat row; how much of it a peaked row passes on is known for
        # values that are independent of each other.
        alone = torch.einsum("aajj,aajj->a", weights, sight.apart(torch.eye(len(value.products), dtype=squares.dtype)))
        passed = _roots(jacobians / alone.where(alone > 0, 1)) * d_v * arriving
        passed, values = passed[..., None, None] * weights, sight.apart(value.products)
        shown.gradients += (torch.einsum("aajj,aajj->a", passed, values) / sight.counts).diag()
        scores.back(passed, values)

    return shown, tape.then(out, back)


def _roots(x: Rows) -> Pairs:
    """√(x x')."""
    return (x[:, None] * x).sqrt()


def _across(products: Quads) -> Quads:
    """√(x[j,j] x[k,k])."""
    roots = products.diagonal(dim1=2, dim2=3).clamp(min=0).sqrt()
    return roots[..., None] * roots[..., None, :]


def _shared(products: Kernel) -> float:
    """Mean over pairs of different positions."""
    count = len(products)
    return ((products.sum() - products.diagonal().sum()) / max(1, count * (count - 1))).item()
