"""What a softmax over independent Gaussian logits does on average: exact one-dimensional integrals, and closed forms.

With phi_k(t) = E[e^{kz} exp(−t eᶻ)] for a logit z ~ N(0, std²), and 1/Zᵏ written as ∫ t^{k−1} e^{−tZ} dt / Γ(k), the
sum over keys leaves the integral, and independence makes it one-dimensional:
E Σ pᵏ = n / Γ(k) · ∫ t^{k−1} phi_k(t) phi_0(t)^{n−1} dt. The closed forms hold at small and at large std: the high
temperature and the frozen phase of the random energy model (Derrida 1981; Ruelle 1987).
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import torch
from torch import Tensor

from surd.errors import SurdError

# The integrands are analytic in a strip of half-width π/2 around the line, so the trapezoid rule errs by exp(−π²/STEP).
STEP = 0.2
REACH = 9.0
"""Standard deviations beyond which a Gaussian has less weight than float64 has digits."""
FROZEN = 8.0
"""From this std on a softmax over up to thousands of keys is frozen, and its integrals are long."""
FLAT = 1e-4
"""Below this std the first terms in std² are exact in float64."""


@dataclass(frozen=True, kw_only=True)
class GaussianRows:
    """Expectations over rows of `keys` independent logits of standard deviation `std`."""

    std: float
    keys: int
    entropy: float
    """E[−Σ p ln p], nats."""
    square_sum: float
    """E Σ p²."""
    cube_sum: float
    """E Σ p³."""
    log_partition: float
    """E ln Σ exp(logit), for logits of mean 0."""
    jacobian_norm: float
    """√(E ‖diag(p) − p pᵀ‖²): the rms over rows of the Frobenius norm, not its mean."""

    @property
    def output_rms(self) -> float:
        """Root mean square of attention's output for independent values of unit mean square: √(E Σ p²)."""
        return math.sqrt(self.square_sum)

    @property
    def trace(self) -> float:
        """E tr J = 1 − E Σ p²."""
        return 1 - self.square_sum

    @property
    def normalised_entropy(self) -> float:
        """Entropy / ln n; NaN for a single key."""
        return self.entropy / math.log(self.keys) if self.keys > 1 else math.nan


@lru_cache(maxsize=4096)
def expected_rows(std: float, keys: int) -> GaussianRows:
    """The exact expectation at any std and number of keys; the work grows with std², not with the keys."""
    squares = expected_power_sum(std, keys, 2)
    cubes = expected_power_sum(std, keys, 3)
    if std < FLAT:
        variance = std**2 * (1 - 1 / keys)  # the mean population variance within a row
        entropy, log_partition = math.log(keys) - variance / 2, math.log(keys) + variance / 2
        squared_squares = (1 + 2 * variance) / keys**2
    else:
        grid = _grid(std, keys)
        log_partition = _integral((-grid.place.exp()).exp() - grid.moments[0] ** keys)
        entropy = log_partition - keys * _integral(grid.logit_moment * grid.moments[0] ** (keys - 1))
        # Σᵢ Σⱼ pᵢ² pⱼ²: the same key twice, and two different ones
        squared_squares = expected_power_sum(std, keys, 4)
        if keys > 1:
            pairs = _integral(grid.moments[2] ** 2 * grid.moments[0] ** (keys - 2))
            squared_squares += keys * (keys - 1) / math.gamma(4) * pairs
    return GaussianRows(
        std=std,
        keys=keys,
        entropy=max(0.0, entropy),
        square_sum=squares,
        cube_sum=cubes,
        log_partition=log_partition,
        jacobian_norm=math.sqrt(max(0.0, squares - 2 * cubes + squared_squares)),
    )


def expected_power_sum(std: float, keys: int, power: int) -> float:
    """E Σ pᵏ for k = 1 … 4, exact; for k = 1 it is 1, which tests the integral."""
    _check(std, keys)
    if std < FLAT:
        return keys ** (1.0 - power) * (1 + math.comb(power, 2) * std**2 * (1 - 1 / keys))
    grid = _grid(std, keys)
    return keys / math.gamma(power) * _integral(grid.moments[power] * grid.moments[0] ** (keys - 1))


@dataclass(frozen=True)
class _Grid:
    """phi at t = eᵘ, for equally spaced u."""

    place: Tensor
    """u."""
    moments: list[Tensor]
    """tᵏ phi_k(t) = E[e^{k(u+z)} exp(−e^{u+z})] for k = 0 … 4."""
    logit_moment: Tensor
    """E[z e^{u+z} exp(−e^{u+z})]."""


