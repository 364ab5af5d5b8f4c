"""The survey: every cause counted with examples, nothing held out that is trained on, and too little refused."""

import os
from pathlib import Path

import numpy as np
import pytest
from data.texts import pairs, tsv, two_files, write

from surd.data import scan as scan_module
from surd.data.clean import Fate
from surd.data.corpus import DataSettings, Pair
from surd.data.survey import Survey, survey
from surd.errors import Faults, SurdError


def surveyed(folder: Path, rows: list[Pair], **settings: object) -> Survey:
    return survey(DataSettings(source=tsv(folder / "pairs.tsv", rows), **settings))


def sides(found: Survey) -> tuple[list[Pair], list[Pair]]:
    """What is trained on, and what is held out."""
    kept = list(found.kept())
    return [(s, t) for _, held, s, t in kept if not held], [(s, t) for _, held, s, t in kept if held]


def test_every_cause_is_counted_with_its_first_examples(tmp_path: Path) -> None:
    rows = pairs(100)
    bad = [
        ("no target", ""),
        ("", "no source"),
        ("bell\x07", "Glocke"),
        ("long " * 20, "lang"),
        rows[0],
        (f" {rows[1][0]} ", rows[1][1]),
        ("x", "much too long for a target of so short a source, unbelievably long"),
        ("the same", "the same"),
    ]
    found = surveyed(tmp_path, rows + bad, max_length=15, max_ratio=4)
    assert found.causes == {
        "a side is empty": 2,
        "control characters": 1,
        "too long": 1,
        "the same pair again": 2,
        "odd ratio of lengths": 1,
    }
    lines = {drop.cause: [example.line for example in drop.examples] for drop in found.report.dropped}
    assert lines["the same pair again"] == [105, 106]
    assert lines["odd ratio of lengths"] == [107]
    assert (found.pairs, found.usable, found.copies) == (108, 101, 1)
    without = found.without_copies()
    assert without.causes == found.causes | {"source and target are the same": 1}
    assert (without.usable, without.copies) == (100, 1)


def test_held_out_sources_are_never_trained_on(tmp_path: Path) -> None:
    rows = [(source, f"{target} {variant}") for source, target in pairs(200) for variant in range(3)]
    found = surveyed(tmp_path, rows)
    train, held_out = sides(found)
    assert len(held_out) == 30 and len(train) == 570
    assert not {source for source, _ in train} & {source for source, _ in held_out}
    assert (found.report.held_out, found.report.held_out_sources) == (30, 10)
    assert set(found.sample) == set(train)


def test_what_is_held_out_does_not_depend_on_the_order_of_lines(tmp_path: Path) -> None:
    rows = pairs(300)
    _, held_out = sides(surveyed(tmp_path, rows))
    _, of_reverse = sides(surveyed(tmp_path, rows[::-1]))
    assert held_out == of_reverse[::-1]


def test_a_share_of_large_data_is_capped_and_a_number_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surd.data.survey.MOST_HELD_OUT", 12)
    rows = pairs(300)
    assert surveyed(tmp_path, rows).report.held_out == 12
    assert surveyed(tmp_path, rows, held_out=20.0).report.held_out == 20


def test_sources_of_held_out_files_are_dropped_from_training(tmp_path: Path) -> None:
    rows = pairs(60)
    source, target = two_files(tmp_path, rows)
    dev_source, dev_target = two_files(tmp_path, [*pairs(5, start=10), *pairs(5, start=1000), ("", "x")], "dev")
    found = survey(DataSettings(source=source, target=target, dev_source=dev_source, dev_target=dev_target))
    assert found.causes == {"source stands in the held-out files": 5}
    assert (found.report.train, found.report.held_out, found.usable) == (55, 10, 55)
    assert (found.fates == Fate.HELD_OUT).sum() == 0


def test_twenty_pairs_are_enough_and_warned_about(tmp_path: Path) -> None:
    found = surveyed(tmp_path, pairs(20))
    assert (found.report.train, found.report.held_out) == (18, 2)
    assert found.report.warnings == (
        "20 pairs are few, the model will know little beyond them: 1,000 or more are better",
    )


