"""A report as one HTML file: findings, the ledger as bars around 1, heads as heat maps, and tables beneath."""

from collections.abc import Iterable, Sequence
from html import escape
from math import log2
from pathlib import Path

from surd.audit.finding import Finding
from surd.audit.judge import Report
from surd.audit.ledger import Line
from surd.audit.report.heat import heat_maps
from surd.audit.report.words import counted, expected, line_of_code, looked, mend, number, places, source, verdict
from surd.files import write_atomic
from surd.page import document, script

MOST = 6.0
"""Powers of two at which a bar ends, whatever the ratio."""
ONE = 0.03
"""Powers of two, about 2 %, up to which a ratio is shown as right."""


def write_page(report: Report, path: Path) -> None:
    """Writes the page, which needs nothing beside it."""
    write_atomic(path, page(report).encode())


def page(report: Report) -> str:
    """The HTML of a report."""
    body = "\n".join(
        [
            f"<h1>{escape(verdict(report))}</h1>",
            f'<p class="faint">{escape(looked(report))}</p>',
            *(f"<p>{escape(note)}</p>" for note in report.notes),
            *map(_finding, report.findings),
            _bars(report.ledger),
            heat_maps(report.heads),
            _sizes(report),
            _skipped(report),
            _passed(report.passed),
        ]
    )
    return document(report.subject, "check", f"<script>{script()}</script>", body)


def _finding(finding: Finding) -> str:
    where = line_of_code(finding)
    followers = "".join(
        f"<li>{escape(f'{one.rule} at {places(one)}: {one.quantity} {number(one.measured)}')}</li>"
        for one in finding.consequences
    )
    all_places = "".join(f"<li>{escape(site)}</li>" for site in finding.sites)
    more = f"<details><summary>{counted(len(finding.sites), 'place')}</summary><ul>{all_places}</ul></details>"
    return f"""<section class="finding {finding.severity}">
<h2><span class="severity">{finding.severity}</span> {escape(finding.rule)}: {escape(places(finding))}</h2>
<div class="beside"><div><p>{escape(finding.message)}.</p>
<p><b>{escape(finding.quantity)}</b>: measured <b>{escape(number(finding.measured))}</b>, expected
{escape(expected(finding))}{f' <span class="faint">({escape(said)})</span>' if (said := source(finding)) else ""}</p>
</div><div>{f"<p><b>Mend.</b> {escape(told)}</p>" if (told := mend(finding)) else ""}
{f"<p><code>{escape(where)}</code></p>" if where else ""}</div></div>
{f"<p>What follows from it:</p><ul>{followers}</ul>" if followers else ""}
{more if len(finding.sites) > 1 else ""}</section>"""


def _bars(ledger: Sequence[Line]) -> str:
    """Each scale as a bar from 1, to the left where it is too small, in powers of two; its numbers are in the table."""
    if not ledger:
        return ""
    rows = "".join(_bar(one, not number) for number, one in enumerate(ledger))
    numbers = _table(
        ("site", "scale", "measured", "expected", "ratio", "expected because"),
        (
            (one.site, one.quantity, number(one.measured), number(one.expected), f"{one.ratio:.3f}", one.source)
            for one in ledger
        ),
    )
    return f"""<h2>Ledger</h2>
<p class="faint">Measured over expected: at 1 a scale is right. A tick is a factor of two.</p>
<div class="bars">{AXIS}{rows}<p class="readout faint" aria-live="polite">&nbsp;</p></div>
<details><summary>its numbers</summary>{numbers}</details>"""


AXIS = (
    '<div class="axis" aria-hidden="true"><span>place</span><span class="marks">'
    + "".join(
        f'<i style="left:{50 * (1 + power / MOST):.2f}%">{f"1/{2**-power}" if power < 0 else 2**power}</i>'
        for power in range(-int(MOST), int(MOST) + 1, 2)
    )
    + "</span><span>ratio</span></div>"
)
"""What the ticks of all bars mean."""


def _bar(line: Line, first: bool) -> str:
    """Arrow keys lead from bar to bar."""
    power = max(-MOST, min(MOST, log2(abs(line.ratio)))) if line.ratio else -MOST
    left = 50 * (1 + min(power, 0.0) / MOST)
    width = 50 * abs(power) / MOST
    off = "" if abs(power) < ONE else " off"
    told = f"{line.site}: {line.quantity} {number(line.measured)}, expected {number(line.expected)}"
    return (
        f'<div class="bar{off}" tabindex="{0 if first else -1}" title="{escape(told)}">'
        f'<span class="site">{escape(line.site)}</span>'
        f'<span class="rail"><i style="left:{left:.2f}%;width:{max(width, 0.6):.2f}%"></i></span>'
        f'<span class="ratio">{line.ratio:.3g}</span></div>\n'
    )


def _sizes(report: Report) -> str:
    readings = report.trace.readings if report.trace else ()
    if not readings:
        return ""
    rows = ((one.site.name, number(one.rms), number(one.gradient)) for one in readings)
    table = _table(("site", "rms", "rms of the loss's gradient"), rows)
    return f"<h2>Sizes</h2>\n<details><summary>{counted(len(readings), 'site')}</summary>{table}</details>"


def _skipped(report: Report) -> str:
    if not report.skipped:
        return ""
    rows = ((one.rule, one.site or "everywhere", one.reason) for one in report.skipped)
    return f"<h2>Not looked at</h2>\n{_table(('rule', 'where', 'why'), rows)}"


def _passed(passed: Sequence[str]) -> str:
    names = "".join(f"<li>{escape(name)}</li>" for name in passed) or "<li>none</li>"
    return f'<h2>Rules that looked and found nothing</h2>\n<ul class="names">{names}</ul>'


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Read sideways where it is wider than the screen."""
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in rows)
    return (
        f'<div class="wide" tabindex="0"><table class="told" style="--columns:{len(heads)}">'
        f"<thead><tr>{top}</tr></thead><tbody>\n{body}</tbody></table></div>"
    )
