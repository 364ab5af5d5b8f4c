"""Rubbish in: a report or one message out; nothing executed, nothing written elsewhere, no memory lost over it.

Forty subjects here, and four through the command; `benchmarks/check_fuzz.py` tries three hundred and thirty.
"""

import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fuzz import guard, odd_modules, subjects
from torch import nn

from surd.api import check
from surd.audit.judge import judge
from surd.audit.subject import of_module
from surd.audit.theirs import theirs
from surd.errors import LONGEST, SurdError, raised

NUMBERS, COMMANDS = range(1000, 1040), range(2000, 2004)


@pytest.fixture(autouse=True, scope="module")
def sound() -> None:
    check(subjects.sound())


@pytest.mark.parametrize("number", NUMBERS)
def test_a_report_or_one_message(number: int) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what odd modules make torch remark
        guard.outcome(subjects.Rubbish(number), Path(folder))


@pytest.mark.parametrize("number", COMMANDS)
def test_through_the_command(number: int, tmp_path: Path) -> None:
    subjects.through_the_command(number, tmp_path)


def test_code_beside_a_model_is_never_run(tmp_path: Path) -> None:
    """Python's files, pickles and path files of a folder, those that its configuration asks for as well."""
    for name, content in subjects.FILES_OF_CODE.items():
        (tmp_path / name).write_bytes(content)
    inside = tmp_path / "inside"
    inside.mkdir()
    for name, content in subjects.FILES_OF_CODE.items():
        (inside / name).write_bytes(content)
    config = subjects.CONFIG | {"auto_map": {"AutoModel": "modeling_gpt2.M", "AutoConfig": "configuration_gpt2.C"}}
    (inside / "config.json").write_text(subjects.as_json(config))
    done = subjects.command(inside, cwd=inside)
    assert done.returncode == 2 and b"pickle" in done.stderr, done.stderr
    (inside / "pytorch_model.bin").unlink()
    done = subjects.command(inside, cwd=inside)
    assert done.returncode == 0 and b"auto_map" in done.stdout, (done.stdout, done.stderr)
    assert not (tmp_path / "outside").exists() and not (tmp_path.parent / "outside").exists()


def message(model: object, **options: object) -> str:
    with pytest.raises(SurdError) as told:
        check(model, **options)  # pyrefly: ignore[bad-argument-type]
    return str(told.value)


def test_what_the_model_raises_is_told_as_its_own() -> None:
    told = message(odd_modules.raising(ValueError("not today"), 0))
    assert "ValueError: not today" in told
    assert "\x1b" not in (told := message(odd_modules.raising(odd_modules.Theirs(), 0))) and len(told) < 2000
    assert "calls itself" in message(odd_modules.Calls()) or "RecursionError" in message(odd_modules.Calls())
    assert "SystemExit" in message(odd_modules.raising(SystemExit(3), 0))
    assert "meta device" in message(odd_modules.Plain().to("meta"))
    assert "expanded" in message(odd_modules.expanded())
    assert "key.weight: 1 of its" in message(odd_modules.filled(float("nan")))
    assert "memory" in message(odd_modules.large())


def test_a_bug_of_ours_is_not_told_as_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a rule itself does wrong stays a bug, in whatever module it looks at."""
    from surd.audit.rules import softmax_axis

    scope: dict = {}
    code = "import torch\ndef broken(evidence):\n    yield torch.ones(2) @ torch.ones(3)\n"
    exec(compile(code, softmax_axis.__file__, "exec"), scope)  # as if it stood in the rule's own file
    monkeypatch.setattr(softmax_axis, "RULE", replace(softmax_axis.RULE, look=scope["broken"]))
    with pytest.raises(RuntimeError):
        judge(of_module(odd_modules.Plain()), select=["softmax-axis"])
    try:
        nn.Linear(3, 3)(torch.ones(2))
    except RuntimeError as error:
        assert theirs(error) is not None


def test_somebody_elses_message_is_one_short_line() -> None:
    told = raised(odd_modules.Theirs())
    assert told.isprintable() and len(told) < LONGEST + 20


@pytest.mark.parametrize(
    "returned", [odd_modules.Output, lambda x: (x, None), lambda x: {"logits": x}, lambda x: [[x]]]
)
def test_whatever_holds_the_logits(returned) -> None:
    report = check(odd_modules.returning(returned))
    assert report.trace is not None and report.trace.head is not None
    assert "attention-scale" in report.passed


def test_a_model_that_changes_itself_comes_back() -> None:
    model = odd_modules.Changes()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    check(model)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert not hasattr(model, "seen")