@lru_cache(maxsize=4)
def _grid(std: float, keys: int) -> _Grid:
    # Left of the first place even n keys give less than a float64 digit; right of the last, exp(−Z eᵘ) is 0.
    place = torch.arange(-REACH * std - 40 - math.log(keys), REACH * std + 5, STEP, dtype=torch.float64)
    steps = math.ceil(REACH * std / min(STEP, std / 1.5))
    logit = torch.linspace(-REACH * std, REACH * std, 2 * steps + 1, dtype=torch.float64)
    density = torch.exp(-0.5 * (logit / std) ** 2)
    density /= density.sum()
    rows = []
    for part in place.split(max(1, 2**20 // len(logit))):  # bounds the memory at large std
        exponent = (part[:, None] + logit).exp_().clamp_(max=1e3)  # exp(−1000) is 0 already, and 0 · inf no number
        survival = exponent.neg().exp_()
        moments = [survival @ density]
        for power in range(1, 5):
            survival *= exponent
            moments.append(survival @ density)
            if power == 1:
                moments.append(survival @ (density * logit))
        rows.append(torch.stack(moments))  # in the order of the line below
    zeroth, first, logit_moment, *others = torch.cat(rows, dim=1)
    return _Grid(place, [zeroth, first, *others], logit_moment)


def _integral(values: Tensor) -> float:
    return float(values.sum()) * STEP


def nearly(std: float, keys: int) -> tuple[float, float]:
    """E Σ p² and E ‖J‖² to four digits of std, for many calls; beyond `FROZEN`, closed forms that are within 16 %."""
    if std > FROZEN and keys > 1:
        return frozen_square_sum(std, keys), frozen_jacobian_norm(std, keys) ** 2
    row = expected_rows(round(std, 3 - math.floor(math.log10(std))) if std > 0 else 0.0, keys)
    return row.square_sum, row.jacobian_norm**2


def high_temperature_entropy(std: float, keys: int) -> float:
    """ln n − std²/2. Within 1 % up to std 1 (n ≥ 64), 1.5 % at 1.5 (n ≥ 256); invalid beyond √(2 ln n)."""
    _check(std, keys)
    return math.log(keys) - std**2 / 2


def high_temperature_log_partition(std: float, keys: int) -> float:
    """ln n + std²/2. Valid as the entropy is."""
    _check(std, keys)
    return math.log(keys) + std**2 / 2


def high_temperature_power_sum(std: float, keys: int, power: int) -> float:
    """n^(1−k) · exp((k² − k) std²/2) for Σ pᵏ; invalid for k · std > √(2 ln n).

    At k = 2 within 3 % up to std 0.5, 2 % at std 1 with 1024 keys, 9 % at std 1 with 64.
    """
    _check(std, keys)
    return keys ** (1.0 - power) * math.exp((power**2 - power) * std**2 / 2)


def high_temperature_effective_keys(std: float, keys: int) -> float:
    """n · exp(−std²). Valid as the sum of squares is."""
    return 1 / high_temperature_power_sum(std, keys, 2)


def high_temperature_jacobian_norm(std: float, keys: int) -> float:
    """√(Σ p² − 2 Σ p³ + (Σ p²)²) of the sums above, an rms over rows. Valid for 3 · std < √(2 ln n)."""
    squares = high_temperature_power_sum(std, keys, 2)
    return math.sqrt(max(0.0, squares - 2 * high_temperature_power_sum(std, keys, 3) + squares**2))


def typical_maximum(keys: int) -> float:
    """b = Φ⁻¹(1 − 1/n): the standard normal exceeds it once in n draws. For n ≥ 2."""
    if keys < 2:
        raise SurdError(f"keys: expected at least 2, found {keys}")
    return -NormalDist().inv_cdf(1 / keys)


def frozen_square_sum(std: float, keys: int) -> float:
    """1 − b/std with b the `typical_maximum`. Within 4 % for std ≥ 8 and n from 16 to 4096; for std > about 2 b."""
    return 1 - _occupation(std, keys)


def frozen_cube_sum(std: float, keys: int) -> float:
    """y (1 + y) / 2 with y = 1 − b/std. Valid as the sum of squares is."""
    y = 1 - _occupation(std, keys)
    return y * (1 + y) / 2


def frozen_jacobian_norm(std: float, keys: int) -> float:
    """√(y (1 − y) / 3) with y = 1 − b/std, an rms over rows: within 8 % for std ≥ 8, falls like √(b / (3 std))."""
    y = 1 - _occupation(std, keys)
    return math.sqrt(y * (1 - y) / 3)


def frozen_entropy(std: float, keys: int) -> float:
    """ψ(1) − ψ(1 − b/std), nats: the entropy of Poisson–Dirichlet weights. Within 13 % for std > about 2 b."""
    arguments = torch.tensor([1.0, 1 - _occupation(std, keys)], dtype=torch.float64)
    one, rest = torch.digamma(arguments).tolist()
    return one - rest


def _occupation(std: float, keys: int) -> float:
    """b / std, the parameter of the Poisson–Dirichlet law; below 1 in the frozen phase."""
    _check(std, keys)
    maximum = typical_maximum(keys)
    if std <= maximum:
        raise SurdError(f"std: the frozen phase of {keys} keys begins beyond {maximum:.3g}, found {std}")
    return maximum / std


def _check(std: float, keys: int) -> None:
    if not 0 <= std < math.inf:
        raise SurdError(f"std: expected a number of at least 0, found {std}")
    if keys < 1:
        raise SurdError(f"keys: expected at least 1, found {keys}")
