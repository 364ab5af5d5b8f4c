"""A training killed in the middle of any call that writes goes on to the bits of one that was never killed."""

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from training.tiny import TORN, write_pairs, write_text
from trust.equal import assert_equal
from trust.killed import child

from surd.training.checkpoint import Checkpoints

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


def kill_new(data: Path, words: Sequence[str], out: Path, kill: str) -> None:
    """Begins a training that is killed there."""
    process = child(out, "begin", str(data), *words, kill=kill)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL


def take_up(data: Path, words: Sequence[str], out: Path) -> None:
    """Goes on with a training, or begins it again where no run was left, to its end."""
    process = child(out, *(("resume",) if (out / "run.json").exists() else ("begin", str(data), *words)))
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert not [*out.parent.rglob("*.partial")]


@pytest.mark.parametrize("aim", ["write:0.9", "rename:0.75", "sync_folder:0.1"])
def test_a_kill_while_it_writes_changes_no_bit(aim: str, straight: tuple[Path, dict[str, int]], tmp_path: Path) -> None:
    folder, counts = straight
    call, _, share = aim.partition(":")
    data, out = folder / "pairs.tsv", tmp_path / "run"
    kill_new(data, WORDS, out, f"{call}:{max(1, round(float(share) * counts[call]))}")
    take_up(data, WORDS, out)
    assert_equal(folder / "run", out)


def test_a_language_model_killed_while_an_early_stop_is_pending_stops_at_the_same_update(tmp_path: Path) -> None:
    data = write_text(tmp_path / "text.txt")
    take_up(data, TORN, tmp_path / "straight")
    killed = tmp_path / "killed"
    kill_new(data, TORN, killed, "Progress:11")
    checkpoints = Checkpoints(killed / "checkpoints")
    assert [(step, checkpoints.read(step).waited) for step in checkpoints.steps()] == [(6, 1), (9, 2)]
    take_up(data, TORN, killed)
    assert checkpoints.steps()[-1] == 12
    assert_equal(tmp_path / "straight", killed)
