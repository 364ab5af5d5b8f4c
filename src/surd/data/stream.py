"""The prepared corpus on disk: memory-mapped token ids, read as batches that are a function of seed and epoch."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, ClassVar, Self

import numpy as np
import torch

from surd.data.batch import Batch, Batching, blocks, by_length, cut
from surd.data.clean import Report
from surd.data.hold_out import HeldOut
from surd.data.memory_map import Mapped
from surd.errors import SurdError
from surd.files import create, read_bytes, read_json, sync, write_atomic, write_json
from surd.nn.ragged import Ragged
from surd.nn.special import BOS, EOS
from surd.part import structure, unstructure
from surd.seed import derive

FORMAT = 1
INDEX = "prepared.json"
TEXTS = "held_out.jsonl"
SIDES = ("source", "target")
RELEASE_EVERY = 256
"""Batches after which the memory of mapped files is given back."""


LOOKED_AT = 2**22
"""Tokens among which one is looked for at once."""


class Table:
    """Pairs of token sequences in four memory-mapped files: for each side the ids, and where each sequence begins."""

    def __init__(self, folder: Path, name: str, about: dict) -> None:
        self.pairs: int = about["pairs"]
        self._ids: dict[str, Mapped] = {}
        self._starts: dict[str, Mapped] = {}
        for side in SIDES:
            tokens = about[f"{side}_tokens"]
            self._ids[side] = Mapped(folder / f"{name}.{side}.ids", about[f"{side}_type"], tokens)
            self._starts[side] = Mapped(folder / f"{name}.{side}.starts", "int64", self.pairs + 1)

    def tokens(self, side: str) -> int:
        """Tokens on one side, the EOS of each sequence included."""
        return len(self._ids[side].array)

    def release(self) -> None:
        """Gives back the memory of all that was looked at, so that an epoch never holds more than a part of it."""
        for file in (*self._ids.values(), *self._starts.values()):
            file.release()

    def holds(self, side: str, token: int) -> bool:
        """Whether a token stands anywhere on one side."""
        ids = self._ids[side]
        for start in range(0, len(ids.array), LOOKED_AT):
            if (ids.array[start : start + LOOKED_AT] == token).any():
                return True
            ids.release()
        return False

    def lengths(self, side: str, numbers: np.ndarray) -> np.ndarray:
        """How many tokens the pairs of these numbers have on one side, EOS included."""
        starts = self._starts[side].array
        begin, end = starts[numbers], starts[numbers + 1]
        if len(numbers) and (begin.min() < 0 or (end <= begin).any() or end.max() > self.tokens(side)):
            raise SurdError(
                f"{self._starts[side].path}: damaged, a sequence ends before it begins or behind all tokens"
            )
        return end - begin

    def batch(self, numbers: np.ndarray) -> Batch:
        """The pairs of these numbers, as a batch."""
        source, source_lengths = self._gather("source", numbers)
        labels, target_lengths = self._gather("target", numbers)
        target = np.roll(labels, 1)
        target[np.cumsum(target_lengths) - target_lengths] = BOS
        return Batch(
            source=Ragged(torch.from_numpy(source), tuple(source_lengths.tolist())),
            target=Ragged(torch.from_numpy(target), tuple(target_lengths.tolist())),
            labels=torch.from_numpy(labels),
            numbers=tuple(numbers.tolist()),
        )

    def _gather(self, side: str, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        starts, lengths = self._starts[side].array[numbers], self.lengths(side, numbers)
        before = np.cumsum(lengths) - lengths
        places = np.repeat(starts - before, lengths) + np.arange(lengths.sum())
        return self._ids[side].array[places].astype(np.int64), lengths


def table_sizes(folder: Path, name: str, about: Mapping[str, Any]) -> dict[Path, int]:
    """The files of a table, each with its size in bytes."""
    sizes = {}
    for side in SIDES:
        sizes[folder / f"{name}.{side}.ids"] = np.dtype(about[f"{side}_type"]).itemsize * about[f"{side}_tokens"]
        sizes[folder / f"{name}.{side}.starts"] = np.dtype(np.int64).itemsize * (about["pairs"] + 1)
    return sizes


class TableWriter:
    """Writes a `Table`, a block of pairs at a time."""

    def __init__(
        self, folder: Path, name: str, vocabularies: Sequence[int], begun: Mapping[str, Any] | None = None
    ) -> None:
        """A new table; or one that was `begun`, of which all behind that is cut off."""
        self._about: dict = dict(begun or {"pairs": 0})
        if begun is None:
            for side, size in zip(SIDES, vocabularies, strict=True):
                self._about |= {f"{side}_tokens": 0, f"{side}_type": "uint16" if size <= 2**16 else "uint32"}
        self._files: dict[str, tuple[BinaryIO, BinaryIO]] = {}
        kept = {} if begun is None else table_sizes(folder, name, begun)
        for side in SIDES:
            ids, starts = (folder / f"{name}.{side}.{part}" for part in ("ids", "starts"))
            self._files[side] = (create(ids, kept.get(ids, 0)), create(starts, kept.get(starts, 0)))
            if begun is None:
                self._files[side][1].write(np.zeros(1, np.int64).tobytes())

    def sync(self) -> None:
        """Waits until all that was added is on the disk."""
        for file in chain.from_iterable(self._files.values()):
            file.flush()
            sync(file.fileno())

    def add(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> None:
        """Appends pairs of id sequences; EOS is put behind each of them here."""
        for side, rows in zip(SIDES, (sources, targets), strict=True):
            lengths = np.fromiter(map(len, rows), np.int64, len(rows)) + 1
            ends = np.cumsum(lengths)
            total = int(ends[-1]) if len(rows) else 0
            ids = np.fromiter(chain.from_iterable(chain(row, (EOS,)) for row in rows), np.int64, total)
            self._files[side][0].write(ids.astype(self._about[f"{side}_type"]).tobytes())
            self._files[side][1].write((ends + self._about[f"{side}_tokens"]).tobytes())
            self._about[f"{side}_tokens"] += total
        self._about["pairs"] += len(sources)

    @property
    def pairs(self) -> int:
        return self._about["pairs"]

    @property
    def about(self) -> dict:
        """What `Table` needs to know besides the files."""
        return self._about

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with ExitStack() as closing:  # all of them, even where one cannot be written to its end
            for file in chain.from_iterable(self._files.values()):
                closing.callback(file.close)


def write_index(folder: Path, train: dict, held_out: dict, texts: Sequence[HeldOut], report: Report) -> None:
    """Writes what makes a folder of tables a prepared corpus; the index comes last, so a cut-off folder has none."""
    rows = (json.dumps({"source": row.source, "references": row.references}, ensure_ascii=False) for row in texts)
    write_atomic(folder / TEXTS, "".join(f"{row}\n" for row in rows).encode())
    about = {"format": FORMAT, "train": train, "held_out": held_out, "report": unstructure(report)}
    write_json(folder / INDEX, about)


class Prepared:
    """A prepared corpus: training batches, held-out batches and held-out texts."""

    units: ClassVar[tuple[str, str]] = ("pairs", "held-out sources")
    """What `sequences` and `held_out_sequences` count."""

    def __init__(self, folder: Path | str) -> None:
        folder = Path(folder)
        about = read_json(folder / INDEX)
        if about.get("format", FORMAT + 1) > FORMAT:
            raise SurdError(f"{folder / INDEX}: written by a newer surd (format {about.get('format')}); update surd.")
        try:
            self._train = Table(folder, "train", about["train"])
            self._held_out = Table(folder, "held_out", about["held_out"])
            self.report = structure(Report, about["report"])
            rows = [json.loads(line) for line in read_bytes(folder / TEXTS).decode().split("\n") if line]
            self.texts = tuple(HeldOut(row["source"], tuple(row["references"])) for row in rows)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise SurdError(f"{folder}: damaged, not a prepared corpus ({error!r}); prepare the data again.") from None

    @property
    def pairs(self) -> int:
        """How many pairs there are to train on."""
        return self._train.pairs

    @property
    def sequences(self) -> int:
        """The same, by the name that it has for running text too."""
        return self.pairs

    @property
    def held_out_sequences(self) -> int:
        """Held-out sources."""
        return len(self.texts)

    @property
    def source_tokens(self) -> int:
        return self._train.tokens("source")

    @property
    def target_tokens(self) -> int:
        return self._train.tokens("target")

    def holds(self, side: str, token: int) -> bool:
        """Whether a token stands anywhere on one side of the training pairs."""
        return self._train.holds(side, token)

    def batches(self, batching: Batching, seed: int, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, every training pair once; `start` leaves out that many without reading them.

        A function of seed and epoch: it needs no state but these and the place in the epoch to go on after a stop.
        """
        for place, numbers in enumerate(self._plan(batching, seed, epoch)):
            if place >= start:
                yield self._train.batch(numbers)
                if place % RELEASE_EVERY == 0:
                    self._train.release()

    def batch_count(self, batching: Batching, seed: int, epoch: int) -> int:
        """How many batches `batches` gives."""
        return sum(1 for _ in self._plan(batching, seed, epoch))

    def held_out_batches(self, batching: Batching) -> Iterator[Batch]:
        """The held-out pairs by length, always in the same order."""
        everything = np.arange(self._held_out.pairs)
        yield from map(self._held_out.batch, _cut_pool(self._held_out, everything, batching, everything))

    def _plan(self, batching: Batching, seed: int, epoch: int) -> Iterator[np.ndarray]:
        """The numbers of the pairs of each batch of an epoch."""
        random = np.random.default_rng(derive(seed, "batches", epoch))
        for pool in blocks(self.pairs, batching.pool, random):
            pieces = _cut_pool(self._train, pool, batching, random.random(len(pool)))
            self._train.release()
            yield from (pieces[number] for number in random.permutation(len(pieces)))


def _cut_pool(table: Table, numbers: np.ndarray, batching: Batching, tie: np.ndarray) -> list[np.ndarray]:
    """Sorts pairs by length and cuts them into batches."""
    source, target = (table.lengths(side, numbers) for side in SIDES)
    order = by_length(source, target, tie)
    bounds = cut(source[order], target[order], batching.tokens)
    return [numbers[order[first:last]] for first, last in pairwise(bounds)]
