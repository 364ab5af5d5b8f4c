"""`surd generate`, and what the other commands make of running text, as a user starts them."""

import io
import json
import re
import sys
from pathlib import Path

import pytest
from run.tiny import tiny_run
from run.tiny_text import tiny_text_run, write_text
from training.tiny import TEXT_WORDS
from training.tiny import write_text as write_sentences

import surd
from surd.cli import main
from surd.run import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return tiny_text_run(tmp_path_factory.mktemp("runs") / "run")


class Input(io.TextIOWrapper):
    """Standard input that somebody types into, or not."""

    def __init__(self, text: str, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(text.encode()))
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def test_a_prompt_is_printed_with_what_follows_it(run: Run, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["generate", str(run.folder), "--prompt", "the cat", "--greedy", "--max-length", "12"]) == 0
    output = capsysbinary.readouterr()
    expected = surd.load(run.folder).generate(["the cat"], greedy=True, max_length=12)
    assert output.out.decode() == f"the cat{expected[0]}\n"
    assert output.err == b""


def test_prompts_come_one_a_line(
    run: Run, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Input("the\na dog\n"))
    words = ["--seed", "3", "--samples", "2", "--temperature", "0.7", "--top-k", "5", "--top-p", "0.9"]
    assert main(["generate", str(run.folder), *words]) == 0
    texts = surd.load(run.folder).generate(["the", "a dog"], seed=3, samples=2, temperature=0.7, top_k=5, top_p=0.9)
    prompts = ["the", "the", "a dog", "a dog"]
    printed = [prompt + text for prompt, text in zip(prompts, texts, strict=True)]
    assert capsysbinary.readouterr().out.decode() == "\n---\n".join(printed) + "\n"
    monkeypatch.setattr(sys, "stdin", Input("the\na dog\n"))
    assert main(["generate", str(run.folder), "--json", *words]) == 0
    rows = [json.loads(line) for line in capsysbinary.readouterr().out.decode().splitlines()]
    assert [row["prompt"] + row["text"] for row in rows] == printed
    assert not any(row["ended"] or row["unknown"] for row in rows)


@pytest.mark.parametrize("terminal", [False, True])
def test_without_a_prompt_it_begins_by_itself(
    run: Run, terminal: bool, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Input("the\n" if terminal else "", terminal))
    assert main(["generate", str(run.folder)]) == 0
    assert capsysbinary.readouterr().out.decode() == surd.load(run.folder).generate()[0] + "\n"


