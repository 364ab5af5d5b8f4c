"""A corpus: pairs of text from two aligned files, a TSV, or JSON lines, read as often as asked."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from math import isfinite
from typing import Literal

from surd.data.lines import Complaints, Input, missing
from surd.errors import Faults

Pair = tuple[str, str]
COMPRESSED = (".gz", ".xz", ".zst")
PAIRS = ("source", "target", "dev_source", "dev_target")
FILES = (*PAIRS, "text", "dev_text")
"""Settings that name files: those of pairs, and all of them."""


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Which text to train on, and what of it to leave out."""

    source: str | None = None
    """The file of source lines, or of whole pairs (TSV or JSON lines); "-" is standard input."""
    target: str | None = None
    """The file of target lines; nothing when `source` holds both sides."""
    dev_source: str | None = None
    """Held-out sources, or held-out pairs; nothing to hold out pairs of the training text."""
    dev_target: str | None = None
    """Held-out targets."""
    text: str | None = None
    """The file of running text that a language model learns from; "-" is standard input."""
    dev_text: str | None = None
    """Held-out running text; nothing to hold out the end of the training text."""
    columns: str | None = None
    """What of a TSV line or JSON object to read: "1+2,3" joins columns 1 and 2 as source; column 3 is the target."""
    document: Literal["text", "line"] = "text"
    """What goes on without a break: the whole `text`, line ends included, or each `line` by itself (names, titles)."""
    context: int = 256
    """Tokens of running text that a model reads at once: documents are cut into windows of so many."""
    held_out: float = 0.05
    """What to hold out, only without held-out files: of pairs a share below 1 of the sources (then 2 to 2,000 of them)
    or a number of them, of running text a share from its end."""
    max_length: int = 256
    """Pairs with more tokens than this on a side are left out."""
    max_ratio: float = 6.0
    """Pairs whose sides differ in length this many times more than usual in the corpus are left out."""

    def __post_init__(self) -> None:
        faults = []
        if self.source is None and self.text is None:
            faults.append("source: missing; pairs are named by source, running text for a language model by text")
        if self.text is not None and (pairs := [name for name in PAIRS if getattr(self, name) is not None]):
            faults.append(f"text: one model learns from running text or from pairs, found {', '.join(pairs)} beside it")
        if self.dev_text is not None and self.text is None:
            faults.append("dev_text: there is no text to go with it")
        if self.context < 2:
            faults.append(f"context: expected at least 2, found {self.context}")
        if not (self.held_out > 0 and isfinite(self.held_out)) or (self.held_out >= 1 and self.held_out % 1):
            faults.append(f"held_out: expected a share between 0 and 1 or a whole number, found {self.held_out}")
        if self.max_length < 1:
            faults.append(f"max_length: expected at least 1, found {self.max_length}")
        if not self.max_ratio > 1:
            faults.append(f"max_ratio: expected more than 1, found {self.max_ratio}")
        if self.dev_target is not None and self.dev_source is None:
            faults.append("dev_target: there is no dev_source to go with it")
        if [getattr(self, name) for name in FILES].count("-") > 1:
            faults.append(
                f"{'source' if self.text is None else 'text'}: standard input can be read for one of the files only"
            )
        if self.columns is not None:
            if self.target is not None:
                faults.append("columns: nothing to choose from, source and target are files of their own")
            else:
                faults.extend(f"columns: {message}" for message in _column_faults(self.columns))
        if faults:
            raise Faults(faults)


class Corpus:
    """Pairs of text that can be read again and again without being held in memory."""

    def __init__(self, source: str, target: str | None = None, columns: str | None = None) -> None:
        paths = [source] if target is None else [source, target]
        if faults := [message for path in paths if (message := missing(path))]:
            raise Faults(faults)
        self._inputs = [Input(path) for path in paths]
        self._columns = columns

    @property
    def name(self) -> str:
        """What the corpus is called in messages."""
        return " and ".join(text.name for text in self._inputs)

    def pairs(self, complaints: Complaints) -> Iterator[Pair]:
        """All pairs, in order and as they stand; pair i comes from line i + 1. Faults are noted in `complaints`.

        A file that changes meanwhile is refused: its lines would no longer belong to those of the other, or to what
        was found out about them before.
        """
        self._refuse_changed()
        yield from self._aligned(complaints) if len(self._inputs) == 2 else self._split(complaints)
        self._refuse_changed()

    def _refuse_changed(self) -> None:
        for text in self._inputs:
            text.refuse_changed()

    def _aligned(self, complaints: Complaints) -> Iterator[Pair]:
        """Line i of one file with line i of the other."""
        counts, blanks = [0, 0], [0, 0]
        left, right = (text.lines(complaints) for text in self._inputs)
        for source, target in zip_longest(left, right):
            for side, line in enumerate((source, target)):
                if line is not None:
                    counts[side] += 1
                    blanks[side] += not line.strip()
            if source is not None and target is not None:
                yield source, target
        names = [text.name for text in self._inputs]
        if any(complaints.cut_off(name) for name in names) or counts[0] == counts[1] > 0:
            return
        if min(counts) == 0:
            for name in (name for name, count in zip(names, counts, strict=True) if not count):
                complaints.add(name, "empty", f"{name}: empty, expected one sentence or word a line")
        else:
            complaints.add(self.name, "unequal", _unequal(names, counts, blanks))

    def _split(self, complaints: Complaints) -> Iterator[Pair]:
        """Each line of one file into two sides, as TSV or JSON by what its first line is; an empty line has none."""
        (text,) = self._inputs
        split: Callable[[str], Pair | str] | None = None
        number = 0
        for number, line in enumerate(text.lines(complaints), start=1):
            if not line.strip():
                yield "", ""
                continue
            if split is None:
                split = _json_splitter(self._columns) if _is_object(line) else _tab_splitter(self._columns)
            pair = split(line)
            if isinstance(pair, str):
                complaints.add(text.name, "columns", f"{text.name}, line {number:,}: {pair}")
                pair = ("", "")
            yield pair
        if number == 0 and not complaints.cut_off(text.name):
            complaints.add(text.name, "empty", f"{text.name}: empty, expected one pair a line")


