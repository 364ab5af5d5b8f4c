"""`surd lab` as a person uses it: the list, a run, a record of before, and mistakes told in one message."""

from dataclasses import replace
from pathlib import Path

import pytest
from lab.fast import record

from surd.cli import main
from surd.lab import experiment
from surd.lab.finding import near
from surd.lab.record import read_record, write_record

NAME = "head-width-or-model-width"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    found = record(NAME)
    monkeypatch.setattr(experiment, "run", lambda one, seeds: found)


def test_the_list_names_every_experiment_with_its_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == experiment.names()
    assert all(line.endswith("?") for line in listed)


@pytest.mark.usefixtures("quick")
def test_a_run_tells_everything_and_writes_record_and_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "folder"
    assert main(["lab", NAME, "--out", str(folder)]) == 0
    told = capsys.readouterr()
    found = record(NAME)
    assert told.err == f"page: {folder / f'{NAME}.html'}\n"
    assert {path.name for path in folder.iterdir()} == {f"{NAME}.json", f"{NAME}.html", "lab.js"}
    assert read_record(folder / f"{NAME}.json") == found
    assert told.out.startswith(f"{found.question}\n\nprediction: {found.prediction}\n")
    assert "verdict: confirmed (6 of 6 confirmed)" in told.out
    assert "  refuted: From d_model = 128" in told.out
    assert told.out.endswith(f"{found.signature}\n")
    for one in found.comparisons:
        line = next(line for line in told.out.splitlines() if line.startswith(one.quantity))
        assert "[" in line and "±" in line and line.endswith(str(one.verdict))


@pytest.mark.usefixtures("quick")
def test_without_a_folder_it_writes_to_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["lab", NAME]) == 0
    assert (tmp_path / "lab" / f"{NAME}.html").exists()


def test_the_page_of_a_record_is_written_again_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"{NAME}.json"
    write_record(record(NAME), path)
    assert main(["lab", str(path)]) == 0
    assert (tmp_path / f"{NAME}.html").exists()
    assert record(NAME).question in capsys.readouterr().out
    assert main(["lab", str(path), "--out", str(tmp_path / "other")]) == 0
    assert {one.name for one in (tmp_path / "other").iterdir()} == {f"{NAME}.html", "lab.js"}


def test_a_refuted_prediction_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.json"
    write_record(replace(record(NAME), comparisons=(near("x", [2.0], 1.0, 0.1, "because"),)), path)
    assert main(["lab", str(path)]) == 1
    assert "verdict: refuted (1 of 1 refuted)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["softmax-gradiant"],
            'error: unknown experiment "softmax-gradiant". Did you mean "softmax-gradient"? There is: ',
        ),
        (["zzz"], 'error: unknown experiment "zzz". There is: '),
        ([NAME, "--seeds", "4"], "error: seeds: expected at least 5, found 4: an interval needs them\n"),
        ([NAME, "--seeds", "many"], 'error: Invalid value for --seeds: unable to convert "many" into int.\n'),
        (["nowhere.json"], "error: nowhere.json: no such file or directory\n"),
        ([NAME, "--out", "file/below"], "error: file/below: no folder can be made there (not a directory)\n"),
        ([NAME, "--uot", "x"], "error: Unknown option: --uot. Did you mean --out?\n"),
        ([NAME, "second"], "error: "),
    ],
)
def test_a_mistake_is_told_in_one_message(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert main(["lab", *words]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(told) and output.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir() if path.name != "lab"] == ["file"]


def test_a_damaged_record_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"{NAME}.json"
    write_record(record(NAME), path)
    path.write_text(
        path.read_text(encoding="utf-8").replace('"refuted"', '"confirmed"').replace("8.0", "9.0"), encoding="utf-8"
    )
    assert main(["lab", str(path)]) == 2
    output = capsys.readouterr()
    assert output.err == f"error: {path}: damaged, its content does not match its checksum. Run the experiment again.\n"
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
