"""Symbols that a user defines: placeholders such as `<url>`, one id each, never split and never learnt away."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from unicodedata import category

from surd.data.clean import tidy
from surd.nn.special import SPECIALS

RESERVED = re.compile("|".join(map(re.escape, SPECIALS)) + "|<0x[0-9A-F]{2}>")
"""Pieces that SentencePiece has of its own: the special ids and the bytes."""


def symbol_faults(symbols: Sequence[str]) -> Iterator[str]:
    """What is wrong with symbols that somebody wants, one line for each that cannot be one."""
    for symbol, count in Counter(symbols).items():
        told = f'symbols: "{symbol}"'
        if not symbol:
            yield 'symbols: expected text such as "<url>", found ""'
        elif count > 1:
            yield f"{told} is listed {'twice' if count == 2 else f'{count} times'}: name each symbol once"
        elif any(letter.isspace() or category(letter) in ("Cc", "Cs") for letter in symbol):
            yield f"{told}: expected a symbol without blanks and control characters, since text is cut at blanks"
        elif RESERVED.fullmatch(symbol):
            yield f"{told} is what SentencePiece calls a piece of its own: choose another name"
        elif tidy(symbol) != symbol:
            yield f"{told} never stands in a text, since all text is composed (NFC) before it is read: compose it"


def splitter(separator: str, symbols: Iterable[str]) -> Callable[[str], Iterable[str]]:
    """What cuts a text for a list of symbols.

    Characters when there is no separator, symbols of several characters whole, the longest that fits first; otherwise
    the words between runs of the separator. Only the blank separates words, not other white space: a no-break space
    belongs to the word around it.
    """
    if separator:
        return lambda text: (word for word in text.split(separator) if word)
    whole = sorted((symbol for symbol in symbols if len(symbol) > 1), key=len, reverse=True)
    if not whole:
        return lambda text: text
    return re.compile("|".join([*map(re.escape, whole), "."]), re.DOTALL).findall


def frequent(lines: Iterable[str], separator: str, minimum: int, symbols: Sequence[str]) -> list[str]:
    """The user's symbols, then what occurs at least `minimum` times, the most frequent first; equals by spelling."""
    counts: Counter[str] = Counter()
    split = splitter(separator, symbols)
    for line in lines:
        counts.update(split(line))
    kept = [symbol for symbol, count in counts.items() if count >= minimum and symbol not in symbols]
    return [*symbols, *sorted(kept, key=lambda symbol: (-counts[symbol], symbol))]


def lost(symbols: Sequence[str], source: str, output: str) -> Counter[str]:
    """How often each symbol stands in the source more often than in the output."""
    return Counter({one: missing for one in symbols if (missing := source.count(one) - output.count(one)) > 0})