def test_fewer_than_ten_usable_pairs_are_refused_with_the_causes(tmp_path: Path) -> None:
    with pytest.raises(SurdError) as caught:
        surveyed(tmp_path, [*pairs(9), ("a", ""), ("b", "")])
    expected = '9 usable pairs of 11, expected at least 10; 2 left out: a side is empty (line 10: "a" → "")'
    assert str(caught.value) == f"{tmp_path}/pairs.tsv: {expected}"
    with pytest.raises(SurdError, match=r"0 usable pairs of 20.*too long.*data.max_length is 2"):
        surveyed(tmp_path, pairs(20), max_length=2)
    copies = [(source, source) for source, _ in pairs(20)]
    with pytest.raises(SurdError, match=r"0 usable pairs of 20.*source and target are the same"):
        surveyed(tmp_path, copies).without_copies()


def test_one_source_for_all_cannot_be_held_out(tmp_path: Path) -> None:
    rows = [("the one source", target) for _, target in pairs(20)]
    with pytest.raises(SurdError, match=r"nothing can be held out, 20 usable pairs have 1 different sources.*--dev"):
        surveyed(tmp_path, rows)


def test_faults_of_all_files_are_told_together(tmp_path: Path) -> None:
    source, target = two_files(tmp_path, pairs(20))
    with pytest.raises(Faults) as caught:
        survey(DataSettings(source=source + "x", target=target, dev_source=target + "x", dev_target=source))
    assert len(caught.value.lines) == 2
    write(tmp_path / "train.src", ["one"])
    dev = write(tmp_path / "dev.tsv", ["a\tb\tc"])
    with pytest.raises(Faults) as caught:
        survey(DataSettings(source=source, target=target, dev_source=dev))
    assert len(caught.value.lines) == 2


def test_numbers_that_recipes_are_derived_from(tmp_path: Path) -> None:
    rows = [
        (f"wort{number}", "W OH R T " + " ".join(f"N{digit}" for digit in str(number))) for number in range(100, 200)
    ]
    found = surveyed(tmp_path, rows)
    assert (found.distinct_sources, found.source_characters) == (100, 700)
    assert (found.source_length_50, found.source_length_95, found.target_length_95) == (7, 7, 17)
    assert (found.source_words, found.target_words) == (100, 700)
    assert (found.one_word_sources, found.short_symbol_targets, found.distinct_target_words) == (1, 1, 14)
    assert found.source_scripts == {"LATIN": 1} and found.same_script
    greek = surveyed(tmp_path, [(source, f"λόγος {number}") for number, (source, _) in enumerate(rows)])
    assert greek.target_scripts == {"GREEK": 1} and not greek.same_script


def test_the_sample_is_bounded_and_spread_over_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "SAMPLE", 50)
    found = surveyed(tmp_path, pairs(1000) + pairs(1000))
    assert 40 <= len(found.sample) <= 50
    lines = [int(source.split()[-1]) for source, _ in found.sample]
    assert lines == sorted(lines) and np.mean(lines) == pytest.approx(500, abs=150)


def test_a_corpus_that_changes_between_two_readings_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    found = surveyed(tmp_path, pairs(20))
    before = path.stat()
    tsv(path, pairs(25))
    with pytest.raises(SurdError, match=rf"changed while it was being read \({before.st_size:,} bytes at first, now "):
        list(found.kept())
    tsv(path, pairs(20))
    with pytest.raises(SurdError, match="written to, or replaced"):
        list(found.kept())
    path.unlink()
    with pytest.raises(SurdError, match="is gone"):
        list(found.kept())


def test_a_change_that_no_file_system_tells_is_found_by_the_number_of_pairs(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    found = surveyed(tmp_path, pairs(20))
    before = path.stat()
    path.write_bytes(path.read_bytes()[:-2] + b"\n\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(SurdError, match="changed while being read: 20 pairs, then 21"):
        list(found.kept())


def test_a_final_survey_is_read_as_before_and_holds_a_byte_a_pair(tmp_path: Path) -> None:
    found = surveyed(tmp_path, pairs(50))
    rows = list(found.kept())
    assert list(found.final().kept()) == rows and len(rows) == 50
    arrays = [*found.scan.characters, found.scan.sources, found.scan.fates]
    assert sum(array.nbytes for array in arrays) == 0 and found.fates.nbytes == 50
    with pytest.raises(AssertionError, match="final"):
        found.without_copies()


def test_copies_are_as_likely_in_the_sample_as_other_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "SAMPLE", 100)
    found = surveyed(tmp_path, [(source, source) for source, _ in pairs(500)] + pairs(500, start=500))
    copies = sum(source == target for source, target in found.sample)
    assert len(found.sample) > 80 and 25 < copies < 75
