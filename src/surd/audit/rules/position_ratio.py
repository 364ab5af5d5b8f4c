"""Where positions are added, they drown the tokens, or are lost beside them."""

from collections.abc import Iterator
from math import inf

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped, Unobserved, as_one
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import Threshold, threshold
from surd.measure.sites import Embedding

NAME = "position-ratio"


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    trace = evidence.trace
    if not trace.embeddings and not trace.features:
        raise Unobserved("no table of tokens was read, and no layer reads inputs of numbers")
    found: list[Finding] = []
    for table in trace.embeddings:
        if table.multiplier is None:
            yield Skipped(site=table.site.name, reason="what tokens bring into the first block could not be told apart")
        elif table.blank:
            found.append(_zero(evidence, table))
        elif table.signal_ratio is not None:
            found += _sized(evidence, table, table.signal_ratio)
    for layer in trace.features:
        if layer.multiplier is not None and layer.signal_ratio is not None and evidence.declared.embedding is None:
            found += _features(evidence, layer, layer.signal_ratio)
    for severity in dict.fromkeys(one.severity for one in found):
        yield from as_one((one for one in found if one.severity is severity), _distance)


def _distance(finding: Finding) -> float:
    """How far from the paper's ratio, in either direction."""
    ratio = float(finding.measured)
    return max(ratio, 1 / ratio) if ratio else inf


def _sized(evidence: Evidence, table: Embedding, ratio: float) -> Iterator[Finding]:
    """The sizes where they are added, and what is left of the smaller one where attention reads."""
    healthy = threshold(NAME, "ratio")
    if healthy.holds(ratio):
        return
    low = ratio < healthy.low
    share = table.token_share if low else table.place_share
    bound = threshold(NAME, _bound(table) if low else "place_share")
    harmful = share is not None and not bound.holds(share) and not evidence.trained
    if not low and not table.even and evidence.declared.embedding is not None:
        harmful = False  # learned positions grow beside a factor that the model is known by
    lost, part = ("tokens", "differs between tokens") if low else ("positions", "differs between positions")
    effect = "" if share is None else f"; of what the first projection reads, {share:.2%} {part}"
    yield _finding(
        Severity.WARNING if harmful else Severity.NOTE,
        table,
        ratio,
        healthy,
        f"tokens enter with {table.token_rms:.3g}, {ratio:.3g} times the positions that are added to them, expected "
        f"{healthy.low:g} to {healthy.high:g}{effect}: the {lost} are lost",
        _mend(table, low),
    )


def _bound(table: Embedding) -> str:
    """How small a share of the tokens is harmful: learned positions move away, sinusoids never do."""
    assert table.multiplier is not None
    if not table.even:
        return "token_share_learned"
    return "token_share" if abs(table.multiplier - 1) < 0.01 else "token_share_scaled"


def _mend(table: Embedding, low: bool) -> str:
    assert table.multiplier is not None
    root = table.width**0.5
    if not low:
        many = table.multiplier > 1.5
        return f"leave out the factor {table.multiplier:.4g}" if many else "give positions half the size of the tokens"
    if table.even and abs(table.multiplier - 1) < 0.01:
        return f"multiply the rows of {table.table} by √{table.width} = {root:.4g} before positions are added"
    return f"draw {table.table} with a larger standard deviation, or the positions with half of its own"


def _zero(evidence: Evidence, table: Embedding) -> Finding:
    healthy = threshold(NAME, "ratio")
    return _finding(
        Severity.NOTE if evidence.trained else Severity.WARNING,
        table,
        inf,
        healthy,
        f"{table.blank} is zero: at the start one token is the same vector at every position",
        f"draw {table.blank} with half the standard deviation of {table.table}: {table.table_std / 2:.2g}",
    )


def _features(evidence: Evidence, layer: Embedding, ratio: float) -> Iterator[Finding]:
    """Inputs of numbers have a size of their own, so only a factor that the model applies is judged."""
    healthy = threshold(NAME, "ratio")
    assert layer.multiplier is not None
    if ratio <= healthy.high or layer.multiplier < 1.5:
        return
    yield _finding(
        Severity.NOTE if evidence.trained else Severity.WARNING,
        layer,
        ratio,
        healthy,
        f"features of unit size are multiplied by {layer.multiplier:.4g} and enter {ratio:.3g} times as large as the "
        f"positions that are added to them, expected {healthy.low:g} to {healthy.high:g}",
        f"leave out the factor {layer.multiplier:.4g}: it is for rows of a table with a standard deviation of "
        "1/√d_model",
    )


def _finding(
    severity: Severity, table: Embedding, ratio: float, healthy: Threshold, message: str, mend: str
) -> Finding:
    return Finding(
        severity=severity,
        site=table.site.name,
        quantity="rms(tokens) / rms(positions) where they are added",
        measured=ratio,
        expected=2**0.5,
        low=healthy.low,
        high=healthy.high,
        source=healthy.source,
        message=message,
        mend=mend,
        file=table.site.file,
        line=table.site.line,
    )


RULE = Rule(
    name=NAME,
    what="Where positions are added, they drown the tokens, or are lost beside them.",
    why="A sinusoid has an rms of 1/√2 at every width. Rows of standard deviation 1/√d_model, added as they are, are "
    "√(2/d_model) of it: a sixteenth at 512, and a norm behind the sum keeps the ratio. Times √d_model they are 1.41 "
    "times the positions.",
    when="At the start of a training. Learned positions move away from a bad start, fixed sinusoids never do. Rotary "
    "positions and biases on scores are not added, and have no ratio.",
    example="""
from surd.audit.specimen import Encoder, encoder


class Unscaled(Encoder):
    def embed(self, tokens):
        return self.table(tokens) + self.places[: tokens.shape[1]]


model = Unscaled()
model.load_state_dict(encoder().state_dict())
""",
    cure="""
import math

from surd.audit.specimen import WIDTH, Encoder, encoder


class Scaled(Encoder):
    def embed(self, tokens):
        return self.table(tokens) * math.sqrt(WIDTH) + self.places[: tokens.shape[1]]


model = Scaled()
model.load_state_dict(encoder().state_dict())
""",
    sources=(
        "Vaswani et al. 2017 (arXiv 1706.03762), sections 3.4 and 3.5",
        "VHellendoorn/ICLR20-Great#10: tokens a sixteenth of their positions",
        "espnet/espnet#2797: features times √512 beside sinusoids",
        "karpathy/minGPT#62: positions that start at zero train worse",
    ),
    needs=Needs.PROBE,
    models=Models.BOTH,
    follows=("embedding-scale", "init-std", "weight-tying", "tied-init-std", "padding-row"),
    look=look,
)
