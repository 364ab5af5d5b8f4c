"""Drawn: whether matrices are still as an initialisation drew them, told from their largest singular values."""

from collections.abc import Iterable
from itertools import islice
from math import sqrt

import torch
from torch import Tensor

EDGE = 1.15
"""Times σ(√rows + √columns): no matrix of independent entries has a larger singular value (Marchenko–Pastur), but for
fluctuations of a few percent at these sizes; a trained one soon has."""
SMALLEST = 16
STEPS = 8
SHARE = 0.75
"""Of the matrices: a table of sinusoids, kept as a parameter, is not drawn either."""
MOST = 32
"""Matrices that are looked at; training moves them all."""


@torch.no_grad()
def is_drawn(matrices: Iterable[Tensor]) -> bool:
    """Whether most of the matrices (a sample of them) look drawn at random; also where there is none to judge.

    Entries are centred first: a draw from U(0, 1) is a draw. Rows of zeros, such as that of padding, stand aside.
    """
    ratios = (ratio for matrix in matrices if (ratio := edge_ratio(matrix)) is not None)
    judged = [ratio <= EDGE for ratio in islice(ratios, MOST)]
    return sum(judged) >= SHARE * len(judged)


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
