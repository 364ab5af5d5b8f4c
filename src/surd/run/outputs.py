"""Outputs: what a model writes for a part of a line, as text; and the outputs of a line from those of its parts."""

from collections.abc import Sequence
from dataclasses import dataclass

from surd.data.tokenizer import Symbols, Tokenizer, TokenizerPair
from surd.decode.alignment import Pairs, aligned, pharaoh, places, source_weights
from surd.decode.decoding import Decoding, Hypothesis
from surd.decode.ensemble import Ensemble
from surd.decode.generate import batches_by_length
from surd.models.seq2seq import Seq2Seq
from surd.run.long_lines import Section, joints, rejoined


@dataclass(frozen=True, kw_only=True)
class Output:
    """One output of a line."""

    text: str
    score: float
    """Sum of log-probabilities (nats) by length to the power of the penalty; 0 for a line that is empty."""
    alignment: Pairs = ()
    """Where it was asked for: (i, j) for each word j of the output, which was written from word i of the line."""

    @property
    def links(self) -> str:
        """The alignment as `i-j` between blanks."""
        return pharaoh(self.alignment)


@dataclass(frozen=True)
class Written:
    """One output of a part of a line."""

    hypothesis: Hypothesis
    text: str
    alignment: Pairs = ()


def spelt(tokenizer: Tokenizer, found: Sequence[Sequence[Hypothesis]]) -> list[list[Written]]:
    """The hypotheses of each part as text."""
    texts = iter(tokenizer.decode_all([hypothesis.tokens for hypotheses in found for hypothesis in hypotheses]))
    return [[Written(hypothesis, one_line(next(texts))) for hypothesis in hypotheses] for hypotheses in found]


def with_alignments(
    model: Seq2Seq | Ensemble,
    tokenizers: TokenizerPair,
    sources: Sequence[Sequence[int]],
    written: Sequence[Sequence[Written]],
    batch_tokens: int,
) -> list[list[Written]]:
    """The same with alignments; sources are ids with the end token."""
    pairs = [(sources[number], one.hypothesis.tokens) for number, outputs in enumerate(written) for one in outputs]
    found: list[Pairs] = [()] * len(pairs)
    full = [number for number, (_, tokens) in enumerate(pairs) if tokens]
    lengths = [max(map(len, pairs[number])) for number in full]
    for batch in batches_by_length(lengths, batch_tokens):
        chosen = [full[number] for number in batch]
        weights = source_weights(model, [pairs[n][0] for n in chosen], [pairs[n][1] for n in chosen])
        for number, own in zip(chosen, weights, strict=True):
            source, tokens = pairs[number]
            read, wrote = places(tokenizers.source, source[:-1]), places(tokenizers.target, tokens)
            found[number] = aligned(own, read, wrote)
    alignments = iter(found)
    return [[Written(one.hypothesis, one.text, next(alignments)) for one in outputs] for outputs in written]


def outputs_of_line(
    parts: Sequence[Section], written: Sequence[Sequence[Written]], tokenizers: TokenizerPair, decoding: Decoding
) -> list[Output]:
    """The outputs of a line from those of its parts, scored as one; best first.

    The k-th is made of the k-th of each part, or of its last where a part has fewer.
    """
    count = max(map(len, written))
    found = [_joined(parts, [own[min(k, len(own) - 1)] for own in written], tokenizers, decoding) for k in range(count)]
    return sorted(found, key=lambda output: -output.score)


def _joined(
    parts: Sequence[Section], written: Sequence[Written], tokenizers: TokenizerPair, decoding: Decoding
) -> Output:
    if len(written) == 1:
        return Output(text=written[0].text, score=written[0].hypothesis.score, alignment=written[0].alignment)
    texts, found = [one.text for one in written], [one.hypothesis for one in written]
    tokens = sum(len(hypothesis.tokens) + hypothesis.ended for hypothesis in found)
    pairs: list[tuple[int, int]] = []
    if any(one.alignment for one in written):
        sources = [part.text for part in parts]
        before = zip(_before(parts, sources, tokenizers.source), _before(parts, texts, tokenizers.target), strict=True)
        for (earlier, above), one in zip(before, written, strict=True):
            pairs += [(i + earlier, j + above) for i, j in one.alignment]
    return Output(
        text=rejoined(parts, texts, tokenizers.target.separator),
        score=sum(hypothesis.log_probability for hypothesis in found) / tokens**decoding.length_penalty,
        alignment=tuple(pairs),
    )


def _before(parts: Sequence[Section], texts: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """How many words of the whole stand before the first one of each part."""
    found, total, last = [], 0, ""
    for gap, text in zip(joints(parts, texts, tokenizer.separator), texts, strict=True):
        own = _words(text, tokenizer)
        if isinstance(tokenizer, Symbols):
            total += _words(gap, tokenizer)  # among characters the blank is one
        elif not gap and _end_to_end(last, text):
            total -= 1
        found.append(total)
        total, last = total + own, text or last
    return found


def _end_to_end(before: str, after: str) -> bool:
    """Whether two texts that nothing stands between share a word."""
    return bool(before and after) and not (before[-1].isspace() or after[0].isspace())


def _words(text: str, tokenizer: Tokenizer) -> int:
    """How many there are, as `places` counts them."""
    return len(tokenizer.encode(text)) if isinstance(tokenizer, Symbols) else len(text.split())


def one_line(text: str) -> str:
    """The text without line ends: a model that spells bytes can write one, and would shift every line after it."""
    return text.replace("\r", " ").replace("\n", " ")
