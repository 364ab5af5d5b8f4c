"""Hashes of texts: repeated pairs, and held-out sources chosen by their text alone, in 8 bytes a pair."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from surd.data.clean import Fate
from surd.data.corpus import Pair

BITS = 4
"""First bits of a hash, by which hashes are parted before they are sorted: that needs a sixteenth of the memory."""
PIECE = 2**20
"""Hashes that are looked up at once."""


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


def mark_repeats(fates: np.ndarray, sources: np.ndarray, targets: np.ndarray) -> None:
    """Gives every still usable pair whose source and target came before together the fate DUPLICATE.

    Targets may be hashed to fewer bits than sources: they are compared only where the sources are equal.
    """
    for numbers in _parts(sources, usable(fates)):
        source, target = sources[numbers], targets[numbers]
        order = np.lexsort((target, source))  # of equal pairs the first stays first
        source, target = source[order], target[order]
        again = (source[1:] == source[:-1]) & (target[1:] == target[:-1])
        fates[numbers[order[1:][again]]] = Fate.DUPLICATE


def distinct(hashes: np.ndarray, among: np.ndarray) -> int:
    """How many different hashes there are among those that the mask `among` picks."""
    return sum(len(_starts(part)) for part in _sorted_parts(hashes, among))


def choose(hashes: np.ndarray, among: np.ndarray, wanted: float, most: int) -> np.ndarray:
    """The hashes of the sources to hold out, sorted: the smallest of those that the mask `among` picks.

    `wanted` below 1 is a share of the distinct sources, at least two and at most `most` of them; from 1 on it is their
    number. Never more than half of the sources, and no source that has a quarter of all pairs, so that enough is left.
    """
    sources, pairs = distinct(hashes, among), int(among.sum())
    number = min(max(2, round(wanted * sources)), most) if wanted < 1 else int(wanted)
    number = min(number, sources // 2)
    chosen = np.zeros(0, np.uint64)
    for part in _sorted_parts(hashes, among):
        if len(chosen) == number:
            break
        starts = _starts(part)
        counts = np.diff(np.append(starts, len(part)))
        chosen = np.append(chosen, part[starts[counts * 4 < pairs]])[:number]
    return chosen


def mark(fates: np.ndarray, hashes: np.ndarray, chosen: np.ndarray, fate: Fate) -> None:
    """Gives every training pair whose hash is among `chosen` (sorted) another fate."""
    fates[standing_in(hashes, chosen) & (fates == Fate.TRAIN)] = fate


def standing_in(hashes: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Which of the hashes are among `chosen` (sorted); the work is done in pieces that need little memory."""
    found = np.zeros(len(hashes), bool)
    for start in range(0, len(hashes) if len(chosen) else 0, PIECE):
        part = hashes[start : start + PIECE]
        found[start : start + PIECE] = chosen[np.searchsorted(chosen, part).clip(max=len(chosen) - 1)] == part
    return found


def usable(fates: np.ndarray) -> np.ndarray:
    """Which pairs are still candidates for training; copies are until the task is known."""
    return (fates == Fate.TRAIN) | (fates == Fate.COPY)


def _parts(hashes: np.ndarray, among: np.ndarray) -> Iterator[np.ndarray]:
    """The places that `among` picks, parted by the first bits of their hashes, ascending; equal ones stay together."""
    first = np.empty(len(hashes), np.uint8)
    np.right_shift(hashes, np.uint64(64 - BITS), out=first, casting="unsafe")
    first[~among] = 2**BITS
    for part in range(2**BITS):
        yield np.flatnonzero(first == part)


def _sorted_parts(hashes: np.ndarray, among: np.ndarray) -> Iterator[np.ndarray]:
    yield from (np.sort(hashes[numbers]) for numbers in _parts(hashes, among))


def _starts(ordered: np.ndarray) -> np.ndarray:
    """Where each different value of a sorted array begins."""
    return np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
