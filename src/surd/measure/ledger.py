"""The ledger: at each site of a model, what its parts predict beside what is measured, forwards and backwards."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import isfinite
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surd.measure.calling.inputs import Inputs, tensors
from surd.measure.probe import probe
from surd.measure.signal import Expectation
from surd.measure.sites import Reading, Role, Unseen

LOW, HIGH = 0.85, 1.15
"""Between these a measured size is what was predicted, as far as one draw of the weights can tell."""
SUMMED = (Role.EMBED, Role.SCORE, Role.BRANCH, Role.STREAM, Role.HIDDEN, Role.LOGITS)
"""Roles whose sizes are told in one line."""
COLUMNS = ("site", "forward", "measured", "ratio", "backward", "measured", "ratio")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Something to measure a model on, and what its parts predict of it."""

    inputs: tuple[Any, ...]
    """Arguments of the forward."""
    loss: Callable[[Any], Tensor]
    """The cross-entropy with random labels, summed, of what the forward returns."""
    expected: Mapping[str, Expectation]
    """By the name of the site, in the order of the forward."""


class Telling(nn.Module):
    """A model that knows what its parts do."""

    def trial(self) -> Trial:
        """A small batch of random tokens, and the predictions for it."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Side:
    """One direction at one site: an rms of numbers, or of gradients."""

    predicted: float | None
    """None where nothing is known."""
    measured: float | None
    """None where nothing was seen, or no gradient was asked for."""
    exact: bool
    """Whether the prediction holds for any draw of the weights, and not only in the mean over many."""

    @property
    def ratio(self) -> float | None:
        """Measured over predicted."""
        return self.measured / self.predicted if self.predicted and self.measured is not None else None

    @property
    def off(self) -> bool:
        """Whether the two disagree."""
        return self.ratio is not None and not LOW <= self.ratio <= HIGH

    def cells(self) -> tuple[str, str, str]:
        """Predicted (≈ unless exact), measured and ratio, for a table."""
        mark = "" if self.exact or self.predicted is None else "≈"
        ratio = "–" if self.ratio is None else f"{self.ratio:.2f}{' !' if self.off else ''}"
        return mark + _number(self.predicted), _number(self.measured), ratio


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One site."""

    site: str
    forward: Side
    """Its numbers; of scores, without what all keys of a query have in common."""
    backward: Side
    """Gradients of the cross-entropy, summed over tokens, at its numbers."""


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """All sites in the order of the forward, and what could not be looked at."""

    entries: tuple[Entry, ...]
    unseen: tuple[Unseen, ...]

    @property
    def off(self) -> tuple[Entry, ...]:
        """Sites whose sizes differ from what was predicted."""
        return tuple(entry for entry in self.entries if entry.forward.off or entry.backward.off)

    def summary(self) -> str:
        """One line: typical sizes by role, and how far all of them are from what was predicted."""
        shown = {role: [e.forward.measured for e in self.entries if e.site.endswith(f":{role}")] for role in SUMMED}
        sizes = [f"{role} {_span([x for x in found if x is not None])}" for role, found in shown.items() if any(found)]
        ratios = [
            f"{name} {_span(found)}"
            for name in ("forward", "backward")
            if (found := [x for entry in self.entries if (x := getattr(entry, name).ratio) is not None])
        ]
        predicted = f"; measured over predicted: {', '.join(ratios)}" if ratios else ""
        return f"rms {', '.join(sizes)}{predicted}"

    def __getitem__(self, site: str) -> Entry:
        return next(entry for entry in self.entries if entry.site == site)

    def __str__(self) -> str:
        rows = [COLUMNS, *self._rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            row[0].ljust(widths[0])
            + "".join(cell.rjust(width + 2) for cell, width in zip(row[1:], widths[1:], strict=True))
            for row in rows
        ]
        lines += [f"not seen: {unseen.what}: {unseen.reason}" for unseen in self.unseen]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        head = "".join(f"<th>{escape(column)}</th>" for column in COLUMNS)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self._rows())
        notes = "".join(f"<li>not seen: {escape(f'{unseen.what}: {unseen.reason}')}</li>" for unseen in self.unseen)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><ul>{notes}</ul>"

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for entry in self.entries:
            yield (entry.site, *entry.forward.cells(), *entry.backward.cells())


def ledger(model: nn.Module, inputs: Inputs | None = None, loss: Callable[[Any], Tensor] | None = None) -> Ledger:
    """Measures a model, which is left exactly as it was, and sets beside it what its parts predict of its start.

    A model of ours is measured on random tokens, for which its parts predict every site; another model has no
    predictions, and is measured on `inputs`, or on what its signature asks for. `loss` makes a number of what the
    forward returns, for the gradients; without it that is the cross-entropy with random labels of what looks like
    logits: the first output, where its last axis is as long as an embedding has rows.
    """
    trial = model.trial() if inputs is None and isinstance(model, Telling) else None
    if trial is not None:
        inputs, loss = trial.inputs, trial.loss
    trace = probe(model, inputs, loss or _guessed(model))
    expected = trial.expected if trial else {}
    measured = {reading.site.name.replace(":cross ", ":"): reading for reading in trace.readings}
    names = [*measured, *(name for name in expected if name not in measured)]
    return Ledger(
        entries=tuple(_entry(name, expected.get(name), measured.get(name)) for name in names), unseen=trace.unseen
    )


def _entry(name: str, told: Expectation | None, read: Reading | None) -> Entry:
    return Entry(
        site=name,
        forward=Side(
            predicted=told.forward if told else None,
            measured=read.rms if read else None,
            exact=told.exact if told else False,
        ),
        backward=Side(predicted=told.backward if told else None, measured=read.gradient if read else None, exact=False),
    )


def _guessed(model: nn.Module) -> Callable[[Any], Tensor] | None:
    """The cross-entropy with random labels of what looks like logits; None for a model without embeddings."""
    rows = {module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)}

    def loss(output: Any) -> Tensor:
        first = next(tensors(output))
        if first.dim() < 2 or first.shape[-1] not in rows:
            return first.new_zeros(())
        generator = torch.Generator().manual_seed(0)
        labels = torch.randint(first.shape[-1], first.shape[:-1], generator=generator).flatten()
        return F.cross_entropy(first.flatten(0, -2).float(), labels.to(first.device), reduction="sum")

    return loss if rows else None


def _span(values: Sequence[float]) -> str:
    """From the smallest to the largest."""
    low, high = f"{min(values):.2g}", f"{max(values):.2g}"
    return low if low == high else f"{low}–{high}"


def _number(value: float | None) -> str:
    """Three digits; a dash where there is none."""
    if value is None or not isfinite(value):
        return "–"
    return f"{value:.3g}"
