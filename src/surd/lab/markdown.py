"""Markdown: a record as a page of the documentation, with tables in place of pictures."""

from collections.abc import Iterable, Iterator, Sequence

from surd.lab.figure import numbers
from surd.lab.finding import Claim, Comparison, Table
from surd.lab.page import expected, measured, tally
from surd.lab.record import Record

COMPARED = ("quantity", "measured", "expected", "verdict", "expected because")


def markdown(record: Record) -> str:
    """The page of a record."""
    return "\n".join(_lines(record)) + "\n"


def _lines(record: Record) -> Iterator[str]:
    yield from (f"# {record.question}", "", f"*Written by `docs/lab/write.py` from `surd lab {record.name}`.*", "")
    yield from (f"**Prediction.** {record.prediction}", "")
    yield from (f"**Verdict.** The prediction is **{record.verdict}**: {tally(record.comparisons)}.", "")
    if record.claims:
        yield from ("## What is often said", "")
    for claim in record.claims:
        yield from _claim(claim)
    yield from ("## Measured and expected", "")
    yield from _compared(record.comparisons)
    if record.figures or record.tables:
        yield from ("## Numbers", "")
    for table in (*map(numbers, record.figures), *record.tables):
        yield from (f"**{table.caption}**", "")
        yield from _table(table)
    for head, items in (("Keep in mind", record.notes), ("Sources", record.sources)):
        if items:
            yield from (f"## {head}", "", *(f"- {item}" for item in items), "")
    yield from ("## Signature", "", f"`{record.signature}`")


def _claim(claim: Claim) -> Iterator[str]:
    yield from (f"> {claim.text} ({claim.heard})", "", f"**{claim.verdict}.** {claim.answer}", "")
    yield from _compared(claim.comparisons)


def _compared(comparisons: Sequence[Comparison]) -> Iterator[str]:
    rows = ((one.quantity, measured(one), expected(one), str(one.verdict), one.source) for one in comparisons)
    yield from _table(Table(caption="", columns=COMPARED, rows=tuple(rows)))


def _table(table: Table) -> Iterator[str]:
    yield from (_row(table.columns), "|" + "---|" * len(table.columns), *map(_row, table.rows), "")


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
