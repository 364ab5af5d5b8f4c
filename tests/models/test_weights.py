"""Weight files that do not fit their model are refused with every fault at once, and leave the model as it was."""

from pathlib import Path

import pytest
import torch
from parity.small import small_model

from surd.errors import SurdError
from surd.files import save_tensors, tensor_metadata
from surd.models.weights import load_weights, save_weights, set_weights, weights_of


def test_metadata_is_kept(tmp_path: Path) -> None:
    save_weights(small_model(), tmp_path / "model.safetensors", {"step": "7"})
    assert tensor_metadata(tmp_path / "model.safetensors")["step"] == "7"


def test_all_faults_are_named_together(tmp_path: Path) -> None:
    model = small_model()
    weights = {name: weight.clone() for name, weight in weights_of(model).items()}
    before = {name: weight.clone() for name, weight in weights.items()}
    missing, misshapen = "encoder.layers.0.attention.output.weight", "decoder.layers.1.feedforward.inner.bias"
    del weights[missing]
    weights[misshapen] = torch.zeros(3)
    weights["stranger"] = torch.zeros(2)
    path = tmp_path / "model.safetensors"
    save_tensors(path, weights, {})
    with pytest.raises(SurdError) as caught:
        load_weights(model, path)
    faults = [f"{missing}: missing", f"{misshapen}: shape (3,), expected (48,)", "stranger: not a weight"]
    for part in [str(path), *faults]:
        assert part in str(caught.value)
    assert all(torch.equal(weight, before[name]) for name, weight in weights_of(model).items())


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SurdError, match="nowhere"):
        load_weights(small_model(), tmp_path / "nowhere.safetensors")


def test_values_are_cast_to_the_model(tmp_path: Path) -> None:
    model, twin = small_model(torch.float64), small_model(torch.float32)
    set_weights(twin, weights_of(model), "a test")
    assert all(weight.dtype == torch.float32 for weight in twin.parameters())
    assert torch.equal(twin.target.table, model.target.table.float())
