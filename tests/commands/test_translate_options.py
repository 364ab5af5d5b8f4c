"""What `surd translate` can be asked for besides one translation a line, as it stands in the output."""

import io
import json
from pathlib import Path

import pytest
import torch
from run.tiny import PHONES, WORDS, tiny_run, write_lines

import surd
from surd.cli import main
from surd.data.tokenizer import Words, learn
from surd.files import read_json, sha256, write_json
from surd.run import Run
from surd.run.translator import Translator
from surd.run.unseen import UNSEEN

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return tiny_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def translator(run: Run) -> Translator:
    return surd.load(run.folder)


@pytest.fixture
def words(run: Run, tmp_path: Path) -> list[str]:
    """A command line for three words and an empty line."""
    return ["translate", str(run.folder), str(write_lines(tmp_path / "words", [*WORDS[:3], ""]))]


LINES = [*WORDS[:3], ""]


def test_the_best_outputs_stand_below_each_other_with_their_line(
    words: list[str], translator: Translator, capsys: Captured
) -> None:
    assert main([*words, "--n-best", "2", "--scores", "--align"]) == 0
    answers = translator.answers(LINES, n_best=2, align=True)
    expected = [
        f"{number}\t{output.score:.4f}\t{output.links}\t{output.text}"
        for number, answer in enumerate(answers, start=1)
        for output in answer.outputs
    ]
    assert len(expected) == 7 and expected[-1] == "4\t0.0000\t\t"
    assert capsys.readouterr().out.splitlines() == expected


