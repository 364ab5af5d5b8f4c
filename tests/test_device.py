"""Devices: what this machine says about itself is believable."""

import pytest
import torch

from surd import device


def test_the_default_device_can_compute() -> None:
    assert torch.ones(2, device=device.default_device()).sum().item() == 2


@pytest.mark.parametrize("flags", [set(), {"avx2"}, {"avx2", "avx512_bf16"}, {"amx_bf16"}, {"asimd", "bf16"}])
@pytest.mark.parametrize("gain", [0.6, 2.3])
def test_bf16_needs_instructions_that_are_faster(flags: set[str], gain: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_processor_flags", lambda: flags)
    monkeypatch.setattr(device, "_bf16_gain", lambda: gain)
    expected = "bf16" if gain > 1 and flags & device.BF16_FLAGS else "fp32"
    assert device.default_precision(torch.device("cpu")) == expected


def test_the_gain_is_a_measured_ratio() -> None:
    assert 0.001 < device._bf16_gain() < 1000


@pytest.mark.skipif(not hasattr(torch.cpu, "_is_avx512_bf16_supported"), reason="this torch does not tell")
def test_torch_sees_the_same_bf16_instructions() -> None:
    if torch.cpu._is_avx512_bf16_supported():
        assert device._processor_flags() & device.BF16_FLAGS


def test_memory_and_processors_are_counted() -> None:
    assert 2**26 < device.available_memory() < 2**46
    assert device.processors() >= 1


def test_the_limit_of_a_container_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_container_memory", lambda: 1000)
    assert device.available_memory() == 1000
