"""Signals: what flows through a model that has not learnt, known by its mean products, forwards and backwards.

In the mean over fresh weights, features are alike and only positions differ, so a matrix of positions by positions says
all: the kernel of a Gaussian process, as in Lee et al. 2018 (arXiv 1711.00165) and, with attention, in Hron et al. 2020
(arXiv 2006.10540). Its diagonal holds the mean squares.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from surd.measure.moments import Bend
from surd.measure.sites import Role

Kernel = Float[Tensor, "positions positions"]


@dataclass(eq=False)
class Signal:
    """Numbers at one place, over the draw of weights and tokens; all tensors are float64 on the CPU."""

    products: Kernel
    """Mean product of one feature at two positions."""
    flat: Kernel | None = None
    """Product of the means over features at two positions, which a layer norm takes out; None where there are none."""
    own: Float[Tensor, " positions"] | None = None
    """Mean square of the part that lies along the row of the table which the position has read."""
    chance: float = 0.0
    """Variance of the correlation of two positions: of few features, independent ones look alike now and then, and
    tokens may be the same. A branch has here what it has taken from the stream, whose chance it goes along with."""
    fresh: float = 0.0
    """Such variance that a branch adds by its own weights."""
    exact: bool = False
    """Whether the mean square holds for any draw, and not only in the mean over many."""
    gradients: Kernel = field(init=False)
    """Mean product of the gradients of one feature at two positions; NaN where it is unknown."""
    along: Float[Tensor, " positions"] | float = field(init=False, default=0.0)
    """Mean product of a feature and its gradient, which a norm takes out of the gradient."""
    taken: Float[Tensor, " positions"] | float = field(init=False, default=0.0)
    """What norms have taken out, as a multiple of the signal: what positions share, all have lost alike."""

    def __post_init__(self):
        self.gradients = torch.zeros_like(self.products)

    @property
    def squares(self) -> Float[Tensor, " positions"]:
        """Mean square at each position."""
        return self.products.diagonal()

    @property
    def spread(self) -> float:
        """Mean square of what positions do not have in common."""
        count = len(self.products)
        common = (self.products.sum() - self.squares.sum()) / max(1, count * (count - 1))
        return (self.squares.mean() - common).item()


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What the parts of a model say of one place, at the start."""

    forward: float
    """rms."""
    backward: float | None
    """rms of the gradient of the cross-entropy, summed over the target tokens; None where it is unknown."""
    exact: bool
    """Whether `forward` holds for any draw; else, and always `backward`, it is the mean over many."""


@dataclass(frozen=True)
class Draw:
    """How one matrix of a linear layer starts."""

    outputs: int
    std: float
    bias: float = 0.0
    """Standard deviation of the biases."""


