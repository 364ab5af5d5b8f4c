"""One reading of a corpus into a few bytes a pair: its hashes, its lengths, and what is wrong with it."""

from array import array

import numpy as np

from surd.data.clean import CAUSES, EXAMPLES, Example, Fate, judge, tidy
from surd.data.corpus import Corpus, DataSettings, Pair
from surd.data.hold_out import HeldOut, gather_references, mark_repeats, text_hash, usable
from surd.data.lines import Complaints
from surd.errors import Faults

SAMPLE = 100_000
"""Pairs that are kept in memory, to learn subwords from and to look at."""
LONGEST_SAMPLE = 10_000
"""Characters of a side above which a pair is not kept in the sample."""
LONGEST = 2**16 - 1
"""Lengths in characters are kept in two bytes, and cut off at this."""
MEDIAN_OF = 2**20
"""Pairs, spread over the corpus, that the usual ratio of lengths is taken from; and pairs that are judged at once."""
SLACK = 8
"""Characters added to both sides before their ratio is taken: short texts differ more by chance."""


class Sample:
    """The pairs with the smallest hashes: a random part of the corpus that depends on nothing but its text."""

    def __init__(self) -> None:
        self.limit = 2**64
        """Pairs with this hash or a larger one are not wanted any more."""
        self._rows: dict[int, tuple[int, str, str]] = {}

    def add(self, pair_hash: int, number: int, source: str, target: str) -> None:
        """Keeps a pair; of equal ones the first."""
        if pair_hash in self._rows or max(len(source), len(target)) > LONGEST_SAMPLE:
            return
        self._rows[pair_hash] = (number, source, target)
        if len(self._rows) >= 1.25 * SAMPLE:
            self.limit = sorted(self._rows)[SAMPLE]
            self._rows = {key: row for key, row in self._rows.items() if key < self.limit}

    def pairs(self, fates: np.ndarray) -> list[Pair]:
        """Those of the sample that are to be trained on, in the order of the corpus."""
        rows = [self._rows[key] for key in sorted(self._rows)[:SAMPLE]]
        train = (fates == Fate.TRAIN).tobytes()
        return [(source, target) for number, source, target in sorted(rows) if train[number]]


class Scan:
    """What one reading of a corpus found. Faults in it, and in held-out files, are told together."""

    def __init__(self, settings: DataSettings) -> None:
        self.settings = settings
        self.corpus, dev = _open(settings)
        complaints = Complaints()
        self.dev = None if dev is None else _read_dev(dev, complaints)
        """Held-out texts that were given; none when they are to be taken from the corpus."""
        self.examples: dict[Fate, list[Example]] = {fate: [] for fate in CAUSES}
        self.sample = Sample()
        targets = self._read(complaints)
        complaints.raise_any()
        mark_repeats(self.fates, self.sources, targets)
        del targets  # before more memory is needed
        self._mark_odd_ratios()
        self._find_examples(Fate.DUPLICATE, Fate.RATIO)

    def forget(self) -> None:
        """Lets go of what is needed only as long as it is open what becomes of each pair: most of the memory."""
        self.sources, self.characters = np.zeros(0, np.uint64), (np.zeros(0, np.uint16), np.zeros(0, np.uint16))
        self.fates, self.sample = np.zeros(0, np.uint8), Sample()

    def _read(self, complaints: Complaints) -> np.ndarray:
        """Reads all pairs and looks at each by itself; returns a hash of each target."""
        fates, sources, targets = array("B"), array("Q"), array("I")
        characters = array("H"), array("H")
        dev = {text_hash(row.source.encode()) for row in self.dev or ()}
        train, copy, in_dev = Fate.TRAIN, Fate.COPY, Fate.IN_DEV  # looked up once: members of an enum are slow to find
        for number, (source, target) in enumerate(self.corpus.pairs(complaints)):
            source, target = tidy(source), tidy(target)
            fate = judge(source, target, self.settings.max_length)
            source_hash, target_hash = text_hash(source.encode()), text_hash(target.encode())
            if fate is train:
                fate = in_dev if source_hash in dev else copy if source == target else train
                # Of both hashes: the smallest of sources alone are held out. Not their XOR: that is 0 for every copy.
                pair_hash = (source_hash + 3 * target_hash) % 2**64
                if fate is not in_dev and pair_hash < self.sample.limit:
                    self.sample.add(pair_hash, number, source, target)
            if fate is not train and len(self.examples[fate]) < EXAMPLES:
                self.examples[fate].append(Example.of(number, source, target))
            fates.append(fate)
            sources.append(source_hash)
            targets.append(target_hash & 0xFFFFFFFF)
            characters[0].append(min(len(source), LONGEST))
            characters[1].append(min(len(target), LONGEST))
        self.fates, self.sources = as_numbers(fates), as_numbers(sources)
        self.characters = as_numbers(characters[0]), as_numbers(characters[1])
        return as_numbers(targets)

    def _mark_odd_ratios(self) -> None:
        """Marks pairs whose ratio of lengths is further from the median of all than the factor that is allowed.

        Languages differ in how much they write for the same content, so the usual ratio is taken from the corpus.
        """
        good = usable(self.fates)
        if not good.any():
            return
        step = len(good) // MEDIAN_OF + 1
        usual = np.median(self._ratios(slice(None, None, step))[good[::step]]) if good[::step].any() else 0.0
        for start in range(0, len(good), MEDIAN_OF):
            part = slice(start, start + MEDIAN_OF)
            odd = np.abs(self._ratios(part) - usual) > np.log(self.settings.max_ratio)
            self.fates[part][good[part] & odd] = Fate.RATIO

    def _ratios(self, part: slice) -> np.ndarray:
        """Logarithms of target length over source length."""
        source, target = (side[part] + np.float32(SLACK) for side in self.characters)
        return np.log(target) - np.log(source)

    def _find_examples(self, *fates: Fate) -> None:
        """Reads again, up to the last example, for causes that show only when all pairs have been read."""
        wanted = {int(number): fate for fate in fates for number in np.flatnonzero(self.fates == fate)[:EXAMPLES]}
        if not wanted:
            return
        last = max(wanted)
        for number, (source, target) in enumerate(self.corpus.pairs(Complaints())):
            if number in wanted:
                example = Example.of(number, tidy(source), tidy(target))
                self.examples[wanted[number]].append(example)
            if number == last:
                return


def _open(settings: DataSettings) -> tuple[Corpus, Corpus | None]:
    """The corpus and the held-out one; paths that are wrong in either are told together."""
    assert settings.source is not None, "pairs were asked for"
    asked = [(settings.source, settings.target)]
    if settings.dev_source is not None:
        asked.append((settings.dev_source, settings.dev_target))
    opened, faults = [], []
    for source, target in asked:
        try:
            opened.append(Corpus(source, target, settings.columns if target is None else None))
        except Faults as error:
            faults.extend(error.lines)
    if faults:
        raise Faults(faults)
    return opened[0], opened[1] if len(opened) > 1 else None


def _read_dev(corpus: Corpus, complaints: Complaints) -> tuple[HeldOut, ...]:
    """Held-out pairs that were given. They are kept as they are, but for those with an empty side."""
    pairs = [(tidy(source), tidy(target)) for source, target in corpus.pairs(complaints)]
    rows = gather_references(pair for pair in pairs if all(pair))
    if pairs and not rows and not complaints:
        complaints.add(corpus.name, "empty", f"{corpus.name}: every pair has an empty side, none can be held out")
    return rows


def as_numbers(values: array) -> np.ndarray:
    """The same memory as a numpy array."""
    return np.frombuffer(values, values.typecode) if values else np.zeros(0, values.typecode)
