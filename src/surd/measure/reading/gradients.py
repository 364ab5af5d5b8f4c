"""Gradients: how large the gradient of a loss is at every place that a forward has shown."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from surd.measure.sites import Reading, Role
from surd.measure.tensors import rms
from surd.measure.trace.calls import Size
from surd.measure.trace.graph import before_copies


def read_gradients(loss: Tensor, sizes: Sequence[Size]) -> list[Reading]:
    """Adds to each rms that of the loss's gradient, from one backward pass; 0 where the loss does not depend on it.

    No parameter is given a gradient. None for what stands outside the graph.
    """
    edges = {number: edge for number, size in enumerate(sizes) if (edge := _edge(size)) is not None}
    found: dict[int, Tensor | None] = {}
    if loss.requires_grad and edges:
        gradients = torch.autograd.grad(loss, list(edges.values()), retain_graph=True, allow_unused=True)
        found = dict(zip(edges, gradients, strict=True))
    return [
        Reading(site=size.site, rms=size.seen.rms, gradient=_rms(found[number], size) if number in found else None)
        for number, size in enumerate(sizes)
    ]


def _edge(size: Size) -> GradientEdge | None:
    """Keys and values that several heads share are counted once."""
    if size.seen.place is None:
        return None
    shared = size.site.role in (Role.KEY, Role.VALUE)
    return before_copies(size.seen.place) if shared else size.seen.place.edge


def _rms(gradient: Tensor | None, size: Size) -> float:
    """Over the entries that count; all others have no gradient."""
    return 0.0 if gradient is None or not size.seen.share else rms(gradient) / size.seen.share**0.5
