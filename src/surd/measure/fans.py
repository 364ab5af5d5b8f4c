"""Fans: which standard deviation published initialisations give a matrix, and which with fans that are not its own."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod

Fans = tuple[int, int]
"""Over how many numbers a product sums, and how many it makes."""

SCHEMES: Mapping[str, Callable[[int, int], float]] = {
    "√(2 / (fan_in + fan_out))": lambda inputs, outputs: (2 / (inputs + outputs)) ** 0.5,
    "1/√fan_in": lambda inputs, outputs: inputs**-0.5,
    "√(2 / fan_in)": lambda inputs, outputs: (2 / inputs) ** 0.5,
    "1/√(3 · fan_in)": lambda inputs, outputs: (3 * inputs) ** -0.5,
}
"""Glorot & Bengio 2010, LeCun et al. 1998, He et al. 2015, and what torch's own layers draw."""
OTHERS: tuple[Callable[[int, int], float], ...] = (
    lambda inputs, outputs: max(inputs, outputs) ** -0.5,
    lambda inputs, outputs: (2 / (5 * inputs)) ** 0.5,
    lambda inputs, outputs: (2 * inputs) ** -0.5,
)
"""Orthogonal matrices (Saxe et al. 2014), small ones (Nguyen & Salazar 2019), and CLIP's (Radford et al. 2021)."""


def glorot(inputs: int, outputs: int) -> float:
    """√(2 / (fan in + fan out))."""
    return (2 / (inputs + outputs)) ** 0.5


def published(inputs: int, outputs: Iterable[int]) -> Iterator[float]:
    """The deviations that a matrix may have, by any scheme; `outputs` are counts that may pass for its own.

    A head is drawn by itself or with the others, an expert too.
    """
    for count in outputs:
        yield from (scheme(inputs, count) for scheme in (*SCHEMES.values(), *OTHERS))


def backward(outputs: int) -> tuple[float, float, float]:
    """What keeps the size of gradients (He et al. 2015, section 2.2), and what torch draws where rows are inputs."""
    return (2 / outputs) ** 0.5, outputs**-0.5, (3 * outputs) ** -0.5


def as_convolution(shape: Sequence[int]) -> tuple[Fans, Fans]:
    """The fans that torch, and Keras, take a tensor of three axes or more to have: those of an image's kernel."""
    area, last = prod(shape[2:]), prod(shape[:-2])
    return (shape[1] * area, shape[0] * area), (last * shape[-2], last * shape[-1])
