"""`surd translate`, as a user starts it: data on standard output, talk on standard error."""

import io
import json
import select
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

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
    with pytest.warns(UserWarning, match="line 3: symbols that the model has never seen"):
        expected = surd.load(run.folder).translate(["cat", "", "dog\u2028dog", "tomato"])
    assert out.decode() == "".join(f"{line}\n" for line in expected)
    assert expected[1] == ""
    assert err.decode() == "warning: line 3: symbols that the model has never seen, which it reads as ⁇\n"


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
    assert err == b"warning: line 2: longer than what the model was trained on: translated in 3 parts\n"


def test_a_line_of_a_hundred_thousand_characters_is_one_line_and_one_warning(
    run: Run, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    lines = ["cat", ("tomato " * 20_000)[:100_000], "dog"]
    source = str(write_lines(tmp_path / "words", lines))
    assert main(["translate", str(run.folder), source, "--greedy"]) == 0
    out, err = capfdbinary.readouterr()
    answers = surd.load(run.folder).translate(["cat", "tomato", "dog"], beam=1)
    cat, long, dog = out.decode().removesuffix("\n").split("\n")
    assert (cat, dog) == (answers[0], answers[2])
    # No two whole words fit together, so it is the answer to each of them, with blanks between.
    assert long.startswith(" ".join([answers[1]] * (lines[1].count("tomato") - 1)))
    assert err.decode() == "warning: line 2: longer than what the model was trained on: translated in 14,285 parts\n"


class Talk:
    """`surd translate` in a process of its own, with which one talks line by line."""

    def __init__(self, run: Run, *options: str) -> None:
        words = [sys.executable, "-m", "surd", "translate", str(run.folder), *options]
        self.process = subprocess.Popen(words, stdin=PIPE, stdout=PIPE, stderr=PIPE, bufsize=0)
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self._in, self._out, self._err = self.process.stdin, self.process.stdout, self.process.stderr

    def say(self, text: str) -> None:
        self._in.write(text.encode())

    def hear(self) -> str:
        """The next line; when none has come after long, none will."""
        heard = b""
        while not heard.endswith(b"\n"):
            assert select.select([self._out], [], [], 240)[0], "no answer, the next line is waited for"
            heard += self._out.read(1)
        return heard.decode()

    def end(self) -> tuple[int, str, str]:
        """Exit status, and the rest of what is said."""
        self._in.close()
        rest = self._out.read().decode(), self._err.read().decode()
        self._out.close()
        self._err.close()
        return self.process.wait(), *rest


def test_a_line_in_an_open_pipe_is_answered_before_the_next_is_written(run: Run) -> None:
    expected = surd.load(run.folder).translate(WORDS[:4])
    talk = Talk(run)
    talk.say("cat\n")
    assert talk.hear() == f"{expected[0]}\n"
    talk.say("dog\r\ntoma")
    assert talk.hear() == f"{expected[1]}\n"
    talk.say("to\n")
    assert talk.hear() == f"{expected[2]}\n"
    talk.say("read")
    assert talk.end() == (0, f"{expected[3]}\n", "")


def test_what_came_before_a_bad_line_of_a_pipe_is_answered(
    run: Run, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    type_in(monkeypatch, b'{"w": "cat"}\n{"w": "dog"}\n{"w": \n{"w": "a"}\n')
    assert main(["translate", str(run.folder), "--json", "w"]) == 2
    out, err = capfdbinary.readouterr()
    assert [json.loads(line)["w"] for line in out.splitlines()] == ["cat", "dog"]
    assert err.startswith(b"error: standard input, line 3: not JSON (Expecting value") and err.count(b"\n") == 1


def test_a_column_of_a_tsv_is_translated_and_all_columns_are_kept(
    run: Run, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    lines = ["1\tcat\tx\u2028y", "", "2\t\t", "3\tdog\t"]
    source = str(write_lines(tmp_path / "words.tsv", lines))
    assert main(["translate", str(run.folder), source, "--column", "2"]) == 0
    cat, dog = surd.load(run.folder).translate(["cat", "dog"])
    out, err = capfdbinary.readouterr()
    assert out.decode() == f"1\tcat\tx\u2028y\t{cat}\n\n2\t\t\t\n3\tdog\t\t{dog}\n"
    assert err == b""
    assert main(["translate", str(run.folder), source, "--column", "4"]) == 2
    err = capfdbinary.readouterr().err.decode()
    assert err.startswith(f"error: {source}, line 1: expected at least 4 columns with a tab between them, found 3 (3 ")


def test_a_key_of_json_lines_is_translated_and_all_keys_are_kept(
    run: Run, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    lines = ['{"id": 1.0, "word": "cat"}', '{"word":"dog","id":2}']
    source = str(write_lines(tmp_path / "words.jsonl", lines))
    assert main(["translate", str(run.folder), source, "--json", "word", "--scores"]) == 0
    found = surd.load(run.folder).translate(["cat", "dog"], scores=True)
    out = capfdbinary.readouterr().out.decode().splitlines()
    for line, before, (text, score) in zip(out, lines, found, strict=True):
        assert line.startswith(before.removesuffix("}"))
        added = {"score": pytest.approx(score, abs=1e-4), "translation": text}
        assert json.loads(line) == json.loads(before) | added
    write_lines(tmp_path / "words.jsonl", [*lines, "{}"])
    assert main(["translate", str(run.folder), source, "--json", "word", "--output", str(tmp_path / "out")]) == 2
    assert capfdbinary.readouterr().err.decode() == f'error: {source}, line 3: there is no key "word", found none\n'
    assert not (tmp_path / "out").exists()


def test_placeholders_that_get_lost_are_counted_at_the_end(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    run = tiny_run(tmp_path / "run", symbols=("<url>",))
    source = str(write_lines(tmp_path / "words", ["cat <url>", "dog", "<url><url>"]))
    assert main(["translate", str(run.folder), source]) == 0
    err = capfdbinary.readouterr().err.decode()
    assert err == (
        "warning: 2 lines, the first of them line 1: placeholders of the source are missing in the output: "
        '"<url>" 3 times\n'
    )


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
