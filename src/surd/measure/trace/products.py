"""Products: which two tensors a call multiplies, and over how large an index it sums."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from torch import Tensor

PRODUCTS = ("matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "einsum", "baddbmm", "baddbmm_", "addmm", "linear")
CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "convolution")


def factors(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """The left and the right factor; None for an einsum of one or three."""
    given = [value for value in (*args, *kwargs.values()) if not isinstance(value, str)]
    if name == "einsum" and given and isinstance(given[0], list | tuple):
        given = list(given[0])
    found = [value for value in given if isinstance(value, Tensor)]
    if name.startswith(("baddbmm", "addmm")):
        found = found[1:]
    elif name != "einsum":
        found = found[:2]
    if len(found) != 2:
        return None
    left, right = found
    return (right, left) if name == "__rmatmul__" else (left, right)


def contracted(name: str, args: tuple[Any, ...], left: Tensor, right: Tensor) -> int:
    """The size of the index that the product sums over: d_k, for queries and keys."""
    if name != "einsum" or not isinstance(args[0], str):
        return left.shape[-1]
    inputs, _, output = args[0].replace(" ", "").partition("->")
    sides = inputs.split(",")
    sizes = _sizes(sides[0], left) | _sizes(sides[1], right)
    shared = set(sides[0]) & set(sides[1]) - set(output) - {"."}
    return prod(sizes[letter] for letter in shared)


def in_pairs(equation: str, operands: Sequence[Tensor]) -> Iterator[tuple[str, int]]:
    """An einsum of three or more, written as products of two: each equation, and how many operands come after it.

    Nothing where it is not written out with an arrow, or where the first two share no index.
    """
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    sides = inputs.split(",")
    if (
        not arrow
        or "." in equation
        or len(sides) != len(operands)
        or len(sides) < 3
        or not set(sides[0]) & set(sides[1])
    ):
        return
    made = sides[0]
    for number, side in enumerate(sides[1:], 1):
        rest = sides[number + 1 :]
        wanted = set("".join(rest)) | set(output)
        joined = "".join(letter for letter in dict.fromkeys(made + side) if letter in wanted) if rest else output
        yield f"{made},{side}->{joined}", number
        made = joined


def _sizes(letters: str, x: Tensor) -> dict[str, int]:
    """What each letter stands for; an ellipsis takes the axes in the middle."""
    before, _, after = letters.partition("...")
    sizes = dict(zip(before, x.shape, strict=False))
    return sizes | dict(zip(reversed(after), reversed(x.shape), strict=False))
