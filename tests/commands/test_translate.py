"""`surd translate`, as a user starts it: data on standard output, talk on standard error."""

import io
import sys
from pathlib import Path

import pytest
from run.tiny import WORDS, tiny_run, write_lines

import surd
from surd.cli import main
from surd.commands.translate import counted
from surd.run import Run
from surd.run.text import Answer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return tiny_run(tmp_path_factory.mktemp("runs") / "run")


def type_in(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_standard_input_to_standard_output(
    run: Run, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    type_in(monkeypatch, "\N{ZERO WIDTH NO-BREAK SPACE}cat\r\n\ndog\u2028dog\ntomato".encode())
    assert main(["translate", str(run.folder)]) == 0
    out, err = capfdbinary.readouterr()
    expected = surd.load(run.folder).translate(["cat", "", "dog\u2028dog", "tomato"])
    assert out.decode() == "".join(f"{line}\n" for line in expected)
    assert expected[1] == "" and err == b""


def test_a_file_to_a_file_with_scores(run: Run, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    source, output = write_lines(tmp_path / "words", WORDS[:3]), tmp_path / "out"
    words = ["translate", str(run.folder), str(source), "--output", str(output), "--beam", "2", "--scores"]
    assert main([*words, "--length-penalty", "0.5"]) == 0
    expected = surd.load(run.folder).translate(WORDS[:3], beam=2, length_penalty=0.5, scores=True)
    assert output.read_text() == "".join(f"{score:.4f}\t{text}\n" for text, score in expected)
    assert capfdbinary.readouterr().out == b""


def test_greedy_is_a_beam_of_one(run: Run, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    source = str(write_lines(tmp_path / "words", WORDS[:3]))
    assert main(["translate", str(run.folder), source, "--greedy"]) == 0
    greedy = capfdbinary.readouterr().out
    assert main(["translate", str(run.folder), source, "--beam", "1", "--batch-tokens", "1"]) == 0
    assert capfdbinary.readouterr().out == greedy
    assert main(["translate", str(run.folder), source, "--greedy", "--beam", "4"]) == 2
    assert b"does not go with --beam 4" in capfdbinary.readouterr().err
    for words in (["--bem", "3"], ["--bem=3"], [source, "--bem", "3"]):
        assert main(["translate", str(run.folder), *words]) == 2
        assert b'Did you mean "--beam"?' in capfdbinary.readouterr().err
    assert main(["translate", str(run.folder), source, source]) == 2
    assert b"expected one file to translate, found 2" in capfdbinary.readouterr().err


def test_a_long_line_is_named_on_standard_error(
    run: Run, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    source = write_lines(tmp_path / "words", ["cat", "tomato tomato tomato"])
    assert main(["translate", str(run.folder), str(source)]) == 0
    out, err = capfdbinary.readouterr()
    assert out.count(b"\n") == 2
    assert err.startswith(b"warning: line 2: longer than what the model was trained on: its last 8 tokens")


@pytest.mark.parametrize("kind", ["input", "path", "encoding", "piped encoding"])
def test_a_mistake_is_one_message_and_leaves_no_file(
    run: Run, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "latin").write_bytes(b"cat\n" * 3 + b"caf\xe9\n")
    type_in(monkeypatch, b"cat\ncaf\xe9\n")
    source = {"input": ["nothing"], "path": ["latin"], "encoding": ["latin"], "piped encoding": ["-"]}[kind]
    folder = tmp_path / "no-run" if kind == "path" else run.folder
    words = ["translate", str(folder), *(name if name == "-" else str(tmp_path / name) for name in source)]
    assert main([*words, "--output", str(tmp_path / "out")]) == 2
    err = capfdbinary.readouterr().err.decode()
    message = {
        "input": "nothing: there is no such file",
        "path": "no-run: no such folder",
        "encoding": "latin, line 4: not UTF-8: byte 0xe9 at position 4",
        "piped encoding": "standard input, line 2: not UTF-8: byte 0xe9 at position 4",
    }[kind]
    assert message in err and err.startswith("error: ") and "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["latin"]


def test_a_count_is_shown_only_where_somebody_watches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [Answer(text=word, score=0.0) for word in WORDS]
    monkeypatch.setattr("surd.commands.translate.COUNTED", 3)
    assert list(counted(answers, Path("out"))) == answers
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert list(counted(answers, Path("out"))) == answers
    out, err = capsys.readouterr()
    assert out == "" and err.count("\r") == 2 and "6 lines, " in err and err.endswith("a second\n")


def test_a_training_that_goes_on_is_noted(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    run = tiny_run(tmp_path / "run")
    run.save_model(run.build_model(), {"step": 20, "finished": False})
    assert main(["translate", str(run.folder), str(write_lines(tmp_path / "empty", [""]))]) == 0
    out, err = capfdbinary.readouterr()
    assert out == b"\n" and b"note: " in err and b"up to update 20" in err