def test_json_lines_have_keys_for_what_was_asked(
    run: Run, tmp_path: Path, translator: Translator, capsys: Captured
) -> None:
    source = str(write_lines(tmp_path / "rows", ['{"text": "cat", "n": 1}']))
    assert main(["translate", str(run.folder), source, "--json", "text", "--n-best", "2", "--align"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    [answer] = translator.answers(["cat"], n_best=2, align=True)
    expected = [{"text": "cat", "n": 1, "alignment": one.links, "translation": one.text} for one in answer.outputs]
    assert rows == expected


def test_outputs_begin_as_they_are_told(
    words: list[str], translator: Translator, tmp_path: Path, capsys: Captured
) -> None:
    beginnings = ["T AH", "", "D", "K"]
    assert main([*words, "--prefixes", str(write_lines(tmp_path / "beginnings", beginnings))]) == 0
    expected = [answer.text for answer in translator.answers(LINES, prefix=beginnings)]
    assert expected[0].startswith("T AH") and expected[2].startswith("D") and expected[3] == ""
    assert capsys.readouterr().out.splitlines() == expected
    assert main([*words, "--prefix", "UW"]) == 0
    assert [line[:2] for line in capsys.readouterr().out.splitlines()] == ["UW", "UW", "UW", ""]


def test_what_is_drawn_follows_from_the_seed(words: list[str], translator: Translator, capsys: Captured) -> None:
    assert main([*words, "--sample", "--seed", "5", "--temperature", "2", "--top-k", "9", "--top-p", "0.9"]) == 0
    drawing = {"sample": True, "seed": 5, "temperature": 2.0, "top_k": 9, "top_p": 0.9}
    expected = [answer.text for answer in translator.answers(LINES, **drawing)]
    assert capsys.readouterr().out.splitlines() == expected
    for changed in ({"seed": 6}, {"temperature": 0.1}, {"top_k": 1}, {"top_p": 0.01}):
        assert [answer.text for answer in translator.answers(LINES, **(drawing | changed))] != expected


def test_two_runs_translate_together(words: list[str], run: Run, tmp_path: Path, capsys: Captured) -> None:
    others = [tiny_run(tmp_path / f"run{seed}", seed=seed).folder for seed in (1, 2)]
    assert main([*words, "--with", str(others[0]), "--with", str(others[1]), "--scores"]) == 0
    expected = surd.load([run.folder, *others]).translate(LINES, scores=True)
    assert capsys.readouterr().out == "".join(f"{score:.4f}\t{text}\n" for text, score in expected)


def test_an_output_in_circles_is_counted_and_named(tmp_path: Path, capsys: Captured) -> None:
    """A run that would say "K" for ever."""
    run = tiny_run(tmp_path / "run", factor=2.0)
    model = run.load_model(torch.device("cpu"), "fp32")
    [token] = run.tokenizers.target.encode("K")
    row = model.projection.weight[token]
    with torch.no_grad():
        model.decoder.layers[-1].feedforward_residual.norm.bias += 20 * row / row.square().sum()
    run.save_model(model, {"step": 0})
    source = str(write_lines(tmp_path / "words", ["", "tomato", "surd"]))
    assert main(["translate", str(run.folder), source]) == 0
    out, err = capsys.readouterr()
    where = "warning: 2 lines, the first of them line 2"
    assert err == f"{where}: the output went in circles, and was searched for again without\n"
    assert out.count("K") > 4 and "K K" not in out
    assert main(["translate", str(run.folder), source, "--keep-loops"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and set(out.split()) == {"K"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--n-best", "4"], "n_best: expected at most the beam, since no more hypotheses are followed (3), found 4"),
        (["--n-best", "2", "--greedy"], "followed (1), found 2; ask for a beam of 2"),
        (["--n-best", "0"], "n_best: expected at least 1, found 0"),
        (["--sample", "--beam", "2"], "sample draws outputs instead of searching for them: it does not go with a beam"),
        (["--sample", "--greedy"], "it does not go with a beam or greedy"),
        (["--top-k", "2", "--seed", "1"], "top_k, seed: for outputs that are drawn"),
        (
            ["--sample", "--temperature", "0", "--top-k", "3", "--seed", "1", "--n-best", "2"],
            "a temperature of 0 takes the likeliest token each time, so that top_k, seed, n_best mean nothing: raise",
        ),
        (["--greedy", "--length-penalty", "0.5"], "--length-penalty ranks outputs, and there is one a line"),
        (["--batch-tokens", "0"], "--batch-tokens: expected at least 1, found 0"),
        (["--sample", "--temperature", "-1"], "temperature: expected a number of at least 0, found -1.0"),
        (["--prefix", "K " * 9], "line 1: the prefix has 9 tokens, and an output of that line at most 5"),
        (["--prefix", "Q"], 'line 1: the prefix "Q" holds a symbol that the model has never seen'),
        (["--prefix", "K", "--prefixes", "beginnings"], "--prefix is for all lines and --prefixes for one each"),
        (["--prefixes=-"], "--prefixes: expected a file"),
        (["--prefixes", "nowhere"], "nowhere: there is no such file"),
        (["--with", "nowhere"], "nowhere: no such folder"),
        (["--with", "OTHER"], "an ensemble has one vocabulary, and that of"),
    ],
    ids=" ".join,
)
def test_a_mistake_is_one_message(
    words: list[str], tmp_path: Path, options: list[str], message: str, capsys: Captured
) -> None:
    if "OTHER" in options:
        other, changed = tiny_run(tmp_path / "other"), "tokenizer/target.json"
        learn(Words(), [*PHONES, "NG"]).save(other.tokenizer_folder, "target")
        about, checksum = read_json(other.folder / "run.json"), sha256(other.folder / changed)
        write_json(other.folder / "run.json", about | {"files": about["files"] | {changed: checksum}})
        options = ["--with", str(other.folder)]
    assert main([*words, *options, "--output", str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert message in err and err.startswith("error: ") and err.count("\n") == 1 and out == ""
    assert not (tmp_path / "out").exists()


def test_prefixes_must_be_as_many_as_lines(words: list[str], tmp_path: Path, capsys: Captured) -> None:
    for count in (3, 5):
        beginnings = str(write_lines(tmp_path / "beginnings", [""] * count))
        assert main([*words, "--prefixes", beginnings]) == 2
        told = f"error: prefixes: expected one for each of the 4 lines, found {count}\n"
        assert capsys.readouterr() == ("", told), "before anything is translated"


@pytest.mark.parametrize(("count", "message"), [(3, "found 3: line 4 has none"), (5, "found more than the 4 lines")])
def test_of_a_pipe_the_lines_before_are_answered(
    words: list[str], tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, count: int, message: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("".join(f"{line}\n" for line in LINES).encode())))
    beginnings = str(write_lines(tmp_path / "beginnings", ["K"] * count))
    assert main([*words[:2], "--prefixes", beginnings]) == 2
    out, err = capsys.readouterr()
    assert err == f"error: prefixes: expected one for each line, {message}\n"
    assert [line[:1] for line in out.splitlines()] == ["K", "K", "K", ""][: min(count, 4)]


def test_a_placeholder_that_was_never_seen_is_told_once(tmp_path: Path, capsys: Captured) -> None:
    run = tiny_run(tmp_path / "run", symbols=("<x>", "<y>"))
    write_json(run.folder / UNSEEN, {"source": ["<x>"], "target": []})
    source = str(write_lines(tmp_path / "lines", ["cat", "<y>", "<x>", "dog<x>"]))
    assert main(["translate", str(run.folder), source]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "nowhere" in line]
    assert told == [
        "warning: 2 lines, the first of them line 3: placeholders that stand nowhere in what the model was trained on, "
        'so what becomes of them is chance: "<x>"'
    ]
    with pytest.warns(UserWarning, match="nowhere"), pytest.warns(UserWarning, match="missing in the output"):
        surd.load(run.folder).answers(["<x>"])
    write_json(run.folder / UNSEEN, {"source": 3})
    assert main(["translate", str(run.folder), source]) == 2
    assert "unseen.json: damaged, expected placeholders by side" in capsys.readouterr().err
