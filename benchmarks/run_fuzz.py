"""Ten thousand inputs of rubbish in one process, two hundred through the real command: what came of each, and memory.

An input is right when it ends in a result or in one message; nothing may be executed, written elsewhere, or cost more
than 1 GiB above what the same uses need with sound input. The inputs are those of `tests/fuzz`, drawn from a seed.
"""

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings

import report

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))  # the inputs belong to the tests

from fuzz import command_lines, corpora, folders, guard, recipes  # noqa: E402

SORTS: dict[str, tuple[Any, int]] = {
    "corpora": (corpora.cases, 1),
    "recipes": (recipes.cases(), 1),
    "run folders": (folders.cases, 1),
    "command lines": (command_lines.cases, 1),
}
"""The strategy of each sort, and its share."""
SHOWN = 1500
"""Characters that are shown of an input that was wrong."""


class Tally:
    """What came of the inputs of one sort."""

    def __init__(self) -> None:
        self.ends: Counter[str] = Counter()
        self.faults: dict[str, str] = {}
        self.slowest = 0.0

    def count(self, case: object, act: Callable[[], str]) -> None:
        """Runs one input and notes how it ended; faults are told apart by the place that they come from."""
        began = time.monotonic()
        try:
            self.ends["a result" if act() == "done" else "one message"] += 1
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            own = [one for one in traceback.extract_tb(error.__traceback__) if "/surd/" in one.filename] or [where]
            name = f"{type(error).__name__} in {Path(own[-1].filename).name}:{own[-1].lineno} {str(error)[-300:]!r}"
            self.ends["a fault"] += 1
            key = name if not isinstance(error, AssertionError) else f"{name[:60]} {str(error)[-250:]}"
            self.faults.setdefault(key, f"{case!r:.{SHOWN}}")
        self.slowest = max(self.slowest, time.monotonic() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--inputs", type=int, default=10_000, help="inputs in this process")
    parser.add_argument("--commands", type=int, default=200, help="command lines through the real command")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=list(SORTS), help="one sort alone")
    parser.add_argument("--results", type=Path, default=report.RESULTS, help="folder for the result files")
    arguments = parser.parse_args()
    normal = sound()
    sorts = {name: one for name, one in SORTS.items() if arguments.only in (None, name)}
    shares = sum(share for _, share in sorts.values())
    tallies = {}
    for name, (strategy, share) in sorts.items():
        tallies[name] = tally = Tally()
        drawn(strategy, arguments.inputs * share // shares, arguments.seed, lambda case, tally=tally: here(case, tally))
        print(f"{name}: {dict(tally.ends)}, {guard.highest() >> 20} MiB", file=sys.stderr, flush=True)
    above = guard.highest() - normal
    tallies["the real command"] = tally = Tally()
    if arguments.commands:
        drawn(command_lines.cases, arguments.commands, arguments.seed + 1, lambda case: real(case, tally))
    rows = [
        (name, *(f"{one.ends[end]:,}" for end in ("a result", "one message", "a fault")), f"{one.slowest:.1f} s")
        for name, one in tallies.items()
        if one.ends
    ]
    table = report.markdown_table(("inputs", "a result", "one message", "a fault", "slowest"), rows)
    memory = f"Memory above the normal need: {above / 2**20:,.0f} MiB at most (limit 1,024)."
    text = f"Seed {arguments.seed}. {memory}\n\n{table}"
    faults = {name: one.faults for name, one in tallies.items() if one.faults}
    for name, found in faults.items():
        for fault, case in found.items():
            print(f"--- {name}: {fault}\n{case}", file=sys.stderr)
    result = {
        "seed": arguments.seed,
        "ends": {name: dict(one.ends) for name, one in tallies.items()},
        "bytes above normal": above,
        "faults": {name: list(found) for name, found in faults.items()},
    }
    report.write("fuzz", "Rubbish", result, text, arguments.results)
    return int(bool(faults) or above > guard.ROOM)


def sound() -> int:
    """The most memory that the same uses take with sound input, in bytes; it also loads what they need."""
    words = tuple(b"%d a cat sees\ta dog %d sings\n" % (number, number) for number in range(400))
    for kind in (None, *corpora.KINDS):
        outcome(corpora.Files(contents={"source": b"".join(words)}, plain=0, columns=None, kind=kind))
    for run in (0, 1):
        for use in sorted(set(folders.Folder.USES)):
            told = outcome(folders.Folder(run=run, changes=(), fitting=False, use=use))
            assert told == "done", told
    return guard.highest()


def here(case: guard.Case, tally: Tally) -> None:
    tally.count(case, lambda: outcome(case))


def outcome(case: guard.Case) -> str:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        return guard.outcome(case, Path(folder))


def real(case: command_lines.CommandLine, tally: Tally) -> None:
    """One command line in a process of its own."""

    def act() -> str:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            return case.in_its_own(Path(folder), dict(os.environ))

    tally.count(case, act)


def drawn(strategy: Any, number: int, seed: int, act: Callable[[Any], None]) -> None:
    """Calls `act` with so many inputs; nothing is shrunk, as one that is wrong is only noted."""

    @hypothesis.seed(seed)
    @settings(
        max_examples=number,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def each(case: Any) -> None:
        act(case)

    each()


if __name__ == "__main__":
    sys.exit(main())
