"""Running text: its end is held out, its lines stay as they are, and faults are told with their place."""

from pathlib import Path

import numpy as np
import pytest

from surd.data.corpus import DataSettings
from surd.data.text import first_held_out, survey_text
from surd.errors import Faults, SurdError


def written(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def lines(count: int, start: int = 0) -> str:
    return "".join(f"line {number:04d}\n" for number in range(start, start + count))


def test_the_last_tenth_is_held_out_and_never_trained_on(tmp_path: Path) -> None:
    text = lines(200) + "  an indented line, e\u0301 and a blank at its end \n\n" + lines(20, 300)
    found = survey_text(DataSettings(text=written(tmp_path / "a.txt", text), held_out=0.1))
    train, held_out = list(found.training_lines()), list(found.held_out_lines())
    composed = text.replace("e\u0301", "é")
    assert [*train, *held_out] == composed.removesuffix("\n").split("\n")
    assert held_out[-1] == "line 0319"
    characters = len(composed)
    assert found.report.train_characters + found.report.held_out_characters == characters
    kept = found.report.held_out_characters
    assert 0.1 * characters <= kept < 0.1 * characters + len(held_out[0]) + 1, "the tenth, from the start of its line"
    assert found.sample == train


@pytest.mark.parametrize("share", [0.001, 0.1, 0.37, 0.999])
def test_the_cut_is_at_the_line_in_which_the_share_begins(share: float) -> None:
    characters = np.random.default_rng(0).integers(1, 50, 300)
    first = first_held_out(characters, share)
    start = int((1 - share) * characters.sum())
    assert characters[:first].sum() <= start < characters[: first + 1].sum()


def test_a_compressed_text_and_one_without_a_last_line_end_are_read(tmp_path: Path) -> None:
    import gzip

    plain = survey_text(DataSettings(text=written(tmp_path / "a.txt", lines(50)), held_out=0.2))
    packed = survey_text(
        DataSettings(text=written(tmp_path / "a.gz", gzip.compress(lines(50).encode()[:-1])), held_out=0.2)
    )
    assert list(plain.training_lines()) == list(packed.training_lines())
    assert plain.report.train_characters == packed.report.train_characters == 400 and plain.words == 80


def test_lines_one_by_one_are_never_in_both_parts(tmp_path: Path) -> None:
    text = lines(30) + "\n  \n" + lines(5, 28)
    found = survey_text(DataSettings(text=written(tmp_path / "a.txt", text), document="line", held_out=0.1))
    train, held_out = list(found.training_lines()), list(found.held_out_lines())
    assert held_out == ["line 0029", "line 0030", "line 0031", "line 0032"]
    assert len(train) == 30 and not set(train) & set(held_out)
    assert (found.report.empty, found.report.repeated) == (2, 1)
    assert "2 left out: nothing in the line" in found.report.lines()


def test_held_out_text_may_be_given(tmp_path: Path) -> None:
    text, dev = written(tmp_path / "a.txt", lines(30)), written(tmp_path / "b.txt", lines(7, 28) + "\n")
    found = survey_text(DataSettings(text=text, dev_text=dev))
    assert list(found.training_lines()) == lines(30).split("\n")[:-1]
    assert list(found.held_out_lines()) == [*lines(7, 28).split("\n")[:-1], ""]
    found = survey_text(DataSettings(text=text, dev_text=dev, document="line"))
    assert len(list(found.training_lines())) == 28 and "" not in list(found.held_out_lines())
    assert found.report.repeated == 2


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("", {}, "a.txt: empty, expected text"),
        (b"good\nb\xe9d\n", {}, "a.txt, line 2: not UTF-8: byte 0xe9"),
        ("one line alone", {}, "begins in the first line"),
        (lines(8), {"document": "line"}, "7 lines to train on and 1 held out, expected at least 10 and 1"),
        (lines(30), {"dev_text": "a.txt"}, "is the training text itself"),
        (lines(30), {"dev_text": "b.txt"}, "b.txt: there is no such file"),
    ],
)
def test_faults(
    text: str | bytes, settings: dict, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SurdError) as caught:
        survey_text(DataSettings(text=written(tmp_path / "a.txt", text), held_out=0.1, **settings))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({}, "source: missing; pairs are named by source, running text for a language model by text"),
        (
            {"text": "a", "source": "b", "target": "c"},
            "text: one model learns from running text or from pairs, found source, target beside it",
        ),
        ({"source": "a", "dev_text": "b"}, "dev_text: there is no text to go with it"),
        ({"text": "a", "context": 1}, "context: expected at least 2, found 1"),
        ({"text": "-", "dev_text": "-"}, "text: standard input can be read for one of the files only"),
    ],
)
def test_settings_that_cannot_be_meant(settings: dict, fault: str) -> None:
    with pytest.raises(Faults) as caught:
        DataSettings(**settings)
    assert caught.value.lines == (fault,)


def test_a_text_that_changes_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    found = survey_text(DataSettings(text=written(tmp_path / "a.txt", lines(30)), held_out=0.1))
    written(tmp_path / "a.txt", lines(31))
    with pytest.raises(SurdError, match="changed while it was being read"):
        list(found.training_lines())
