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
    found: list[list[Hypothesis]] = [[] for _ in sources]
    for batch in batches_by_length([len(source) for source in sources], batch_tokens // wishes.rows(settings.beam)):
        results = _batch(model, [sources[number] for number in batch], settings, n_best, wishes.of(batch))
        for number, hypotheses in zip(batch, results, strict=True):
            found[number] = hypotheses
    return found


def generate_unlooped(
    model: Model,
    sources: Sequence[Sequence[int]],
    settings: Decoding,
    batch_tokens: int = 16384,
    n_best: int = 1,
    wishes: Wishes = PLAIN,
) -> tuple[list[list[Hypothesis]], set[int]]:
    """What `generate` finds; where the best output goes in circles, it is looked for once more under guard.

    Also gives the numbers of those sources. All others are as `generate` leaves them.
    """
    found = generate(model, sources, settings, batch_tokens, n_best, wishes)
    looped = [number for number, best in enumerate(found) if loops(best[0], sources[number], settings)]
    if looped:
        guarded = replace(wishes.of(looped), guarded=True)
        again = generate(model, [sources[number] for number in looped], settings, batch_tokens, n_best, guarded)
        for number, hypotheses in zip(looped, again, strict=True):
            found[number] = hypotheses
    return found, set(looped)


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
