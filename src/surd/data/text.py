"""Running text for language models: its lines, the part held out at its end, and what a recipe is derived from."""

import os
import unicodedata
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from surd.data.corpus import DataSettings
from surd.data.hold_out import standing_in, text_hash
from surd.data.lines import Complaints, Input, missing
from surd.data.scan import as_numbers
from surd.errors import Faults, SurdError

HELD_OUT = 0.1
"""The share of a text, from its end, that is held out unless told otherwise."""
SAMPLE = 100_000
"""Lines that are kept in memory at most, to learn subwords from and to look at."""
LONGEST_SAMPLE = 10_000
"""Characters at which a line is cut for the sample."""
FEWEST = 10
"""Lines below which nothing can be learnt from lines one by one."""


class Text:
    """A text that can be read again and again without being held in memory."""

    def __init__(self, path: str) -> None:
        if fault := missing(path):
            raise SurdError(fault)
        self._input = Input(path)
        self.name = self._input.name

    def lines(self, complaints: Complaints) -> Iterator[str]:
        """All lines without their ends, composed (NFC) and otherwise as they stand; faults are noted.

        A file that changes meanwhile is refused.
        """
        self._input.refuse_changed()
        some = False
        for line in self._input.lines(complaints):
            some = True
            yield composed(line)
        self._input.refuse_changed()
        if not some and not complaints.cut_off(self.name):
            complaints.add(self.name, "empty", f"{self.name}: empty, expected text")


def composed(line: str) -> str:
    """Canonical composition, the one change that is made: blanks at the ends of a line may have a meaning here."""
    return line if line.isascii() or unicodedata.is_normalized("NFC", line) else unicodedata.normalize("NFC", line)


@dataclass(frozen=True, kw_only=True)
class TextReport:
    """What was read, and what is kept for what; characters count the ends of the lines."""

    name: str
    held_out_name: str | None
    """The file of held-out text; none when the end of the text is held out."""
    unit: str
    """What a document is: the text or a line."""
    read: int
    """Lines read, those of held-out files apart."""
    train: int
    """Lines to train on."""
    train_characters: int
    held_out: int
    """Held-out lines."""
    held_out_characters: int
    empty: int = 0
    """Lines left out because there is nothing in them."""
    repeated: int = 0
    """Lines left out because they are held out too."""

    def lines(self) -> list[str]:
        """The report as lines of text."""
        where = "its end" if self.held_out_name is None else self.held_out_name
        told = [
            f"{self.read:,} lines read from {self.name}",
            f"{self.train_characters:,} characters in {self.train:,} lines to train on; "
            f"{self.held_out_characters:,} in {self.held_out:,} held out: {where}",
        ]
        if self.empty:
            told.append(f"{self.empty:,} left out: nothing in the line")
        if self.repeated:
            told.append(f"{self.repeated:,} left out: the same line is held out")
        return told


@dataclass(frozen=True, kw_only=True)
class TextSurvey:
    """What the first reading found."""

    settings: DataSettings
    report: TextReport
    words: int
    """Words to train on, as counted in the sample."""
    sample: list[str] = field(repr=False)
    """Lines to train on, evenly spaced ones when there are many."""
    text: Text = field(repr=False)
    dev: Text | None = field(repr=False)
    kept: np.ndarray = field(repr=False)
    """Of each line of the text, whether it is trained on (1), held out (2) or left out (0)."""

    @property
    def characters(self) -> int:
        """Characters to train on."""
        return self.report.train_characters

    def training_lines(self) -> Iterator[str]:
        """The lines to train on, read again."""
        return self._read_again(TRAIN)

    def held_out_lines(self) -> Iterator[str]:
        """The held-out lines, read again."""
        if self.dev is None:
            yield from self._read_again(HELD)
            return
        complaints = Complaints()
        by_line = self.settings.document == "line"
        yield from (line for line in self.dev.lines(complaints) if line.strip() or not by_line)
        complaints.raise_any()

    def _read_again(self, wanted: int) -> Iterator[str]:
        complaints = Complaints()
        kept, read = self.kept.tobytes(), 0
        for number, line in enumerate(self.text.lines(complaints)):
            read = number + 1
            if read <= len(kept) and kept[number] == wanted:
                yield line
        complaints.raise_any()
        if read != len(kept):
            raise SurdError(f"{self.text.name}: changed while being read: {len(kept):,} lines, then {read:,}")


