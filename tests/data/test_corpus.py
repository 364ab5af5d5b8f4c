"""Corpora: the same pairs from every form, and each fault told with file, line, what was found and expected."""

import io
from pathlib import Path

import pytest
from data.texts import json_lines, pairs, tsv, two_files, write

from surd.data.corpus import Corpus, DataSettings, Pair
from surd.data.lines import Complaints
from surd.errors import Faults

ROWS = pairs(5)


def read(source: str, target: str | None = None, columns: str | None = None) -> list[Pair]:
    complaints = Complaints()
    found = list(Corpus(source, target, columns).pairs(complaints))
    complaints.raise_any()
    return found


def fault(source: str, target: str | None = None, columns: str | None = None) -> str:
    with pytest.raises(Faults) as caught:
        read(source, target, columns)
    return str(caught.value)


def test_every_form_gives_the_same_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(*two_files(tmp_path, ROWS)) == ROWS
    table = tsv(tmp_path / "pairs.tsv", ROWS)
    assert read(table) == ROWS
    objects = [{"id": 1, "target": target, "source": source} for source, target in ROWS]
    assert read(json_lines(tmp_path / "pairs.jsonl", objects)) == ROWS
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path(table).read_bytes())))
    assert read("-") == ROWS


def test_columns_choose_and_join(tmp_path: Path) -> None:
    table = tsv(tmp_path / "table.tsv", [("gehen", "V;PST", "ging"), ("sehen", "V;PST", "sah", "more")])
    assert read(table, columns="1+2,3") == [("gehen V;PST", "ging"), ("sehen V;PST", "sah")]
    assert read(table, columns="3,1") == [("ging", "gehen"), ("sah", "sehen")]
    objects = json_lines(tmp_path / "table.jsonl", [{"en": "house", "de": "Haus", "note": "n"}])
    assert read(objects, columns="en+note,de") == [("house n", "Haus")]


def test_odd_line_separators_never_shift_the_pairing(tmp_path: Path) -> None:
    rows = [("a\u2028b", "1"), ("c\x85d\x0be\x0cf", "2\u2029"), ("g\rh", "3"), ("last", "4")]
    assert read(*two_files(tmp_path, rows)) == rows
    assert read(tsv(tmp_path / "pairs.tsv", rows)) == rows


def test_an_empty_line_of_a_table_is_an_empty_pair(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.tsv", ["", "a\tb", ""])
    assert read(path) == [("", ""), ("a", "b"), ("", "")]


def test_unequal_sides(tmp_path: Path) -> None:
    source = write(tmp_path / "a.en", ["one", "", "two", "three"])
    target = write(tmp_path / "a.de", ["eins", "zwei", "drei"])
    assert fault(source, target) == (
        f"{source} has 4 lines and {target} has 3: expected line i of one to belong to line i of the other"
        f"; {source} has as many more empty lines"
    )


def test_empty_files(tmp_path: Path) -> None:
    full, empty = write(tmp_path / "a.en", ["one"]), write(tmp_path / "a.de", [])
    assert fault(full, empty) == f"{empty}: empty, expected one sentence or word a line"
    assert fault(empty) == f"{empty}: empty, expected one pair a line"


@pytest.mark.parametrize(
    ("count", "hint"), [(1, "for sides in two files, name both"), (3, "to choose: --columns 1,2 or --columns 1+2,3")]
)
def test_a_table_with_other_than_two_columns(tmp_path: Path, count: int, hint: str) -> None:
    path = tsv(tmp_path / "pairs.tsv", [("a", "b"), ("x",) * count, ("c", "d"), ("y",) * count])
    assert fault(path) == (
        f"{path}, line 2: expected 2 columns with a tab between them, found {count}; {hint} (2 such lines in this file)"
    )


def test_a_table_with_fewer_columns_than_chosen(tmp_path: Path) -> None:
    path = tsv(tmp_path / "pairs.tsv", [("a", "b", "c"), ("a", "b")])
    assert fault(path, columns="1+2,3") == f'{path}, line 2: expected at least 3 columns for "1+2,3", found 2'


def test_json_lines_with_other_keys(tmp_path: Path) -> None:
    path = json_lines(tmp_path / "p.jsonl", [{"source": "a", "target": "b"}, {"src": "a", "tgt": "b"}])
    assert fault(path) == (
        f'{path}, line 2: expected the keys "source", "target", found "src", "tgt" (no "source", "target")'
        "; to read others: --columns KEY,KEY"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"source": "a", "target": 3}', 'expected text under "target", found 3'),
        ('{"source": "a", "target": null}', 'expected text under "target", found null'),
        ('{"source": "a", "target": "\\ud800"}', 'expected text under "target", found "\\ud800"'),
        ('["a", "b"]', "expected a JSON object"),
        ('{"source": "a", "target": "b"', "not JSON (Expecting ',' delimiter: line 1 column 30 (char 29))"),
    ],
)
def test_json_lines_that_are_no_pair(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "p.jsonl", ['{"source": "a", "target": "b"}', line])
    assert fault(path) == f"{path}, line 2: {message}"
    if line.startswith("{"):
        assert fault(write(tmp_path / "first.jsonl", [line])).endswith(f"line 1: {message}")


def test_faults_of_both_sides_are_told_together(tmp_path: Path) -> None:
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    source.write_bytes(b"one\n\xff\n")
    target.write_bytes(b"eins\n\xfe\ndrei\n")
    told = fault(str(source), str(target)).splitlines()
    assert [line.split(":")[0] for line in told] == [
        f"{source}, line 2",
        f"{target}, line 2",
        f"{source} has 2 lines and {target} has 3",
    ]
    with pytest.raises(Faults) as caught:
        Corpus(str(tmp_path / "x"), str(tmp_path / "y"))
    assert len(caught.value.lines) == 2


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"held_out": 0.0}, "held_out: expected a share between 0 and 1 or a whole number, found 0.0"),
        ({"held_out": 1.5}, "held_out: expected a share between 0 and 1 or a whole number, found 1.5"),
        ({"max_length": 0}, "max_length: expected at least 1, found 0"),
        ({"max_ratio": 1.0}, "max_ratio: expected more than 1, found 1.0"),
        ({"dev_target": "x"}, "dev_target: there is no dev_source to go with it"),
        ({"target": "-"}, "source: standard input can be read for one of the files only"),
        (
            {"target": "x", "columns": "1,2"},
            "columns: nothing to choose from, source and target are files of their own",
        ),
        ({"columns": "1"}, 'columns: expected source and target as in "1,2" or "1+2,3", found "1"'),
        ({"columns": "1+,2"}, 'columns: expected source and target as in "1,2" or "1+2,3", found "1+,2"'),
        (
            {"columns": "0,1"},
            'columns: columns of a TSV are numbered from 1, keys of JSON lines are names; found "0,1"',
        ),
    ],
)
def test_settings_that_cannot_be_meant(settings: dict, fault: str) -> None:
    with pytest.raises(Faults) as caught:
        DataSettings(**{"source": "-"} | settings)
    assert caught.value.lines == (fault,)
