"""The first pass over a corpus: what is in it, what of it can be used, and the numbers a recipe is derived from."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from surd.data.clean import CAUSES, Dropped, Fate, Report, tidy
from surd.data.corpus import DataSettings, Pair
from surd.data.hold_out import choose, distinct, mark
from surd.data.lines import Complaints
from surd.data.scan import LONGEST, Scan
from surd.errors import SurdError

FEWEST = 10
"""Usable pairs below which nothing can be learnt."""
FEW = 1000
"""Usable pairs below which a warning is due."""
MOST_HELD_OUT = 2000
"""Sources that are held out at most when a share is asked for: more take long to score and tell little more."""
SHORT_SYMBOL = 4
"""Characters of the longest symbol that counts as short: "AH0", "t͡ʃʰ"."""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What the first pass found. Numbers are of the usable pairs; words and shares are counted in the sample."""

    settings: DataSettings
    report: Report
    pairs: int
    """Pairs read."""
    usable: int
    """Pairs to train on, or to hold out when no held-out files are given."""
    copies: int
    """Pairs whose source and target are the same: usable here, left out by `without_copies`."""
    distinct_sources: int
    source_characters: int
    target_characters: int
    source_words: int
    target_words: int
    source_length_50: int
    """Half of the sources have no more characters than this."""
    source_length_95: int
    """All but a twentieth of the sources have no more characters than this."""
    target_length_50: int
    target_length_95: int
    one_word_sources: float
    """Share of sources without a space."""
    short_symbol_targets: float
    """Share of targets that are short symbols between spaces, such as phones."""
    distinct_target_words: int
    source_scripts: dict[str, float]
    """Share of the letters by script, the largest first: {"LATIN": 0.99, "GREEK": 0.01}."""
    target_scripts: dict[str, float]
    sample: list[Pair] = field(repr=False)
    """Training pairs, a random part of them when there are many; none is held out."""
    scan: Scan = field(repr=False)
    fates: np.ndarray = field(repr=False)
    """What becomes of each pair, by `Fate`."""

    @property
    def causes(self) -> dict[str, int]:
        """How many pairs are left out for which cause."""
        return {drop.cause: drop.count for drop in self.report.dropped}

    @property
    def same_script(self) -> bool:
        """Whether most letters of both sides are of one script."""
        return next(iter(self.source_scripts), None) == next(iter(self.target_scripts), None)

    def without_copies(self) -> "Survey":
        """The same survey for a task to which a pair of equal sides is a fault."""
        assert len(self.scan.fates) == self.pairs, "it was said that this survey is final"
        return _conclude(self.scan, drop_copies=True)

    def final(self) -> "Survey":
        """This survey, which now takes a byte a pair and no more: it can no longer be made one `without_copies`."""
        self.scan.forget()
        return self

    def kept(self) -> Iterator[tuple[int, bool, str, str]]:
        """All usable pairs, read again: number, whether it is held out, source, target."""
        complaints = Complaints()
        fates, held_out = self.fates.tobytes(), int(Fate.HELD_OUT)  # bytes: numpy's items are slow one by one
        read = 0
        for number, (source, target) in enumerate(self.scan.corpus.pairs(complaints)):
            read = number + 1
            if read <= len(fates) and fates[number] <= held_out:
                yield number, fates[number] == held_out, tidy(source), tidy(target)
        complaints.raise_any()
        if read != self.pairs:
            raise SurdError(f"{self.report.name}: changed while being read: {self.pairs:,} pairs, then {read:,}")


def survey(settings: DataSettings) -> Survey:
    """Reads all of the corpus. All faults in it are told at once; fewer than ten usable pairs are refused.

    Copies are taken for usable here, since only the task, which is guessed from this, can tell: see `without_copies`.
    """
    return _conclude(Scan(settings), drop_copies=False)


