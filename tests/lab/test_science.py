"""The tables that were published, or computed once by other means, against what the experiments measure."""

import math

import pytest
from lab.fast import record

from surd.interchange.packages import installed
from surd.lab.experiment import named, run
from surd.lab.experiments.library_inits import ATTENTIONS, LibraryInits
from surd.lab.finding import Table
from surd.lab.markdown import markdown
from surd.lab.page import page
from surd.lab.samples import average
from surd.lab.verdict import Verdict

SEEDS = range(5)
# Rows of 64 independent Gaussian logits of standard deviation √d_k, by simulation in float64 elsewhere: median of
# (1 - Σ p²) / (1 - 1/64), then median, mean and rms of ‖J‖_F, and the share of rows with a weight above 0.99.
GRADIENT = {
    1: (0.980, 0.180, 0.183, 0.184, 0.000),
    4: (0.893, 0.283, 0.282, 0.284, 0.000),
    16: (0.612, 0.335, 0.295, 0.317, 0.018),
    32: (0.439, 0.305, 0.257, 0.299, 0.083),
    64: (0.256, 0.200, 0.212, 0.272, 0.193),
    128: (0.101, 0.086, 0.163, 0.238, 0.340),
    256: (0.028, 0.024, 0.126, 0.208, 0.475),
    512: (0.0041, 0.0037, 0.093, 0.178, 0.600),
    1024: (0.0002, 0.0002, 0.067, 0.150, 0.706),
}
CELLS = ("median trace", "median norm", "mean norm", "rms norm", "certain")
# Largest weight, entropy over ln 64 and effective keys of the same, by the standard deviation.
SATURATION = {0.5: (0.046, 0.971, 50.3), 1: (0.108, 0.886, 25.7), 8: (0.793, 0.138, 1.4)}
# Rms of a token, over that of a position, and its share of the variance, at d_model 512.
EMBEDDING = {
    "U(±0.05)": (0.0289, 0.041, 0.0017),
    "U(±0.05) · √d": (0.653, 0.924, 0.460),
    "N(0, 1/√d) · √d": (1.000, 1.414, 0.667),
    "N(0, 0.02) · √d": (0.4525, 0.640, 0.291),
    "N(0, 1)": (1.000, 1.414, 0.667),
    "N(0, 1) · √d": (22.63, 32.0, 0.9990),
}
# Rms of a query and standard deviation of the scores, by d_model, heads and d_k, measured in either version of Keras.
KERAS = {
    "3.15": {
        (512, 8, 64): (1.000, 1.000),
        (256, 4, 64): (1.002, 0.996),
        (128, 4, 32): (1.003, 1.000),
        (64, 2, 32): (1.000, 1.010),
        (512, 2, 512): (0.816, 0.666),
    },
    "3.14": {
        (512, 8, 64): (0.1667, 0.0278),
        (256, 4, 64): (0.1715, 0.0296),
        (128, 4, 32): (0.2377, 0.0561),
        (64, 2, 32): (0.2434, 0.0598),
        (512, 2, 512): (0.0623, 0.0039),
    },
}


def cells(table: Table, row: str) -> list[float]:
    """The numbers of a row, without what stands in brackets."""
    found = next(line for line in table.rows if line[0] == row)
    return [float(cell.partition(" (")[0].replace(",", "")) for cell in found[1:]]


@pytest.mark.parametrize("width", GRADIENT)
def test_nine_rows_of_the_gradient(width: int) -> None:
    one = named("softmax-gradient")
    runs = [one._independent(width, seed) for seed in SEEDS]
    for cell, expected in zip(CELLS, GRADIENT[width], strict=True):
        assert average(runs, cell) == pytest.approx(expected, rel=0.03, abs=0.008), cell


