"""Heads are cut or merged across tokens: a view where a transpose belongs mixes chunks of different positions."""

from collections.abc import Iterator

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped, as_one
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import threshold
from surd.measure.reading.layout import Layout

NAME = "head-layout"
FEWEST = 4
"""Keys from which a count of tokens says anything."""
SPLIT = "cut heads as x.view(batch, length, heads, d_k).transpose(1, 2)"
MERGE = "put heads side by side again as mix.transpose(1, 2).reshape(batch, length, heads * d_k)"


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    layouts = evidence.mixing.layouts
    if not layouts:
        yield Skipped(reason="no attention of queries and keys was seen")
    yield from (Skipped(site=one.site.name, reason=one.reason) for one in layouts if one.reason)
    yield from as_one([finding for one in layouts for finding in _found(one)], grave=_gravity)


def _gravity(finding: Finding) -> float:
    """The farther from what was expected, the graver."""
    return abs(float(finding.measured) - float(finding.expected))


def _found(one: Layout) -> Iterator[Finding]:
    healthy = threshold(NAME, "share")
    counts = (("keys", one.key_tokens), ("values", one.value_tokens))
    few = [
        (what, count)
        for what, count in counts
        if one.keys is not None and one.keys >= FEWEST and count is not None and not healthy.holds(count / one.keys)
    ]
    if few and one.keys is not None:
        what, count = few[0]
        yield _finding(
            one,
            f"different tokens among the {what} of one row",
            count,
            one.keys,
            f"the {one.keys} {what} of one head come from {count} tokens: heads were cut across positions",
            SPLIT,
        )
    elif one.asking is not None and one.asking > 1:
        yield _finding(
            one,
            "tokens that asked for what one position is given",
            one.asking,
            1,
            f"what the output projection reads at one position was asked for by {one.asking} tokens, expected 1: "
            "heads were cut or merged across positions",
            f"{SPLIT}, and {MERGE}",
        )
    elif one.astray:
        yield _finding(
            one,
            "positions that are given what their own token asked for",
            0,
            1,
            "what the output projection reads at a position was asked for by another token",
            f"{SPLIT}, and {MERGE}",
        )


def _finding(one: Layout, quantity: str, measured: int, expected: int, message: str, mend: str) -> Finding:
    return Finding(
        severity=Severity.FAULT,
        site=one.site.name,
        quantity=quantity,
        measured=measured,
        expected=expected,
        source="symmetry of attention: without a mask and positions, permuted tokens give permuted outputs",
        message=message,
        mend=mend,
        file=one.site.file,
        line=one.site.line,
    )


RULE = Rule(
    name=NAME,
    what="Heads are cut or merged across tokens: a view where a transpose belongs mixes chunks of different positions.",
    why="Each query, key and value must be a slice of one token's projection, n keys of a head slices of n tokens, and "
    "a position must be given what its own token asked for. (length, heads · d_k) viewed as (heads, length, d_k) has "
    "the right shape, but a head then holds chunks of length / heads neighbouring tokens. Without mask and positions "
    "the output no longer follows a permutation of the tokens: relative error 1.24 for a wrong cut, 1.30 for a wrong "
    "merge, 0.31 for both (right: 0).",
    when="Always: positions are lost, and in a causal model the future leaks. A copy task is still learned, so quality "
    "does not reveal it. Heads in another order, such as (d_k, heads), are harmless and not told.",
    example="""
from surd.audit.specimen import Attention, encoder


class Viewed(Attention):
    def split(self, x):
        batch, length, width = x.shape
        return x.view(batch, self.heads, length, width // self.heads)


model = encoder()
for block in model.blocks:
    block.attention.__class__ = Viewed
""",
    cure="""
from surd.audit.specimen import Attention, encoder


class Transposed(Attention):
    def split(self, x):
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)


model = encoder()
for block in model.blocks:
    block.attention.__class__ = Transposed
""",
    sources=(
        "jsbaan/transformer-from-scratch#6: no transpose before heads are merged",
        "649453932/Chinese-Text-Classification-Pytorch#10: queries viewed as heads without a transpose",
    ),
    needs=Needs.PROBE,
    models=Models.BOTH,
    follows=(),
    look=look,
)
