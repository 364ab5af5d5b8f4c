"""`surd lab`: questions about the scales of a Transformer, answered by measuring them on this machine."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from surd.lab.finding import Claim, Comparison
    from surd.lab.record import Record

REFUTED = 1


def lab(name: str | None = None, /, *, out: Path = Path("lab"), seeds: int = 5) -> int:
    """Lists the experiments, or runs one: question, prediction, measurement and verdict, with a page to look at.

    Ends with 1 where the prediction of the experiment is refuted.

    Parameters
    ----------
    name
        The experiment to run; without it all of them are listed.
    out
        The folder for the record (NAME.json), the page (NAME.html) and the script that pages share.
    seeds
        How many seeds, at least 5; each random quantity is measured once for each.
    """
    from surd.lab.experiment import named, questions, run

    if name is None:
        listed = list(questions())
        width = max(len(one) for one, _ in listed)
        for one, question in listed:
            print(f"{one.ljust(width)}  {question}")
        return 0
    from surd.lab.page import write_page
    from surd.lab.record import write_record
    from surd.lab.verdict import Verdict

    record = run(named(name), range(seeds))
    out.mkdir(parents=True, exist_ok=True)
    write_record(record, out / f"{record.name}.json")
    page = write_page(record, out)
    for line in told(record):
        print(line)
    print(f"page: {page}", file=sys.stderr)
    return REFUTED if record.verdict is Verdict.REFUTED else 0


def told(record: "Record") -> list[str]:
    """A record as text."""
    from surd.lab.page import tally

    lines = [record.question, "", f"prediction: {record.prediction}", ""]
    lines += aligned(record.comparisons)
    lines += ["", f"verdict: {record.verdict} ({tally(record.comparisons)})"]
    for claim in record.claims:
        lines += ["", *claim_lines(claim)]
    return [*lines, *("" for _ in record.notes[:1]), *(f"note: {note}" for note in record.notes), "", record.signature]


def claim_lines(claim: "Claim") -> list[str]:
    """What is often said, what follows from it, and what was found."""
    head = f'claim: "{claim.text}" ({claim.heard})'
    return [head, *(f"  {line}" for line in aligned(claim.comparisons)), f"  {claim.verdict}: {claim.answer}"]


def aligned(comparisons: "tuple[Comparison, ...]") -> list[str]:
    """One line for each comparison, in columns."""
    from surd.lab.page import expected, measured

    rows = [("quantity", "measured", "expected", "verdict")]
    rows += [(one.quantity, measured(one), expected(one), str(one.verdict)) for one in comparisons]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
