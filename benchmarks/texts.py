"""Text files as lists of lines: plain or gzipped UTF-8, where only a line feed ends a line."""

import gzip
from collections.abc import Iterable
from pathlib import Path


def read_lines(path: Path) -> list[str]:
    """The lines of a file."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    return text.removesuffix("\n").split("\n")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Each line with a line feed behind it."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
