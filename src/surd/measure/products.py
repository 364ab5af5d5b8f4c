"""Products: which two tensors a call multiplies, and over how large an index it sums."""

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


def _sizes(letters: str, x: Tensor) -> dict[str, int]:
    """What each letter stands for; an ellipsis takes the axes in the middle."""
    before, _, after = letters.partition("...")
    sizes = dict(zip(before, x.shape, strict=False))
    return sizes | dict(zip(reversed(after), reversed(x.shape), strict=False))
