"""Softmax over Gaussian logits: exact expectations against sampling, against closed forms, and against `statistics`."""

import math

import pytest
import torch

from surd.errors import SurdError
from surd.measure.softmax import gaussian
from surd.measure.softmax.gaussian import expected_power_sum, expected_rows
from surd.measure.softmax.statistics import attention_statistics

# Measured on sampled rows (Monte Carlo, independent of this code; rows are heavy-tailed, so some are 5 % off):
# std, keys, entropy / ln n, Σ p², rms Jacobian norm.
SAMPLED = [
    (0.25, 16, 0.990, 0.0662, 0.248),
    (0.25, 4096, 0.996, 0.0003, 0.016),
    (0.5, 256, 0.978, 0.0050, 0.071),
    (1, 16, 0.850, 0.132, 0.306),
    (1, 64, 0.886, 0.0389, 0.185),
    (1, 1024, 0.928, 0.0026, 0.051),
    (2, 64, 0.637, 0.160, 0.284),
    (2, 4096, 0.761, 0.0102, 0.093),
    (4, 256, 0.324, 0.356, 0.308),
    (8, 64, 0.138, 0.711, 0.271),
    (8, 1024, 0.130, 0.605, 0.289),
    (32, 16, 0.034, 0.945, 0.133),
    (32, 1024, 0.024, 0.907, 0.167),
]


@pytest.mark.parametrize(("std", "keys", "entropy", "squares", "norm"), SAMPLED)
def test_expectations_are_those_of_sampled_rows(
    std: float, keys: int, entropy: float, squares: float, norm: float
) -> None:
    rows = expected_rows(std, keys)
    assert rows.normalised_entropy == pytest.approx(entropy, rel=0.03, abs=0.002)
    assert rows.square_sum == pytest.approx(squares, rel=0.06, abs=0.0001)
    assert rows.jacobian_norm == pytest.approx(norm, rel=0.05, abs=0.001)


@pytest.mark.parametrize("keys", [1, 2, 16, 1000, 100_000])
@pytest.mark.parametrize("std", [1e-5, 1e-4, 0.01, 0.3, 1.0, 8.0, 32.0])
def test_probabilities_sum_to_one(std: float, keys: int) -> None:
    assert expected_power_sum(std, keys, 1) == pytest.approx(1, abs=1e-10)


@pytest.mark.parametrize("std", [0.0, 0.5, 8.0])
def test_a_single_key_has_all_the_weight(std: float) -> None:
    rows = expected_rows(std, 1)
    assert (rows.square_sum, rows.cube_sum, rows.output_rms) == pytest.approx((1, 1, 1), abs=1e-12)
    assert (rows.entropy, rows.log_partition, rows.trace) == pytest.approx((0, 0, 0), abs=1e-11)
    assert rows.jacobian_norm == pytest.approx(0, abs=1e-5)
    assert math.isnan(rows.normalised_entropy)


def test_two_keys_equal_a_direct_integral() -> None:
    """With two keys, p is a sigmoid of one Gaussian, the difference of the logits."""
    for std in (0.3, 2.0, 10.0):
        difference = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
        density = torch.exp(-0.5 * difference**2)
        density /= density.sum()
        p = torch.sigmoid(difference * std * 2**0.5)
        against = torch.sigmoid(-difference * std * 2**0.5)
        rows = expected_rows(std, 2)
        assert rows.square_sum == pytest.approx(float(density @ (p**2 + against**2)), rel=1e-9)
        assert rows.cube_sum == pytest.approx(float(density @ (p**3 + against**3)), rel=1e-9)
        entropy = torch.special.entr(p) + torch.special.entr(against)
        assert rows.entropy == pytest.approx(float(density @ entropy), rel=1e-8)
        assert rows.jacobian_norm == pytest.approx(float(density @ (2 * p * against) ** 2) ** 0.5, rel=1e-7)


def test_the_first_terms_join_the_integral() -> None:
    below, above = expected_rows(gaussian.FLAT * (1 - 1e-9), 50), expected_rows(gaussian.FLAT, 50)
    for name in ("entropy", "square_sum", "cube_sum", "log_partition", "jacobian_norm"):
        assert getattr(above, name) == pytest.approx(getattr(below, name), rel=1e-10), name
    uniform = expected_rows(0.0, 50)
    assert (uniform.entropy, uniform.log_partition) == (math.log(50), math.log(50))
    assert uniform.jacobian_norm == pytest.approx(49**0.5 / 50, rel=1e-12)


