"""Pages: a record as HTML that needs no network, for light and dark, with one script file for all pages of a folder."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from surd.files import write_atomic
from surd.lab.chart import legend, svg
from surd.lab.figure import Figure, numbers
from surd.lab.finding import Claim, Comparison, Table, number, plain
from surd.lab.record import Record
from surd.lab.verdict import Side, Verdict
from surd.page import document, script

SCRIPT = "lab.js"
"""The name of the script beside the pages."""


def write_page(record: Record, folder: Path) -> Path:
    """Writes the page of a record and the script that all pages share; returns the page's path."""
    path = folder / f"{record.name}.html"
    write_atomic(path, page(record).encode())
    write_atomic(folder / SCRIPT, script().encode())
    return path


def page(record: Record) -> str:
    """The HTML of a record: verdict, charts, the tables beneath, what is often said, and sources."""
    title = escape(record.question)
    body = f"""<h1>{title}</h1>
<p><b>Prediction.</b> {escape(record.prediction)}</p>
<p><b>Verdict.</b> The prediction is {_verdict(record.verdict)}: {escape(tally(record.comparisons))}.
{f"Of what is often said about it, {escape(tally(record.claims))}." if record.claims else ""}</p>
<section class="charts">{"".join(map(_figure, record.figures))}</section>
{"".join(map(_table, record.tables))}
{"<h2>What is often said</h2>" if record.claims else ""}
{"".join(map(_claim, record.claims))}
<h2>Measured and expected</h2>
{comparisons_table(record.comparisons)}
{_list("Keep in mind", record.notes)}
{_list("Sources", record.sources)}
<h2>Signature</h2>
<p><code>{escape(record.signature)}</code></p>
<p class="faint">{escape(_settings(record))}</p>
<p class="faint">Intervals hold the mean over all seeds in 95 cases of 100. The numbers are in
<a href="{escape(record.name)}.json">{escape(record.name)}.json</a>.</p>"""
    return document(record.question, f"lab · {record.name}", f'<script src="{SCRIPT}"></script>', body)


def tally(judged: Iterable[Comparison | Claim]) -> str:
    """How many came out how."""
    verdicts = [one.verdict for one in judged]
    counts = {verdict: verdicts.count(verdict) for verdict in Verdict if verdict in verdicts}
    return ", ".join(f"{count} of {len(verdicts)} {verdict}" for verdict, count in counts.items())


def measured(comparison: Comparison) -> str:
    """The mean with its interval, or why there is none."""
    found = comparison.interval
    if found is None:
        return f"not measured: {comparison.unmeasured}"
    if len(comparison.values) == 1:
        return number(found.mean)
    return f"{number(found.mean)} [{number(found.low)}, {number(found.high)}]"


def expected(comparison: Comparison) -> str:
    """The expected value with its tolerance, or the bound."""
    if comparison.side is Side.NEAR:
        return f"{plain(comparison.expected)} ± {plain(comparison.tolerance)}"
    low = comparison.side is Side.AT_LEAST
    return f"{comparison.side} {plain(comparison.expected + (-1 if low else 1) * comparison.tolerance)}"


def comparisons_table(comparisons: Sequence[Comparison]) -> str:
    """One row for each comparison."""
    rows = (
        [
            escape(item.quantity),
            escape(measured(item)),
            escape(expected(item)),
            _verdict(item.verdict),
            escape(item.source),
        ]
        for item in comparisons
    )
    table = _rows(("quantity", "measured", "expected", "verdict", "expected because"), rows, "")
    return f'<div class="compared">{table}</div>'


def _rows(heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> str:
    """A table that is read sideways where it is wider than the screen."""
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>\n" for row in rows)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f'<div class="wide"><table>{title}<thead><tr>{top}</tr></thead><tbody>\n{body}</tbody></table></div>\n'


def _table(table: Table) -> str:
    return _rows(table.columns, ([escape(cell) for cell in row] for row in table.rows), table.caption)


def _figure(figure: Figure) -> str:
    """The chart, and its numbers beneath it."""
    drawing = f"<figcaption>{escape(figure.title)}</figcaption>{svg(figure)}{legend(figure)}"
    return f"<figure>{drawing}<details><summary>its numbers</summary>{_table(numbers(figure))}</details></figure>\n"


def _claim(claim: Claim) -> str:
    return f"""<div class="claim">
<p>“{escape(claim.text)}” <span class="heard">({escape(claim.heard)})</span></p>
<p>{_verdict(claim.verdict)}. {escape(claim.answer)}</p>
{comparisons_table(claim.comparisons)}</div>
"""


def _verdict(verdict: Verdict) -> str:
    return f'<span class="verdict {verdict.name.lower()}">{verdict}</span>'


def _list(head: str, items: Sequence[str]) -> str:
    entries = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<h2>{escape(head)}</h2>\n<ul>{entries}</ul>\n" if items else ""


def _settings(record: Record) -> str:
    settings = "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in record.settings.items())
    seeds = ", ".join(map(str, record.seeds))
    return f"Sizes: {settings}. Seeds: {seeds}."
