"""`surd check`, as a user starts it: verdict first, exit status, formats, and one message for each mistake."""

import json
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file

from surd.audit.rule import Needs, named, names
from surd.cli import main

FACTORY = """
from surd.audit.specimen import Attention, language_model


class Unscaled(Attention):
    def scores(self, query, key):
        return query @ key.transpose(-2, -1)


def right():
    print("a word of my own")
    return language_model()


def wrong():
    model = language_model()
    for block in model.blocks:
        block.attention = Unscaled(block.attention.width, block.attention.heads)
    return model


def raises():
    raise ValueError("no such size")


def number():
    return 3
"""


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder at work with a module of the user's."""
    (tmp_path / "own_net.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_net", raising=False)
    transformers.logging.set_verbosity_error()
    return tmp_path


@pytest.fixture
def folder(work: Path) -> Path:
    config = transformers.GPT2Config(vocab_size=300, n_positions=32, n_embd=32, n_layer=2, n_head=2)
    config.architectures = ["GPT2LMHeadModel"]
    config.save_pretrained(work / "gpt2")
    return work / "gpt2"


def test_a_right_model_ends_with_0_and_a_wrong_one_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "own_net:right"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("own_net:right: no faults, no warnings\n")
    assert "a word of my own" not in out and "a word of my own" in err
    assert main(["check", "own_net:wrong"]) == 1
    assert capsys.readouterr().out.startswith("own_net:wrong: 1 fault, no warnings\n")


def test_a_folder_with_a_configuration_alone_is_built_and_checked(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(folder)]) == 0
    out = " ".join(capsys.readouterr().out.split())  # a long path breaks the first line
    assert out.startswith(f"{folder}: no faults, no warnings untrained;")


def test_what_is_ignored_does_not_count_nor_what_follows_from_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "own_net:wrong", "--ignore", "attention-scale"]) == 0
    assert main(["check", "own_net:wrong", "--select", "soft-cap", "--select", "causality"]) == 0
    assert main(["check", "own_net:wrong", "--select", "attention-scale"]) == 1
    assert "attention-scale" in capsys.readouterr().out


def test_json_and_annotations_stand_alone_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "own_net:wrong", "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [one["rule"] for one in found["findings"]][:1] == ["attention-scale"]
    assert main(["check", "own_net:wrong", "--format", "github"]) == 1
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("::error file=") and "title=attention-scale" in first


def test_a_page_is_written_beside_the_report(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "own_net:right", "--html", "page.html"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("own_net:right:") and "page: page.html" in err
    assert (work / "page.html").read_text().startswith("<!doctype html>")


def test_a_baseline_lets_known_findings_pass(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "own_net:wrong", "--write-baseline", "known.json"]) == 0
    assert main(["check", "own_net:wrong", "--baseline", "known.json"]) == 0
    assert "1 known finding of known.json not told" in capsys.readouterr().out
    assert main(["check", str(folder), "--baseline", "known.json"]) == 2
    assert "another model" in capsys.readouterr().err
    assert main(["check", "own_net:wrong", "--baseline", "none.json"]) == 2
    assert "none.json" in capsys.readouterr().err


def test_two_models_are_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "own_net:wrong", "--against", "own_net:right"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("own_net:wrong against own_net:right: 1 fault") and "attention-scale" in out
    assert main(["check", "own_net:right", "--against", "own_net:right"]) == 0
    assert main(["check", str(folder), "--against", "eager"]) == 0
    assert main(["check", "own_net:right", "--against", "saved"]) == 0


def test_the_list_has_every_rule_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--list"]) == 0
    rows = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == names() and all(len(row) == 2 for row in rows)


