"""The page of a rule, from its own file: as text for a terminal, or as Markdown for the documentation."""

from surd.audit.rule import Needs, Rule
from surd.audit.thresholds import ranges

LOOKS = {
    Needs.STATIC: "Reads weights and declarations alone",
    Needs.PROBE: "Runs the model on a small batch",
    Needs.COMPARISON: "Runs the model on a small batch twice, and compares",
}


def rule_page(rule: Rule) -> str:
    """Markdown that also reads as text."""
    healthy = [f"- {name.replace('_', ' ')}: {told}" for name, told in ranges(rule.name).items()]
    parts = [
        f"# {rule.name}",
        rule.what,
        f"*{_kind(rule)}*",
        f"**Why.** {rule.why}",
        f"**When it matters.** {rule.when}",
        *(["**Healthy.**", "\n".join(healthy)] if healthy else []),
        "## Example",
        f"```python\n{rule.example.strip()}\n```",
        "## Cure",
        f"```python\n{rule.cure.strip()}\n```",
        "## Sources",
        "\n".join(f"- {source}" for source in rule.sources),
    ]
    if rule.follows:
        parts.append(f"Told as a consequence where one of these is found: {', '.join(rule.follows)}.")
    return "\n\n".join(parts)


def _kind(rule: Rule) -> str:
    judges = {"untrained": "judges untrained models", "trained": "judges trained models"}
    return f"{LOOKS[rule.needs]}; {judges.get(rule.models, 'judges trained and untrained models')}."
