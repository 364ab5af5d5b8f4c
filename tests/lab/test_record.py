"""Records: read back as written, signed, and refused when anything in them has changed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab.fast import record

from surd.errors import SurdError
from surd.lab.record import FORMAT, read_record, write_record


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "head-width-or-model-width.json"
    write_record(record("head-width-or-model-width"), path)
    return path


@pytest.mark.parametrize("name", ["head-width-or-model-width", "tied-head", "who-ties", "library-inits"])
def test_a_record_is_read_back_as_it_was(name: str, tmp_path: Path) -> None:
    write_record(record(name), tmp_path / "one.json")
    assert read_record(tmp_path / "one.json") == record(name)


def test_the_signature_says_all_that_the_numbers_depend_on(written: Path) -> None:
    signature = json.loads(written.read_text())["signature"]
    assert signature == record("head-width-or-model-width").signature
    name, seeds, settings, *versions = signature.split("|")
    assert (name, seeds) == ("head-width-or-model-width", "seeds:0,1,2,3,4")
    assert settings.startswith("settings:")
    assert [version.partition(":")[0] for version in versions] == ["surd", "torch", "python"]


def test_other_sizes_have_another_signature() -> None:
    from surd.lab.experiment import named, run

    usual = named("head-width-or-model-width")
    other = run(type(usual)(widths=(128, 256), tokens=8, drawn=2), 5)
    assert other.signature != record("head-width-or-model-width").signature


def changed(change: Callable[[dict[str, Any]], None]) -> Callable[[str], str]:
    def apply(text: str) -> str:
        whole = json.loads(text)
        change(whole)
        return json.dumps(whole)

    return apply


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda text: text[: len(text) // 2], "damaged, not JSON"),
        (lambda text: "", "damaged, not JSON"),
        (lambda text: "[1, 2]", "not the record of an experiment"),
        (lambda text: "{}", "not the record of an experiment"),
        (lambda text: text.replace("confirmed", "refuted").replace("0.25", "0.26"), "does not match its checksum"),
        (changed(lambda whole: whole["record"]["comparisons"].pop()), "does not match its checksum"),
        (changed(lambda whole: whole["record"].pop("question")), "does not match its checksum"),
        (changed(lambda whole: whole.update(checksum=0)), "does not match its checksum"),
        (changed(lambda whole: whole.update(record="text")), "does not match its checksum"),
        (changed(lambda whole: whole.update(signature="mine")), "does not match its checksum"),
        (changed(lambda whole: whole.update(format=FORMAT + 1)), f"this version reads {FORMAT}"),
    ],
)
def test_a_damaged_record_is_refused_in_one_message(written: Path, damage: Callable[[str], str], told: str) -> None:
    written.write_text(damage(written.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(SurdError, match=told) as refusal:
        read_record(written)
    assert str(refusal.value).startswith(str(written))


def test_a_missing_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(SurdError, match=r"nowhere\.json: no such file"):
        read_record(tmp_path / "nowhere.json")
