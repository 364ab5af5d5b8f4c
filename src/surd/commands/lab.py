"""`surd lab`: questions about the scales of a Transformer, answered by measuring them on this machine."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from surd.lab.finding import Claim, Comparison
    from surd.lab.record import Record

REFUTED = 1


def lab(name: str | None = None, /, *, seeds: int = 5, out: Path | None = None) -> int:
    """Lists the experiments, or runs one: question, prediction, measurement and verdict, with a page to look at.

    Ends with 1 where the prediction of the experiment is refuted.

    Parameters
    ----------
    name
        The experiment to run, or the record (NAME.json) of an earlier run, whose page is written again; without it all
        experiments are listed.
    seeds
        How many seeds, at least 5; each random quantity is measured once for each.
    out
        The folder for the record, the page (NAME.html) and the script that pages share; "lab", or that of the record.
    """
    if name is None:
        return listed()
    from surd.lab.experiment import named, run
    from surd.lab.page import write_page
    from surd.lab.record import read_record, write_record
    from surd.lab.verdict import Verdict

    if name.endswith(".json"):
        record, folder = read_record(name), prepared(out or Path(name).parent)
    else:
        experiment, folder = named(name), prepared(out or Path("lab"))
        record = run(experiment, seeds)
        write_record(record, folder / f"{record.name}.json")
    page = write_page(record, folder)
    for line in told(record):
        print(line)
    print(f"page: {page}", file=sys.stderr)
    return REFUTED if record.verdict is Verdict.REFUTED else 0


def listed() -> int:
    """Prints name and question of each experiment."""
    from surd.lab.experiment import questions

    found = list(questions())
    width = max(len(name) for name, _ in found)
    for name, question in found:
        print(f"{name.ljust(width)}  {question}")
    return 0


def prepared(folder: Path) -> Path:
    """The folder, made before the work begins, so that no measurement is lost for want of one."""
    from surd.errors import SurdError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SurdError(f"{folder}: no folder can be made there ({(error.strerror or str(error)).lower()})") from None
    return folder


def told(record: "Record") -> list[str]:
    """A record as text."""
    from surd.lab.page import tally

    lines = [record.question, "", f"prediction: {record.prediction}", ""]
    lines += aligned(record.comparisons)
    lines += ["", f"verdict: {record.verdict} ({tally(record.comparisons)})"]
    for claim in record.claims:
        lines += ["", *claim_lines(claim)]
    notes = [f"note: {note}" for note in record.notes]
    return [*lines, *([""] if notes else []), *notes, "", record.signature]


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
