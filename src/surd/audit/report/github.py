"""A report as annotations, which GitHub shows beside the lines of a pull request."""

from surd.audit.finding import Finding, Severity
from surd.audit.judge import Report
from surd.audit.report.words import beneath, looked, mend, not_looked, number, places, verdict

COMMANDS = {
    Severity.FAULT: "error",
    Severity.WARNING: "warning",
    Severity.DECLARED: "notice",
    Severity.NOTE: "notice",
}


def annotations(report: Report) -> str:
    """One line a finding; then the verdict, and what was not looked at, as lines of the log alone."""
    dark = ["Not looked at:", *(f"- {_plain(line)}" for line in not_looked(report.skipped))] if report.skipped else []
    return "\n".join([*map(_annotation, report.findings), _plain(verdict(report)), looked(report), *dark])


def _annotation(finding: Finding) -> str:
    properties = {"title": f"{finding.rule}: {places(finding)}"}
    if finding.file:
        properties = {"file": beneath(finding.file), "line": str(finding.line)} | properties
    head = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in properties.items())
    follow = "".join(f"\nso {one.rule}: {one.quantity} {number(one.measured)}" for one in finding.consequences)
    told = f"\nmend: {what}" if (what := mend(finding)) else ""
    text = f"{finding.message}.{told}{follow}"
    return f"::{COMMANDS[finding.severity]} {head}::{_escaped(text)}"


def _plain(text: str) -> str:
    """In one line: a line that began with :: would be a command."""
    return " ".join(text.split())


def _escaped(text: str, further: str = "") -> str:
    """What the format itself uses is written as its number."""
    return "".join(f"%{ord(letter):02X}" if letter in f"%\r\n{further}" else letter for letter in text)
