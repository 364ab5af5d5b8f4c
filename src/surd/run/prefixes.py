"""Prefixes: what the outputs of lines are to begin with, brought together with the lines and checked."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat

from surd.data.clean import tidy
from surd.data.tokenizer import Tokenizer
from surd.errors import SurdError
from surd.nn.special import UNK


def with_prefixes(
    chunks: Iterable[Sequence[str]], prefixes: str | Iterable[str]
) -> Iterator[tuple[Sequence[str], list[str]]]:
    """Each chunk of lines with their prefixes: one text for all, or one each, and then there must be as many.

    Where nobody knows beforehand how many lines will come, those before the first without a prefix are given.
    """
    rest, read = repeat(prefixes) if isinstance(prefixes, str) else iter(prefixes), 0
    for chunk in chunks:
        given = list(islice(rest, len(chunk)))
        read += len(given)
        if len(given) < len(chunk):
            if given:
                yield chunk[: len(given)], given
            raise SurdError(f"prefixes: expected one for each line, found {read:,}: line {read + 1:,} has none")
        yield chunk, given
    if not isinstance(prefixes, str) and next(rest, None) is not None:
        raise SurdError(f"prefixes: expected one for each line, found more than the {read:,} lines")


def refuse_other_number(lines: int, prefixes: int) -> None:
    """Refuses prefixes that are not as many as the lines, where both numbers are known before the first answer."""
    if prefixes != lines:
        raise SurdError(f"prefixes: expected one for each of the {lines:,} lines, found {prefixes:,}")


def encoded_prefixes(tokenizer: Tokenizer, prefixes: Sequence[str], first: int) -> list[list[int]]:
    """The ids of each prefix, `first` being the number of the first line; what cannot be written is refused."""
    if not any(prefixes):
        return [[] for _ in prefixes]
    rows = tokenizer.encode_all([tidy(prefix) for prefix in prefixes])
    for number, (prefix, ids) in enumerate(zip(prefixes, rows, strict=True), start=first):
        if UNK in ids:
            raise SurdError(f'line {number:,}: the prefix "{prefix}" holds a symbol that the model has never seen')
    return rows


def refuse_too_long(number: int, prefix: Sequence[int], limit: int) -> None:
    """Refuses a prefix that leaves an output of line `number` no room, which has at most `limit` tokens."""
    if len(prefix) >= limit:
        raise SurdError(
            f"line {number:,}: the prefix has {len(prefix):,} tokens, and an output of that line at most {limit:,}, "
            "with its end: give a shorter one"
        )
