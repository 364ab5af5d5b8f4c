"""Errors: a `SurdError` is a mistake the user can mend, told in one message; every other exception is a bug of ours."""

from collections.abc import Iterable
from difflib import get_close_matches


class SurdError(Exception):
    """A mistake the user can mend: what is wrong, where, what was found and expected, and the nearest right thing."""


class Faults(SurdError):
    """Several mistakes found together, one line each, so that a file with four faults needs one visit and not four."""

    lines: tuple[str, ...]

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was most likely meant by `word`, or None when nothing is near."""
    spellings = {name.casefold(): name for name in known}
    matches = get_close_matches(word.casefold(), spellings, n=1, cutoff=0.6)
    return spellings[matches[0]] if matches else None


def unknown(what: str, word: str, known: Iterable[str]) -> str:
    """One sentence for a name that does not exist: what was likely meant, and what exists."""
    names = list(known)
    guess = nearest(word, names)
    meant = f' Did you mean "{guess}"?' if guess else ""
    exists = f" There is: {', '.join(names)}." if names else " There is none."
    return f'unknown {what} "{word}".{meant}{exists}'


LONGEST = 500
"""Characters of somebody else's message that are repeated."""


def raised(error: BaseException) -> str:
    """Kind and text of somebody else's exception in one line that any terminal can show."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # their exception may raise as well
        text = ""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
