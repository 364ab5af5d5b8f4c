"""Comparison: what differs in scale between two models, place by place: two checkpoints, or a port and its original."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite

import torch

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped, Unobserved, Value, as_one
from surd.audit.judge import ORDER, Report, merged
from surd.audit.ledger import Line
from surd.audit.matching import Pair, matched
from surd.audit.report.words import number
from surd.audit.rule import names, refuse_unknown
from surd.audit.scales import constants, sizes, stored
from surd.audit.thresholds import Threshold, threshold
from surd.audit.unexplained import apart, unexplained
from surd.measure.sites import Role, Trace

NAME = "comparison"
ROUNDING = "constant-rounding"
ALONE = "nothing of it is compared between two models here: check each by itself"
ROUNDED, EXACT = 3e-4, 3e-5
"""Relative difference from which a constant is another one, and up to which it is read as the same."""
SHARE = 0.8
"""Of the matrices that must be the same for two models to have the same weights."""


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Two models, with what is known of both together."""

    mine: Evidence
    theirs: Evidence
    same_inputs: bool
    same_weights: bool
    """A port, or one model in two states: then every size must agree."""
    exact: Threshold
    """For what must agree."""
    outputs: Threshold
    """For the difference of what both return, of its size, where weights and inputs are the same."""

    @property
    def by(self) -> str:
        """What the second one is called."""
        return self.theirs.subject.name


def compared(
    mine: Evidence,
    theirs: Evidence,
    *,
    same_inputs: bool,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    static: bool = False,
    further: Sequence[Finding] = (),
    looked: Sequence[str] = (),
) -> Report:
    """A finding for each scale in which the first model differs from the second, whose own is right by definition.

    A constant that differs is a fault. So is a size, where both have the same weights; else it is a note, for training,
    or another draw, may have moved it. `further` findings were made between the two elsewhere, by the rules that
    `looked`.
    """
    refuse_unknown((*select, *ignore))

    def wanted(rule: str) -> bool:
        return (not select or rule in select) and rule not in ignore

    weights, odd = matched(stored(mine.weights), stored(theirs.weights))
    sides = _sides(mine, theirs, same_inputs, weights)
    fixed, moving, skipped = ([], [], []) if static else _observed(sides)
    skipped += _alone("init-std", sides.by, odd)
    kept = [pair for pair in (*fixed, *weights, *moving) if wanted(pair[0].rule)]
    seen = [pair for pair in kept if pair[0].value is not None and pair[1].value is not None]
    skipped += [_blind(pair, sides.by) for pair in kept if pair[0].value is None or pair[1].value is None]
    # All of them, whatever is selected: the outputs differ from what is not told too.
    whole = [pair for pair in (*fixed, *weights, *moving) if pair[0].value is not None and pair[1].value is not None]
    every = [*_differing(sides, whole), *further]
    more, said = ([], []) if static else _of_outputs(sides, weights, any(one.severity.fails for one in every))
    every += more
    found = [one for one in every if wanted(one.rule)]
    told = {one.rule for one in found}
    looking = {pair[0].rule for pair in seen} | {rule for rule in looked if wanted(rule)}
    if any(not pair[0].size for pair in seen) and wanted(ROUNDING):
        looking.add(ROUNDING)
    dark = looking | told | {one.rule for one in skipped}
    skipped += [Skipped(rule=rule, reason=ALONE) for rule in names() if rule not in dark]
    trace = mine.shared.get("trace")
    return Report(
        subject=f"{mine.subject.name} against {sides.by}",
        findings=_grouped(merged(found)),
        skipped=tuple(one for one in skipped if wanted(one.rule)),
        passed=tuple(sorted(looking - told)),
        trained=mine.trained,
        trace=trace if isinstance(trace, Trace) else None,
        ledger=tuple(line for pair in seen for line in _lines(pair, sides.by)),
        heads=(),
        structure=mine.weights.structure(),
        notes=(*mine.subject.notes, _how(sides, static), *said),
        blind=next((str(x) for x in map(mine.shared.get, ("inputs", "trace")) if isinstance(x, Unobserved)), ""),
    )


