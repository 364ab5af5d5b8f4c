"""Small corpora on disk, for the tests of reading and preparing."""

import json
from pathlib import Path

WORDS = (
    "der",
    "die",
    "das",
    "Haus",
    "Baum",
    "Hund",
    "läuft",
    "steht",
    "groß",
    "klein",
    "rot",
    "blau",
    "weiß",
    "schnell",
)


def sentences(count: int, start: int = 0) -> list[str]:
    """Different sentences, the same in every run."""
    size = len(WORDS)
    numbers = range(start, start + count)
    return [
        " ".join(WORDS[(n // size**place + 3 * place) % size] for place in range(3 + n % 4)) + f" {n}" for n in numbers
    ]


def pairs(count: int, start: int = 0) -> list[tuple[str, str]]:
    """Sentences beside their own words in reverse: no pair is a copy."""
    return [(line, " ".join(line.upper().split()[::-1])) for line in sentences(count, start)]


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")
    return str(path)


def tsv(path: Path, rows: list[tuple[str, ...]]) -> str:
    return write(path, ["\t".join(row) for row in rows])


def two_files(folder: Path, rows: list[tuple[str, str]], name: str = "train") -> tuple[str, str]:
    return (
        write(folder / f"{name}.src", [source for source, _ in rows]),
        write(folder / f"{name}.tgt", [target for _, target in rows]),
    )


def json_lines(path: Path, rows: list[dict]) -> str:
    return write(path, [json.dumps(row, ensure_ascii=False) for row in rows])
