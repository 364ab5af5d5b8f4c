"""The report of `surd score`: scores as outside tools find them, and the comparison with another system."""

from pathlib import Path

import jiwer
import pytest
from run.tiny import PHONES, WORDS, tiny_run, write_lines

import surd
from surd.errors import SurdError
from surd.run import Run
from surd.run.report import report


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return tiny_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return write_lines(tmp_path / "words", WORDS), write_lines(tmp_path / "phones", PHONES)


def test_scores_equal_what_outside_tools_say_of_the_output(run: Run, files: tuple[Path, Path]) -> None:
    found = report(run.folder, *files)
    outputs = surd.load(run.folder).translate(WORDS)
    wrong, phones, _ = found.scores
    assert phones.value == pytest.approx(100 * jiwer.wer(PHONES, outputs))
    assert wrong.value == 100 * sum(a != b for a, b in zip(outputs, PHONES, strict=True)) / len(WORDS)
    assert found.basis == "8 sources with 8 references, beam 3, length penalty 1"
    assert found.other is None and found.comparisons == ()


def test_a_table_of_pairs_gathers_references(run: Run, tmp_path: Path) -> None:
    output = surd.load(run.folder).translate(["read"])[0]
    table = write_lines(tmp_path / "w.tsv", ["read\tR IY D", f"read\t{output}", "cat\tK"])
    found = report(run.folder, table)
    assert found.scores[0].value == 50
    assert found.scores[0].signature.startswith("nrefs:var|")
    assert found.basis.startswith("2 sources with 3 references")


def test_the_runs_columns_are_the_default(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run", columns="1+2,3")
    table = write_lines(tmp_path / "w.tsv", ["cat\tdog\tK AE T"])
    assert report(run.folder, table).basis.startswith("1 sources")
    assert report(run.folder, table, columns="2,3").basis.startswith("1 sources")


def test_against_an_output_file_and_against_a_run(run: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    perfect = write_lines(tmp_path / "perfect", PHONES)
    found = report(run.folder, *files, against=perfect)
    assert found.other == str(perfect)
    assert [one.name for one in found.comparisons] == ["WER", "PER"]
    for comparison in found.comparisons:
        assert comparison.other.score == 0 < comparison.system.score
        assert comparison.p_value < 0.05
    itself = report(run.folder, *files, against=run.folder)
    assert all(one.p_value == 1 for one in itself.comparisons)
    another = report(run.folder, *files, against=tiny_run(tmp_path / "another", seed=5).folder)
    assert another.comparisons[1].system != another.comparisons[1].other


def test_mistakes_are_found_before_anything_is_decoded(
    run: Run, files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "load_model", None)
    short = write_lines(tmp_path / "short", ["K"])
    with pytest.raises(SurdError, match="short has 1"):
        report(run.folder, files[0], short)
    with pytest.raises(SurdError, match="1 lines, expected 8"):
        report(run.folder, *files, against=short)
    with pytest.raises(SurdError, match="no such folder"):
        report(run.folder, *files, against=tmp_path / "nowhere")
    with pytest.raises(SurdError, match="there is no such file"):
        report(run.folder, tmp_path / "nothing")
