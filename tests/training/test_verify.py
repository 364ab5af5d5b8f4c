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


def flip(run: Path, step: int, name: str = "") -> str:
    """Changes the last bit of one number, of an optimiser moment unless named, and mends the checksum; tells where."""
    folder = Checkpoints(run / "checkpoints").path(step)
    path = folder / "optimizer.safetensors"
    tensors = load_tensors(path)
    name = name or sorted(one for one in tensors if one.endswith("/exp_avg_sq"))[3]
    numbers = tensors[name].view(-1).view(torch.uint8)
    numbers[len(numbers) // 2] ^= 1
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
    for other in (name, "random.cpu"):
        flip(run, 10, other)
        assert main(["train", "--resume", str(run), "--verify"]) == 1
        told = f"differs. update 10: the checkpoint is not what was trained, first in {other}."
        assert told in capsys.readouterr().out
        flip(run, 10, other)


def write_hashes(run: Path, lines: list[dict]) -> None:
    (run / "hashes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.usefixtures("compiled")
def test_where_two_trainings_part_is_named_and_without_hashes_nothing_is_claimed(tmp_path: Path) -> None:
    new(tmp_path, "run", "training.evaluate_every=10")
    run = tmp_path / "run"
    path = run / "hashes.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    write_hashes(run, [line | {"sum": "0" * 16} if line.get("step", 0) >= 14 else line for line in lines])
    found = verify_run(Run.open(run))
    assert found.differs == "update 14: weights and optimiser state have another hash than in the training"

    name = flip(run, 20)  # as if both had gone on from there
    found = verify_run(Run.open(run))
    assert found.differs.startswith("update 14: ")
    assert found.differs.endswith(f"; at update 20 the first tensor that differs is {name}")

    write_hashes(run, [line for line in lines if line.get("step") not in (13, 14)])
    with pytest.raises(SurdError, match=r"no hash of 2 of the updates 11 to 20 \(first of 13\), so there is nothing"):
        verify_run(Run.open(run))
    path.unlink()
    with pytest.raises(SurdError, match=r"hashes\.jsonl: missing, so .*nothing to compare.* go on with: surd train"):
        verify_run(Run.open(run))


@pytest.mark.usefixtures("compiled")
def test_it_takes_two_checkpoints(tmp_path: Path) -> None:
    new(tmp_path, "run", last=3)
    with pytest.raises(SurdError, match=r"takes two checkpoints, an older and a newer one; found 1"):
        verify_run(Run.open(tmp_path / "run"))
