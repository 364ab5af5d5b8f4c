"""What attention does to signals: the sizes of scores, weights and mixed values, and of the gradients back to each.

Letters in products: a and b are two queries, j and k two keys.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from surd.measure.gaussian import nearly
from surd.measure.moments import Smooth
from surd.measure.signal import Kernel, Signal, Tape
from surd.nn.score import soft_cap

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

    def apart(self, products: Kernel) -> Quads:
        """Products of keys after the mean over the keys that query a sees is taken from j, and b's from k."""
        mean = self.share @ products
        both = mean @ self.share.T
        return products - mean[:, None, None, :] - mean[:, :, None] + both[..., None, None]

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
    """Takes weights and mean products of values, whose product is that of the gradients of the scores."""


def scores_of_products(
    query: Signal, key: Signal, d_k: int, width: int, scale: float, sight: Sight, group: int
) -> Scores:
    """scale · q·k; `group` queries share a key, which is projected from `width` features."""
    squares = scale**2 * d_k * query.squares * (sight.share @ key.squares)

    def back(weights: Quads, values: Quads) -> None:
        # The gradients of a row add up to 0, so what all keys have in common does not reach the query.
        keys = sight.apart(key.products)
        # Key and value of a position come from the same features: of a finite number, or of the same token, even
        # independent ones look alike now and then.
        chance = (1 / width + key.chance) * _across(values) * _across(keys)
        query.gradients += scale**2 * (weights * (values * keys + chance)).sum((2, 3))
        key.gradients += group * scale**2 * torch.einsum("abjk,ab->jk", weights * values, query.products)

    return Scores(
        squares=squares,
        within=scale**2 * d_k * query.squares * sight.spread(key),
        alike=query.products / _roots(query.squares),
        back=back,
    )


def scores_of_sums(query: Signal, key: Signal, d_k: int, sight: Sight, group: int) -> Scores:
    """Σ w · tanh(q + k), with w of standard deviation 1/√d_k; all pairs of positions are taken to be alike."""
    bend = Smooth(torch.tanh)
    q, k = query.squares.mean().item(), key.squares.mean().item()
    q_shared, k_shared = _shared(query.products), _shared(key.products)

    def shared(kind: Callable[[Tensor], Tensor]) -> tuple[float, ...]:
        """Mean products: of a score with itself, of two keys' with one query, of two queries' with one key, else."""
        of_two = [q + k, q + k_shared, q_shared + k, q_shared + k_shared]
        return tuple(kind(torch.tensor([[q + k, x], [x, q + k]], dtype=torch.float64))[0, 1].item() for x in of_two)

    square, keys, queries, neither = shared(bend.values)

    def back(weights: Quads, values: Quads) -> None:
        gradients = weights * values
        same, two_keys, two_queries, else_ = shared(bend.slopes)
        one_query = torch.eye(gradients.shape[0], dtype=gradients.dtype)[..., None, None]
        one_key = torch.eye(gradients.shape[2], dtype=gradients.dtype)
        slopes = else_ + (two_keys - else_) * one_query + (two_queries - else_) * one_key
        sent = gradients * (slopes + (same - two_keys - two_queries + else_) * one_query * one_key) / d_k
        query.gradients += sent.sum((2, 3))
        key.gradients += group * sent.sum((0, 1))

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
    out = Signal(torch.einsum("abjk,jk->ab", weights, value.products))
    shown = Signal((scores.within * (1 - 1 / sight.counts)).diag())

    def back() -> None:
        value.gradients += group * torch.einsum("abjk,ab->jk", weights, out.gradients)
        # p (g·v - mean) is the whole gradient of a flat row; how much of it a peaked row passes on is known for
        # values that are independent of each other.
        alone = torch.einsum("aajj,aajj->a", weights, sight.apart(torch.eye(len(value.products), dtype=squares.dtype)))
        passed = _roots(jacobians / alone.where(alone > 0, 1)) * d_v * out.gradients
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
