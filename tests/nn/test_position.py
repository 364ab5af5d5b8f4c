"""The sinusoid table against its closed form, worked out with forty digits."""

import math

import mpmath
import pytest
import torch

from surd.nn.position import Sinusoidal

CPU = torch.device("cpu")


def closed_form(position: int, feature: int, width: int, layout: str) -> mpmath.mpf:
    """Vaswani et al. 2017, section 3.5: pair i holds sin and cos of position / 10000^(2i/width)."""
    half = width // 2
    pair, is_cosine = divmod(feature, 2) if layout == "interleaved" else (feature % half, feature // half)
    with mpmath.workdps(40):
        angle = mpmath.mpf(position) / mpmath.mpf(10_000) ** (mpmath.mpf(2 * pair) / width)
        return mpmath.cos(angle) if is_cosine else mpmath.sin(angle)


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("width", [8, 24])
def test_table_equals_the_closed_form(layout: str, width: int) -> None:
    table = Sinusoidal(layout=layout)(600, width, torch.float64, CPU)
    assert table.shape == (600, width)
    for position in (0, 1, 2, 63, 64, 255, 599):
        for feature in range(width):
            assert abs(table[position, feature].item() - closed_form(position, feature, width, layout)) <= 1e-12


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("width", [2, 64, 512])
def test_every_row_has_rms_root_half(layout: str, width: int) -> None:
    table = Sinusoidal(layout=layout)(2000, width, torch.float64, CPU)
    assert (table.square().mean(1).sqrt() - math.sqrt(0.5)).abs().max() <= 1e-12


def test_the_layouts_hold_the_same_features_in_another_order() -> None:
    mixed, halves = (Sinusoidal(layout=layout)(100, 32, torch.float64, CPU) for layout in ("interleaved", "halves"))
    assert torch.equal(torch.cat([mixed[:, 0::2], mixed[:, 1::2]], 1), halves)


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 300])
def test_a_row_does_not_depend_on_how_many_are_asked_for(length: int) -> None:
    position = Sinusoidal()
    assert torch.equal(position(length, 16, torch.float32, CPU), position(1000, 16, torch.float32, CPU)[:length])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes_are_the_exact_table_rounded_once(dtype: torch.dtype) -> None:
    exact = Sinusoidal()(500, 64, torch.float64, CPU)
    assert torch.equal(Sinusoidal()(500, 64, dtype, CPU), exact.to(dtype))
