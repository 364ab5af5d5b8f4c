"""A sample of the data as batches in memory, and how much there is in all: what an estimate is made from."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from surd.data.batch import Batch, Batching, by_length, cut
from surd.data.documents import Documents, write_documents
from surd.data.prepare_text import refuse_short
from surd.data.survey import Survey
from surd.data.text import TextSurvey
from surd.data.tokenizer import Tokenizer, TokenizerPair
from surd.data.windows import WindowBatch, all_windows
from surd.errors import SurdError
from surd.nn.ragged import Ragged
from surd.nn.special import BOS, EOS
from surd.recipe import Recipe
from surd.seed import derive as derive_seed
from surd.training.evaluate import WATCHED_PAIRS, WATCHED_WINDOWS, spread
from surd.training.pace import Amount
from surd.training.session import text_amount

SAMPLED_PAIRS = 20_000
"""Pairs, or lines, of the survey's sample that are tokenised for an estimate."""


def pair_sample(survey: Survey, recipe: Recipe, tokenizers: TokenizerPair) -> tuple[list[Batch], Amount]:
    """Batches of sampled pairs, and what follows from them for all."""
    pairs = spread(survey.sample, SAMPLED_PAIRS)
    sources = tokenizers.source.encode_all([source for source, _ in pairs])
    targets = tokenizers.target.encode_all([target for _, target in pairs])
    longest = recipe.data.max_length
    kept = [pair for pair in zip(sources, targets, strict=True) if max(map(len, pair)) <= longest]
    if not kept:
        raise SurdError(f"every pair of a sample has more than {longest} tokens on a side; raise data.max_length")
    batches = _batches(kept, recipe.batch, recipe.seed)
    report, tokens = survey.report, sum(batch.tokens for batch in batches)
    amount = Amount(
        epoch_tokens=round(tokens / len(kept) * report.train),
        epoch_batches=max(1, round(len(batches) / len(kept) * report.train)),
        held_out_tokens=round(tokens / len(kept) * min(report.held_out, WATCHED_PAIRS)),
        held_out_sources=report.held_out_sources,
        target_length=sum(batch.labels.numel() for batch in batches) / len(kept),
    )
    return batches, amount


def text_sample(survey: TextSurvey, recipe: Recipe, tokenizer: Tokenizer) -> tuple[list[WindowBatch], Amount]:
    """Batches of sampled lines, and what follows from them for all of the text."""
    lines, report, settings = spread(survey.sample, SAMPLED_PAIRS), survey.report, recipe.data
    with TemporaryDirectory() as folder:
        about = write_documents(Path(folder), "sample", lines, tokenizer, settings.document)
        batches = list(all_windows(Documents(Path(folder), "sample", about), settings.context, recipe.batch))
    a_character = about.tokens / sum(len(line) + 1 for line in lines)
    tokens, held_out = (round(a_character * n) for n in (report.train_characters, report.held_out_characters))
    refuse_short(survey, tokens)
    count = max(1, round(len(batches) * tokens / about.tokens))
    return batches, text_amount(tokens, count, min(held_out, WATCHED_WINDOWS * settings.context), held_out)


def _batches(pairs: Sequence[tuple[list[int], list[int]]], batching: Batching, seed: int) -> list[Batch]:
    """Batches of pairs in memory, put together as those of a prepared corpus are."""
    lengths = np.array([(len(source) + 1, len(target) + 1) for source, target in pairs])
    random = np.random.default_rng(derive_seed(seed, "estimate"))
    order = by_length(lengths[:, 0], lengths[:, 1], random.random(len(pairs)))
    bounds = cut(lengths[order, 0], lengths[order, 1], batching.tokens)
    groups = [order[first:last] for first, last in pairwise(bounds)]
    return [_batch([pairs[number] for number in groups[place]]) for place in random.permutation(len(groups))]


def _batch(pairs: Sequence[tuple[list[int], list[int]]]) -> Batch:
    return Batch(
        source=Ragged.from_lists([[*source, EOS] for source, _ in pairs]),
        target=Ragged.from_lists([[BOS, *target] for _, target in pairs]),
        labels=Ragged.from_lists([[*target, EOS] for _, target in pairs]).tokens,
        numbers=tuple(range(len(pairs))),
    )
