"""Lines of text from a file, a pipe or standard input, compressed or not; every fault is noted with its place."""

import gzip
import lzma
import os
import stat
import sys
import tempfile
import weakref
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

from surd.errors import Faults, SurdError, nearest

CHUNK = 2**20
LONGEST_LINE = 2**26
"""Bytes without a line end after which a file is no text of lines, whatever else it may be."""
UTF16 = (b"\xff\xfe", b"\xfe\xff")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Complaints:
    """Faults found while reading: of each kind in each file the first place and how many, told together at the end."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], str] = {}
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, file: str, kind: str, message: str) -> None:
        """Notes a fault; only the first of one kind in one file is told, with the number of all of them."""
        self._first.setdefault((file, kind), message)
        self._counts[file, kind] = self._counts.get((file, kind), 0) + 1

    def raise_any(self) -> None:
        """Refuses what was read if there was any fault."""
        if self._first:
            raise Faults(self._line(*key) for key in self._first)

    def cut_off(self, file: str) -> bool:
        """Whether a file could not be read to its end, so that its number of lines is not known."""
        return (file, "reading") in self._first

    def __bool__(self) -> bool:
        return bool(self._first)

    def _line(self, file: str, kind: str) -> str:
        count = self._counts[file, kind]
        return self._first[file, kind] + (f" ({count:,} such lines in this file)" if count > 1 else "")


class Input:
    """A text that can be read more than once: what comes through a pipe is kept in an unnamed temporary file."""

    def __init__(self, path: str) -> None:
        self.name = "standard input" if path == "-" else path
        self._path = path
        self._spool: IO[bytes] | None = None
        self._stamp: tuple[int, int, int] | None = None
        if path == "-":
            self._spool = _spooled(sys.stdin.buffer, self.name)
        elif stat.S_ISREG((found := os.stat(path)).st_mode):
            self._stamp = _stamp(found)
        else:
            with open(path, "rb") as pipe:
                self._spool = _spooled(pipe, self.name)
        if self._spool is not None:
            weakref.finalize(self, self._spool.close)

    def lines(self, complaints: Complaints) -> Iterator[str]:
        r"""The lines, without their ends. Only "\n" and "\r\n" end a line: text may hold U+2028, NEL, VT or FF.

        What cannot be read is noted and ends the iteration; a line that is not UTF-8 is noted and comes garbled, so
        that lines keep their numbers.
        """
        number = 0
        try:
            for block in _blocks(self._open()):
                if number == 0 and block.startswith(UTF16):
                    message = f"{self.name}: not UTF-8 but UTF-16; convert it: iconv -f UTF-16 -t UTF-8"
                    complaints.add(self.name, "reading", message)
                    return
                lines = _decoded(block.removeprefix(BYTE_ORDER_MARK) if number == 0 else block)
                for line in lines:
                    number += 1
                    if isinstance(line, bytes):
                        line = self._garbled(line, number, complaints)
                    yield line.removesuffix("\r")
        except (EOFError, OSError, lzma.LZMAError, zlib.error, SurdError) as error:
            complaints.add(self.name, "reading", f"{self.name}: cannot be read after line {number:,}: {error}")

    def refuse_changed(self) -> None:
        """Refuses a file that is not the one it was at first: read again, its lines may not be those of before.

        What came through a pipe was copied, and cannot change.
        """
        if self._stamp is None:
            return
        try:
            now = _stamp(os.stat(self._path))
        except OSError:
            raise SurdError(f"{self.name}: is gone, it was removed while it was being read. Put it back.") from None
        if now != self._stamp:
            before, after = self._stamp[0], now[0]
            how = f"{before:,} bytes at first, now {after:,}" if before != after else "written to, or replaced"
            raise SurdError(
                f"{self.name}: changed while it was being read ({how}). Start again once nothing writes to it, "
                "or copy it and train on the copy."
            )

    def _open(self) -> IO[bytes]:
        if self._spool is None:
            return open(self._path, "rb")
        file = os.fdopen(os.dup(self._spool.fileno()), "rb")
        file.seek(0)
        return file

    def _garbled(self, line: bytes, number: int, complaints: Complaints) -> str:
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            found = f"{line[error.start]:02x}"
            where = f"{self.name}, line {number:,}: not UTF-8: byte 0x{found} at position {error.start + 1}"
            complaints.add(self.name, "encoding", f"{where}; if it is Latin-1: iconv -f LATIN1 -t UTF-8")
            return line.decode(errors="replace")


def missing(path: str) -> str | None:
    """What is wrong with a path that should be a text to read, or None."""
    file = Path(path)
    try:
        mode = 0 if path == "-" else os.stat(path).st_mode
    except FileNotFoundError:
        mode = 0
    except (OSError, ValueError) as error:  # a name that is too long, or holds a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        return f"{path[:300]}: no file can be found there ({str(reason).lower()})"
    if _endless(mode, path):
        return f"{path}: expected a file, found a device"
    if path == "-" or (file.exists() and not file.is_dir() and os.access(file, os.R_OK)):
        return None
    if file.is_dir():
        return f"{path}: expected a file, found a folder"
    if file.exists():
        return f"{path}: no permission to read it"
    if not file.parent.is_dir():
        return f"{path}: there is no folder {file.parent}"
    guess = nearest(file.name, sorted(other.name for other in file.parent.iterdir() if other.is_file()))
    return f"{path}: there is no such file" + (f'. Did you mean "{file.parent / guess}"?' if guess else "")


def _endless(mode: int, path: str) -> bool:
    """Whether this is a device that may be read without end: any but a terminal and the empty one."""
    if not (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)) or os.path.realpath(path) == os.devnull:
        return False
    try:
        with open(path, "rb", buffering=0) as device:
            return not device.isatty()
    except OSError:
        return True


def _stamp(found: os.stat_result) -> tuple[int, int, int]:
    """What tells whether a file is still the same: its size, when it was written, and which file it is."""
    return found.st_size, found.st_mtime_ns, found.st_ino


def _spooled(stream: IO[bytes], name: str) -> IO[bytes]:
    spool = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the input does
    try:
        size = 0
        for chunk in _chunks(stream):
            spool.write(chunk)
            place = chunk.rfind(b"\n")
            size = size + len(chunk) if place < 0 else len(chunk) - place
            if size > LONGEST_LINE:
                spool.close()
                raise SurdError(f"{name}: a line of more than {LONGEST_LINE >> 20} MiB; expected text in lines")
        spool.flush()
    except OSError as error:
        with suppress(OSError):
            spool.close()
        reason = (error.strerror or str(error)).lower()
        raise SurdError(
            f"{name}: cannot be copied to {tempfile.gettempdir()} ({reason}). What comes through a pipe is kept there "
            "to be read again; set TMPDIR to a folder with room, or give a file"
        ) from error
    return spool


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    """Pieces of a file, decompressed, each of whole lines; the last may lack its line end."""
    pending: list[bytes] = []
    size = 0
    with file:
        for chunk in _decompressed(file):
            place = chunk.rfind(b"\n") + 1
            if place:
                yield b"".join((*pending, chunk[:place]))
                pending, size = [], 0
            pending.append(chunk[place:])
            size += len(chunk) - place
            if size > LONGEST_LINE:
                raise SurdError(f"a line of more than {LONGEST_LINE >> 20} MiB; expected one sentence or word a line")
        if rest := b"".join(pending):
            yield rest


def _decoded(block: bytes) -> list[str] | list[bytes]:
    """The lines of a block; still as bytes when some of them are not UTF-8."""
    try:
        lines: list[str] | list[bytes] = block.decode().split("\n")
    except UnicodeDecodeError:
        lines = block.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


def _decompressed(file: IO[bytes]) -> Iterator[bytes]:
    """The content of a file in chunks; how it is compressed is read from its first bytes, not from its name."""
    head = file.read(6)
    file.seek(0)
    if head.startswith(b"\x1f\x8b"):
        with gzip.open(file) as plain:
            yield from _chunks(plain)
    elif head == b"\xfd7zXZ\x00":
        with lzma.open(file) as plain:
            yield from _chunks(plain)
    elif head.startswith(b"\x28\xb5\x2f\xfd"):
        yield from _zstandard(file)
    else:
        yield from _chunks(file)


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _chunks(file: _Readable) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        yield chunk


def _zstandard(file: IO[bytes]) -> Iterator[bytes]:
    """The frames of a zstd file; the library's own reader takes a file that is cut short for a whole one."""
    import zstandard

    frame = zstandard.ZstdDecompressor().decompressobj()
    for data in _chunks(file):
        while data:
            if frame.eof:
                frame = zstandard.ZstdDecompressor().decompressobj()
            try:
                chunk = frame.decompress(data)
            except zstandard.ZstdError as error:
                raise SurdError(str(error)) from None
            if chunk:
                yield chunk
            data = frame.unused_data if frame.eof else b""
    if not frame.eof:
        raise EOFError("compressed file ended before the end-of-stream marker was reached")
