"""What to tell of all lines together, once they are done: placeholders lost, symbols unknown, outputs in circles."""

from collections import Counter
from collections.abc import Iterator, Sequence

from surd.data.subwords import UNKNOWN
from surd.data.symbols import lost
from surd.run.text import Answer


class Tally:
    """Counts over all lines of an input."""

    def __init__(self, symbols: Sequence[str], untrained: Sequence[str] = ()) -> None:
        """`untrained` are those of the symbols that stand nowhere in what the model was trained on."""
        self._symbols, self._untrained = symbols, untrained
        self._met: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self._looped = 0
        self._lines: Counter[str] = Counter()
        self._first: dict[str, int] = {}

    def add(self, number: int, source: str, answer: Answer) -> None:
        """Counts what line `number` lacks, in each of its outputs."""
        missing: Counter[str] = Counter()
        for output in answer.outputs:
            missing += lost(self._symbols, source, output.text)
        self._lost += missing
        self._looped += answer.looped
        met = Counter({symbol: count for symbol in self._untrained if (count := source.count(symbol))})
        self._met += met
        found = {"lost": missing, "unknown": answer.unknown, "looped": answer.looped, "untrained": met}
        for name, some in found.items():
            if some:
                self._lines[name] += 1
                self._first.setdefault(name, number)

    def warnings(self) -> Iterator[str]:
        """One line for each sort of loss that there was."""
        if self._lines["lost"]:
            told = ", ".join(f'"{symbol}" {_times(count)}' for symbol, count in self._lost.most_common())
            yield f"{self._where('lost')}: placeholders of the source are missing in the output: {told}"
        if self._lines["untrained"]:
            told = ", ".join(f'"{symbol}"' for symbol, _ in self._met.most_common())
            nowhere = (
                "placeholders that stand nowhere in what the model was trained on, so what becomes of them is chance"
            )
            yield f"{self._where('untrained')}: {nowhere}: {told}"
        if self._lines["unknown"]:
            yield f"{self._where('unknown')}: symbols that the model has never seen, which it reads as {UNKNOWN}"
        if self._lines["looped"]:
            several = self._looped > self._lines["looped"]
            what = f"{self._looped:,} outputs" if several else "the output"
            were = "were" if several else "was"
            yield f"{self._where('looped')}: {what} went in circles, and {were} searched for again without"

    def _where(self, name: str) -> str:
        first = f"line {self._first[name]:,}"
        return first if self._lines[name] == 1 else f"{self._lines[name]:,} lines, the first of them {first}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
