"""A pre-norm block carries the norm of the stream past a branch, not the stream: there is no identity path."""

from collections.abc import Iterator, Sequence

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped, as_one
from surd.audit.rule import Models, Needs, Rule
from surd.measure.streams import Carried

NAME = "residual-path"
MOST_BRANCHES = 4
"""Of one block; a module with more of them runs several blocks itself."""


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    blocks: dict[str, list[Carried]] = {}
    for one in evidence.mixing.carried:
        blocks.setdefault(one.path, []).append(one)
    if not blocks:
        yield Skipped(reason="no residual connection was seen")
    found = [_finding(path, one) for path, block in blocks.items() for one in _broken(path, block)]
    yield from as_one(found, grave=lambda finding: float(finding.measured))


def _finding(path: str, one: Carried) -> Finding:
    return Finding(
        severity=Severity.FAULT,
        site=f"{path}:stream",
        quantity="‖carried - stream‖ / ‖stream‖ past a branch",
        measured=one.error,
        expected=0.0,
        source="He et al. 2016 (arXiv 1603.05027): an identity path through all blocks",
        message=f"what goes past a branch of {path or 'the model'} is a norm of the stream, {one.error:.3g} of "
        "its size away from the stream (expected 0): with all branches at zero the block is a norm, not the "
        "identity",
        mend="add the branch to what stood before the norm: x = x + f(norm(x)), not x = norm(x); x = x + f(x)",
        file=one.file,
        line=one.line,
    )


def _broken(path: str, block: Sequence[Carried]) -> list[Carried]:
    """Connections of a pre-norm block that carry a norm; in a post-norm block all but the first one do.

    A block is pre-norm where some branch begins with a norm of its own, or where a norm comes before everything else.
    """
    normed = [one for one in block if one.normed and not one.pre and one.error > 0]
    if any(one.pre for one in block):
        return normed
    first = block[0]
    return normed if path and first.normed and not first.within and len(block) <= MOST_BRANCHES else []


RULE = Rule(
    name=NAME,
    what="A pre-norm block carries the norm of the stream past a branch, not the stream: there is no identity path.",
    why="x + f(norm(x)) is the identity where f is 0, so the gradient reaches every block undiminished and the stream "
    "grows with depth. norm(x) + f(norm(x)) is a norm there: the stream is cut back to size 1 in each block, earlier "
    "blocks fade, and the warm-up that pre-norm does without is needed again.",
    when="In deep pre-norm models. Post-norm, norm(x + f(x)), has a norm on its path by design, and is not told; nor "
    "are parallel branches, norms behind a branch, or norms on both sides of it.",
    example="""
from surd.audit.specimen import PreNormBlock, language_model


class Merged(PreNormBlock):
    def forward(self, x, visible=None):
        x = x + self.attention(self.attention_norm(x), visible)
        x = self.feedforward_norm(x)
        return x + self.feedforward(x)


model = language_model()
for block in model.blocks:
    block.__class__ = Merged
""",
    cure="""
from surd.audit.specimen import PreNormBlock, language_model


class Mended(PreNormBlock):
    def forward(self, x, visible=None):
        x = x + self.attention(self.attention_norm(x), visible)
        normed = self.feedforward_norm(x)
        return x + self.feedforward(normed)


model = language_model()
for block in model.blocks:
    block.__class__ = Mended
""",
    sources=(
        "He et al. 2016 (arXiv 1603.05027), section 3: identity mappings",
        "Xiong et al. 2020 (arXiv 2002.04745): pre-norm needs no warm-up",
        "SHI-Labs/Compact-Transformers#25: the residual taken after the norm",
    ),
    needs=Needs.PROBE,
    models=Models.BOTH,
    follows=(),
    look=look,
)
