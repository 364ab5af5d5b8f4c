"""Devices: what this machine says about itself is believable."""

import pytest
import torch

from surd import device


def test_the_default_device_can_compute() -> None:
    assert torch.ones(2, device=device.default_device()).sum().item() == 2


@pytest.mark.parametrize("flags", [set(), {"avx2"}, {"avx2", "avx512_bf16"}, {"amx_bf16"}, {"asimd", "bf16"}])
def test_a_processor_without_bf16_computes_in_fp32(flags: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_processor_flags", lambda: flags)
    expected = "bf16" if flags & {"avx512_bf16", "amx_bf16", "bf16"} else "fp32"
    assert device.default_precision(torch.device("cpu")) == expected


@pytest.mark.skipif(not hasattr(torch.cpu, "_is_avx512_bf16_supported"), reason="this torch does not tell")
def test_torch_sees_the_same_bf16_instructions() -> None:
    if torch.cpu._is_avx512_bf16_supported():
        assert device.has_fast_bf16(torch.device("cpu"))


def test_memory_and_processors_are_counted() -> None:
    assert 2**26 < device.available_memory() < 2**46
    assert device.processors() >= 1


def test_the_limit_of_a_container_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_container_memory", lambda: 1000)
    assert device.available_memory() == 1000
