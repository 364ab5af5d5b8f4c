"""Small corpora of every sort, and surveys of corpora that are too large for a test."""

from dataclasses import replace
from pathlib import Path

from surd.data.corpus import DataSettings
from surd.data.survey import Survey, survey

NOUNS = ("dog", "cat", "man", "woman", "child", "bird", "horse", "boat")
GERMAN = ("Hund", "Kater", "Mann", "Dame", "Junge", "Vogel", "Gaul", "Kahn")
COLOURS = {"red": "rote", "green": "grüne", "blue": "blaue", "old": "alte", "small": "kleine"}


def sentences() -> list[tuple[str, str]]:
    return [
        (f"the {colour} {noun} looks at the {other}", f"der {farbe} {german} sieht den {anderen} an")
        for colour, farbe in COLOURS.items()
        for noun, german in zip(NOUNS, GERMAN, strict=True)
        for other, anderen in zip(NOUNS, GERMAN, strict=True)
        if noun != other
    ]


def sounds() -> list[tuple[str, str]]:
    phones = {"b": "B", "d": "D", "k": "K", "t": "T", "a": "AE1", "e": "EH1", "o": "OW1"}
    words = [f"{a}{b}{c}" for a in "bdkt" for b in "aeo" for c in "bdkt"]
    return [(word, " ".join(phones[letter] for letter in word)) for word in words]


def inflections() -> list[tuple[str, str]]:
    stems = [f"{a}{b}{c}{d}" for a in "bdklm" for b in "aeo" for c in "lnr" for d in "dkt"]
    return [(f"{stem}en V;PRS;3;SG", f"{stem}et") for stem in stems]


def surveyed(folder: Path, pairs: list[tuple[str, str]]) -> Survey:
    path = folder / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    return survey(DataSettings(source=str(path)))


def enlarged(small: Survey, usable: int) -> Survey:
    """The survey of a corpus of the same sort with so many usable pairs."""
    totals = {
        name: getattr(small, name) * usable // small.usable
        for name in ("source_characters", "target_characters", "source_words", "target_words")
    }
    return replace(small, usable=usable, pairs=usable, **totals)