class Tape:
    """Runs signals through the parts of a model, remembers the places, and runs the gradients back."""

    def __init__(self, model: nn.Module, draws: Mapping[nn.Module, Sequence[Draw]], width: int):
        """`width`: features of the residual stream."""
        self.draws, self.width = draws, width
        self._paths = {module: path for path, module in model.named_modules()}
        self._places: dict[str, tuple[Signal, Tensor]] = {}
        self._back: list[Callable[[], None]] = []

    def note(self, module: nn.Module, role: Role, signal: Signal, counts: Tensor | None = None) -> Signal:
        """Gives a signal the name of a site; `counts` says how many entries there are at each position, if unlike."""
        counts = torch.ones_like(signal.squares) if counts is None else counts
        self._places[f"{self._paths[module]}:{role}"] = (signal, counts / counts.sum())
        return signal

    def then(self, out: Signal, back: Callable[[], None]) -> Signal:
        """A new signal, and what is to be done once its gradient is known."""
        self._back.append(back)
        return out

    def expectations(self) -> dict[str, Expectation]:
        """Runs the gradients back, then tells every noted place, in the order of the forward."""
        while self._back:
            self._back.pop()()
        return {
            name: Expectation(
                forward=float(signal.squares @ weight) ** 0.5,
                backward=None if signal.gradients.isnan().any() else float(signal.gradients.diagonal() @ weight) ** 0.5,
                exact=signal.exact,
            )
            for name, (signal, weight) in self._places.items()
        }

    def scaled(self, x: Signal, kernel: float | Kernel) -> Signal:
        """x times numbers that multiply mean products by `kernel`: the square of a factor, or one of each pair."""
        flat, own = (None if part is None else part * kernel for part in (x.flat, x.own))
        out = Signal(x.products * kernel, flat, own, x.chance, x.fresh, x.exact)

        def back() -> None:
            x.gradients += out.gradients * kernel

        return self.then(out, back)

    def added(self, x: Signal, y: Signal, exact: bool = False) -> Signal:
        """x + y, of which one has passed through fresh weights: their product is 0 in the mean."""
        flat = x.flat if y.flat is None else y.flat if x.flat is None else x.flat + y.flat
        products, own = x.products + y.products, x.own if y.own is None else y.own
        whole = x.spread + y.spread
        first, second = (part.spread / whole if whole > 0 else 0.0 for part in (x, y))
        chance = (first * x.chance**0.5 + second * y.chance**0.5) ** 2 + second**2 * y.fresh
        chance += 2 * first * second / self.width
        out = Signal(products, flat, own, chance, exact=exact)

        def back() -> None:
            x.gradients += out.gradients
            y.gradients += out.gradients
            # A norm's gradient has nothing along x + y, so along x as much as it has against y.
            x.taken, x.along = out.taken, out.taken * y.squares

        return self.then(out, back)

    def linear(self, x: Signal, layer: nn.Linear) -> tuple[Signal, ...]:
        """x Wᵀ + b for each of the matrices that lie above one another in the layer."""
        return tuple(self._linear(x, layer.in_features, draw) for draw in self.draws[layer])

    def _linear(self, x: Signal, inputs: int, draw: Draw) -> Signal:
        products = inputs * draw.std**2 * x.products + draw.bias**2
        out = Signal(products, chance=x.chance, fresh=x.fresh + 1 / draw.outputs)

        def back() -> None:
            x.gradients += draw.outputs * draw.std**2 * out.gradients

        return self.then(out, back)

    def bent(self, x: Signal, bend: Bend) -> Signal:
        """f(x), entry by entry, for normal x."""
        slopes = bend.slopes(x.products)
        out = Signal(bend.values(x.products))
        if out.spread > 0:
            passed = (slopes.mean().item() * x.spread / out.spread) ** 2
            out.chance, out.fresh = passed * x.chance, passed * x.fresh

        def back() -> None:
            x.gradients += slopes * out.gradients

        return self.then(out, back)

    def times(self, x: Signal, y: Signal) -> Signal:
        """x · y, entry by entry, independent of each other."""
        out = Signal(x.products * y.products, chance=x.chance, fresh=x.fresh)

        def back() -> None:
            x.gradients += y.products * out.gradients
            y.gradients += x.products * out.gradients

        return self.then(out, back)

    def normalised(self, x: Signal, gain: float, epsilon: float, centred: bool) -> Signal:
        """x / rms(x) · gain; `centred` takes the mean over features out first.

        Of a gradient in no particular direction, one norm takes out what the next would, the share 1 or 2 of the width,
        so nothing is taken off for that.
        """
        flat = x.flat if centred else None
        left = x.products if flat is None else x.products - flat
        scale = gain * (left.diagonal() + epsilon).rsqrt()
        kernel = scale[:, None] * scale
        out = Signal(
            left * kernel,
            None if centred or x.flat is None else x.flat * kernel,
            None if x.own is None else x.own * scale.square(),
            x.chance,
            x.fresh,
            exact=True,  # whatever came in, this is the size that goes out
        )

        def back() -> None:
            more = out.along / out.squares
            before, after = (torch.outer(part, part) for part in (out.taken + 0 * more, out.taken + more))
            lost = (after - before) * out.products
            left = out.gradients + lost - (lost.diagonal() + more.square() * out.squares).diag()
            x.gradients += kernel * left
            x.taken = scale.square() * (out.taken + more)

        return self.then(out, back)
