"""`surd score`, as a user starts it: a table or JSON on standard output, what was done on standard error."""

import json
from pathlib import Path

import pytest
from run.tiny import PHONES, WORDS, tiny_run, write_lines

import surd
from surd.cli import main
from surd.commands.score import as_table
from surd.run import Run
from surd.run.report import report


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return tiny_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def words(run: Run, tmp_path: Path) -> list[str]:
    files = write_lines(tmp_path / "words", WORDS), write_lines(tmp_path / "phones", PHONES)
    return ["score", str(run.folder), *map(str, files)]


def test_the_table_has_a_score_and_a_signature_a_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--beam", "2"]) == 0
    out, err = capsys.readouterr()
    rows = [line.split() for line in out.splitlines()]
    assert [row[0] for row in rows] == ["WER", "PER", "perplexity"]
    for _, value, signature, *_ in rows:
        assert float(value) >= 0 and signature.startswith(("nrefs:1|", "unit:token|"))
    assert err == f"{words[1]}: 8 sources with 8 references, beam 2, length penalty 1\n"


def test_json_holds_the_same_numbers(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--json", "--greedy"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = report(words[1], words[2], words[3], beam=1)
    assert [(score["name"], score["value"]) for score in found["scores"]] == [
        (score.name, score.value) for score in expected.scores
    ]
    assert found["comparisons"] == [] and found["other"] is None


def test_against_prints_both_systems_with_intervals(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    perfect = write_lines(tmp_path / "perfect", PHONES)
    assert main([*words, "--against", str(perfect)]) == 0
    out = capsys.readouterr().out
    scores, comparison = out.split("\n\n")
    assert len(scores.splitlines()) == 3
    head, wrong, phones, *signatures = comparison.splitlines()
    assert head.split() == [words[1], str(perfect), "p"]
    assert wrong.startswith("WER") and wrong.endswith("worse") and "0.00 (0.00 ± 0.00)" in wrong
    assert phones.startswith("PER") and "±" in phones
    assert [line.split(":")[0] for line in signatures] == ["WER", "PER"]
    assert all(line.endswith("|bs:1000|seed:12345") for line in signatures)
    found = report(words[1], words[2], words[3], against=words[1])
    assert as_table(found).count("no difference shown") == 2


def test_a_mistake_is_one_message(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words[:3], str(write_lines(tmp_path / "short", ["K"]))]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and "short has 1" in err
    assert main(["score", str(tmp_path), words[2], words[3]]) == 2
    assert "a folder without run.json" in capsys.readouterr().err


def test_several_runs_are_scored_as_one(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tiny_run(tmp_path / "other", seed=3)
    assert main([*words, "--with", str(other.folder), "--json", "--beam", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    together = surd.load([words[1], other.folder])
    expected = together.score(WORDS, PHONES, beam=2)
    assert [score["value"] for score in found["scores"]] == pytest.approx([score.value for score in expected], rel=1e-5)
    assert found["system"] == f"{words[1]} + {other.folder}"
    alone = report(words[1], words[2], words[3], beam=2)
    assert found["scores"][2]["value"] != alone.scores[2].value
