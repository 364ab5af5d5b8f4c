"""A training killed in the middle of any call that writes goes on to the bits of one that was never killed."""

import signal
from pathlib import Path

import pytest
from training.tiny import write_pairs
from trust.equal import assert_equal
from trust.killed import child

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL here")

# bf16, dropout, three micro-batches, and an order that is drawn anew in the middle (4 updates are about an epoch).
WORDS = ["training.steps=12", "training.evaluate_every=4", "training.accumulation=3", "training.precision=bf16"]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """A training that nobody kills, and how often it makes each call."""
    folder = tmp_path_factory.mktemp("straight")
    process = child(folder / "run", "begin", str(write_pairs(folder / "pairs.tsv", 300)), *WORDS)
    told, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    return folder, {name: int(count) for name, count in (word.split(":") for word in told.splitlines()[-1].split())}


def killed_and_resumed(folder: Path, out: Path, kill: str) -> None:
    """Kills a new training there, and takes it up again as often as it takes."""
    first = ("begin", str(folder / "pairs.tsv"), *WORDS)
    process = child(out, *first, kill=kill)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    process = child(out, *(("resume",) if (out / "run.json").exists() else first))
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    leftovers = [path for path in out.parent.rglob("*.partial")]
    assert not leftovers


@pytest.mark.parametrize("aim", ["write:0.9", "rename:0.75", "sync_folder:0.1"])
def test_a_kill_while_it_writes_changes_no_bit(aim: str, straight: tuple[Path, dict[str, int]], tmp_path: Path) -> None:
    folder, counts = straight
    call, _, share = aim.partition(":")
    killed_and_resumed(folder, tmp_path / "run", f"{call}:{max(1, round(float(share) * counts[call]))}")
    assert_equal(folder / "run", tmp_path / "run")
