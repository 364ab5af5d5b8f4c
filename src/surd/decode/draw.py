"""Drawing: outputs of a source by chance, each by random numbers of its own; the same alone or in any batch."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from surd.decode.decoding import NOT_FINITE, Decoding, Hypothesis, Model, begin, evaluating
from surd.decode.sample import Sampling, pick
from surd.errors import SurdError
from surd.nn.special import BOS, EOS


def draw(
    model: Model,
    sources: Sequence[Sequence[int]],
    settings: Decoding,
    sampling: Sampling,
    seeds: Sequence[Sequence[int]],
) -> list[list[Hypothesis]]:
    """As many outputs of each source (ids with the end token) as it has seeds, in their order; all have as many.

    The t-th token of an output is decided by the t-th number that its seed gives. Lengths and scores are by `settings`,
    as in a search, and scores are those of the model as it is, whatever `sampling` makes of it.
    """
    if not sources:
        return []
    assert len({len(each) for each in seeds}) == 1 and len(seeds) == len(sources), "seeds for each source, equally many"
    with evaluating(model):
        return _draw(model, sources, settings, sampling, seeds)


def _draw(
    model: Model,
    sources: Sequence[Sequence[int]],
    settings: Decoding,
    sampling: Sampling,
    seeds: Sequence[Sequence[int]],
) -> list[list[Hypothesis]]:
    samples = len(seeds[0])
    found: dict[int, Hypothesis] = {}  # by the number that a row had at the start
    cache, device = begin(model, sources, samples)
    home = torch.device("cpu") if device.type == "mps" else device  # which has no float64 to draw in
    limits = torch.tensor([settings.limit(len(source)) for source in sources for _ in range(samples)], device=home)
    numbers = _numbers([seed for each in seeds for seed in each], int(limits.max())).to(home)
    rows = torch.arange(len(limits), device=home)  # that are still in the batch
    sums = torch.zeros(len(limits), dtype=torch.float64, device=home)
    written = torch.full((len(limits), 1), BOS, device=home)
    open_rows = torch.ones(len(limits), dtype=torch.bool, device=home)
    while len(rows):
        logits = model.step(written[:, -1].to(device), cache).to(home).double()
        normaliser = logits.logsumexp(1)
        if not normaliser.isfinite().all():
            raise SurdError(NOT_FINITE)
        place = written.shape[1] - 1
        token = pick(logits.clone(), sampling, numbers[:, place])
        sums = sums + torch.where(open_rows, logits.gather(1, token[:, None]).squeeze(1) - normaliser, 0.0)
        written = torch.cat([written, token[:, None]], 1)
        closed = open_rows & ((token == EOS) | (written.shape[1] > limits))
        for row in closed.nonzero().squeeze(1).tolist():
            found[int(rows[row])] = _closed(written[row, 1:], sums[row].item(), settings)
        open_rows = open_rows & ~closed
        going = open_rows.view(-1, samples).any(1)
        if not going.all():
            kept = going.nonzero().squeeze(1)
            left = going.repeat_interleave(samples)
            rows, limits, numbers = rows[left], limits[left], numbers[left]
            sums, written, open_rows = sums[left], written[left], open_rows[left]
            if len(kept):
                cache.keep(kept.to(device))
    return [[found[number * samples + sample] for sample in range(samples)] for number in range(len(sources))]


def _numbers(seeds: Sequence[int], most: int) -> Float[Tensor, "rows steps"]:
    """The random numbers of each row."""
    made = [torch.rand(most, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in seeds]
    return torch.stack(made)


def _closed(written: Int[Tensor, " length"], total: float, settings: Decoding) -> Hypothesis:
    tokens, score = written.tolist(), total / len(written) ** settings.length_penalty
    ended = tokens[-1] == EOS
    return Hypothesis(tuple(tokens[:-1] if ended else tokens), score, total, ended)