def _sides(mine: Evidence, theirs: Evidence, same_inputs: bool, weights: Sequence[Pair]) -> Sides:
    half = not {mine.dtype, theirs.dtype} <= {torch.float32, torch.float64}
    exact = threshold(NAME, "half" if half else "fp32")
    outputs = threshold(NAME, "outputs_half" if half else "outputs")
    tight = threshold(NAME, "weights_half" if half else "weights")
    matrices = [pair for pair in weights if pair[0].rule == "init-std"]
    alike = sum(tight.holds(_ratio(*_numbers(pair))) for pair in matrices)
    same = bool(matrices) and alike >= SHARE * len(matrices)
    return Sides(mine=mine, theirs=theirs, same_inputs=same_inputs, same_weights=same, exact=exact, outputs=outputs)


def _observed(sides: Sides) -> tuple[list[Pair], list[Pair], list[Skipped]]:
    """Pairs of constants and of sizes at sites, or why there are none."""
    try:
        fixed, odd = matched(constants(sides.mine), constants(sides.theirs))
        moving, more = matched(sizes(sides.mine), sizes(sides.theirs))
    except Unobserved as reason:
        return [], [], [Skipped(rule=name, reason=str(reason)) for name in ("attention-scale", "embedding-scale")]
    return fixed, moving, [*_alone("attention-scale", sides.by, odd), *_alone("residual-growth", sides.by, more)]


def _alone(rule: str, by: str, left: Sequence[str]) -> list[Skipped]:
    """Two models of unlike make have much without a counterpart: one line says how much, and names the first."""
    also = f"; and {len(left) - 1} more kinds" if len(left) > 1 else ""
    return [Skipped(rule=rule, site=by, reason=f"{left[0]}{also}")] if left else []


def _blind(pair: Pair, by: str) -> Skipped:
    one, other = pair
    side, where = ("", one) if one.value is None else (f" in {by}", other)
    return Skipped(rule=one.rule, site=where.site, reason=f"{one.quantity}{side}: {where.reason}")


def _differing(sides: Sides, pairs: Sequence[Pair]) -> Iterator[Finding]:
    """The findings: constants, then weights, then sizes in the order of the forward, one for each quantity."""
    loose: dict[tuple[str, str], list[Finding]] = {}
    for pair in pairs:
        one = pair[0]
        if one.size:
            if (severity := _severity(sides, pair)) is not None:
                loose.setdefault((one.rule, one.quantity), []).append(_finding(sides, pair, severity))
        elif not _agree(pair, sides.exact):
            yield _finding(sides, pair, _of_constant(sides, pair))
        elif _rounded(pair):
            rounding = replace(pair[0], rule=ROUNDING), replace(pair[1], rule=ROUNDING)
            yield _finding(sides, rounding, Severity.WARNING)
    for found in loose.values():
        # With the same weights the first place leads to the cause; else the one that differs most tells most.
        yield from as_one(found, _first if sides.same_weights else _grave)


def _agree(pair: Pair, exact: Threshold) -> bool:
    first, second = (one.value for one in pair)
    if isinstance(first, float) and isinstance(second, float):
        return exact.holds(_ratio(first, second))
    return first == second


def _rounded(pair: Pair) -> bool:
    """Whether one is the other as 16 bits hold it: near enough to pass, and not what the model learnt with."""
    values = [one.value for one in pair]
    if not all(isinstance(value, float) and isfinite(value) and value for value in values):
        return False
    first, second = torch.tensor(values, dtype=torch.float64)
    if abs(float(first / second) - 1) < ROUNDED:
        return False
    halves = [x.to(dtype).double() for x in (first, second) for dtype in (torch.bfloat16, torch.float16)]
    return any(abs(float(half / x) - 1) < EXACT for half, x in zip(halves, (second, second, first, first), strict=True))


