"""Hashes of texts: repeated pairs, and held-out sources chosen by their text alone, in 8 bytes a pair."""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from surd.data.clean import Fate
from surd.data.corpus import Pair

PARTS = 16
"""How many parts hashes are sorted in, to need a sixteenth of the memory."""


@dataclass(frozen=True)
class HeldOut:
    """A source that no training pair has, and every target that stands beside it."""

    source: str
    references: tuple[str, ...]


def text_hash(data: bytes) -> int:
    """A 64-bit hash of a text: the same on every machine; two of ten million texts share one with odds of 3 in 10⁶."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def gather_references(pairs: Iterable[Pair]) -> tuple[HeldOut, ...]:
    """Pairs by source, in the order of the first pair of each; several pairs with one source are its references."""
    found: dict[str, dict[str, None]] = {}
    for source, target in pairs:
        found.setdefault(source, {})[target] = None
    return tuple(HeldOut(source, tuple(references)) for source, references in found.items())


def mark_repeats(fates: np.ndarray, hashes: np.ndarray) -> None:
    """Gives every still usable pair whose hash came before the fate DUPLICATE."""
    parts = np.empty(len(hashes), np.uint8)
    np.right_shift(hashes, np.uint64(60), out=parts, casting="unsafe")
    parts[~usable(fates)] = PARTS
    for part in range(PARTS):
        numbers = np.flatnonzero(parts == part)
        mine = hashes[numbers]
        order = np.argsort(mine, kind="stable")
        again = mine[order][1:] == mine[order][:-1]
        fates[numbers[order[1:][again]]] = Fate.DUPLICATE


def choose(hashes: np.ndarray, wanted: float, most: int) -> np.ndarray:
    """The hashes of the sources to hold out: the smallest of `hashes`, which are sorted and stand there once a pair.

    `wanted` below 1 is a share of the distinct sources, at least two and at most `most` of them; from 1 on it is their
    number. Never more than half of the sources, and no source that has a quarter of all pairs, so that enough is left.
    """
    sources = distinct(hashes)
    number = min(max(2, round(wanted * sources)), most) if wanted < 1 else int(wanted)
    chosen: list[np.uint64] = []
    place = 0
    while len(chosen) < min(number, sources // 2) and place < len(hashes):
        end = int(np.searchsorted(hashes, hashes[place], side="right"))
        if (end - place) * 4 < len(hashes):
            chosen.append(hashes[place])
        place = end
    return np.array(chosen, np.uint64)


def distinct(hashes: np.ndarray) -> int:
    """How many different hashes there are among sorted ones."""
    return int((hashes[1:] != hashes[:-1]).sum()) + bool(len(hashes))


def mark(fates: np.ndarray, hashes: np.ndarray, chosen: np.ndarray, fate: Fate) -> None:
    """Gives every training pair whose hash is among `chosen` (sorted) another fate."""
    if not len(chosen):
        return
    step = 2**20
    for start in range(0, len(hashes), step):
        part = hashes[start : start + step]
        places = np.searchsorted(chosen, part).clip(max=len(chosen) - 1)
        fates[start : start + step][(chosen[places] == part) & (fates[start : start + step] == Fate.TRAIN)] = fate


def usable(fates: np.ndarray) -> np.ndarray:
    """Which pairs are still candidates for training; copies are until the task is known."""
    return (fates == Fate.TRAIN) | (fates == Fate.COPY)
