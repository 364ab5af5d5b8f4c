"""What imports what: only downwards, and no help page waits for torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from surd.cli import commands

HEAVY = ("torch", "numpy", "transformers", "sacrebleu", "sentencepiece")
NAMES = [name for name, _ in commands()]


def loaded_after(program: str) -> set[str]:
    """The heavy packages that a fresh Python has loaded after `program`."""
    program += f"\nimport sys\nsys.stderr.write(' '.join(name for name in {HEAVY} if name in sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(result.stderr.split())


@pytest.mark.parametrize("words", [["--help"], ["--version"], *([name, "--help"] for name in NAMES)], ids=" ".join)
def test_no_help_page_imports_torch(words: list[str]) -> None:
    assert loaded_after(f"from surd.cli import main\nassert main({words!r}) == 0") == set()


def test_a_refused_command_line_imports_no_torch() -> None:
    assert loaded_after("from surd.cli import main\nassert main(['trian']) == 2").isdisjoint(HEAVY)


def test_the_package_and_its_floor_import_no_torch() -> None:
    assert loaded_after("import surd, surd.part, surd.errors, surd.seed, surd.device, surd.files") == set()


def test_imports_go_downwards_only(root: Path) -> None:
    program = "from importlinter.cli import lint_imports; import sys; sys.exit(lint_imports())"
    result = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
