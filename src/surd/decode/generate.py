"""Generation for a whole list of sources: batches of similar length, results in the order of the list."""

from collections.abc import Sequence

from surd.decode.beam import beam_search
from surd.decode.decoding import Decoding, Hypothesis, Model
from surd.decode.greedy import greedy


def generate(
    model: Model, sources: Sequence[Sequence[int]], settings: Decoding, batch_tokens: int = 16384, n_best: int = 1
) -> list[list[Hypothesis]]:
    """The `n_best` best hypotheses of each source (ids with the end token), best first; a beam of one is greedy search.

    `batch_tokens` bounds sentences × longest source × beam of a batch; a source too long for it goes alone.
    """
    found: list[list[Hypothesis]] = [[] for _ in sources]
    for batch in batches_by_length([len(source) for source in sources], batch_tokens // settings.beam):
        chosen = [sources[number] for number in batch]
        alone = settings.beam == n_best == 1
        results = greedy(model, chosen, settings) if alone else beam_search(model, chosen, settings, n_best)
        for number, hypotheses in zip(batch, results, strict=True):
            found[number] = hypotheses
    return found


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
