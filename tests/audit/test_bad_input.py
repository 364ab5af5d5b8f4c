"""What `surd check` cannot judge ends in one message that says what, where and what is right, and in status 2."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from surd.api import check
from surd.cli import main
from surd.errors import SurdError

GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 60, "n_positions": 16}
CONFIG = {**GPT2, "n_embd": 16, "n_layer": 1, "n_head": 2, "bos_token_id": 1, "eos_token_id": 2}
CODE = """
from torch import nn

def raises():
    raise ValueError("their own words")

def dense():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU())
"""


def folder(path: Path, config: object = CONFIG) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return path


def pickled(path: Path) -> Path:
    (folder(path) / "pytorch_model.bin").write_bytes(b"\x80\x04K\x01.")
    return path


def broken(path: Path) -> Path:
    tensors = {"b.weight": torch.ones(3, 3), "a.weight": torch.full((4, 4), float("nan"))}
    save_file(tensors, path.with_suffix(".safetensors"))
    return path.with_suffix(".safetensors")


def told(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    assert main(["check", *map(str, words)]) == 2
    found = capsys.readouterr()
    assert found.out == "" and found.err.count("error: ") == 1 and "Traceback" not in found.err
    return found.err


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda path: path, ("there is no such file or folder", "Expected")),
        (lambda path: path.mkdir() or path, ("a folder without config.json", "it holds nothing")),
        (lambda path: folder(path, {"model_type": "gtp2"}), ('unknown model_type "gtp2"', 'Did you mean "gpt2"')),
        (pickled, ("is a pickle", "does not load it", "save_pretrained")),
        (broken, ("a.weight: 16 of its 16 numbers are NaN",)),
        (
            lambda path: folder(path, {**CONFIG, "n_embd": -3, "n_layer": 10**6}),
            ("n_embd is -3; expected a number above 0", "n_layer is 1,000,000; no model has more than 2,000"),
        ),
        (lambda path: folder(path, {**CONFIG, "n_layer": 0}), ("n_layer is 0; expected a number above 0",)),
        (
            lambda path: folder(path, {**CONFIG, "n_embd": 64_000_000}),
            ("One layer alone is too large: give it a smaller width",),
        ),
        (lambda path: folder(path, {**CONFIG, "n_embd": 16_384, "n_layer": 1000}), ("Give it fewer layers",)),
    ],
)
def test_a_model_that_is_none(
    make: Callable[[Path], Path], parts: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = told(capsys, make(tmp_path / "model"))
    assert all(part in message for part in parts)


def test_factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "their_factories.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    message = told(capsys, "their_factories:raises")
    assert "your code raised ValueError: their own words" in message and "line 5" in message
    assert "no attention was found: looked for scaled_dot_product_attention" in told(capsys, "their_factories:dense")


def test_rules_and_baselines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = folder(tmp_path / "one"), folder(tmp_path / "other", {**CONFIG, "n_layer": 2})
    assert 'Did you mean "attention-scale"' in told(capsys, one, "--select", "atention-scale")
    assert main(["check", str(one), "--static", "--write-baseline", str(tmp_path / "known")]) == 0
    assert main(["check", str(one), "--static", "--baseline", str(tmp_path / "known")]) == 0
    capsys.readouterr()
    message = told(capsys, other, "--static", "--baseline", tmp_path / "known")
    assert "a baseline of another model" in message and str(one) in message


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_what_may_have_no_end_is_not_read(tmp_path: Path, name: str) -> None:
    if name == "model.safetensors":
        (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    os.mkfifo(tmp_path / name)
    with pytest.raises(SurdError, match=f"{name}: .*a pipe"):
        check(tmp_path)
