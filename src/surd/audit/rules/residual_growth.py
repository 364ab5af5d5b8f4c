"""The residual stream grows from layer to layer, or leaves a pre-norm stack without a norm."""

from collections.abc import Iterator
from math import log

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Unobserved, as_one
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import threshold
from surd.measure.sites import Chain

NAME = "residual-growth"
QUANTITY = "rms of the stream after the last block over that after the first"
PRE_NORM = "Xiong et al. 2020 (arXiv 2002.04745), figure 1: a pre-norm stack ends in a norm"


def look(evidence: Evidence) -> Iterator[Finding]:
    chains = evidence.trace.chains
    if not chains:
        raise Unobserved("no residual connection was seen")
    grown = [one for chain in chains for one in _growth(chain)]
    yield from grown
    if not any(one.severity.fails for one in grown):  # a stream that explodes is too large for every reader
        yield from as_one(_bare(evidence), grave=lambda one: abs(log(float(one.measured))))


def _growth(chain: Chain) -> Iterator[Finding]:
    """A stream may outgrow a small table by branches of one size; where the branches grow with it, it explodes."""
    healthy, stream, branches = threshold(NAME, "stream"), chain.sums, chain.branches
    if len(stream) < 2 or not stream[0].rms:
        return
    growth = stream[-1].rms / stream[0].rms
    if healthy.holds(growth):
        return
    half = max(1, len(branches) // 2)
    early, late = (max(one.rms for one in part) for part in (branches[:half], branches[half:] or branches[-1:]))
    with_it = early > 0 and not threshold(NAME, "branch").holds(late / early)
    yield Finding(
        severity=Severity.WARNING if with_it else Severity.NOTE,
        site=stream[-1].site.name,
        quantity=QUANTITY,
        measured=growth,
        expected=1.0,
        high=healthy.high,
        source=healthy.source,
        message=f"the stream grows {growth:.3g} times over {len(stream)} sums, from "
        f"{stream[0].rms:.3g} to {stream[-1].rms:.3g}"
        + (f"; what is added to it grows {late / early:.3g} times: every layer multiplies" if with_it else ""),
        mend="give every branch a norm before it, or the stream one after every sum, and draw the last matrix of each "
        "branch 1/√(2 · layers) times as large",
        file=stream[-1].site.file,
        line=stream[-1].site.line,
    )


def _bare(evidence: Evidence) -> Iterator[Finding]:
    """Whoever reads the stream itself gets the sum of all layers, where the others get unit entries.

    What reads a small one behind the stack starts with small outputs, and soon learns their size: that is a note.
    """
    healthy = threshold(NAME, "bare")
    blocks = {size.site.path for chain in evidence.trace.chains for size in chain.sums} - {""}
    other = {site.site.path for site in evidence.trace.attention if site.cross} - {""}  # they read another stack
    for one in evidence.trace.bare:
        if one.usual and one.rms:
            crosses = any(f"{one.path}.".startswith(f"{path}.") for path in other)
            inside = not crosses and any(one.path.startswith(f"{block}.") for block in blocks)
            harmless = healthy.holds(one.rms / one.usual) or (not inside and one.rms < one.usual)
            yield Finding(
                severity=Severity.NOTE if harmless else Severity.WARNING,
                site=one.path,
                quantity="rms of what a layer reads over that of what layers behind norms read",
                measured=one.rms / one.usual,
                expected=1.0,
                low=healthy.low,
                high=healthy.high,
                source=PRE_NORM,
                message=f"{one.path} reads the residual stream without a norm, at an rms of {one.rms:.3g}, "
                f"where the other layers read norms of it, at {one.usual:.3g}"
                + ("" if inside else ": the stack has no final norm"),
                mend=f"put a norm before {one.path}, as the other branches have one"
                if inside
                else "end the stack with a norm of the same kind, before whatever reads its output",
                file=one.file,
                line=one.line,
            )


RULE = Rule(
    name=NAME,
    what="The residual stream grows by orders of magnitude over the layers, or leaves a pre-norm stack as it is.",
    why="Each block adds a branch. Behind a norm a branch has a size of its own, so the stream grows like √(blocks) at "
    "most; without one it is as large as the stream, and n blocks grow it like cⁿ. The sum that leaves a "
    "pre-norm stack "
    "has seen no norm: whoever reads it gets the size of all layers together.",
    when="From the first step, and the more the deeper the stack. Growth beside a table of small entries does "
    "no harm where "
    "every reader has its norm (Gemma): that is a note, and so is a head that reads a small stream without a norm, as "
    "AlphaFold's does.",
    example="""
from torch import nn

from surd.audit.specimen import HEADS, WIDTH, PreNormBlock, language_model

model = language_model()
model.blocks = nn.ModuleList(PreNormBlock(WIDTH, HEADS) for _ in range(4))
for block in model.blocks:
    block.attention_norm, block.feedforward_norm = nn.Identity(), nn.Identity()
    for matrix in (block.attention.value, block.attention.out, block.feedforward.inner, block.feedforward.outer):
        nn.init.kaiming_normal_(matrix.weight)
    for matrix in (block.attention.query, block.attention.key):
        nn.init.normal_(matrix.weight, std=0.02)
""",
    cure="""
from torch import nn

from surd.audit.specimen import HEADS, WIDTH, PreNormBlock, language_model

model = language_model()
model.blocks = nn.ModuleList(PreNormBlock(WIDTH, HEADS) for _ in range(4))
for block in model.blocks:
    for matrix in (block.attention.out, block.feedforward.outer):
        nn.init.normal_(matrix.weight, std=0.02 / 8**0.5)
""",
    sources=(
        "Radford et al. 2019: GPT-2 draws the outputs of branches 1/√(2 · layers) times as large",
        "Xiong et al. 2020 (arXiv 2002.04745): pre-norm and post-norm at the start",
        "Zhang et al. 2019 (arXiv 1901.09321): without norms, branches must begin smaller",
    ),
    needs=Needs.PROBE,
    models=Models.UNTRAINED,
    follows=("residual-path", "init-std", "norm-gain-convention"),
    look=look,
)
