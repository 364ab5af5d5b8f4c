"""Three hundred subjects of rubbish for `surd check` in one process, thirty by the real command: what came of each.

A subject is right when it ends in a report or in one message; nothing may be executed, written elsewhere, hang, or cost
more than 2 GiB above what a sound subject needs. The subjects are those of `tests/fuzz`, each drawn from a number.
"""

import argparse
import sys
import tempfile
import warnings
from pathlib import Path

import report
from run_fuzz import ROOT, Tally

sys.path.insert(0, str(ROOT / "tests"))  # the subjects belong to the tests

from fuzz import guard, subjects

from surd.api import check

ROOM = 2 * 2**30


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--inputs", type=int, default=300, help="subjects in this process")
    parser.add_argument("--commands", type=int, default=30, help="files and folders through the real command")
    parser.add_argument("--seed", type=int, default=0, help="the first number")
    parser.add_argument("--results", type=Path, default=report.RESULTS, help="folder for the result files")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # what odd modules make torch remark
    check(subjects.sound())
    before = guard.highest()
    numbers = range(arguments.seed, arguments.seed + arguments.inputs)
    here, real = Tally(), Tally()
    for number in numbers:
        here.count(subjects.Rubbish(number), lambda number=number: tried(number))
    grown = guard.highest() - before
    for number in range(arguments.seed, arguments.seed + arguments.commands):
        real.count(subjects.Rubbish(number), lambda number=number: by_command(number))
    tallies = {"in one process": here, "through the command": real}
    rows = [
        (name, one.ends["a result"], one.ends["one message"], one.ends["a fault"], f"{one.slowest:.1f} s")
        for name, one in tallies.items()
    ]
    table = report.markdown_table(("subjects", "a report", "one message", "wrong", "slowest"), rows)
    faults = {name: one.faults for name, one in tallies.items()}
    result = {
        "seed": arguments.seed,
        "ends": {name: dict(one.ends) for name, one in tallies.items()},
        "bytes above a sound subject": grown,
        "faults": faults,
    }
    told = f"{table}\n\nAt most {grown / 2**20:,.0f} MiB above what a sound subject needs."
    report.write("check_fuzz", "Rubbish for surd check", result, told, arguments.results)
    for name, found in faults.items():
        for fault, subject in found.items():
            print(f"{name}: {fault}\n    {subject}")
    slow = max(one.slowest for one in tallies.values()) >= guard.PATIENCE
    return int(any(faults.values()) or grown > ROOM or slow)


def tried(number: int) -> str:
    """One subject in this process."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        return guard.outcome(subjects.Rubbish(number), Path(folder))


def by_command(number: int) -> str:
    """One file or folder in a process of its own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        return subjects.through_the_command(number, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
