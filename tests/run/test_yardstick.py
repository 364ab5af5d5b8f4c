"""The yardstick: repeated sources are several references of one, and outputs fit it by line or by source."""

from pathlib import Path

import pytest
from run.tiny import write_lines

from surd.errors import Faults, SurdError
from surd.run.yardstick import Yardstick


def test_repeated_sources_gather_their_references(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "w.tsv", ["read\tR IY D", "cat\tK AE T", "read\tR EH D", "read\tR IY D"])
    yardstick = Yardstick.read(str(path))
    assert yardstick.sources == ("read", "cat")
    assert yardstick.references == (("R IY D", "R EH D"), ("K AE T",))
    assert yardstick.places == (0, 1) and yardstick.lines == 4
    assert yardstick.pairs == [("read", "R IY D"), ("read", "R EH D"), ("cat", "K AE T")]


def test_two_files_and_columns_are_read_as_in_training(tmp_path: Path) -> None:
    source, target = write_lines(tmp_path / "s", ["a ", "", "b"]), write_lines(tmp_path / "t", ["x", "", "e\u0301"])
    yardstick = Yardstick.read(str(source), str(target))
    assert (yardstick.sources, yardstick.references) == (("a", "b"), (("x",), ("é",)))
    assert yardstick.places == (0, 2) and yardstick.lines == 3
    table = write_lines(tmp_path / "t.tsv", ["walk\tV;PST\twalked"])
    assert Yardstick.read(str(table), columns="1+2,3").sources == ("walk V;PST",)
    with pytest.raises(Faults, match="expected 2 columns"):
        Yardstick.read(str(table))


def test_outputs_fit_by_line_or_by_source(tmp_path: Path) -> None:
    table = write_lines(tmp_path / "w.tsv", ["read\tR IY D", "\t", "read\tR EH D", "cat\tK AE T"])
    yardstick = Yardstick.read(str(table))
    by_line = write_lines(tmp_path / "lines", ["one", "", "two", "three "])
    by_source = write_lines(tmp_path / "sources", ["one", "three"])
    assert yardstick.outputs(str(by_line)) == yardstick.outputs(str(by_source)) == ["one", "three"]
    with pytest.raises(SurdError, match=r"other: 3 lines, expected 4 \(or 2\)"):
        yardstick.outputs(str(write_lines(tmp_path / "other", ["a", "b", "c"])))
    with pytest.raises(SurdError, match="there is no such file"):
        yardstick.outputs(str(tmp_path / "nowhere"))


def test_nothing_to_score_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SurdError, match="every line is empty"):
        Yardstick.read(str(write_lines(tmp_path / "e.tsv", ["\t", " \t"])))
    with pytest.raises(SurdError, match="has 1 lines and"):
        Yardstick.read(str(write_lines(tmp_path / "a", ["a"])), str(write_lines(tmp_path / "b", ["a", "b"])))
