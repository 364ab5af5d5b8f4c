"""A pre-norm block carries a norm or a part of the stream past a branch, or nothing: there is no identity path."""

from collections.abc import Iterator, Sequence

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped, as_one
from surd.audit.rule import Models, Needs, Rule
from surd.measure.reading.streams import Carried

NAME = "residual-path"
EXACT = 0.01
"""Of a factor that is 1, up to rounding."""
MOST_BRANCHES = 4
"""Of one block; a module with more of them runs several blocks itself."""


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    blocks: dict[str, list[Carried]] = {}
    for one in evidence.mixing.carried:
        blocks.setdefault(one.path, []).append(one)
    if not blocks:
        yield Skipped(reason="no residual connection was seen")
    everything = evidence.mixing.carried
    found = [_finding(path, one) for path, block in blocks.items() for one in _broken(path, block, everything)]
    yield from as_one(found, grave=lambda finding: float(finding.measured))
    # Factors above 1 stand before norms of the sum, as in DeepNorm, which keep the stream at one size.
    shrunk = [one for one in everything if one.pre and abs(one.factor) < 1 - EXACT]
    yield from as_one(map(_multiplied, shrunk), grave=lambda finding: float(finding.measured))
    twice = [one for one in everything if one.twice]
    if len(twice) > 1:  # one may be a skip past a whole stack
        yield from as_one(map(_added_twice, twice), grave=lambda finding: float(finding.measured))
    missing = [one for path, block in blocks.items() for one in _without(path, block)]
    yield from as_one(map(_missing, missing), grave=lambda finding: 0.0)


def _without(path: str, block: Sequence[Carried]) -> list[Carried]:
    """Branches that take the place of the stream; where one module runs all layers, stages may, but not half of all.

    Nor does an attention lead from one stage to the next, and again.
    """
    replaced = [one for one in block if one.replaced]
    if any(part.isdigit() for part in path.split(".")):
        return replaced
    if len(replaced) > 1 and 2 * len(replaced) >= len(block) - 1:
        return replaced
    attentions = [one for one in replaced if one.attends]
    return attentions if len(attentions) > 1 else []


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


def _multiplied(one: Carried) -> Finding:
    return Finding(
        severity=Severity.FAULT,
        site=f"{one.path}:stream",
        quantity="‖carried - stream‖ / ‖stream‖ past a branch",
        measured=abs(one.factor - 1),
        expected=0.0,
        source="He et al. 2016 (arXiv 1603.05027), section 3.1: factors on the path multiply over all layers",
        message=f"the stream is multiplied by {one.factor:.3g} past a branch of {one.path or 'the model'}, and the "
        f"branch is not: n branches leave {one.factor:.3g}ⁿ of it and of its gradient",
        mend="add the branch to the stream as it is, x = x + f(norm(x)); what is to begin small is the branch",
        file=one.file,
        line=one.line,
    )


def _added_twice(one: Carried) -> Finding:
    return Finding(
        severity=Severity.FAULT,
        site=f"{one.path}:stream",
        quantity="‖carried - stream‖ / ‖stream‖ past a branch",
        measured=1.0,
        expected=0.0,
        source="He et al. 2016 (arXiv 1603.05027), section 3.1: factors on the path multiply over all layers",
        message=f"the stream is added twice past a branch of {one.path or 'the model'}, x + (x + f(x)): n such "
        "branches make it, and its gradient, 2ⁿ times as large",
        mend="add the branch to the stream once: either in the branch or around it",
        file=one.file,
        line=one.line,
    )


def _missing(one: Carried) -> Finding:
    at = one.replaced.strip(".")
    return Finding(
        severity=Severity.FAULT,
        site=f"{at}:norm",
        quantity="‖block(x) - x‖ / ‖x‖ with its branches at zero",
        measured=1.0,
        expected=0.0,
        source="He et al. 2016 (arXiv 1603.05027): an identity path through all blocks",
        message=f"what the layers behind a norm, {at or 'of the model'}, make takes the place of the stream, and is "
        "not added to it: with that branch at zero nothing is left (1, expected 0), though other branches are added",
        mend="add this branch too: x = x + f(norm(x)), not x = f(norm(x))",
        file=one.file,
        line=one.line,
    )


def _broken(path: str, block: Sequence[Carried], everything: Sequence[Carried]) -> list[Carried]:
    """Connections of a pre-norm block that carry a norm; in a post-norm block all but the first one do.

    A block is pre-norm where some branch begins with a norm of its own, or where a norm comes before everything else.
    One module may run layers of both kinds: behind a branch that began with no norm, a norm is that of post-norm.
    """
    normed = [one for one in block if one.normed and not one.pre and one.error > 0]
    if any(one.pre for one in block):
        told: list[Carried] = []
        for one in normed:
            made = None if one.behind is None else everything[one.behind]
            if not one.last and (made is None or made.pre or made in told):
                told.append(one)
        return told
    first = block[0]
    return normed if path and first.normed and not first.within and len(block) <= MOST_BRANCHES else []


RULE = Rule(
    name=NAME,
    what="A pre-norm block carries a norm or a part of the stream past a branch, or nothing: no identity path is left.",
    why="x + f(norm(x)) is the identity where f is 0, so the gradient reaches every block undiminished and the stream "
    "grows with depth. norm(x) + f(norm(x)) is a norm there: the stream is cut back to size 1 in each block, earlier "
    "blocks fade, and the warm-up that pre-norm does without is needed again. So it is with c · x + f(norm(x)), cⁿ "
    "after n branches, with x + (x + f(norm(x))), 2ⁿ, and with f(norm(x)) alone.",
    when="In deep pre-norm models; attention without x in norm(x + f(x)) too. Else post-norm has a norm on its path by "
    "design, and is not told, also where it begins with a target of zeros or a pre-norm stack with layers of it; nor "
    "are parallel branches, norms behind a branch, norms on both sides of it, factors on stream and branch alike, or "
    "what heads add behind the last norm.",
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
