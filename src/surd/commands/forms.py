"""What a line holds: nothing but the text to translate, the columns of a TSV, or a JSON object; all of it is kept."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from surd.errors import SurdError

Found = Mapping[str, str | float]
"""What is to be written for a line, by name: the translation, and what there is to know of it."""


class Form(Protocol):
    """Reads the text of a line, and writes a line with what was found for it."""

    def read(self, line: str) -> str:
        """The text to translate; what is wrong with a line that has none is a `SurdError`."""
        ...

    def write(self, line: str, found: Found) -> str:
        """The line to put out."""
        ...


@dataclass(frozen=True)
class Text:
    """The whole line is the text, and what was found comes in its place."""

    def read(self, line: str) -> str:
        return line

    def write(self, line: str, found: Found) -> str:
        return "\t".join(map(_spelt, found.values()))


@dataclass(frozen=True)
class Columns:
    """Columns of a TSV, counted from 1, hold the text; what was found is added as last columns."""

    numbers: tuple[int, ...]

    def read(self, line: str) -> str:
        if _blank(line):
            return ""
        cells, last = line.split("\t"), max(self.numbers)
        if len(cells) < last:
            raise SurdError(f"expected at least {last} columns with a tab between them, found {len(cells)}")
        return " ".join(cells[number - 1] for number in self.numbers)

    def write(self, line: str, found: Found) -> str:
        if _blank(line):
            return line
        return "\t".join([line, *(_spelt(value).replace("\t", " ") for value in found.values())])


@dataclass(frozen=True)
class Keys:
    """Keys of a JSON object hold the text; what was found is added under keys of its own, the rest stays to the byte.

    A line end within the text counts as a blank.
    """

    names: tuple[str, ...]
    added: tuple[str, ...]
    """The keys that will be added."""

    def read(self, line: str) -> str:
        if _blank(line):
            return ""
        try:
            row = json.loads(line)
        except ValueError as error:
            raise SurdError(f"not JSON ({error})") from None
        except RecursionError:
            raise SurdError("not JSON that can be read: nested too deep") from None
        if not isinstance(row, dict):
            raise SurdError(f"expected a JSON object, found {json.dumps(row)[:40]}")
        for name in self.names:
            if name not in row:
                there = ", ".join(f'"{key}"' for key in row) or "none"
                raise SurdError(f'there is no key "{name}", found {there}')
            if not _is_text(row[name]):
                raise SurdError(f'expected text under "{name}", found {json.dumps(row[name])[:40]}')
        if taken := [f'"{name}"' for name in self.added if name in row]:
            raise SurdError(f"there is a key {taken[0]} already, which is where the answer goes: rename it")
        text = " ".join(row[name] for name in self.names)
        return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")

    def write(self, line: str, found: Found) -> str:
        if _blank(line):
            return line
        added = "".join(f", {json.dumps(name)}: {_dumped(value)}" for name, value in found.items())
        return f"{line.rstrip().removesuffix('}').rstrip()}{added}}}"


def chosen_form(column: str | None, key: str | None, added: Sequence[str]) -> Form:
    """The form that `--column` or `--json` names; `a+b` joins two with a blank, as in training."""
    if column is not None and key is not None:
        raise SurdError("--column is for a TSV and --json for JSON lines: they do not go together")
    if column is not None:
        names = column.split("+")
        if not all(name.isdecimal() and int(name) for name in names):
            raise SurdError(f'--column: columns of a TSV are numbered from 1, as in 2 or 1+2; found "{column}"')
        return Columns(tuple(map(int, names)))
    if key is not None:
        names = key.split("+")
        if not all(names):
            raise SurdError(f'--json: expected the key of the text, such as text, found "{key}"')
        return Keys(tuple(names), tuple(added))
    return Text()


def _blank(line: str) -> bool:
    """Whether there is nothing in a line, not even the tabs of empty columns; it stays as it is."""
    return not line.strip(" ")


def _spelt(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.4f}"


def _dumped(value: str | float) -> str:
    return json.dumps(value if isinstance(value, str) else round(value, 4), ensure_ascii=False)


def _is_text(value: object) -> bool:
    """Whether a value is text that can be written as UTF-8: JSON can also spell half a surrogate pair."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False
