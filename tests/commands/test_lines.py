"""Lines as they come: what is there is given at once, what is not there is not waited for."""

import io
import os
import sys
import threading
from pathlib import Path

import pytest

from surd.commands.forms import Columns, Text
from surd.commands.lines import READ, arriving, more_to_read, rows, standard_input
from surd.errors import SurdError


class Pipe:
    """Both ends of a pipe."""

    def __init__(self) -> None:
        self.end, self._begin = os.pipe()
        self.stream = os.fdopen(self.end, "rb")

    def write(self, data: bytes) -> None:
        os.write(self._begin, data)

    def close(self) -> None:
        os.close(self._begin)


def test_a_line_is_given_while_the_next_is_not_there_and_half_a_line_is_not() -> None:
    pipe = Pipe()
    with pipe.stream:
        found = arriving(pipe.stream, 100)
        pipe.write(b"one\n")
        assert next(found) == [b"one"]
        pipe.write(b"two\nthree\nfo")
        assert next(found) == [b"two", b"three"]
        pipe.write(b"ur\n\nlast")
        assert next(found) == [b"four", b""]
        pipe.close()
        assert list(found) == [[b"last"]]


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="Windows has no such terminals")
def test_a_line_that_is_typed_is_given_at_once() -> None:
    keyboard, terminal = os.openpty()
    with os.fdopen(terminal, "rb") as stream:
        found = arriving(stream, 100)
        for line in (b"one", b"two"):
            os.write(keyboard, line + b"\n")
            assert next(found) == [line]
        os.write(keyboard, b"\x04")  # Ctrl-D
        assert list(found) == []
    os.close(keyboard)


def test_a_full_pipe_gives_full_chunks() -> None:
    pipe = Pipe()
    with pipe.stream:
        pipe.write(b"line\n" * 1000)
        found = arriving(pipe.stream, 300)
        assert [len(next(found)) for _ in range(4)] == [300, 300, 300, 100]
        pipe.close()
        assert list(found) == []


def test_whatever_size_the_reads_have_the_lines_are_the_same() -> None:
    lines = [b"x" * length for length in (0, 1, READ - 1, READ, 3 * READ + 5, 2)]
    data = b"\n".join(lines)
    pipe = Pipe()
    writer = threading.Thread(target=lambda: (pipe.write(data), pipe.close()))
    with pipe.stream:
        writer.start()
        assert [line for chunk in arriving(pipe.stream, 2) for line in chunk] == lines
        writer.join()
    assert [line for chunk in arriving(io.BytesIO(data), 2) for line in chunk] == lines


def test_a_file_always_has_more_to_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a\n" * 5)
    with (tmp_path / "file").open("rb") as file:
        assert more_to_read(file)
        assert [len(chunk) for chunk in arriving(file, 2)] == [2, 2, 1]


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surd.commands.lines.LONGEST_LINE", 2**20)
    with pytest.raises(SurdError, match="standard input: a line of more than 1 MiB"):
        list(arriving(io.BytesIO(b"x" * 2**21), 10))


def test_no_standard_input_is_a_mistake_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SurdError, match="no standard input"):
        list(standard_input(10))


def test_lines_before_a_bad_one_are_given_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n\xff\nc\n")))
    found = rows("-", Text(), 10)
    assert [row.text for row in next(found)] == ["a", "b"]
    with pytest.raises(SurdError, match="standard input, line 3: not UTF-8: byte 0xff at position 1"):
        next(found)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\tb\nc\n")))
    found = rows("-", Columns((2,)), 10)
    assert [row.text for row in next(found)] == ["b"]
    with pytest.raises(SurdError, match="standard input, line 2: expected at least 2 columns"):
        next(found)


def test_a_file_is_looked_through_before_its_first_line_is_given(tmp_path: Path) -> None:
    path = tmp_path / "file.tsv"
    path.write_bytes(b"a\tb\n" * 5 + b"c\n\nd\n")
    with pytest.raises(SurdError, match=r"file\.tsv, line 6: expected at least 2 columns .*\(2 such lines"):
        rows(str(path), Columns((2,)), 2)
    found = rows(str(path), Columns((1,)), 3)
    assert (found.number, [len(chunk) for chunk in found]) == (8, [3, 3, 2])
