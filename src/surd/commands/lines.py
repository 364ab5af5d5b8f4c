"""Lines for a command: of a file in full chunks, of a pipe or terminal as many as have come, so that nobody waits."""

import os
import select
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from itertools import islice
from typing import cast

from surd.commands.forms import Form
from surd.data.lines import LONGEST_LINE, Complaints, Input, missing
from surd.errors import SurdError

READ = 2**16
"""Bytes that are read at once: what a pipe holds on Linux."""
BYTE_ORDER_MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"


@dataclass(frozen=True)
class Row:
    """A line of the input, with the text to translate in it."""

    line: str
    text: str


@dataclass(frozen=True)
class Rows(Iterator[list[Row]]):
    """Rows in chunks."""

    chunks: Iterator[list[Row]]
    number: int | None = None
    """How many there are in a file; of standard input nobody knows yet."""

    def __next__(self) -> list[Row]:
        return next(self.chunks)


def rows(path: str, form: Form, most: int) -> Rows:
    """The rows of a file, or of standard input for "-", in chunks of at most `most`.

    A file is looked through before its first chunk comes: a fault in its last line is told before hours have gone into
    the others. What is wrong on standard input is told when it is met, and the lines before it are given first.
    """
    if path != "-":
        return _file_rows(path, form, most)
    return Rows(_checked("standard input", standard_input(most), form))


def standard_input(most: int) -> Iterator[list[str]]:
    r"""The lines of standard input, as many at once as have come; only "\n" and "\r\n" end a line."""
    if sys.stdin is None:
        raise SurdError("there is no standard input to read from")
    number = 0
    for chunk in arriving(cast(BufferedIOBase, sys.stdin.buffer), most):
        lines: list[str] = []
        for line in chunk:
            number += 1
            try:
                text = line.removesuffix(b"\r").decode()
            except UnicodeDecodeError as error:
                if lines:
                    yield lines
                found = f"byte 0x{line[error.start]:02x} at position {error.start + 1}"
                raise SurdError(f"standard input, line {number:,}: not UTF-8: {found}") from None
            lines.append(text.removeprefix(BYTE_ORDER_MARK) if number == 1 else text)
        yield lines


def arriving(stream: BufferedIOBase, most: int) -> Iterator[list[bytes]]:
    """The lines of a stream without their "\n": whenever no more can be read without waiting, those that are there."""
    waiting: list[bytes] = []
    pieces: list[bytes] = []
    size = 0
    while data := stream.read1(READ):
        head, end, tail = data.rpartition(b"\n")
        if end:
            waiting += b"".join([*pieces, head]).split(b"\n")
            pieces, size = [], 0
        pieces.append(tail)
        size += len(tail)
        if size > LONGEST_LINE:
            raise SurdError(f"standard input: a line of more than {LONGEST_LINE >> 20} MiB; expected text in lines")
        while len(waiting) >= most:
            yield waiting[:most]
            waiting = waiting[most:]
        if waiting and not more_to_read(stream):
            yield waiting
            waiting = []
    if rest := b"".join(pieces):
        waiting.append(rest)
    if waiting:
        yield waiting


def more_to_read(stream: BufferedIOBase) -> bool:
    """Whether a read would return at once; a file always does, a pipe or terminal when something has come.

    On Windows nobody can tell, so the lines of each read are answered before the next.
    """
    try:
        descriptor = stream.fileno()
    except OSError:  # a stream in memory
        return True
    return os.name != "nt" and bool(select.select([descriptor], [], [], 0)[0])


def _file_rows(path: str, form: Form, most: int) -> Rows:
    if fault := missing(path):
        raise SurdError(fault)
    source, complaints, number = Input(path), Complaints(), 0
    for number, line in enumerate(source.lines(complaints), start=1):
        try:
            form.read(line)
        except SurdError as error:
            complaints.add(path, "form", f"{path}, line {number:,}: {error}")
    complaints.raise_any()
    return Rows(_checked(path, _chunks(source, most), form), number)


def _chunks(source: Input, most: int) -> Iterator[list[str]]:
    complaints = Complaints()
    lines = source.lines(complaints)
    while chunk := list(islice(lines, most)):
        complaints.raise_any()
        yield chunk
    complaints.raise_any()


def _checked(name: str, chunks: Iterable[list[str]], form: Form) -> Iterator[list[Row]]:
    """The chunks as rows; those before a line without a text are given before it is refused."""
    number = 0
    for chunk in chunks:
        found: list[Row] = []
        for line in chunk:
            number += 1
            try:
                found.append(Row(line, form.read(line)))
            except SurdError as error:
                if found:
                    yield found
                raise SurdError(f"{name}, line {number:,}: {error}") from None
        yield found