def test_the_page_of_a_rule_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--rule", "attention-scale"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# attention-scale\n") and "## Cure" in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "name a model"),
        (["nowhere"], "nowhere: there is no such file or folder"),
        (["gpt"], "Did you mean gpt2?"),
        (["own_net:wrnog"], 'Did you mean "wrong"?'),
        (["own_net:raises"], "your code raised ValueError: no such size"),
        (["own_net:number"], "expected a module"),
        (
            ["own_net:right", "--select", "atention-scale"],
            'unknown rule "atention-scale". Did you mean "attention-scale"?',
        ),
        (["own_net:right", "--ignore", "soft_cap"], 'Did you mean "soft-cap"?'),
        (["--rule", "soft-cup"], 'Did you mean "soft-cap"?'),
        (["own_net:right", "--format", "xml"], "xml"),
        (["own_net:right", "--batch", "none.safetensors"], "none.safetensors: there is no such file"),
        (["own_net:right", "--against", "nowhere"], "nowhere: there is no such file or folder"),
        (["own_net:right", "--against", "eager", "--static"], "nothing is to be run"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_mistake_is_one_message_and_status_2(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and told in " ".join(err.split()) and "Traceback" not in err


def test_both_unknown_names_are_told_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "own_net:right", "--select", "one", "--ignore", "two"]) == 2
    err = capsys.readouterr().err
    assert 'unknown rule "one"' in err and 'unknown rule "two"' in err


@pytest.mark.parametrize("format", ["table", "json", "github"])
def test_that_nothing_was_looked_at_is_no_health(format: str, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["own_net:wrong", "--static", "--select", "attention-scale", "--write-baseline", "known", "--html", "page"]
    assert main(["check", *words, "--format", format]) == 2
    out, err = capsys.readouterr()
    assert "nothing was looked at" in err and "no faults" not in out and "nothing is run" in out
    assert "nothing was looked at" in out or not json.loads(out)["clean"]
    assert not (work / "known").exists() and not (work / "page").exists()


@pytest.mark.parametrize("format", ["table", "json", "github"])
def test_every_rule_that_did_not_look_is_told(format: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "own_net:right", "--static", "--format", format]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert all(name in out for name in names() if named(name).needs is not Needs.STATIC)


def test_a_file_that_cannot_be_written_or_read_is_told_before_the_work(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("surd.api.check", lambda *_, **__: pytest.fail("the work was begun"))
    for words, told in (
        (["--baseline", "none.json", "--write-baseline", "new.json"], "none.json"),
        (["--html", "no/page.html", "--write-baseline", "new.json"], "there is no folder no"),
        (["--write-baseline", "."], "is a directory"),
    ):
        assert main(["check", "own_net:wrong", *words]) == 2
        assert told in capsys.readouterr().err
    assert [*work.glob("*.json")] == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["own_net:right", "--select", "soft-cap", "--ignore", "soft-cap"], "none is left"),
        (["own_net:right", "--against", "egaer"], "Did you mean eager?"),
        (["own_net.py:right"], "Did you mean own_net:right?"),
        (["./own_net:right"], "did you mean own_net:right?"),
        ([""], "the name of the model is empty"),
        (["https://hub/x"], "https://hub/x: there is no such file or folder. Nothing is fetched"),
        (["own_net:needs"], "--batch FILE.safetensors"),
    ],
)
def test_a_message_names_what_was_typed_and_what_was_meant(
    arguments: list[str], told: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (work / "own_net.py").open("a") as file:
        file.write(NEEDS)
    assert main(["check", *arguments]) == 2
    assert told in " ".join(capsys.readouterr().err.split())


NEEDS = """
from torch import nn


class Needs(nn.Module):
    def forward(self, one, two, three, four):
        return one


def needs():
    return Needs()
"""


def test_a_batch_of_other_names_is_told_in_few_words(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({f"weight{number:02}": torch.ones(2, 3) for number in range(20)}, "batch.safetensors")
    assert main(["check", str(folder), "--batch", "batch.safetensors"]) == 2
    err = capsys.readouterr().err
    assert "No argument of it is called weight00" in err and "and 14 more" in err and "weight07" not in err
    assert "torch.LongTensor" not in err


def test_models_of_one_class_are_told_apart(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "own_net:wrong", "--write-baseline", "known.json"])
    assert main(["check", str(folder), "--baseline", "known.json"]) == 2
    assert f"of own_net:wrong, and this is {folder}" in capsys.readouterr().err
