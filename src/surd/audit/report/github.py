"""A report as annotations, which GitHub shows beside the lines of a pull request."""

from surd.audit.finding import Finding, Severity
from surd.audit.judge import Report
from surd.audit.report.words import beneath, mend, number, places, verdict

COMMANDS = {
    Severity.FAULT: "error",
    Severity.WARNING: "warning",
    Severity.DECLARED: "notice",
    Severity.NOTE: "notice",
}


def annotations(report: Report) -> str:
    """One line a finding, and the verdict last."""
    return "\n".join([*map(_annotation, report.findings), verdict(report)])


def _annotation(finding: Finding) -> str:
    properties = {"title": f"{finding.rule}: {places(finding)}"}
    if finding.file:
        properties = {"file": beneath(finding.file), "line": str(finding.line)} | properties
    head = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in properties.items())
    follow = "".join(f"\nso {one.rule}: {one.quantity} {number(one.measured)}" for one in finding.consequences)
    told = f"\nmend: {what}" if (what := mend(finding)) else ""
    text = f"{finding.message}.{told}{follow}"
    return f"::{COMMANDS[finding.severity]} {head}::{_escaped(text)}"


def _escaped(text: str, further: str = "") -> str:
    """What the format itself uses is written as its number."""
    return "".join(f"%{ord(letter):02X}" if letter in f"%\r\n{further}" else letter for letter in text)
