"""Documents on disk: the ids of a text, one document after another, each behind the token that a model begins it with.

A line end is EOS. Where the whole text is one document it begins with EOS too, as if a line had just ended, and every
later EOS is a token like any other. Where each line is a document it begins with BOS, and its EOS is its end.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from surd.data.memory_map import Mapped
from surd.data.tokenizer import Tokenizer
from surd.files import create
from surd.nn.special import BOS, EOS, UNK

BLOCK = 8192
"""Lines that are tokenised together."""
Unit = Literal["text", "line"]


def first_token(unit: Unit) -> int:
    """What a model reads before the first token of a document."""
    return BOS if unit == "line" else EOS


@dataclass(frozen=True, kw_only=True)
class About:
    """What there is in the files of some documents."""

    documents: int
    tokens: int
    """Tokens to be predicted, line ends included: all but the first of each document."""
    bytes: int
    """Bytes (UTF-8) that these tokens spell, one for each line end."""
    unknown: int
    """Tokens that stand for a symbol outside the vocabulary."""
    type: str


class Documents:
    """Documents in two memory-mapped files: the ids, and where each document begins."""

    def __init__(self, folder: Path, name: str, about: About) -> None:
        self.about = about
        self._ids = Mapped(folder / f"{name}.ids", about.type, about.tokens + about.documents)
        self._starts = Mapped(folder / f"{name}.starts", "int64", about.documents + 1)

    @property
    def ids(self) -> np.ndarray:
        return self._ids.array

    @property
    def starts(self) -> np.ndarray:
        return self._starts.array

    def release(self) -> None:
        """Gives back the memory of all that was looked at."""
        self._ids.release()
        self._starts.release()


def write_documents(folder: Path, name: str, lines: Iterable[str], tokenizer: Tokenizer, unit: Unit) -> About:
    """Writes the ids of lines, in blocks, whatever their number."""
    kind = "uint16" if tokenizer.size <= 2**16 else "uint32"
    tokens = spelt = unknown = documents = 0
    with create(folder / f"{name}.ids") as ids, create(folder / f"{name}.starts") as starts:
        starts.write(np.zeros(1, np.int64).tobytes())
        if unit == "text":
            ids.write(np.array([first_token(unit)], kind).tobytes())
        for block in _blocks(lines):
            opening = [first_token(unit)] if unit == "line" else []
            rows = [[*opening, *row, EOS] for row in tokenizer.encode_all(block)]
            flat = np.array([token for row in rows for token in row], np.int64)
            ids.write(flat.astype(kind).tobytes())
            if unit == "line":
                ends = np.cumsum([len(row) for row in rows]) + tokens + documents
                starts.write(ends.astype(np.int64).tobytes())
                documents += len(rows)
            tokens += len(flat) - len(opening) * len(rows)
            unknown += int((flat == UNK).sum())
            spelt += sum(len(line.encode()) + 1 for line in block)
        if unit == "text":
            documents = 1
            starts.write(np.array([tokens + 1], np.int64).tobytes())
    return About(documents=documents, tokens=tokens, bytes=spelt, unknown=unknown, type=kind)


def _blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(lines)
    while block := list(islice(rest, BLOCK)):
        yield block