def test_real_products_stand_beside_independent_logits_and_differ_in_narrow_heads() -> None:
    one = named("softmax-gradient")
    independent, real = (
        [draw(4, seed) for seed in SEEDS] for draw in (one._independent, lambda d, s: one._products(d, 1.0, s))
    )
    assert average(real, "mean norm") == pytest.approx(0.258, abs=0.008)
    assert average(real, "median norm") == pytest.approx(0.261, abs=0.008)
    assert average(independent, "mean norm") - average(real, "mean norm") > 0.015
    assert [table.columns for table in record("softmax-gradient").tables] == 2 * [
        ("d_k", "median trace", "median ‖J‖_F", "mean ‖J‖_F", "rms ‖J‖_F", "certain rows", "dead rows")
    ]
    stated = [each.quantity for each in record("softmax-gradient").comparisons if "less independent" in each.quantity]
    assert [quantity.rpartition(" ")[2] for quantity in stated] == ["4", "4", "16", "16"]


def test_the_mean_gradient_does_not_vanish_at_64() -> None:
    claim = record("softmax-gradient").claims[0]
    assert claim.verdict is Verdict.REFUTED
    ratio = next(one for one in record("softmax-gradient").comparisons if one.quantity.startswith("rms gradient"))
    assert ratio.expected == pytest.approx(11.8, abs=0.15)


@pytest.mark.parametrize("std", SATURATION)
def test_rows_of_saturation(std: float) -> None:
    top, entropy, effective = cells(record("softmax-saturation").tables[0], f"{std:g}")
    assert (top, entropy) == pytest.approx(SATURATION[std][:2], abs=0.008)
    assert effective == pytest.approx(SATURATION[std][2], rel=0.03)


@pytest.mark.parametrize("start", EMBEDDING)
def test_six_rows_of_token_and_position(start: str) -> None:
    found = cells(record("embedding-and-position").tables[0], start)
    assert found[:3] == pytest.approx(EMBEDDING[start], rel=0.03)
    assert found[3] == pytest.approx(0.5 / (0.5 + EMBEDDING[start][0] ** 2), abs=0.015)


@pytest.mark.parametrize("shape", KERAS["3.15"])
def test_the_installed_keras_starts_as_its_version_does(shape: tuple[int, int, int]) -> None:
    pytest.importorskip("keras")
    version = ".".join((installed("keras") or "").split(".")[:2])
    found = [LibraryInits()._built("keras MultiHeadAttention", shape, seed) for seed in SEEDS]
    query, scores = KERAS["3.14" if version < "3.15" else "3.15"][shape]
    assert average(found, "query") == pytest.approx(query, rel=0.03)
    assert average(found, "scores") == pytest.approx(scores, rel=0.05)


def test_what_is_not_installed_is_said_not_to_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surd.interchange.installed.installed", lambda package: "2.13" if package == "torch" else None)
    monkeypatch.setattr("surd.lab.experiments.library_inits.installed", lambda package: None)
    found = LibraryInits(widths=(128, 512))._classes({})
    verdicts = {one.quantity: (one.verdict, one.unmeasured) for one in found}
    assert len(verdicts) == len(ATTENTIONS)
    assert set(verdicts.values()) >= {
        (Verdict.UNMEASURED, "keras is not installed"),
        (Verdict.UNMEASURED, "transformers is not installed"),
    }


def test_without_the_library_nothing_is_said_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surd.lab.experiments.who_ties.installed", lambda package: None)
    found = run(named("who-ties"), 5)
    assert found.verdict is Verdict.UNMEASURED
    assert page(found).count("not measured: transformers is not installed") == len(found.comparisons)
    assert "What is often said" not in page(found) + markdown(found)


def test_the_copy_of_the_input_starts_far_from_ln_v() -> None:
    tied = record("tied-head")
    vocabulary = 4_000
    found = {one.quantity: one for one in tied.comparisons}
    assert found["own logit, d = 512, blocks add 1"].expected == pytest.approx(16.0)
    assert found["first loss above ln V, d = 512, blocks add 1"].expected == pytest.approx(
        math.log(math.e**16 + vocabulary * math.e**0.5) - math.log(vocabulary)
    )
    for spread, excess in ((0.45, 0.1), (0.65, 0.21), (1, 0.5), (2, 2.0), (4, 7.6), (8, 21.9)):
        assert found[f"first loss above ln V, logits of std {spread:g}"].expected == pytest.approx(excess, rel=0.06)
