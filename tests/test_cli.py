"""The command line: where errors end, with which status, and on which stream."""

import subprocess
import sys
from pathlib import Path

import pytest

import surd
import surd.commands
from surd import cli

PROBE = '''
"""A command for these tests."""

from surd.errors import SurdError


def probe(how: str, /, *, number: int = 0) -> int:
    """Ends in the way that is asked for.

    More about it.
    """
    print("data")
    if how == "mistake":
        raise SurdError("a [bold] mistake\\nof two lines")
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "bug":
        raise ZeroDivisionError("ours")
    if how == "pipe":
        raise BrokenPipeError
    return number
'''


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    (tmp_path / "_hidden.py").write_text("def hidden(): ...")
    (tmp_path / "partless.py").write_text("def other(): ...")
    monkeypatch.setattr(cli, "COMMANDS", tmp_path)
    monkeypatch.setattr(surd.commands, "__path__", [*surd.commands.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "surd.commands.probe", raising=False)


@pytest.mark.usefixtures("probe")
@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["probe", "well"], 0, ""),
        (["probe", "well", "--number", "1"], 1, ""),
        (["probe", "mistake"], 2, "error: a [bold] mistake\nof two lines\n"),
        (["probe", "interrupt"], 130, "interrupted\n"),
        (["probe", "bug"], 3, "ZeroDivisionError: ours\n\nerror: this is a bug in surd, not a mistake of yours\n"),
        (["probe", "well", "--nmber", "1"], 2, "error: Unknown option: --nmber. Did you mean --number?\n"),
        (["probe", "well", "--number", "x"], 2, 'error: Invalid value for --number: unable to convert "x" into int.\n'),
        (["prob"], 2, 'Did you mean "probe"? Available commands: probe.\n'),
    ],
)
def test_how_a_command_ends(words: list[str], status: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == status
    output = capsys.readouterr()
    assert output.err.endswith(told)
    assert ("Traceback" in output.err) == (status == 3)
    assert output.out in ("", "data\n"), "talk belongs on standard error"


@pytest.mark.usefixtures("probe")
def test_the_help_of_a_command_is_its_docstring(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    assert "probe        Ends in the way that is asked for." in capsys.readouterr().out
    assert cli.main(["probe", "--help"]) == 0
    assert "More about it." in capsys.readouterr().out


def test_a_reader_that_goes_away_ends_the_writer_quietly() -> None:
    program = "import sys; from surd import cli; cli.application = lambda: fail\n"
    program += "def fail(*_, **__):\n    while True: print('line')\n"
    program += "sys.exit(cli.main([]))"
    writer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert writer.stdout is not None and writer.stderr is not None
    writer.stdout.readline()
    writer.stdout.close()
    assert writer.wait(timeout=60) == cli.UNREAD
    assert writer.stderr.read() == b""
    writer.stderr.close()


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"surd {surd.__version__}\n"


def test_the_module_runs_as_the_command() -> None:
    result = subprocess.run([sys.executable, "-m", "surd", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"surd {surd.__version__}\n"
