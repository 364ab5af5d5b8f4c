"""The judge: runs the rules over the evidence, one finding a cause, and says which rules could not look."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import isclose, isnan

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped, Unobserved, Value
from surd.audit.heads import Heads
from surd.audit.ledger import Line, lines
from surd.audit.rule import Models, Needs, Rule, named, names, refuse_unknown
from surd.audit.subject import Subject
from surd.audit.theirs import theirs
from surd.audit.weights import StillWeights
from surd.errors import SurdError
from surd.measure.sites import Trace

ORDER = tuple(Severity)
CLOSE = 0.05
"""Relative difference up to which two places have the same number."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a check found."""

    subject: str
    findings: tuple[Finding, ...]
    """Primary ones, the gravest first, each with its consequences."""
    skipped: tuple[Skipped, ...]
    passed: tuple[str, ...]
    """Rules that looked and found nothing."""
    trained: bool
    trace: Trace | None
    """What the probe saw; None where nothing was run."""
    ledger: tuple[Line, ...]
    """Every scale that was read, beside what it should be."""
    heads: tuple[Heads, ...]
    """What the softmax of each head does, of every attention that was read."""
    structure: str
    """A checksum of the names and shapes of the weights: another model has another one."""
    notes: tuple[str, ...]
    blind: str = ""
    """Why the model could not be run, where it was to be."""
    known: int = 0
    """Findings of a baseline, which are not told again."""

    @property
    def failing(self) -> tuple[Finding, ...]:
        """Faults and warnings."""
        return tuple(finding for finding in self.findings if finding.severity.fails)

    @property
    def looked(self) -> bool:
        """Whether any rule looked at anything: where none did, that nothing was found says nothing."""
        return bool(self.passed or self.findings or self.known)

    @property
    def clean(self) -> bool:
        """Whether something was looked at, and nothing counts against the model."""
        return self.looked and not self.failing

    def __str__(self) -> str:
        from surd.audit.report.table import table

        return table(self)


def judge(subject: Subject, select: Sequence[str] = (), ignore: Sequence[str] = (), static: bool = False) -> Report:
    """Runs all rules, or those that are selected; `static`: those that run nothing, the others say so.

    What an ignored rule finds is not told, and neither is what follows from it: so it looks all the same.
    """
    refuse_unknown((*select, *ignore))
    rules = chosen(select)
    if static and subject.module is not None:
        subject = replace(subject, weights=StillWeights(subject.module))
    evidence = Evidence(subject)
    found: list[Finding] = []
    skipped: list[Skipped] = []
    passed: list[str] = []
    for rule in rules:
        told, dark = _look(rule, evidence, static)
        found += told
        skipped += dark
        if not told and not any(not one.site for one in dark):
            passed.append(rule.name)
    seen = evidence.shared.get("trace")
    trace = seen if isinstance(seen, Trace) else None
    return Report(
        subject=subject.name,
        findings=_without(grouped(found, rules, subject.declared.released), ignore),
        skipped=tuple(one for one in skipped if one.rule not in ignore),
        passed=tuple(name for name in passed if name not in ignore),
        trained=evidence.trained,
        trace=trace,
        ledger=() if trace is None else tuple(lines(trace, evidence.declared)),
        heads=evidence.shared.get("heads", ()),
        structure=subject.weights.structure(),
        notes=subject.notes,
        blind=next((str(x) for x in map(evidence.shared.get, ("inputs", "trace")) if isinstance(x, Unobserved)), ""),
    )


def _without(found: Sequence[Finding], ignore: Sequence[str]) -> tuple[Finding, ...]:
    """The findings of other rules, with what follows from them of other rules."""
    kept = (one for one in found if one.rule not in ignore)
    return tuple(
        replace(one, consequences=tuple(two for two in one.consequences if two.rule not in ignore)) for one in kept
    )


def chosen(select: Sequence[str]) -> list[Rule]:
    """The rules of those names; all when none is named."""
    return [named(name) for name in names() if not select or name in select]


