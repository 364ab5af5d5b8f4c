"""Matching: which place of one model answers to which of another, by name where names agree, else by order."""

from collections.abc import Iterable, Sequence

from surd.audit.scales import Scale

Pair = tuple[Scale, Scale]
Key = tuple[str, str, str]
Kinds = dict[Key, list[tuple[int, Scale]]]


def matched(mine: Iterable[Scale], theirs: Iterable[Scale]) -> tuple[list[Pair], list[str]]:
    """Pairs of the same scale, in the order of the first model; and in words what has no counterpart."""
    first, second = _by_kind(mine), _by_kind(theirs)
    pairs = _resized(first, second)
    alone: list[str] = []
    for key in dict.fromkeys((*first, *second)):
        here, there = first.get(key, []), second.get(key, [])
        common = {one.site for _, one in here} & {one.site for _, one in there}
        if len(here) == len(there) and len(common) < len(here):
            pairs += [(turn, (one, other)) for (turn, one), (_, other) in zip(here, there, strict=True)]
            continue
        named = {one.site: one for _, one in there}
        pairs += [(turn, (one, named[one.site])) for turn, one in here if one.site in common]
        if left := _left(here, there, common):
            alone.append(f"{key[1]}: {left}")
    return [pair for _, pair in sorted(pairs, key=lambda found: found[0])], alone


def _by_kind(scales: Iterable[Scale]) -> Kinds:
    """Each scale with its turn."""
    found: Kinds = {}
    for turn, one in enumerate(scales):
        found.setdefault((one.rule, one.quantity, one.kind), []).append((turn, one))
    return found


def _resized(first: Kinds, second: Kinds) -> list[tuple[int, Pair]]:
    """What has one name and two shapes, as a table whose vocabulary grew; taken out of both."""
    other = {(key[:2], one.site): (key, one) for key, found in second.items() for _, one in found}
    pairs: list[tuple[int, Pair]] = []
    for key, found in first.items():
        for turn, one in list(found):
            there, answer = other.get((key[:2], one.site), (key, one))
            if there != key:
                pairs.append((turn, (one, answer)))
                found.remove((turn, one))
                second[there] = [pair for pair in second[there] if pair[1] is not answer]
    return pairs


def _left(here: Sequence[tuple[int, Scale]], there: Sequence[tuple[int, Scale]], common: set[str]) -> str:
    """How many there are in each model, where not all have a counterpart; with the first that has none."""
    odd = [one.site for _, one in (*here, *there) if one.site not in common]
    return f"{len(here)} here and {len(there)} there, the first without a counterpart is {odd[0]}" if odd else ""