OUT, TRAIN, HELD = 0, 1, 2


def survey_text(settings: DataSettings) -> TextSurvey:
    """Reads all of the text; all faults in it and in held-out text are told at once."""
    text, dev = _open(settings)
    by_line = settings.document == "line"
    complaints = Complaints()
    held = _Lines(dev, complaints, by_line) if dev else None
    lines = _Lines(text, complaints, by_line)
    complaints.raise_any()
    kept = np.full(len(lines.characters), TRAIN, np.uint8)
    if by_line:
        kept[lines.empty] = OUT
    if held is None:
        end = kept[first_held_out(lines.characters * (kept == TRAIN), settings.held_out) :]
        end[end == TRAIN] = HELD
    held_out = (lines.characters[kept == HELD]) if held is None else held.characters[~held.empty | (not by_line)]
    repeated = 0
    if by_line:
        hashes = lines.hashes[kept == HELD] if held is None else held.hashes
        again = (kept == TRAIN) & standing_in(lines.hashes, np.sort(hashes))
        kept[again], repeated = OUT, int(again.sum())
    train = lines.characters[kept == TRAIN]
    if not by_line and not len(train):
        raise SurdError(
            f"{text.name}: the end that is held out (data.held_out = {settings.held_out:g}) begins in the first line, "
            "so there is nothing before it to train on; break the line, or give held-out text with --dev"
        )
    if by_line and min(len(train), len(held_out) * FEWEST) < FEWEST:
        raise SurdError(
            f"{text.name}: {len(train):,} lines to train on and {len(held_out):,} held out, "
            f"expected at least {FEWEST} and 1 (data.document is line: empty and held-out lines are left out)"
        )
    sample = [line for number, line in lines.sample if kept[number] == TRAIN]
    words = sum(len(line.split()) for line in sample) * int(train.sum()) // max(1, sum(len(s) + 1 for s in sample))
    report = TextReport(
        name=text.name,
        held_out_name=None if dev is None else dev.name,
        unit=settings.document,
        read=len(kept),
        train=len(train),
        train_characters=int(train.sum()),
        held_out=len(held_out),
        held_out_characters=int(held_out.sum()),
        empty=int(lines.empty.sum()) if by_line else 0,
        repeated=repeated,
    )
    return TextSurvey(settings=settings, report=report, words=words, sample=sample, text=text, dev=dev, kept=kept)


def first_held_out(characters: np.ndarray, share: float) -> int:
    """The number of the line in which the last `share` of the characters begins: it is held out, and all after it."""
    ends = np.cumsum(characters, dtype=np.int64)
    start = int((1 - share) * ends[-1])
    return int(np.searchsorted(ends, start, side="right"))


class _Lines:
    """A few bytes a line of one reading."""

    def __init__(self, text: Text, complaints: Complaints, by_line: bool) -> None:
        characters, empty, hashes = array("I"), array("B"), array("Q")
        self.sample: list[tuple[int, str]] = []
        every = 1
        for number, line in enumerate(text.lines(complaints)):
            characters.append(len(line) + 1)
            empty.append(not line.strip())
            if by_line:
                hashes.append(text_hash(line.encode()))
            if number % every == 0:
                self.sample.append((number, line[:LONGEST_SAMPLE]))
                if len(self.sample) > 2 * SAMPLE:
                    self.sample, every = self.sample[::2], 2 * every
        self.characters = as_numbers(characters)
        self.empty = as_numbers(empty).view(bool)
        self.hashes = as_numbers(hashes)


def _open(settings: DataSettings) -> tuple[Text, Text | None]:
    """The text and the held-out one; paths that are wrong in either are told together."""
    opened, faults = [], []
    if settings.text is not None and settings.dev_text is not None and _same(settings.text, settings.dev_text):
        faults.append(f"{settings.dev_text}: is the training text itself, which tells nothing when it is held out")
    for path in (settings.text, settings.dev_text):
        try:
            opened.append(None if path is None else Text(path))
        except SurdError as error:
            faults.append(str(error))
    if faults:
        raise Faults(faults)
    text, dev = opened
    assert text is not None, "running text was asked for"
    return text, dev


def _same(one: str, other: str) -> bool:
    """Whether two paths lead to one file."""
    return os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other)
