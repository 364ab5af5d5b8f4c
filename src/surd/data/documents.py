"""Documents on disk: the ids of a text, one document after another, each behind the token that a model begins it with.

A line end is EOS. Where the whole text is one document it begins with EOS too, as if a line had just ended, and every
later EOS is a token like any other. Where each line is a document it begins with BOS, and its EOS is its end.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from surd.data.memory_map import Mapped
from surd.data.progress import Progress
from surd.data.tokenizer import Tokenizer
from surd.errors import SurdError
from surd.files import create, sync
from surd.nn.special import BOS, EOS, UNK
from surd.part import structure, unstructure

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


def write_documents(
    folder: Path, name: str, lines: Iterable[str], tokenizer: Tokenizer, unit: Unit, progress: Progress | None = None
) -> About:
    """Writes the ids of lines, in blocks, whatever their number; with `progress`, from where a kill stopped it."""
    kind = "uint16" if tokenizer.size <= 2**16 else "uint32"
    paths = folder / f"{name}.ids", folder / f"{name}.starts"
    begun, blocks = None, _blocks(lines)
    if progress is not None:
        begun, blocks = progress.taken_up(lambda: _blocks(lines), partial(_begun, paths, unit))
    about = begun or About(documents=0, tokens=0, bytes=0, unknown=0, type=kind)
    tokens, spelt, unknown, documents = about.tokens, about.bytes, about.unknown, about.documents
    kept = (0, 0) if begun is None else _sizes(begun, unit)
    with create(paths[0], kept[0]) as ids, create(paths[1], kept[1]) as starts:
        if begun is None:
            starts.write(np.zeros(1, np.int64).tobytes())
            if unit == "text":
                ids.write(np.array([first_token(unit)], kind).tobytes())
        for block in blocks:
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
            about = About(documents=documents, tokens=tokens, bytes=spelt, unknown=unknown, type=kind)
            if progress is not None and progress.due:
                _note(progress, about, ids, starts)
        if progress is not None:
            _note(progress, about, ids, starts)
        if unit == "text":
            about = replace(about, documents=1)
            starts.write(np.array([tokens + 1], np.int64).tobytes())
    return about


def _note(progress: Progress, about: About, *files: BinaryIO) -> None:
    """Notes what has been written, once it is on the disk."""
    for file in files:
        file.flush()
        sync(file.fileno())
    progress.note(unstructure(about))


def _begun(paths: Sequence[Path], unit: Unit, noted: Any) -> About | None:
    """What was noted, where the files hold all that it says."""
    try:
        about = structure(About, noted)
        return (
            about if all(p.stat().st_size >= size for p, size in zip(paths, _sizes(about, unit), strict=True)) else None
        )
    except (SurdError, TypeError, OSError):
        return None


def _sizes(about: About, unit: Unit) -> tuple[int, int]:
    """Bytes of the ids and of the starts so far."""
    first = about.documents if unit == "line" else 1
    return np.dtype(about.type).itemsize * (about.tokens + first), np.dtype(np.int64).itemsize * (about.documents + 1)


def _blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(lines)
    while block := list(islice(rest, BLOCK)):
        yield block
