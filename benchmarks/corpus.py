"""The training text of the speed benchmark: Multi30k as published, cut into batches of sentences of like length."""

import itertools
import random
from pathlib import Path

import numpy as np
import torch

import moses
from surd.data.batch import Batch, by_length, cut
from surd.data.tokenizer import BPE, Tokenizer, learn
from surd.nn.ragged import Ragged
from surd.nn.special import BOS, EOS
from texts import read_lines


def joint_tokenizer(folder: Path, vocabulary: int) -> Tokenizer:
    """The joint BPE vocabulary of the training text, as in the recipe `multi30k`."""
    lines = [line for language in moses.WORDS for line in read_lines(folder / f"train.{language}")]
    return learn(BPE(size=vocabulary, byte_fallback=False), lines)


def encoded(folder: Path, part: str, tokenizer: Tokenizer) -> list[list[list[int]]]:
    """Ids of the English and of the German side, without BOS and EOS."""
    return [tokenizer.encode_all(read_lines(folder / f"{part}.{language}")) for language in moses.WORDS]


def length_sorted_batches(
    data: Path, folder: Path, vocabulary: int, tokens: int, seed: int | None = None
) -> tuple[list[Batch], int]:
    """All batches of an epoch and the longest side's length; short ones first, or in the random order of `seed`."""
    moses.prepare(data, folder)
    sources, targets = encoded(folder, "train", joint_tokenizer(folder, vocabulary))
    moses.check_pieces(dict(zip(moses.WORDS, (sum(map(len, side)) for side in (sources, targets)), strict=True)))
    lengths = [np.array([len(row) + 1 for row in side]) for side in (sources, targets)]
    order = by_length(*lengths, tie=np.arange(len(sources)))
    bounds = cut(*(side[order] for side in lengths), tokens=tokens)
    batches = [batch(sources, targets, order[first:last]) for first, last in itertools.pairwise(bounds)]
    if seed is not None:
        random.Random(seed).shuffle(batches)
    return batches, max(int(side.max()) for side in lengths)


def batch(sources: list[list[int]], targets: list[list[int]], numbers: np.ndarray) -> Batch:
    """The pairs of these numbers."""
    labels = [[*targets[number], EOS] for number in numbers]
    return Batch(
        source=Ragged.from_lists([[*sources[number], EOS] for number in numbers]),
        target=Ragged.from_lists([[BOS, *targets[number]] for number in numbers]),
        labels=torch.tensor([token for row in labels for token in row]),
        numbers=tuple(int(number) for number in numbers),
    )
