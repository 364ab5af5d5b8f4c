"""Verifying finds what differs, wherever it is, and changes nothing."""

import json
from pathlib import Path

import pytest
import torch
from training.test_resume import new

from surd.cli import main
from surd.errors import SurdError
from surd.files import load_tensors, save_tensors, sha256
from surd.run import Run
from surd.training.checkpoint import Checkpoints
from surd.training.verify import verify_run


def contents(run: Path) -> dict[str, bytes]:
    """Every file of a run."""
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def flip(run: Path, step: int) -> str:
    """Changes the last bit of one number of an optimiser moment, and mends the checksum; returns the tensor's name."""
    folder = Checkpoints(run / "checkpoints").path(step)
    path = folder / "optimizer.safetensors"
    tensors = load_tensors(path)
    name = sorted(one for one in tensors if one.endswith("/exp_avg_sq"))[3]
    tensors[name].view(-1)[5:6].view(torch.int32).bitwise_xor_(1)
    save_tensors(path, tensors, {})
    state = json.loads((folder / "state.json").read_text())
    state["files"]["optimizer.safetensors"] = sha256(path)
    (folder / "state.json").write_text(json.dumps(state))
    return name


@pytest.mark.usefixtures("compiled")
def test_one_flipped_bit_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    new(tmp_path, "run", "training.evaluate_every=10")
    before = contents(run)
    assert main(["train", "--resume", str(run), "--verify"]) == 0
    told = capsys.readouterr().out
    assert "equal. Updates 11 to 20" in told and told.count("\n") == 1
    assert contents(run) == before

    name = flip(run, 20)
    assert main(["train", "--resume", str(run), "--verify"]) == 1
    assert f"differs. update 20: the checkpoint is not what was trained, first in {name}." in capsys.readouterr().out
    name = flip(run, 10)
    assert main(["train", "--resume", str(run), "--verify"]) == 1
    assert f"differs. update 10: the checkpoint is not what was trained, first in {name}." in capsys.readouterr().out


@pytest.mark.usefixtures("compiled")
def test_the_update_at_which_two_trainings_part_is_named(tmp_path: Path) -> None:
    new(tmp_path, "run", "training.evaluate_every=10")
    path = tmp_path / "run" / "hashes.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    other = [line | {"hash": "0" * 16} if line.get("step", 0) >= 14 else line for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in other))
    found = verify_run(Run.open(tmp_path / "run"))
    assert found.differs == "update 14: weights and optimiser state have another hash than in the training"


@pytest.mark.usefixtures("compiled")
def test_it_takes_two_checkpoints(tmp_path: Path) -> None:
    new(tmp_path, "run", last=3)
    with pytest.raises(SurdError, match=r"takes two checkpoints, an older and a newer one; found 1"):
        verify_run(Run.open(tmp_path / "run"))