def _severity(sides: Sides, pair: Pair) -> Severity | None:
    """Of a size that differs; None where it does not."""
    ratio = _ratio(*_numbers(pair))
    at_site = ":" in pair[0].site
    if pair[0].kind != pair[1].kind and not at_site:  # a table with more rows: the new ones were drawn
        return None if threshold(NAME, "drawn").holds(ratio) else Severity.WARNING
    if sides.same_weights and (sides.same_inputs or not at_site):
        return None if sides.exact.holds(ratio) else Severity.FAULT
    untrained = not sides.mine.trained and not sides.theirs.trained
    if untrained and pair[0].rule == "init-std" and not at_site:
        return None if threshold(NAME, "drawn").holds(ratio) else Severity.WARNING
    return None if threshold(NAME, "moved").holds(ratio) else Severity.NOTE


def _of_constant(sides: Sides, pair: Pair) -> Severity:
    """A note where the rest of a factor stands in the weights, so that scores, rows or logits are as large."""
    one, other = pair
    if one.rule == "parameter-count":
        return Severity.NOTE if _other_vocabulary(sides) else Severity.WARNING
    role = {"attention-scale": Role.SCORE, "embedding-scale": Role.EMBED, "logit-scale": Role.LOGITS}.get(one.rule)
    if role is None or not isinstance(one.value, float) or not sides.same_inputs:
        return Severity.FAULT
    here, there = (_size(side, scale.site, role) for side, scale in ((sides.mine, one), (sides.theirs, other)))
    same = sides.exact if sides.same_weights else threshold(NAME, "drawn")
    return Severity.NOTE if here and there and same.holds(here / there) else Severity.FAULT


def _size(side: Evidence, site: str, role: Role) -> float | None:
    """The rms at a site, or at the only one of its role."""
    readings = [one for one in side.trace.readings if one.site.role is role]
    named = [one.rms for one in readings if one.site.name == site]
    return named[0] if named else readings[0].rms if len(readings) == 1 else None


def _other_vocabulary(sides: Sides) -> bool:
    """Whether tables of tokens have another number of rows: then the count must differ."""
    traces = [side.shared.get("trace") for side in (sides.mine, sides.theirs)]
    rows = [{table.rows for table in trace.embeddings} for trace in traces if isinstance(trace, Trace)]
    return len(rows) == 2 and rows[0] != rows[1]


def _finding(sides: Sides, pair: Pair, severity: Severity) -> Finding:
    one, other = pair
    assert one.value is not None and other.value is not None, "what has no value is skipped"
    ratio = _ratio(*_numbers(pair))
    times = f", {ratio:.4g} times" if 0 < abs(ratio) < inf and not isinstance(one.value, bool | str) else ""
    there = "" if other.site == one.site else f" ({other.site})"
    why = {
        Severity.NOTE: "; what follows from it is as large in both, so the rest stands in the weights",
        Severity.FAULT: "; the weights are the same" if one.size and ":" in one.site else "",
    }
    moved = one.size and severity is Severity.NOTE
    return Finding(
        severity=severity,
        site=one.site,
        quantity=one.quantity,
        measured=_told(one.value),
        expected=_told(other.value),
        source=sides.by,
        message=f"{one.quantity}: {number(_told(one.value))} here, {number(_told(other.value))} in "
        f"{sides.by}{there}{times}{'' if moved or one.rule == 'parameter-count' else why.get(severity, '')}",
        mend=_mend(sides, pair, severity),
        file=one.file,
        line=one.line,
        rule=one.rule,
        sites=(one.site,),
    )


