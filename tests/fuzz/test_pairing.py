"""Pairing: whatever a text holds, line i of one file belongs to line i of the other; one line in is one line out."""

import io
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surd.commands.forms import Columns, Keys, Text
from surd.commands.lines import rows
from surd.data.corpus import Corpus
from surd.data.lines import Complaints

BREAKS = ("\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r", "\r\r", "\ufeff")
"""What other programs end a line at; here only a line feed does, alone or behind a carriage return."""
seeded = settings(derandomize=True, database=None, deadline=None, max_examples=60)

pieces = st.lists(st.sampled_from((*BREAKS, "a", "b ", "é", "")), max_size=5).map("".join)
sides = pieces.map(lambda text: f"x{text}y")  # so that a side neither is blank nor ends as a line does
pairs = st.lists(st.tuples(sides, sides), min_size=1, max_size=8)
ends = st.sampled_from(("\n", "\r\n"))


def read(contents: Iterable[str], end: str, columns: str | None = None) -> list[tuple[str, str]]:
    """The pairs of one file or two that have these lines."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, lines in enumerate(contents):
            paths.append(Path(folder) / str(number))
            paths[-1].write_bytes("".join(f"{line}{end}" for line in lines).encode())
        complaints = Complaints()
        found = list(Corpus(*map(str, paths), columns=columns).pairs(complaints))
        complaints.raise_any()
        return found


@seeded
@given(pairs, ends)
def test_two_files(texts: list[tuple[str, str]], end: str) -> None:
    assert read(zip(*texts, strict=True), end) == texts


@seeded
@given(pairs, ends)
def test_columns(texts: list[tuple[str, str]], end: str) -> None:
    assert read([[f"{source}\t{target}" for source, target in texts]], end) == texts
    three = [[f"{number}\t{source}\t{target}" for number, (source, target) in enumerate(texts)]]
    assert read(three, end, "2,3") == texts


@seeded
@given(pairs, ends, st.booleans())
def test_json_lines(texts: list[tuple[str, str]], end: str, ascii_only: bool) -> None:
    told = [json.dumps({"source": one, "target": other}, ensure_ascii=ascii_only) for one, other in texts]
    assert read([told], end) == texts


@seeded
@given(st.lists(sides, min_size=1, max_size=8), ends, st.integers(1, 4))
def test_lines_to_translate(texts: list[str], end: str, most: int) -> None:
    """Of a file and of standard input, in any form: a row for each line, that writes one line."""
    forms = ((Text(), texts), (Columns((2,)), [f"1\t{text}" for text in texts]))
    keys = Keys(("text",), ("translation",))
    for form, lines in (*forms, (keys, [json.dumps({"text": text}, ensure_ascii=False) for text in texts])):
        data = "".join(f"{line}{end}" for line in lines).encode()
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            path = Path(folder) / "lines"
            path.write_bytes(data)
            patch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(data))))
            for name in (str(path), "-"):
                found = [row for chunk in rows(name, form, most) for row in chunk]
                assert [row.line for row in found] == lines
                assert all("\n" not in form.write(row.line, {"translation": "z"}) for row in found)
                if form is not keys:  # whose texts may have line ends inside, which count as blanks
                    assert [row.text for row in found] == texts
