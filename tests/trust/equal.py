"""When two trainings are the same: weights, optimiser, journal and model for use, to the last bit."""

import json
from pathlib import Path

from surd.files import load_tensors, tensor_bytes
from surd.training.checkpoint import Checkpoints

CLOCKS = ("seconds", "rate", "left")
"""What the journal says about time."""


def journal(run: Path) -> list[dict]:
    """The journal without its clocks."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in CLOCKS} for line in lines]


def step_hashes(run: Path) -> list[dict]:
    """The hash of weights and optimiser after each update."""
    lines = [json.loads(line) for line in (run / "hashes.jsonl").read_text().splitlines()]
    return [line for line in lines if "step" in line]


def assert_equal(one: Path, other: Path) -> None:
    """Both trainings have ended, in the same place."""
    checkpoints = [Checkpoints(run / "checkpoints") for run in (one, other)]
    last = [each.steps()[-1] for each in checkpoints]
    assert last[0] == last[1]
    for name in ("weights.safetensors", "optimizer.safetensors"):
        tensors = [load_tensors(each.path(last[0]) / name) for each in checkpoints]
        assert tensors[0].keys() == tensors[1].keys()
        for key in tensors[0]:
            assert tensor_bytes(tensors[0][key]) == tensor_bytes(tensors[1][key]), key
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    assert step_hashes(one) == step_hashes(other)
    assert [line["step"] for line in step_hashes(one)] == list(range(1, last[0] + 1))
    assert journal(one) == journal(other)
