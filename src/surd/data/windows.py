"""Windows of running text: documents cut into pieces of a context, read as batches that follow from seed and epoch.

A document is a first token and the tokens that are to be predicted. A window reads `context` tokens and predicts the
one behind each of them; the next window begins where it ended. So every token is predicted exactly once, from those
before it in its own window. For training, the cuts of a whole text are shifted anew in every epoch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from surd.data.batch import Batch, Batching, blocks, by_length, cut
from surd.data.documents import About, Documents
from surd.data.text import TextReport
from surd.errors import SurdError
from surd.files import read_json, write_json
from surd.nn.ragged import Ragged
from surd.part import structure, unstructure
from surd.seed import derive

FORMAT = 1
INDEX = "prepared.json"
RELEASE_EVERY = 256
"""Batches after which the memory of mapped files is given back."""


@dataclass(frozen=True)
class WindowBatch:
    """The windows of one forward pass."""

    text: Ragged
    """What a model reads."""
    labels: Tensor
    """What follows each token, flat as `text.tokens`."""

    def __len__(self) -> int:
        return len(self.text)

    @property
    def inputs(self) -> tuple[Ragged]:
        """What a model reads."""
        return (self.text,)

    @property
    def tokens(self) -> int:
        """Tokens that are predicted."""
        return self.labels.numel()

    def to(self, device: torch.device) -> "WindowBatch":
        return WindowBatch(self.text.to(device), self.labels.to(device))


Material = Batch | WindowBatch
"""What a training learns from at once, of pairs or of running text: what a model reads, and what it should say."""


@dataclass(frozen=True)
class Cuts:
    """Windows: for each the place of its first token, and how many tokens it reads."""

    begins: np.ndarray
    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.begins)


def cut_documents(starts: Int[np.ndarray, " documents+1"], context: int, shift: int = 0) -> Cuts:
    """The windows of documents that lie between `starts`; the first one of each reads `shift` tokens when that is set.

    Every token of a document but its first is behind a token of exactly one window.
    """
    predicted = np.diff(starts) - 1
    first = np.minimum(shift or context, predicted)
    counts = 1 + -(-(predicted - first) // context)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)  # of each window in its document
    predicted, first, begins = (np.repeat(each, counts) for each in (predicted, first, starts[:-1]))
    within = np.where(number == 0, 0, first + (number - 1) * context)
    lengths = np.where(number == 0, first, np.minimum(context, predicted - within))
    return Cuts(begins + within, lengths)


class Windows:
    """A prepared text: training batches and held-out batches."""

    units: ClassVar[tuple[str, str]] = ("windows", "held-out windows")
    """What `sequences` and `held_out_sequences` count."""

    def __init__(self, folder: Path | str, context: int) -> None:
        folder = Path(folder)
        about = read_json(folder / INDEX)
        if about.get("format", FORMAT + 1) > FORMAT:
            raise SurdError(f"{folder / INDEX}: written by a newer surd (format {about.get('format')}); update surd.")
        try:
            self._train = Documents(folder, "train", structure(About, about["train"]))
            self.held_out = Documents(folder, "held_out", structure(About, about["held_out"]))
            self.report = structure(TextReport, about["report"])
        except (KeyError, TypeError) as error:
            raise SurdError(f"{folder}: damaged, not a prepared text ({error!r}); prepare the data again.") from None
        self.context = context

    @property
    def tokens(self) -> int:
        """Tokens of an epoch."""
        return self._train.about.tokens

    @property
    def sequences(self) -> int:
        """Windows to train on, as they are cut without a shift."""
        return len(cut_documents(self._train.starts, self.context))

    @property
    def held_out_sequences(self) -> int:
        """Held-out windows."""
        return len(cut_documents(self.held_out.starts, self.context))

    def batches(self, batching: Batching, seed: int, epoch: int, start: int = 0) -> Iterator[WindowBatch]:
        """The batches of one epoch, every training token once; `start` leaves out that many without reading them."""
        cuts = self._cuts(seed, epoch)
        for place, numbers in enumerate(self._plan(cuts, batching, seed, epoch)):
            if place >= start:
                yield gather(self._train, cuts, numbers)
                if place % RELEASE_EVERY == 0:
                    self._train.release()

    def batch_count(self, batching: Batching, seed: int, epoch: int) -> int:
        """How many batches `batches` gives."""
        return sum(1 for _ in self._plan(self._cuts(seed, epoch), batching, seed, epoch))

    def held_out_batches(self, batching: Batching, most: int | None = None) -> Iterator[WindowBatch]:
        """The held-out windows, in an order that is always the same; at most so many of them, evenly spaced."""
        yield from all_windows(self.held_out, self.context, batching, most)

    def _cuts(self, seed: int, epoch: int) -> Cuts:
        """The windows of an epoch: lines are never cut elsewhere than a model meets them, at their beginning."""
        whole = self.report.unit == "text"
        shift = np.random.default_rng(derive(seed, "windows", epoch)).integers(self.context) if whole else 0
        return cut_documents(self._train.starts, self.context, int(shift))

    def _plan(self, cuts: Cuts, batching: Batching, seed: int, epoch: int) -> Iterator[np.ndarray]:
        """The numbers of the windows of each batch of an epoch."""
        random = np.random.default_rng(derive(seed, "batches", epoch))
        for pool in blocks(len(cuts), batching.pool, random):
            pieces = _cut_pool(cuts, pool, batching, random.random(len(pool)))
            yield from (pieces[number] for number in random.permutation(len(pieces)))


def all_windows(
    documents: Documents, context: int, batching: Batching, most: int | None = None
) -> Iterator[WindowBatch]:
    """The windows of documents without a shift, by length; at most so many of them, evenly spaced."""
    cuts = cut_documents(documents.starts, context)
    numbers = np.arange(len(cuts))
    if most is not None and most < len(cuts):
        numbers = np.arange(most) * len(cuts) // most
    for piece in _cut_pool(cuts, numbers, batching, numbers):
        yield gather(documents, cuts, piece)


def gather(documents: Documents, cuts: Cuts, numbers: np.ndarray) -> WindowBatch:
    """The windows of these numbers, as a batch."""
    begins, lengths = cuts.begins[numbers], cuts.lengths[numbers]
    before = np.cumsum(lengths) - lengths
    places = np.repeat(begins - before, lengths) + np.arange(lengths.sum())
    read, labels = (torch.from_numpy(documents.ids[places + ahead].astype(np.int64)) for ahead in (0, 1))
    return WindowBatch(Ragged(read, tuple(lengths.tolist())), labels)


def write_text_index(folder: Path, train: About, held_out: About, report: TextReport) -> None:
    """Writes what makes a folder of documents a prepared text; it comes last, so a cut-off folder has none."""
    about = {"format": FORMAT, "train": unstructure(train), "held_out": unstructure(held_out)}
    write_json(folder / INDEX, about | {"report": unstructure(report)})


def _cut_pool(cuts: Cuts, numbers: np.ndarray, batching: Batching, tie: np.ndarray) -> list[np.ndarray]:
    """Sorts windows by length and cuts them into batches."""
    lengths = cuts.lengths[numbers]
    order = by_length(lengths, lengths, tie)
    bounds = cut(lengths[order], lengths[order], batching.tokens)
    return [numbers[order[first:last]] for first, last in pairwise(bounds)]
