"""Weights as a training sees them: how far an update moves a matrix, which names are one, and whether all is fresh."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from surd.measure.calling.fields import field
from surd.measure.trace.naming import display_path
from surd.measure.watching.vitals import TieVitals, UpdateVitals

NUMBERS = 2048
"""Entries of a matrix that are compared before and after an update."""


def matrices(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """What is trained and has at least two axes; vectors are gains and biases, which may well start at zero."""
    for path, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dim() > 1 and not parameter.is_meta:
            yield display_path(path), parameter


def part(parameter: Tensor) -> Tensor:
    """A sample of its entries, always the same ones; of a sharded one, of the part that is here."""
    local = getattr(parameter, "_local_tensor", parameter).detach()
    # An odd stride is in step with no width that is a power of two, so all columns are met.
    return local.reshape(-1)[:: max(1, local.numel() // NUMBERS) | 1]


class Before:
    """Copies of parts of all matrices, taken before an update: at most `NUMBERS` entries of each."""

    def __init__(self, model: nn.Module, blank: frozenset[str]) -> None:
        self.parts = [(name, p, part(p).clone()) for name, p in matrices(model) if p.grad is not None]
        self.blank = blank

    def updates(self) -> tuple[UpdateVitals, ...]:
        """What the update has changed since."""
        sizes = [torch.stack([_rms(old), _rms(part(p) - old)]) for _, p, old in self.parts]
        return tuple(
            UpdateVitals(
                name=name,
                rms=rms,
                ratio=change / rms if rms else float("nan"),
                blank=name in self.blank,
            )
            for (name, _, _), size in zip(self.parts, sizes, strict=True)
            for rms, change in [size.tolist()]
        )


def blank_matrices(model: nn.Module) -> frozenset[str]:
    """Matrices whose entries are all equal."""
    return frozenset(name for name, p in matrices(model) if p.numel() and bool((part(p) == part(p)[0]).all()))


def gradient_norm(model: nn.Module) -> float | None:
    """Of the whole gradient; None where there is none."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None and not p.grad.is_sparse]
    return float(torch.nn.utils.get_total_norm(gradients)) if gradients else None


def is_fresh(model: nn.Module) -> bool:
    """Whether it has never been trained: the gains of its norms are all still what they were created as.

    Unknown, for a model whose norms have no gains, counts as trained: the wider ranges hold.
    """
    gains = [
        p
        for module in model.modules()
        if "norm" in type(module).__name__.lower()
        for p in module.parameters(recurse=False)
        if p.dim() == 1 and p.numel() > 1 and not p.is_meta
    ]
    return bool(gains) and all(bool((part(p) == part(p)[0]).all()) for p in gains)


def find_ties(model: nn.Module) -> tuple[tuple[str, ...], ...]:
    """Groups of names that are one Parameter now, or that the model's configuration declares to be."""
    groups: dict[int, list[str]] = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(path)
    ties = [tuple(names) for names in groups.values() if len(names) > 1]
    declared = _declared_only(model)
    return (*ties, declared) if declared else tuple(ties)


def read_ties(model: nn.Module, ties: tuple[tuple[str, ...], ...]) -> tuple[TieVitals, ...]:
    """How many Parameters each group is now; a name that is gone is not counted."""
    now = dict(model.named_parameters(remove_duplicate=False)) if ties else {}
    return tuple(
        TieVitals(
            names=tuple(map(display_path, names)), parameters=len({id(now[name]) for name in names if name in now})
        )
        for names in ties
    )


def _declared_only(model: nn.Module) -> tuple[str, str] | None:
    """The table and the head of a model whose configuration says that they are one, when they are not."""
    if field(field(model, "config"), "tie_word_embeddings", False) is not True:
        return None
    try:
        ends = [getattr(model, f"get_{end}_embeddings")().weight for end in ("input", "output")]
    except (AttributeError, NotImplementedError):  # no such method, or one of the two does not exist
        return None
    named = list(model.named_parameters(remove_duplicate=False))
    heads = [path for path, parameter in named if parameter is ends[1]]
    tables = [path for path, parameter in named if parameter is ends[0]]
    # A head that is one with any other matrix is tied: of several tables, that of the decoder.
    broken = len(heads) == 1 and tables and ends[0].shape == ends[1].shape and heads != tables
    return (tables[0], heads[0]) if broken else None


def _rms(x: Tensor) -> Tensor:
    return x.float().square().mean().sqrt()
