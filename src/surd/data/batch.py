"""Batches: pairs of like length together, at most so many padded tokens a side, never a padded tensor."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from surd.errors import Faults
from surd.nn.ragged import Ragged


@dataclass(frozen=True, kw_only=True)
class Batching:
    """How pairs, or windows of running text, are put together for one step."""

    tokens: int = 8192
    """At most this many padded tokens a side: rows x longest, counted for the source and for the target."""
    pool: int = 1_000_000
    """How many pairs or windows are sorted by length together; a larger pool means less padding and more memory."""

    def __post_init__(self) -> None:
        faults = [
            f"{name}: expected at least 1, found {value}"
            for name, value in (("tokens", self.tokens), ("pool", self.pool))
            if value < 1
        ]
        if faults:
            raise Faults(faults)


@dataclass(frozen=True)
class Batch:
    """The pairs of one forward pass."""

    source: Ragged
    """Source tokens, each sequence closed by EOS."""
    target: Ragged
    """What the decoder reads: BOS, then the target tokens."""
    labels: Tensor
    """What the decoder should say, flat as `target.tokens`: the target tokens, then EOS."""
    numbers: tuple[int, ...]
    """The number of each pair in the prepared data."""

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def inputs(self) -> tuple[Ragged, Ragged]:
        """What a model reads."""
        return self.source, self.target

    @property
    def tokens(self) -> int:
        """Real tokens on both sides, without padding."""
        return self.source.tokens.numel() + self.target.tokens.numel()

    def to(self, device: torch.device) -> "Batch":
        return Batch(self.source.to(device), self.target.to(device), self.labels.to(device), self.numbers)


def by_length(source: np.ndarray, target: np.ndarray, tie: np.ndarray) -> np.ndarray:
    """An order of the pairs in which neighbours are of like length on both sides; `tie` decides among equals.

    The longer side rises; within one such length the difference of the sides rises and falls in turn, like a snake, so
    that a batch which reaches into the next length meets no jump on the shorter side. On pairs of English and German
    this leaves less than half the padding of sorting by target, then source.
    """
    longest = np.maximum(source, target).astype(np.int64)
    difference = source.astype(np.int64) - target
    return np.lexsort((tie, np.where(longest % 2 == 0, difference, -difference), longest))


def cut(source: np.ndarray, target: np.ndarray, tokens: int) -> np.ndarray:
    """Where to cut pairs of these lengths, in this order, so that rows x longest stays within `tokens` on each side.

    Returns the bounds: batch i holds pairs `bounds[i]` to `bounds[i + 1]`. A pair longer than `tokens` stands alone.
    """
    bounds, start, pairs = [0], 0, len(source)
    while start < pairs:
        reach = start + max(1, tokens // max(int(source[start]), int(target[start]), 1))
        rows = np.arange(1, min(reach, pairs) - start + 1)
        widest = np.maximum.accumulate(np.maximum(source[start:reach], target[start:reach]))
        fitting = int(np.searchsorted(rows * widest, tokens, side="right"))
        start += max(1, fitting)
        bounds.append(start)
    return np.array(bounds)


def blocks(pairs: int, pool: int, random: np.random.Generator) -> Iterator[np.ndarray]:
    """Cuts the numbers 0 … pairs - 1 into pools of about `pool`, each made of many blocks from all over the corpus.

    Blocks are runs of neighbours, so a corpus larger than memory is read in pieces rather than line by line; their
    bounds and their order are drawn anew from `random`.
    """
    if pairs <= pool:
        yield np.arange(pairs)
        return
    block = max(1, pool // BLOCKS_A_POOL)
    shift = int(random.integers(block))
    bounds = np.unique(np.concatenate(([0, pairs], np.arange(shift, pairs, block))))
    order = random.permutation(len(bounds) - 1)
    for group in np.array_split(order, -(-pairs // pool)):
        yield np.concatenate([np.arange(bounds[number], bounds[number + 1]) for number in group])


BLOCKS_A_POOL = 64
