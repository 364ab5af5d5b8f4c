"""Generation for a whole list of sources: batches of similar length, results in the order of the list."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from surd.decode.beam import beam_search
from surd.decode.decoding import Decoding, Hypothesis, Model
from surd.decode.draw import draw
from surd.decode.greedy import greedy
from surd.decode.loops import Guarded, loops
from surd.decode.prefix import Forced
from surd.decode.sample import Sampling


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What is asked of the outputs of each source, besides being good ones."""

    prefixes: Sequence[Sequence[int]] = ()
    """What the outputs of each source begin with; none at all, or one for each source."""
    sampling: Sampling | None = None
    """Draws the outputs instead of searching for them."""
    seeds: Sequence[Sequence[int]] = ()
    """For each source as many as outputs are drawn, equally many for all."""
    guarded: bool = False
    """Keeps outputs from going in circles, at a cost: for sources that need it, see `generate_unlooped`."""

    def of(self, numbers: Sequence[int]) -> "Wishes":
        """For these sources alone."""
        prefixes = [self.prefixes[number] for number in numbers] if self.prefixes else ()
        return replace(self, prefixes=prefixes, seeds=[self.seeds[number] for number in numbers] if self.seeds else ())

    def rows(self, beam: int) -> int:
        """How many rows of a batch a source takes."""
        return beam if self.sampling is None else max(map(len, self.seeds), default=1)


PLAIN = Wishes()
"""Nothing besides."""


def generate(
    model: Model,
    sources: Sequence[Sequence[int]],
    settings: Decoding,
    batch_tokens: int = 16384,
    n_best: int = 1,
    wishes: Wishes = PLAIN,
) -> list[list[Hypothesis]]:
    """The `n_best` best hypotheses of each source (ids with the end token), best first; a beam of one is greedy search.

    `batch_tokens` bounds sentences × longest source × beam of a batch; a source too long for it goes alone.
    """
    return _ranked(_generate(model, sources, settings, batch_tokens, n_best, wishes), wishes)


def generate_unlooped(
    model: Model,
    sources: Sequence[Sequence[int]],
    settings: Decoding,
    batch_tokens: int = 16384,
    n_best: int = 1,
    wishes: Wishes = PLAIN,
) -> tuple[list[list[Hypothesis]], dict[int, list[int]]]:
    """What `generate` finds, with others in the place of outputs that go in circles, looked for once more under guard.

    Also gives the places of those outputs as first found, for each source that has any; other sources are left as they
    are. A draw is drawn again by its own numbers. Of a search whose best output loops, all are from the new search.
    """
    found = _generate(model, sources, settings, batch_tokens, n_best, wishes)
    looped = {
        number: places
        for number, outputs in enumerate(found)
        if (places := [place for place, one in enumerate(outputs) if loops(one, sources[number], settings)])
    }
    if wishes.sampling is not None:
        again = [(number, place) for number, places in looped.items() for place in places]
        seeds = [[wishes.seeds[number][place]] for number, place in again]
    else:
        again, seeds = [(number, places[0]) for number, places in looped.items()], ()
    numbers = [number for number, _ in again]
    guarded = replace(wishes.of(numbers), guarded=True, seeds=seeds)
    others = _generate(model, [sources[number] for number in numbers], settings, batch_tokens, n_best, guarded)
    for (number, place), hypotheses in zip(again, others, strict=True):
        if wishes.sampling is not None:
            found[number][place] = hypotheses[0]
        else:
            found[number] = _replaced(found[number], looped[number], hypotheses)
    return _ranked(found, wishes), looped


def _replaced(outputs: Sequence[Hypothesis], places: Sequence[int], others: Sequence[Hypothesis]) -> list[Hypothesis]:
    """The outputs of a search with the best of the others at these places; all of the others where the best is one."""
    if 0 in places:
        return list(others)
    kept = [one for place, one in enumerate(outputs) if place not in places]
    known = {one.tokens for one in kept}
    fresh = [one for one in others if one.tokens not in known][: len(places)]
    return sorted([*kept, *fresh], key=lambda one: -one.score)


def _ranked(found: list[list[Hypothesis]], wishes: Wishes) -> list[list[Hypothesis]]:
    """Draws best first, as the outputs of a search are already."""
    if wishes.sampling is None:
        return found
    return [sorted(hypotheses, key=lambda one: (-one.score, one.tokens)) for hypotheses in found]


def _generate(
    model: Model,
    sources: Sequence[Sequence[int]],
    settings: Decoding,
    batch_tokens: int,
    n_best: int,
    wishes: Wishes,
) -> list[list[Hypothesis]]:
    """Outputs of a search best first, draws in the order of their seeds."""
    found: list[list[Hypothesis]] = [[] for _ in sources]
    for batch in batches_by_length([len(source) for source in sources], batch_tokens // wishes.rows(settings.beam)):
        results = _batch(model, [sources[number] for number in batch], settings, n_best, wishes.of(batch))
        for number, hypotheses in zip(batch, results, strict=True):
            found[number] = hypotheses
    return found


def _batch(
    model: Model, sources: Sequence[Sequence[int]], settings: Decoding, n_best: int, wishes: Wishes
) -> list[list[Hypothesis]]:
    prefixes = wishes.prefixes or [()] * len(sources)
    if wishes.guarded:
        model = Guarded(model, sources, prefixes)
    if any(prefixes):
        model = Forced(model, prefixes)
    if wishes.sampling is not None:
        return draw(model, sources, settings, wishes.sampling, wishes.seeds)
    if settings.beam == n_best == 1:
        return greedy(model, sources, settings)
    return beam_search(model, sources, settings, n_best)


def batches_by_length(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Cuts numbers 0, 1, … into batches of at most `tokens` padded tokens, longest first.

    Longest first, so that a batch too large for the memory is met at once.
    """
    batches: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= tokens:
            batches[-1].append(number)
        else:
            batches.append([number])
    return batches