def test_a_text_is_scored(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = write_text(tmp_path / "held.txt")
    assert main(["score", str(run.folder), str(text)]) == 0
    output = capsys.readouterr()
    assert [line.split("  ")[0] for line in output.out.splitlines()] == [
        "nats per token",
        "bits per byte",
        "perplexity",
    ]
    assert "held.txt in windows of 12 tokens, none overlapping" in output.err
    assert main(["score", str(run.folder), str(text), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    writer = surd.load(run.folder)
    assert [score["value"] for score in scores] == [score.value for score in writer.score(text.read_text())]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["translate", "RUN", "held.txt"], "was trained for the task language, so what uses it is: surd generate RUN"),
        (["generate", "PAIRS"], "was trained for the task pronunciation, so what uses it is: surd translate PAIRS"),
        (["generate", "RUN", "--greedy", "--top-p", "0.5"], "it does not go with top_p"),
        (["generate", "RUN", "--top-k", "0"], "top_k: expected at least 1, found 0"),
        (
            ["generate", "RUN", "--temperature", "0", "--top-k", "5", "--top-p", "0.9"],
            "a temperature of 0 takes the likeliest token each time, so that top_k, top_p mean nothing",
        ),
        (["generate", "RUN", "--greedy", "--samples", "2"], "so that samples means nothing"),
        (["generate", "RUN", "--temperature", "0", "--seed", "0"], "so that seed means nothing"),
        (["score", "RUN", "held.txt", "--with", "RUN"], "is scored on one text, without with"),
        (["score", "PAIRS", "pairs.tsv", "--greedy", "--length-penalty", "0.5"], "--length-penalty ranks hypotheses"),
        (["generate", "RUN", "--samples", "0"], "samples: expected at least 1, found 0"),
        (["generate", "RUN", "--promt", "x"], "Did you mean --prompt?"),
        (["generate", "held.txt"], "not the folder of a run"),
        (["score", "RUN", "held.txt", "held.txt"], "a language model is scored on one text, without reference"),
        (["score", "RUN", "held.txt", "--greedy", "--columns", "1,2"], "without columns, beam"),
        (["score", "RUN", "hold.txt"], 'there is no such file. Did you mean "held.txt"?'),
        (["score", "RUN", "empty.txt"], "empty.txt: empty, expected text"),
        (["score", "RUN", "latin.txt"], "latin.txt, line 1: not UTF-8: byte 0xe9"),
        (["score", "PAIRS", "held.txt"], "expected 2 columns"),
        (["train", "--text", "held.txt", "pairs.tsv", "--out", "new"], "--text names running text"),
        (["train", "--text", "held.txt", "--out", "new", "--dev", "held.txt", "pairs.tsv"], "is one file, found 2"),
        (["train", "--text", "empty.txt", "--out", "new"], "empty.txt: empty, expected text"),
        (["train", "--text", "latin.txt", "--out", "new"], "latin.txt, line 1: not UTF-8"),
        (["train", "--text", "none.txt", "--out", "new"], "none.txt: there is no such file"),
        (["train", "--text", "held.txt", "--out", "new"], "fewer than the 64 of one window (data.context)"),
        (["train", "--text", "held.txt", "--plan"], "fewer than the 64 of one window (data.context)"),
        (["train", "--text", "held.txt", "--dev", "held.txt", "--out", "new"], "is the training text itself"),
        (
            ["train", "--text", "held.txt", "--task", "translation", "--out", "new"],
            "running text is for language models",
        ),
        (["train", "pairs.tsv", "--task", "language", "--out", "new"], "named by data.text (--text)"),
        (["train", "pairs.tsv", "--recipe", "characters", "--out", "new"], "named by data.text (--text)"),
        (["train", "--text", "held.txt", "--columns", "1,2", "--out", "new"], "running text has no columns"),
        (["train", "--text", "held.txt", "--out", "new", "decode.beam=3"], "a language model samples"),
        (["train", "--text", "held.txt", "--out", "new", "--recipe", "tiny"], "a language model has no encoder"),
        (["train", "--recipe", "characters", "--out", "new"], "there is nothing to train on"),
        (["train", "--resume", "RUN", "--text", "held.txt"], "does not go with --text"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_message_each_and_leave_nothing(
    words: list[str],
    message: str,
    run: Run,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", Input(""))
    (tmp_path / "RUN").symlink_to(run.folder)
    tiny_run(tmp_path / "PAIRS")
    write_text(tmp_path / "held.txt")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "latin.txt").write_bytes("é\n".encode("latin-1") * 100)
    (tmp_path / "pairs.tsv").write_text("a\tb\n" * 20)
    before = set(tmp_path.rglob("*"))
    assert main(words) == 2
    output = capsys.readouterr()
    assert message in output.err, output.err
    assert output.err.startswith("error: ") and "Traceback" not in output.err and output.out == ""
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("document", ["text", "line"])
def test_from_a_text_to_a_model_that_goes_on_with_it(
    document: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_sentences(tmp_path / "text.txt", lines=1500)
    words = [*TEXT_WORDS, "training.steps=150", "model.dropout=0.0", f"data.document={document}"]
    assert main(["train", "--text", "text.txt", "--out", "run", *words]) == 0
    output = capsys.readouterr()
    assert output.out.startswith("nats per token ")
    assert float(output.out.split()[3]) < 1.3, "far below what the frequencies of letters give"
    for part in ("running text, not pairs", "held out: its end", "windows", "Learning: ", "surd generate run"):
        assert part in output.err
    writer = surd.load("run")
    (text,) = writer.generate(["the "], greedy=True)
    known = {"the", "cat", "dog", "sees", "a", "bird", "and", "sings"}
    assert set(text.replace(".", " ").split()[:-1]) <= known, text
    held = list((tmp_path / "text.txt").read_text().splitlines())[-150:]
    assert writer.score("\n".join(held))[0].value == pytest.approx(float(output.out.split()[3]), abs=0.1)


@pytest.mark.usefixtures("compiled")
def test_a_plan_and_held_out_text_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_sentences(tmp_path / "text.txt")
    write_sentences(tmp_path / "dev.txt", lines=40)
    command = ["train", "--text", "text.txt", "--dev", "dev.txt", *TEXT_WORDS, "training.steps=6"]
    before = set(tmp_path.rglob("*"))
    assert main([*command, "--plan"]) == 0
    told = capsys.readouterr().out
    for part in ("characters in 300 lines to train on", "held out: dev.txt", "model.decoder_layers", "a vocabulary of"):
        assert part in told
    assert set(tmp_path.rglob("*")) == before
    assert main([*command, "--out", "run"]) == 0
    final = capsys.readouterr().out.splitlines()
    assert main(["score", "run", "dev.txt"]) == 0
    again = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in final] == [line.split()[-1] for line in again], "one definition"
    for one, other in zip(final, again, strict=True):
        name, value = re.findall(r"^([a-z ]+) ([0-9.]+)", one)[0]
        (found,) = re.findall(rf"^{name} +([0-9.]+)", other)
        assert float(found) == pytest.approx(float(value), rel=1e-3)  # in bf16, where that is fast, to its rounding


@pytest.mark.usefixtures("compiled")
def test_in_python(tmp_path: Path) -> None:
    write_sentences(tmp_path / "text.txt")
    settings = dict(word.split("=") for word in TEXT_WORDS)
    values = {name: float(value) if "." in value else value for name, value in settings.items()}
    values = {name: int(value) if str(value).isdigit() else value for name, value in values.items()}
    writer = surd.train(text=tmp_path / "text.txt", out=tmp_path / "run", settings=values | {"training.steps": 4})
    assert writer.generate(["the"], seed=1) == surd.load(tmp_path / "run").generate(["the"], seed=1)
    with pytest.raises(surd.SurdError, match="text is for a language model, source and target are for pairs"):
        surd.train("a.tsv", text="b.txt", out=tmp_path / "other")
