"""Recall: the smallest task that attention is for, to find a key and return its value."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from surd.lab.samples import Statistics

SYMBOLS, KEYS, VALUES, WIDTH = 32, 16, 16, 32
BATCH, NEW, STARTS = 128, 4096, 64
SHARP = 0.9
"""A row with a weight above this is called sharp."""


def recall(steps: int, draw: torch.Generator) -> Statistics:
    """Trains an attention of one head on rows of 16 keys with a value each, and looks at rows that it has not seen.

    Tells the share of sharp rows after training, and the shares of sharp rows that point at the right key: after
    training, and before, where the logits of random projections are given a spread of 8.
    """
    starts = [start(draw) for _ in range(STARTS)]  # one alone has its own bent to point at a symbol for itself
    at_start = sum(spread_out(weights, draw) for weights in starts) / STARTS
    weights = starts[0]
    optimizer = torch.optim.Adam([weight.requires_grad_() for weight in weights], lr=0.01)
    for _ in range(steps):
        symbols, values, places = rows(BATCH, draw)
        mixed = scores(weights, symbols, places).softmax(-1)
        # A value counts as one-hot: the weights of all keys that have the wanted value are its probability.
        right = (mixed * (values == values.gather(1, places[:, None]))).sum(-1)
        optimizer.zero_grad()
        right.clamp(min=1e-9).log().mean().neg().backward()
        optimizer.step()
    symbols, _, places = rows(NEW, draw)
    with torch.no_grad():
        sharp, right = sharp_and_right(scores(weights, symbols, places).softmax(-1), places)
    return {"right_at_start": at_start, "sharp": sharp, "right": right}


def start(draw: torch.Generator) -> list[Tensor]:
    """Table and projections of queries and keys of variance 1."""
    shapes = [(SYMBOLS, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH)]
    table, *projections = (torch.randn(*shape, generator=draw) for shape in shapes)
    return [table, *(projection / WIDTH**0.5 for projection in projections)]


def spread_out(weights: list[Tensor], draw: torch.Generator) -> float:
    """The share of sharp rows that point at the right key where logits that mean nothing have a spread of 8."""
    symbols, _, places = rows(NEW // 4, draw)
    logits = scores(weights, symbols, places)
    return sharp_and_right((8 * logits / logits.std()).softmax(-1), places)[1]


def rows(
    count: int, draw: torch.Generator
) -> tuple[Int[Tensor, "count keys"], Int[Tensor, "count keys"], Int[Tensor, " count"]]:
    """Keys (different symbols), their values, and the place of the key that is asked for."""
    symbols = torch.rand(count, SYMBOLS, generator=draw).argsort(-1)[:, :KEYS]
    values = torch.randint(VALUES, (count, KEYS), generator=draw)
    return symbols, values, torch.randint(KEYS, (count,), generator=draw)


def scores(
    weights: list[Tensor], symbols: Int[Tensor, "count keys"], places: Int[Tensor, " count"]
) -> Float[Tensor, "count keys"]:
    """q·k / √d_k of the symbol that is asked for with each key of its row."""
    table, to_query, to_key = weights
    query = table[symbols.gather(1, places[:, None])] @ to_query
    return (query @ (table[symbols] @ to_key).mT)[:, 0] / WIDTH**0.5


def sharp_and_right(weights: Float[Tensor, "count keys"], places: Int[Tensor, " count"]) -> tuple[float, float]:
    """The share of sharp rows, and the share of those that point at the right place."""
    top = weights.max(-1)
    sharp = top.values > SHARP
    right = (top.indices == places)[sharp]
    return sharp.float().mean().item(), right.float().mean().item() if right.numel() else 0.0
