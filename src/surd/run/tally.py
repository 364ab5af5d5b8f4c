"""What to tell of all lines together, once they are done: placeholders lost, symbols unknown, outputs in circles."""

from collections import Counter
from collections.abc import Iterator, Sequence

from surd.data.subwords import UNKNOWN
from surd.data.symbols import lost
from surd.run.text import Answer


class Tally:
    """Counts over all lines of an input."""

    def __init__(self, symbols: Sequence[str]) -> None:
        self._symbols = symbols
        self._lost: Counter[str] = Counter()
        self._lines: Counter[str] = Counter()
        self._first: dict[str, int] = {}

    def add(self, number: int, source: str, answer: Answer) -> None:
        """Counts what line `number` lacks."""
        missing = lost(self._symbols, source, answer.text)
        self._lost += missing
        for name, some in (("lost", missing), ("unknown", answer.unknown), ("looped", answer.looped)):
            if some:
                self._lines[name] += 1
                self._first.setdefault(name, number)

    def warnings(self) -> Iterator[str]:
        """One line for each sort of loss that there was."""
        if self._lines["lost"]:
            told = ", ".join(f'"{symbol}" {_times(count)}' for symbol, count in self._lost.most_common())
            yield f"{self._where('lost')}: placeholders of the source are missing in the output: {told}"
        if self._lines["unknown"]:
            yield f"{self._where('unknown')}: symbols that the model has never seen, which it reads as {UNKNOWN}"
        if self._lines["looped"]:
            yield f"{self._where('looped')}: the output went in circles, and was searched for again without"

    def _where(self, name: str) -> str:
        first = f"line {self._first[name]:,}"
        return first if self._lines[name] == 1 else f"{self._lines[name]:,} lines, the first of them {first}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