def _conclude(scan: Scan, drop_copies: bool) -> Survey:
    """What follows from a scan once it is known whether copies are to be dropped."""
    fates = scan.fates.copy()
    if not drop_copies:
        fates[fates == Fate.COPY] = Fate.TRAIN
    good = fates == Fate.TRAIN
    usable = int(good.sum())
    if usable < FEWEST:
        raise SurdError(_too_few(scan, fates, usable))
    different = distinct(scan.sources, good)
    if scan.dev is None:
        chosen = choose(scan.sources, good, scan.settings.held_out, MOST_HELD_OUT)
        if not len(chosen):
            raise SurdError(
                f"{scan.corpus.name}: nothing can be held out, {usable:,} usable pairs have {different:,} different "
                f"sources; give held-out pairs with --dev"
            )
        mark(fates, scan.sources, chosen, Fate.HELD_OUT)
    sample = scan.sample.pairs(fates)
    sources, targets = ([pair[side] for pair in sample] for side in (0, 1))
    source_lengths, target_lengths = (_Lengths(side, good) for side in scan.characters)
    return Survey(
        settings=scan.settings,
        report=_report(scan, fates, usable),
        pairs=len(fates),
        usable=usable,
        copies=int((scan.fates == Fate.COPY).sum()),
        distinct_sources=different,
        source_characters=source_lengths.total,
        target_characters=target_lengths.total,
        source_words=_words(sources, source_lengths.total),
        target_words=_words(targets, target_lengths.total),
        source_length_50=source_lengths.quantile(0.5),
        source_length_95=source_lengths.quantile(0.95),
        target_length_50=target_lengths.quantile(0.5),
        target_length_95=target_lengths.quantile(0.95),
        one_word_sources=_share(" " not in source for source in sources),
        short_symbol_targets=_share(_is_symbols(target) for target in targets),
        distinct_target_words=len({word for target in targets for word in target.split()}),
        source_scripts=_scripts(sources),
        target_scripts=_scripts(targets),
        sample=sample,
        scan=scan,
        fates=fates,
    )


class _Lengths:
    """How many texts have which length in characters."""

    def __init__(self, lengths: np.ndarray, among: np.ndarray) -> None:
        self._counts = np.zeros(LONGEST + 1, np.int64)
        for start in range(0, len(lengths), 2**20):  # numpy counts in a copy of eight bytes an item
            part = slice(start, start + 2**20)
            self._counts += np.bincount(lengths[part][among[part]], minlength=LONGEST + 1)

    @property
    def total(self) -> int:
        return int(self._counts @ np.arange(len(self._counts)))

    def quantile(self, share: float) -> int:
        """The least length that this share of the texts do not exceed."""
        reached = np.cumsum(self._counts)
        return int(np.searchsorted(reached, share * reached[-1]))


def _report(scan: Scan, fates: np.ndarray, usable: int) -> Report:
    warnings = []
    if usable < FEW:
        warnings.append(f"{usable:,} pairs are few, the model will know little beyond them: {FEW:,} or more are better")
    if usable < 0.7 * len(fates):
        warnings.append(f"only {usable / len(fates):.0%} of the pairs are usable: look at what is left out, and why")
    if scan.dev is None:
        picked = fates == Fate.HELD_OUT
        held_out, held_out_sources = int(picked.sum()), distinct(scan.sources, picked)
    else:
        held_out = sum(len(row.references) for row in scan.dev)
        held_out_sources = len(scan.dev)
    return Report(
        name=scan.corpus.name,
        pairs=len(fates),
        train=int((fates == Fate.TRAIN).sum()),
        held_out=held_out,
        held_out_sources=held_out_sources,
        dropped=_dropped(scan, fates),
        warnings=tuple(warnings),
    )


def _dropped(scan: Scan, fates: np.ndarray) -> tuple[Dropped, ...]:
    counts = {fate: int(np.count_nonzero(fates == fate)) for fate in CAUSES}
    return tuple(
        Dropped(cause=cause, count=counts[fate], examples=tuple(scan.examples[fate]))
        for fate, cause in CAUSES.items()
        if counts[fate]
    )


def _too_few(scan: Scan, fates: np.ndarray, usable: int) -> str:
    """The message for a corpus that nothing can be learnt from: each cause with its first example."""
    causes = "".join(
        f"; {drop.count:,} left out: {drop.cause} ({drop.examples[0]})"
        for drop in _dropped(scan, fates)
        if drop.examples
    )
    limit = f"; data.max_length is {scan.settings.max_length}" if (fates == Fate.LONG).any() else ""
    return f"{scan.corpus.name}: {usable} usable pairs of {len(fates):,}, expected at least {FEWEST}{causes}{limit}"


def _words(texts: Sequence[str], characters: int) -> int:
    """Words in `characters` characters of text, as counted in a sample of it."""
    return round(sum(len(text.split()) for text in texts) * characters / max(sum(map(len, texts)), 1))


def _share(facts: Iterable[bool]) -> float:
    values = list(facts)
    return sum(values) / max(len(values), 1)


def _is_symbols(text: str) -> bool:
    return all(len(word) <= SHORT_SYMBOL for word in text.split())


def _scripts(texts: Sequence[str]) -> dict[str, float]:
    """Shares of the letters by script: the first word of a letter's Unicode name."""
    counts: Counter[str] = Counter()
    for letter, count in Counter("".join(texts[:: len(texts) // 10_000 + 1])).items():
        if letter.isalpha():
            counts[unicodedata.name(letter, "UNKNOWN").split()[0]] += count
    total = max(counts.total(), 1)
    return {script: count / total for script, count in counts.most_common()}