def _unequal(names: list[str], counts: list[int], blanks: list[int]) -> str:
    """What to say of two files that do not have as many lines; empty lines are the likeliest cause."""
    message = f"{names[0]} has {counts[0]:,} lines and {names[1]} has {counts[1]:,}: expected line i of one to belong"
    message += " to line i of the other"
    longer = int(counts[1] > counts[0])
    if blanks[longer] - blanks[1 - longer] == counts[longer] - counts[1 - longer]:
        message += f"; {names[longer]} has as many more empty lines"
    return message


def _is_object(line: str) -> bool:
    """Whether a first line looks like JSON: an object, or a spoilt one. In JSON a tab is written otherwise."""
    if not line.lstrip().startswith("{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return "\t" not in line


def _sides(columns: str) -> list[list[str]]:
    return [side.split("+") for side in columns.split(",")]


def _column_faults(columns: str) -> list[str]:
    sides = _sides(columns)
    names = [name for side in sides for name in side]
    if len(sides) != 2 or not all(names):
        return [f'expected source and target as in "1,2" or "1+2,3", found "{columns}"']
    if any(name.isdecimal() for name in names) and not all(name.isdecimal() and int(name) for name in names):
        return [f'columns of a TSV are numbered from 1, keys of JSON lines are names; found "{columns}"']
    return []


def _tab_splitter(columns: str | None) -> Callable[[str], Pair | str]:
    """Reads a line of a TSV: the pair, or what is wrong with the line."""
    if columns is None:

        def exactly_two(line: str) -> Pair | str:
            cells = line.split("\t")
            if len(cells) == 2:
                return cells[0], cells[1]
            hint = f"to choose: --columns 1,2 or --columns 1+2,{len(cells)}"
            if len(cells) == 1:
                hint = "for sides in two files, name both"
            return f"expected 2 columns with a tab between them, found {len(cells)}; {hint}"

        return exactly_two
    sides = _sides(columns)
    if not sides[0][0].isdecimal():
        return lambda line: f'expected a JSON object with the keys of "{columns}", found other text'
    source, target = ([int(name) - 1 for name in side] for side in sides)
    last = max(*source, *target) + 1

    def chosen(line: str) -> Pair | str:
        cells = line.split("\t")
        if len(cells) < last:
            return f'expected at least {last} columns for "{columns}", found {len(cells)}'
        return " ".join(cells[place] for place in source), " ".join(cells[place] for place in target)

    return chosen


def _json_splitter(columns: str | None) -> Callable[[str], Pair | str]:
    """Reads a line that is a JSON object: the pair, or what is wrong with the line."""
    source, target = _sides(columns or "source,target")
    wanted = source + target

    def chosen(line: str) -> Pair | str:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # thousands of brackets are too deep
            return f"not JSON ({error})"
        if not isinstance(row, dict):
            return "expected a JSON object"
        if absent := [name for name in wanted if name not in row]:
            found = ", ".join(f'"{key}"' for key in row) or "none"
            hint = "" if columns else "; to read others: --columns KEY,KEY"
            return f"expected the keys {_quoted(wanted)}, found {found} (no {_quoted(absent)}){hint}"
        if wrong := [name for name in wanted if not _is_text(row[name])]:
            return f"expected text under {_quoted(wrong)}, found {json.dumps(row[wrong[0]])[:40]}"
        return " ".join(row[name] for name in source), " ".join(row[name] for name in target)

    return chosen


def _quoted(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _is_text(value: object) -> bool:
    """Whether a JSON value is text that can be written as UTF-8: JSON can also spell half a surrogate pair."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
