"""Lines: what ends one and what does not, compression, pipes, and faults with their place."""

import gzip
import io
import lzma
import os
import threading
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from surd.data import lines as module
from surd.data.lines import Complaints, Input, missing
from surd.errors import Faults

ODD = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\rh"
"""Everything that some programs take for the end of a line, and that is none here."""


def read(path: Path | str) -> list[str]:
    complaints = Complaints()
    found = list(Input(str(path)).lines(complaints))
    complaints.raise_any()
    return found


def fault(path: Path) -> str:
    with pytest.raises(Faults) as caught:
        read(path)
    return str(caught.value)


@given(st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]))))
def test_lines_come_back_as_they_were_written(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("lines") / "text"
    path.write_bytes("".join(f"{text}\n" for text in texts).encode())
    bare = [text.removesuffix("\r") for text in texts]
    if bare:
        bare[0] = bare[0].removeprefix("\ufeff") if texts[0].startswith("\ufeff") else bare[0]
    assert read(path) == bare


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(f"{ODD}\r\nsecond\n\nlast".encode())
    assert read(path) == [ODD, "second", "", "last"]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("\ufeffone\n\ufefftwo\n".encode())
    assert read(path) == ["one", "\ufefftwo"]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 2**20])
def test_the_size_of_a_chunk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    path = tmp_path / "text"
    path.write_bytes("äöü\r\n\n日本語\nend".encode())
    assert read(path) == ["äöü", "", "日本語", "end"]


COMPRESSORS = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
    "zst of several frames": lambda data: b"".join(
        zstandard.ZstdCompressor().compress(data[place : place + 5]) for place in range(0, len(data), 5)
    ),
    "gz of several members": lambda data: gzip.compress(data[:7]) + gzip.compress(data[7:]),
}


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_compressed_files_are_known_by_their_content(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(COMPRESSORS[kind]("one\nzwei ü\n".encode()))
    assert read(path) == ["one", "zwei ü"]


@pytest.mark.parametrize("kind", ["gz", "xz", "zst"])
def test_a_compressed_file_that_was_cut_short_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"text.{kind}"
    path.write_bytes(COMPRESSORS[kind](os.urandom(5000).hex().encode())[:-300])
    assert f"{path}: cannot be read after line" in fault(path)


def test_a_file_that_is_not_utf8_names_the_line_and_counts_all(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("gut\nschön\n".encode() + "schön\nüber\n".encode("latin-1"))
    assert fault(path) == (
        f"{path}, line 3: not UTF-8: byte 0xf6 at position 4; if it is Latin-1: iconv -f LATIN1 -t UTF-8"
        " (2 such lines in this file)"
    )


def test_utf16_is_named(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("one\ntwo\n".encode("utf-16"))
    assert fault(path) == f"{path}: not UTF-8 but UTF-16; convert it: iconv -f UTF-16 -t UTF-8"


def test_a_file_without_lines_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 10)
    monkeypatch.setattr(module, "LONGEST_LINE", 100)
    path = tmp_path / "text"
    path.write_bytes(b"short\n" + b"x" * 1000)
    assert "cannot be read after line 1" in fault(path)


def test_a_pipe_can_be_read_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(gzip.compress(b"one\ntwo\n"),))
    writer.start()
    text = Input(str(path))
    writer.join()
    assert [list(text.lines(Complaints())) for _ in range(2)] == [["one", "two"]] * 2


def test_standard_input_is_a_text_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("eins\nzwei ü\n".encode())))
    text = Input("-")
    assert text.name == "standard input"
    assert [list(text.lines(Complaints())) for _ in range(2)] == [["eins", "zwei ü"]] * 2


def test_a_missing_file_is_told_with_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "train.en").touch()
    assert missing(str(tmp_path / "train.en")) is None
    expected = f'{tmp_path}/train.em: there is no such file. Did you mean "{tmp_path}/train.en"?'
    assert missing(str(tmp_path / "train.em")) == expected
    assert missing(str(tmp_path)) == f"{tmp_path}: expected a file, found a folder"
    assert missing(str(tmp_path / "no" / "x")) == f"{tmp_path}/no/x: there is no folder {tmp_path}/no"
