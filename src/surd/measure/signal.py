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
    """Variance of the correlation of two positions over the draw of tokens, which may be the same."""
    exact: bool = False
    """Whether the mean square holds for any draw, and not only in the mean over many."""
    gradients: Kernel = field(init=False)
    """Mean product of the gradients of one feature at two positions."""

    def __post_init__(self):
        self.gradients = torch.zeros_like(self.products)

    @property
    def squares(self) -> Float[Tensor, " positions"]:
        """Mean square at each position."""
        return self.products.diagonal()


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What the parts of a model say of one place, at the start."""

    forward: float
    """rms."""
    backward: float
    """rms of the gradient of the cross-entropy, summed over the target tokens."""
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

    def __init__(self, model: nn.Module, draws: Mapping[nn.Module, Sequence[Draw]]):
        self.draws = draws
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
                backward=float(signal.gradients.diagonal() @ weight) ** 0.5,
                exact=signal.exact,
            )
            for name, (signal, weight) in self._places.items()
        }

    def scaled(self, x: Signal, kernel: float | Kernel) -> Signal:
        """x times numbers that multiply mean products by `kernel`: the square of a factor, or one of each pair."""
        flat, own = (None if part is None else part * kernel for part in (x.flat, x.own))
        out = Signal(x.products * kernel, flat, own, x.chance, x.exact)

        def back() -> None:
            x.gradients += out.gradients * kernel

        return self.then(out, back)

    def added(self, x: Signal, y: Signal, exact: bool = False) -> Signal:
        """x + y, of which one has passed through fresh weights: their product is 0 in the mean."""
        flat = x.flat if y.flat is None else y.flat if x.flat is None else x.flat + y.flat
        products, own = x.products + y.products, x.own if y.own is None else y.own
        shares = [(part.squares.mean() / products.diagonal().mean()).item() for part in (x, y)]
        chance = x.chance * shares[0] ** 2 + y.chance * shares[1] ** 2
        out = Signal(products, flat, own, chance, exact)

        def back() -> None:
            x.gradients += out.gradients
            y.gradients += out.gradients

        return self.then(out, back)

    def linear(self, x: Signal, layer: nn.Linear) -> tuple[Signal, ...]:
        """x Wᵀ + b for each of the matrices that lie above one another in the layer."""
        return tuple(self._linear(x, layer.in_features, draw) for draw in self.draws[layer])

    def _linear(self, x: Signal, inputs: int, draw: Draw) -> Signal:
        out = Signal(inputs * draw.std**2 * x.products + draw.bias**2, chance=x.chance)

        def back() -> None:
            x.gradients += draw.outputs * draw.std**2 * out.gradients

        return self.then(out, back)

    def bent(self, x: Signal, bend: Bend) -> Signal:
        """f(x), entry by entry, for normal x."""
        out = Signal(bend.values(x.products), chance=x.chance)

        def back() -> None:
            x.gradients += bend.slopes(x.products) * out.gradients

        return self.then(out, back)

    def times(self, x: Signal, y: Signal) -> Signal:
        """x · y, entry by entry, independent of each other."""
        out = Signal(x.products * y.products, chance=x.chance)

        def back() -> None:
            x.gradients += y.products * out.gradients
            y.gradients += x.products * out.gradients

        return self.then(out, back)

    def normalised(self, x: Signal, gain: float, epsilon: float, centred: bool) -> Signal:
        """x / rms(x) · gain; `centred` takes the mean over features out first.

        Along the residual stream one norm's gradient has already lost what the next would take out of it, the share 1
        or 2 of the width, so nothing is taken off here.
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
            exact=True,  # whatever came in, this is the size that goes out
        )

        def back() -> None:
            x.gradients += kernel * out.gradients

        return self.then(out, back)