def _look(rule: Rule, evidence: Evidence, static: bool) -> tuple[list[Finding], list[Skipped]]:
    found: list[Finding] = []
    dark: list[Skipped] = []
    if static and rule.needs is not Needs.STATIC:
        return [], [Skipped(rule=rule.name, reason="it runs the model, and with --static nothing is run")]
    if rule.models is not Models.BOTH and evidence.trained is not (rule.models is Models.TRAINED):
        state = "trained" if evidence.trained else "untrained"
        return [], [Skipped(rule=rule.name, reason=f"it judges {rule.models} models; this one is {state}")]
    if rule.needs is not Needs.STATIC and evidence.subject.module is None:
        return [], [Skipped(rule=rule.name, reason="only a file of weights was given: nothing can be run")]
    if rule.needs is not Needs.STATIC and rule.finite and evidence.spoilt:
        return [], [Skipped(rule=rule.name, reason=evidence.spoilt)]
    try:
        for one in rule.look(evidence):
            if isinstance(one, Skipped):
                dark.append(replace(one, rule=rule.name))
            else:
                found.append(one.at(rule.name))
    except (Unobserved, SurdError) as reason:
        dark.append(Skipped(rule=rule.name, reason=str(reason)))
    except Exception as error:
        if (raised := theirs(error)) is None:
            raise
        dark.append(Skipped(rule=rule.name, reason=raised))
    if said := evidence.declared.released.get(rule.name):
        found = [
            replace(one, severity=Severity.DECLARED, message=f"{one.message} As released: {said}.")
            if one.severity.fails
            else one
            for one in found
        ]
    return merged(found), dark


def merged(found: Sequence[Finding]) -> list[Finding]:
    """One finding for places that differ in nothing but where they are."""
    one_each: list[Finding] = []
    for one in found:
        place = next((number for number, before in enumerate(one_each) if _alike(before, one)), None)
        if place is None:
            one_each.append(one)
        else:
            one_each[place] = replace(one_each[place], sites=(*one_each[place].sites, *one.sites))
    return one_each


def _alike(before: Finding, one: Finding) -> bool:
    """Whether it is the same fault: numbers may be 5 % apart, as layers of one fault are."""
    names = ("rule", "severity", "quantity", "mend")
    same = all(getattr(before, name) == getattr(one, name) for name in names)
    return same and all(_close(getattr(before, name), getattr(one, name)) for name in ("measured", "expected"))


def _close(first: Value, second: Value) -> bool:
    if isinstance(first, float) and isinstance(second, float):
        return isclose(first, second, rel_tol=CLOSE) or first == second or (isnan(first) and isnan(second))
    return first == second


def grouped(found: Sequence[Finding], rules: Sequence[Rule], released: Collection[str] = ()) -> tuple[Finding, ...]:
    """Findings under the ones that explain them: a fault that follows from another is its consequence.

    What a configuration declares explains no fault, for its weights may not fit it. What was `released` as it is does.
    """
    follows = {rule.name: rule.follows for rule in rules}

    def explains(one: Finding) -> bool:
        return one.severity.fails or (one.severity is Severity.DECLARED and one.rule in released)

    causes = {one.rule for one in found if explains(one)}
    primary: list[Finding] = []
    under: dict[str, list[Finding]] = {}
    for one in found:
        cause = _first_cause(one.rule, causes, follows) if one.severity.fails else None
        if cause is None or _first_cause(cause, causes, follows) is not None:  # of two in a circle neither is lost
            primary.append(one)
        else:
            under.setdefault(cause, []).append(one)
    with_consequences = []
    for one in primary:
        taken = under.pop(one.rule, []) if explains(one) else []
        with_consequences.append(replace(one, consequences=tuple(taken)))
    return tuple(sorted(with_consequences, key=lambda one: ORDER.index(one.severity)))


def _first_cause(rule: str, causes: set[str], follows: dict[str, tuple[str, ...]]) -> str | None:
    """The cause at the end of the chain: what explains what explains the rule."""
    seen = {rule}
    cause: str | None = None
    current = rule
    while step := next((name for name in follows.get(current, ()) if name in causes and name not in seen), None):
        seen.add(step)
        cause = current = step
    return cause
