"""Lines longer than what a model was trained on: cut at the ends of sentences, then at blanks, then anywhere."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from unicodedata import category, east_asian_width, name

Fits = Callable[[str], bool]

# A run of stops is entered at its beginning only, and never twice: a line may be a megabyte of them.
CLOSING = r"[\"'”’»)\]」』）】]"
SENTENCE_END = re.compile(rf"(?<![.!?…؟۔।])[.!?…؟۔।]++{CLOSING}*+\s+|(?<![。！？｡])[。！？｡]++{CLOSING}*+\s*")
SHORTEST_WORD = 3
"""Letters or digits that a word has at least before a stop that ends a sentence: "Dr.", "z. B." and "3. May" do not."""
WORD = re.compile(r"\s*\S++\s*+")
MARKS = "\u0300-\u036f\u20d0-\u20ff\ufe00-\ufe0f\U0001f3fb-\U0001f3ff"
"""What belongs to the character before it: accents, variants, tones of skin."""


@dataclass(frozen=True)
class Section:
    """A part of a line that is translated by itself."""

    text: str
    apart: bool = True
    """Whether a blank stood behind it, or its sentence ends here; otherwise it was cut within a word."""


def sections(line: str, fits: Fits, symbols: Sequence[str] = ()) -> list[Section]:
    """The parts of a line: its sentences one by one, which is what models are trained on, and cuts of those too long.

    What does not fit is cut at blanks, as late as possible, and what fits not even then, anywhere but within one of
    `symbols` or between a character and its marks. Nothing but white space is lost. A single character that does not
    fit stays as it is.
    """
    found: list[Section] = []
    for sentence in sentences(line):
        for words in [sentence] if fits(sentence) else packed(WORD.findall(sentence), fits):
            if fits(words.strip()):
                found.append(Section(words.strip()))
            else:
                found += [Section(letters, apart=False) for letters in packed(_letters(words.strip(), symbols), fits)]
                found[-1] = Section(found[-1].text)
    return found


def sentences(line: str) -> Iterator[str]:
    """The sentences of a line, as far as stops, the words around them and blanks tell."""
    begin = 0
    for end in SENTENCE_END.finditer(line):
        if _ends(line, end) and (sentence := line[begin : end.end()].strip()):
            yield sentence
            begin = end.end()
    if rest := line[begin:].strip():
        yield rest


def packed(units: Sequence[str], fits: Fits) -> Iterator[str]:
    """Neighbouring units joined, as many each time as fit; one that does not fit stands alone."""
    first = 0
    while first < len(units):
        taken, refused = 1, 2
        while first + refused <= len(units) and fits("".join(units[first : first + refused]).strip()):
            taken, refused = refused, 2 * refused
        while refused - taken > 1:
            middle = (taken + refused) // 2
            short = first + middle <= len(units) and fits("".join(units[first : first + middle]).strip())
            taken, refused = (middle, refused) if short else (taken, middle)
        yield "".join(units[first : first + taken])
        first += taken


def rejoined(parts: Sequence[Section], outputs: Sequence[str], separator: str) -> str:
    """The outputs of the parts as one text; a blank stands between them where the script of the output has blanks.

    `separator` stands where a word was cut: nothing, or a blank where every symbol of an output is a word.
    """
    gaps = joints(parts, outputs, separator)
    return "".join(gap + output for gap, output in zip(gaps, outputs, strict=True))


def joints(parts: Sequence[Section], outputs: Sequence[str], separator: str) -> Iterator[str]:
    """What stands before each of the outputs where they are one text."""
    last = ""
    for number, output in enumerate(outputs):
        apart = bool(last) and parts[number - 1].apart and not _without_blanks(last[-1])
        yield (" " if apart else separator) if last and output else ""
        last = output or last


def _ends(line: str, end: re.Match[str]) -> bool:
    """Whether a sentence ends at these stops: not behind an abbreviation, and not before a small letter."""
    if line[end.end() : end.end() + 1].islower():
        return False
    if end[0].rstrip() != ".":
        return True
    before = line[max(0, end.start() - SHORTEST_WORD) : end.start()]
    return not before[-1:].isalnum() or (len(before) == SHORTEST_WORD and before.isalnum())


def _letters(word: str, symbols: Sequence[str]) -> list[str]:
    """The characters of a word with their marks; symbols are whole."""
    whole = [re.escape(symbol) for symbol in sorted(symbols, key=len, reverse=True)]
    return re.findall("|".join([*whole, rf".(?:\u200d.|[{MARKS}]){{0,8}}"]), word, re.DOTALL)


def _without_blanks(letter: str) -> bool:
    """Whether the script of a letter or stop separates nothing by blanks: Chinese and Japanese, but not Korean."""
    wide = east_asian_width(letter) in "WF" and category(letter)[0] in "LP"
    return wide and not name(letter, "").startswith("HANGUL")