def _mend(sides: Sides, pair: Pair, severity: Severity) -> str:
    one, other = pair
    moved = one.size and severity is Severity.NOTE
    if one.rule == "parameter-count" and severity is Severity.NOTE:
        return "nothing: the vocabularies differ"
    if one.size and ":" not in one.site and not moved:
        return f"copy it from {sides.by} as it is there, or draw it in the same way"
    if moved:
        return "nothing, where training moved it; else look at what stands before the first place"
    if one.size:
        return f"look at what stands before {one.site}: up to there the sizes agree"
    assert other.value is not None, "what has no value is skipped"
    if isinstance(other.value, bool):
        return f"make it so, as in {sides.by}" if other.value else f"undo it: in {sides.by} it is not so"
    return f"make it {number(_told(other.value))}, as in {sides.by}"


def _grouped(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """Sizes at sites follow from the first constant or weight that differs, or else from the first size that does.

    How many numbers there are follows from a tie that one of the two has not.
    """
    cut = next((one for one in found if one.rule == "weight-tying" and one.severity.fails), None)
    if cut is not None:
        counts = tuple(one for one in found if one.rule == "parameter-count")
        found = [replace(one, consequences=counts) if one is cut else one for one in found if one not in counts]
    faults = [one for one in found if one.severity.fails]
    causes = [one for one in faults if not (one.quantity.startswith("rms of") and ":" in one.site)]
    cause = (causes or faults or [None])[0]
    if cause is None:
        return tuple(sorted(found, key=lambda one: ORDER.index(one.severity)))
    followers = tuple(one for one in faults if one is not cause and one not in causes)
    primary = [
        replace(one, consequences=(*one.consequences, *followers)) if one is cause else one
        for one in found
        if one not in followers
    ]
    return tuple(sorted(primary, key=lambda one: ORDER.index(one.severity)))


def _lines(pair: Pair, by: str) -> Iterator[Line]:
    first, second = _numbers(pair)
    if isinstance(pair[0].value, float) and isinstance(pair[1].value, float) and 0 < abs(second) < inf and first < inf:
        yield Line(site=pair[0].site, quantity=pair[0].quantity, measured=first, expected=second, source=by)


def _how(sides: Sides, static: bool) -> str:
    """In words."""
    weights = "the same weights" if sides.same_weights else "other weights"
    inputs = "the same inputs" if sides.same_inputs else "inputs of its own for each"
    return "weights alone were compared" if static else f"{weights}, {inputs}"


def _of_outputs(sides: Sides, weights: Sequence[Pair], explained: bool) -> tuple[list[Finding], list[str]]:
    """What is found where they differ and no scale told why; and a note of how much they differ."""
    found = apart(sides.mine, sides.theirs) if sides.same_inputs else None
    if found is None:
        return [], []
    told = [] if explained else [*unexplained(sides.mine, sides.theirs, found, weights, sides.outputs, sides.by)]
    open_end = sides.same_weights and not explained and not told and not sides.outputs.holds(found.share)
    why = ", and no scale tells why" if open_end else ""
    return told, [f"the first output differs by {found.share:.2g} of its size{why}"]


def _ratio(first: float, second: float) -> float:
    """The first over the second; 1 where both are zero, or both infinite."""
    if first == second:
        return 1.0
    return first / second if second not in (0.0, inf) else inf if second == 0.0 else 0.0


def _numbers(pair: Pair) -> tuple[float, float]:
    return tuple(float(one.value) if isinstance(one.value, int | float) else 0.0 for one in pair)  # pyrefly: ignore


def _told(value: Value) -> Value:
    """No cap is told in words."""
    return "none" if value == inf else value


def _first(_: Finding) -> float:
    """All alike, so that they stay in the order of the forward."""
    return 0.0


def _grave(one: Finding) -> float:
    """By what power of two it differs."""
    pair = one.measured, one.expected
    if not all(isinstance(value, int | float) and value > 0 for value in pair):
        return inf
    ratio = float(one.measured) / float(one.expected)
    return max(ratio, 1 / ratio)
