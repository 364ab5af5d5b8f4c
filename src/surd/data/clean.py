"""Cleaning: what every text goes through, which pairs are left out, and the report that says why, with examples."""

import re
import unicodedata
from dataclasses import dataclass, field
from enum import IntEnum

EXAMPLES = 3
"""Examples kept of each cause."""
SHOWN = 100
"""Characters of a side that are kept of an example."""
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
"""Control characters except the tab. U+2028 and the like are none: they are text."""


class Fate(IntEnum):
    """What becomes of a pair. The causes stand in the order in which they are looked for."""

    TRAIN = 0
    HELD_OUT = 1
    EMPTY = 2
    CONTROL = 3
    LONG = 4
    DUPLICATE = 5
    RATIO = 6
    COPY = 7
    IN_DEV = 8


CAUSES = {
    Fate.EMPTY: "a side is empty",
    Fate.CONTROL: "control characters",
    Fate.LONG: "too long",
    Fate.DUPLICATE: "the same pair again",
    Fate.RATIO: "odd ratio of lengths",
    Fate.COPY: "source and target are the same",
    Fate.IN_DEV: "source stands in the held-out files",
}


def tidy(text: str) -> str:
    """The one change that surd makes to text: canonical composition (NFC) and no white space at the ends.

    Used on training text and on text to translate alike. Composition changes no character's meaning: "e" with a
    combining accent becomes the "é" that it is canonically equal to, so that both are one symbol to the model.
    """
    text = text.strip()
    return text if text.isascii() or unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def judge(source: str, target: str, max_length: int) -> Fate:
    """What can be said of a tidy pair by itself, before it is tokenised."""
    if not source or not target:
        return Fate.EMPTY
    if has_control(source) or has_control(target):
        return Fate.CONTROL
    # Every word is at least one token, whatever the tokenizer.
    if max(source.count(" "), target.count(" ")) >= max_length and max(map(_words, (source, target))) > max_length:
        return Fate.LONG
    return Fate.TRAIN


def has_control(text: str) -> bool:
    return not text.isprintable() and CONTROL.search(text) is not None


def _words(text: str) -> int:
    return sum(map(bool, text.split(" ")))


@dataclass(frozen=True, kw_only=True)
class Example:
    """A pair that was left out."""

    line: int
    source: str
    """The beginning of the source: a line may be as long as a file."""
    target: str

    @classmethod
    def of(cls, number: int, source: str, target: str) -> "Example":
        """Pair `number`, counted from 0, as an example."""
        return cls(line=number + 1, source=source[:SHOWN], target=target[:SHOWN])

    def __str__(self) -> str:
        return f"line {self.line:,}: {_short(self.source)} → {_short(self.target)}"


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """The pairs that were left out for one cause."""

    cause: str
    count: int
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was read, what is kept, and what was left out for which cause."""

    name: str
    pairs: int
    train: int
    held_out: int
    held_out_sources: int
    dropped: tuple[Dropped, ...] = ()
    warnings: tuple[str, ...] = field(default=())

    @property
    def usable(self) -> int:
        return self.train + self.held_out

    def lines(self) -> list[str]:
        """The report as lines of text."""
        lines = [f"{self.pairs:,} pairs read from {self.name}"]
        references = "" if self.held_out == self.held_out_sources else f" of {self.held_out_sources:,} sources"
        lines.append(f"{self.train:,} to train on, {self.held_out:,} held out{references}")
        for drop in self.dropped:
            lines.append(f"{drop.count:,} left out: {drop.cause}")
            lines.extend(f"    {example}" for example in drop.examples)
        return lines + [f"warning: {warning}" for warning in self.warnings]


def _short(text: str, width: int = 60) -> str:
    text = CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
    return f'"{text}"' if len(text) <= width else f'"{text[: width - 1]}…"'
