"""Tokens: which ids that a forward looks up are tokens, and not positions, distances or segments."""

from collections.abc import Sequence

import torch
from torch import Tensor


def tells_tokens(ids: Tensor, given: Sequence[Tensor]) -> bool:
    """Whether ids are tokens rather than positions, distances or segments.

    These are the same in every row, or have other rows than what the model was given. Ids without rows are compared.
    """
    if ids.dim() > 1 and ids.shape[0] > 1 and ids.shape[-1] > 1:
        rows = any(other.dim() > 1 and other.shape[0] == ids.shape[0] for other in given)
        differ = bool((ids != ids[:1]).any()) and bool((ids != ids[..., :1]).any())
        return (rows or turned(ids, given)) and differ and not _counted(ids, given)
    return any(ids.numel() == other.numel() and torch.equal(ids.flatten(), other.flatten()) for other in given)


def _counted(ids: Tensor, given: Sequence[Tensor]) -> bool:
    """Whether ids are places beside padding: rows count up by one from the same number, padding has an id of its own.

    Tokens may count up too: those are the only ids that the model was given.
    """
    if ids.dim() != 2 or not _count_up(ids):
        return False
    same = any(other.shape == ids.shape and torch.equal(other, ids) for other in given)
    return not same or any(
        other.shape == ids.shape and int(other.max()) > 1 and not _count_up(other) for other in given
    )


def _count_up(ids: Tensor) -> bool:
    before, after = ids[:, :-1], ids[:, 1:]
    fill = after[after == before].unique()
    if len(fill) != 1 or not bool((ids != fill).any()):
        return False
    first = ids[ids != fill].min()
    return bool(((after == before + 1) | (after == fill) | ((before == fill) & (after == first))).all())


def turned(ids: Tensor, given: Sequence[Tensor]) -> bool:
    """Whether ids stand as (positions, rows), the other way round than the model was given them."""
    shapes = {tuple(other.shape) for other in given}
    return ids.dim() == 2 and tuple(ids.shape) not in shapes and tuple(ids.mT.shape) in shapes
