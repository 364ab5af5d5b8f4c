"""Seeds: every random stream is a function of one seed and of the names of what it is for."""

import hashlib
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def derive(seed: int, *names: object) -> int:
    """A 63-bit seed for the stream that `names` describe; the same in every process, on every machine."""
    words = "\x1f".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.blake2b(words.encode(), digest_size=8).digest(), "big") >> 1


def seed_all(seed: int) -> None:
    """Seeds the global streams of Python, NumPy and torch (all devices), for code that takes no generator."""
    import numpy
    import torch

    random.seed(derive(seed, "python"))
    numpy.random.seed(derive(seed, "numpy") % 2**32)
    torch.manual_seed(derive(seed, "torch"))


def generator(seed: int, *names: object) -> "torch.Generator":
    """A generator on the CPU that depends on nothing but the seed and the names: `generator(1, "shuffle", epoch)`."""
    import torch

    return torch.Generator().manual_seed(derive(seed, *names))
