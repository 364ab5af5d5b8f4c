"""Drawn: whether weights are still as an initialisation left them, told from singular values and from gains."""

from collections.abc import Iterable
from itertools import islice
from math import sqrt

import torch
from torch import Tensor

EDGE = 1.15
"""Times σ(√rows + √columns): no matrix of independent entries has a larger singular value (Marchenko–Pastur), but for
fluctuations of a few percent at these sizes; a trained one soon has."""
SMALLEST = 16
FEWEST = 8
"""Entries of a gain."""
STEPS = 8
SHARE = 0.75
"""Of the matrices: a table of sinusoids, kept as a parameter, is not drawn either."""
MOST = 32
"""Matrices that are looked at; training moves them all."""
GAINS = (0.2, 5.0)
"""Between these lie all entries of a norm's gain, which starts as ones."""
MIDDLE = (0.5, 1.5)
MOVED = 1e-4
"""Standard deviation of a gain that has learned: a single step of AdamW at the usual rates moves entries by as much."""


@torch.no_grad()
def is_drawn(matrices: Iterable[Tensor]) -> bool:
    """Whether most of the matrices (a sample of them) look drawn at random; also where there is none to judge.

    Entries are centred first: a draw from U(0, 1) is a draw. Rows of zeros, such as that of padding, stand aside.
    """
    ratios = (ratio for matrix in matrices if (ratio := edge_ratio(matrix)) is not None)
    judged = [ratio <= EDGE for ratio in islice(ratios, MOST)]
    return sum(judged) >= SHARE * len(judged)


@torch.no_grad()
def has_learned(vectors: Iterable[Tensor]) -> bool:
    """Whether most gains of norms, of two at least, have entries of their own: no initialisation draws these.

    A few hundred updates move a matrix by less than its draw, so that its singular values tell nothing yet.
    """
    moved = [float(x.float().std()) > MOVED for x in islice(filter(_is_gain, vectors), MOST)]
    return len(moved) > 1 and sum(moved) >= SHARE * len(moved)


def _is_gain(x: Tensor) -> bool:
    if x.dim() != 1 or len(x) < FEWEST or not x.is_floating_point():
        return False
    return GAINS[0] < float(x.min()) and float(x.max()) < GAINS[1] and MIDDLE[0] < float(x.float().mean()) < MIDDLE[1]


def edge_ratio(matrix: Tensor) -> float | None:
    """The largest singular value over σ(√rows + √columns); None for a matrix too small or constant."""
    x = matrix.detach().float()
    if x.dim() != 2 or min(x.shape) < SMALLEST or not bool(x.isfinite().all()):
        return None
    x = x[x.abs().amax(1) > 0][:2048]
    if x.shape[0] < SMALLEST or float(x.std()) == 0:
        return None
    x = x - x.mean()
    # Rows and columns drawn with sizes of their own are drawn all the same.
    x = x / x.square().mean(1, keepdim=True).sqrt().clamp(min=1e-12)
    x = x / x.square().mean(0, keepdim=True).sqrt().clamp(min=1e-12)
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(x.shape[1], generator=generator).to(x.device)
    for _ in range(STEPS):
        vector = x.mT @ (x @ vector)
        vector = vector / vector.norm().clamp(min=1e-30)
    rows, columns = x.shape
    return float((x @ vector).norm()) / (sqrt(rows) + sqrt(columns))