@pytest.mark.parametrize(("std", "keys"), [(0.5, 32), (1.0, 64), (3.0, 64), (8.0, 128)])
def test_statistics_of_gaussian_logits_agree_within_sampling_error(std: float, keys: int) -> None:
    samples = 6000
    logits = torch.randn(1, 1, samples, keys) * std
    measured = attention_statistics(torch.zeros(1, 1, samples, 1), torch.zeros(1, 1, keys, 1), mask=logits)
    rows = expected_rows(std, keys)
    for values, expected in [
        (measured.entropy, rows.entropy),
        (measured.square_sum, rows.square_sum),
        (measured.cube_sum, rows.cube_sum),
        (measured.trace, rows.trace),
        (measured.log_sum_exp, rows.log_partition),
        (measured.jacobian_norm**2, rows.jacobian_norm**2),
    ]:
        error = values.double().std().item() / samples**0.5
        assert abs(values.double().mean().item() - expected) <= 4 * error


def test_attention_outputs_have_the_expected_rms() -> None:
    logits, value = torch.randn(3000, 100) * 1.5, torch.randn(3000, 100, 8)
    output = (logits.softmax(-1)[:, None] @ value).squeeze(1)
    assert output.square().mean().sqrt().item() == pytest.approx(expected_rows(1.5, 100).output_rms, rel=0.03)


@pytest.mark.parametrize(("std", "keys", "tolerance"), [(0.5, 64, 0.01), (1.0, 64, 0.01), (1.5, 256, 0.015)])
def test_high_temperature_entropy(std: float, keys: int, tolerance: float) -> None:
    rows = expected_rows(std, keys)
    assert gaussian.high_temperature_entropy(std, keys) == pytest.approx(rows.entropy, rel=tolerance)
    assert gaussian.high_temperature_log_partition(std, keys) == pytest.approx(rows.log_partition, rel=tolerance)


@pytest.mark.parametrize(("std", "keys", "tolerance"), [(0.5, 64, 0.03), (1.0, 64, 0.1), (1.0, 1024, 0.025)])
def test_high_temperature_power_sums(std: float, keys: int, tolerance: float) -> None:
    rows = expected_rows(std, keys)
    assert gaussian.high_temperature_power_sum(std, keys, 2) == pytest.approx(rows.square_sum, rel=tolerance)
    assert gaussian.high_temperature_effective_keys(std, keys) == pytest.approx(1 / rows.square_sum, rel=tolerance)
    assert gaussian.high_temperature_jacobian_norm(std, keys) == pytest.approx(rows.jacobian_norm, rel=tolerance)
    assert gaussian.high_temperature_power_sum(std, keys, 1) == 1


@pytest.mark.parametrize("std", [8.0, 16.0, 32.0])
@pytest.mark.parametrize("keys", [16, 64, 1024])
def test_frozen_phase(std: float, keys: int) -> None:
    rows = expected_rows(std, keys)
    assert gaussian.frozen_square_sum(std, keys) == pytest.approx(rows.square_sum, rel=0.04)
    assert gaussian.frozen_cube_sum(std, keys) == pytest.approx(rows.cube_sum, rel=0.06)
    assert gaussian.frozen_jacobian_norm(std, keys) == pytest.approx(rows.jacobian_norm, rel=0.08)
    assert gaussian.frozen_entropy(std, keys) == pytest.approx(rows.entropy, rel=0.13)


def test_typical_maxima() -> None:
    found = [gaussian.typical_maximum(keys) for keys in (16, 64, 256, 1024, 4096)]
    assert found == pytest.approx([1.53, 2.15, 2.66, 3.10, 3.49], abs=0.006)


def test_expectations_are_kept() -> None:
    assert expected_rows(1.25, 40) is expected_rows(1.25, 40)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: expected_rows(-1.0, 4), "std: expected a number of at least 0, found -1.0"),
        (lambda: expected_rows(math.nan, 4), "std: expected a number of at least 0, found nan"),
        (lambda: expected_rows(1.0, 0), "keys: expected at least 1, found 0"),
        (lambda: gaussian.frozen_entropy(1.0, 64), "std: the frozen phase of 64 keys begins beyond 2.15, found 1.0"),
        (lambda: gaussian.typical_maximum(1), "keys: expected at least 2, found 1"),
    ],
)
def test_what_has_no_expectation_is_refused(call, message: str) -> None:
    with pytest.raises(SurdError, match=message):
        call()
