"""A matrix is drawn with another standard deviation than its scheme gives: wrong fans, a lost or doubled factor."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, log
from statistics import median

from torch import nn

from surd.audit.drawing import Drawn, common, drawn, odd_ones, shared
from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Unobserved
from surd.audit.parts import head, std, tables, uses
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import threshold
from surd.errors import SurdError
from surd.measure.fans import glorot
from surd.measure.sites import Trace
from surd.measure.trace.naming import display_path
from surd.measure.trials.redrawn import Change, branches, logit_std, redrawn
from surd.measure.use import Part

NAME = "init-std"
QUANTITY = "σ·√fan_in"
DEPTH = "σ(out)/σ(in)·√(branches)"


@dataclass(frozen=True)
class Suspect:
    """A matrix with another deviation than it should have, and why."""

    one: Drawn
    right: float
    cause: str
    mend: str
    source: str
    weighs: bool = True
    """Whether its effect is asked for; else the range alone is told."""
    depth: float | None = None
    """Of outputs of branches: the quantity of its own, 1 where the factor is right."""

    @property
    def ratio(self) -> float:
        """How many times too large."""
        return self.one.std / self.right


def look(evidence: Evidence) -> Iterator[Finding]:
    matrices = drawn(evidence)
    if not matrices and not tables(evidence):
        raise Unobserved("no matrix of attention or of a feed-forward was found")
    suspects = _suspects(evidence, matrices)
    changed = _changed(evidence, suspects)
    causes: dict[str, list[Finding]] = {}
    for suspect in suspects:
        causes.setdefault(suspect.cause, []).append(_finding(suspect, *_effect(evidence, suspect, changed)))
    for found in causes.values():
        gravest = min(found, key=lambda one: (list(Severity).index(one.severity), -_distance(one)))
        yield replace(gravest, sites=tuple(dict.fromkeys((gravest.site, *(one.site for one in found)))))
    yield from _tables(evidence)


def _suspects(evidence: Evidence, matrices: Sequence[Drawn]) -> list[Suspect]:
    """Each matrix for its first cause."""
    found: dict[tuple[str, Part], Suspect] = {}
    causes = (_depth, _stated, _strange_fans, _odd, _large)
    for suspect in (one for cause in causes for one in cause(evidence, matrices)):
        if not threshold(NAME, "scheme").holds(suspect.depth or suspect.ratio):
            found.setdefault((suspect.one.use.name, suspect.one.use.part), suspect)
    return list(found.values())


def _depth(evidence: Evidence, matrices: Sequence[Drawn]) -> Iterator[Suspect]:
    """Outputs of branches, where the model is known to draw them 1/√(branches) times as large as the rest."""
    said, within = evidence.declared.depth_scaled, evidence.declared.depth_scaled_in
    matrices = [one for one in matrices if one.use.name.startswith(within)]
    ends = [one for one in matrices if one.use.part in (Part.OUT, Part.OUTER)]
    rest = [one.std for one in matrices if one.use.part not in (Part.OUT, Part.OUTER)]
    blocks = {one.use.name for one in ends if one.use.part is Part.OUT and not (one.attention and one.attention.cross)}
    if said is None or not said.value or not rest or not blocks:
        return
    count = 2 * len(blocks)
    for one in ends:
        right = median(rest) / count**0.5
        yield Suspect(
            one,
            right,
            f"outputs of branches are drawn without the factor 1/√{count} of {count} branches"
            if one.std > right
            else f"outputs of branches are drawn more than 1/√{count} times smaller",
            f"draw the last matrix of each branch with a standard deviation of {right:.3g}, after all others are drawn",
            said.by,
            depth=one.std / right,
        )


def _stated(evidence: Evidence, matrices: Sequence[Drawn]) -> Iterator[Suspect]:
    """Families that are known to draw g/√fan_in, and queries 1/√d_k times that."""
    said = evidence.declared.fan_in
    for one in matrices if said is not None else ():
        assert said is not None, "there is nothing to compare without it"
        right = said.value * one.use.fan_in**-0.5
        if one.use.part is Part.QUERY:
            if one.attention is None:
                continue
            right *= one.attention.d_k**-0.5
        yield Suspect(
            one,
            right,
            "matrices are not drawn with 1/√fan_in, and queries with 1/√(fan_in · d_k), as the model is known to be",
            "draw each matrix with a standard deviation of 1/√fan_in, and queries with 1/√(fan_in · d_k): nothing "
            "divides the scores",
            said.by,
        )


def _strange_fans(evidence: Evidence, matrices: Sequence[Drawn]) -> Iterator[Suspect]:
    """A deviation that a published scheme gives with fans that are not those of the product."""
    stated = evidence.declared.std
    for one in matrices:
        packed = one.of_all_parts()
        if (one.usual and not packed) or (stated is not None and one.near(stated.value)) or shared(one, matrices):
            continue
        known = f"fan_in is {one.use.fan_in} and fan_out {one.use.fan_out}"
        if (found := one.wrong()) is not None:
            yield Suspect(
                one,
                found[1],
                f"{found[0]} was taken over the fans of an image's kernel",
                f"draw it as the matrix that it is ({known}): flattened to two axes, with {found[0]} = {found[1]:.3g}",
                "Glorot & Bengio 2010; keras-team/keras#22789",
            )
        elif (found := one.of_a_head()) is not None:
            yield Suspect(
                one,
                found[1],
                "the width of a head was taken for fan_in",
                f"draw it with {found[0]} = {found[1]:.3g}: a product sums over all of the width ({known})",
                "He et al. 2015; clankur/einygpt#3",
            )
        elif packed is not None and not _is_known_packing(evidence, one):
            yield Suspect(
                one,
                packed,
                "Glorot's rule was applied to query, key and value in one matrix",
                f"draw each part by itself, or the whole with a gain of {packed / one.std:.3g}",
                "Glorot & Bengio 2010; NVIDIA/apex#910",
                weighs=False,
            )


def _is_known_packing(evidence: Evidence, one: Drawn) -> bool:
    """torch's attention, and a model that says so, draw all parts at once: logits of half the deviation learn well."""
    if NAME in evidence.declared.released:
        return True
    paths = one.use.path, one.use.name.rpartition(".")[0]
    module = evidence.weights.module
    return module is not None and any(
        isinstance(part, nn.MultiheadAttention) for path, part in module.named_modules() if display_path(path) in paths
    )


def _odd(evidence: Evidence, matrices: Sequence[Drawn]) -> Iterator[Suspect]:
    """One layer that differs from the others, and what is larger than the one number that all others have."""
    for one, right in odd_ones(matrices):
        yield Suspect(
            one,
            right,
            "one layer is drawn otherwise than the same matrix of the others",
            f"draw it as in the other layers, with a standard deviation of {right:.3g}",
            "the other layers of this model",
        )
    said = evidence.declared.std
    usual = said.value if said is not None else common(matrices)
    for one in matrices if usual else ():
        assert usual is not None, "there is nothing to compare without it"
        if one.std > usual and not one.usual:
            yield Suspect(
                one,
                usual,
                f"all others are drawn with {usual:.3g}, whatever their fans",
                f"draw it with a standard deviation of {usual:.3g}, as the others",
                said.by if said is not None else "the other matrices of this model",
            )


def _large(evidence: Evidence, matrices: Sequence[Drawn]) -> Iterator[Suspect]:
    """What no scheme gives to any matrix: outputs that are much larger than inputs."""
    stated = evidence.declared.std
    for one in matrices:
        known = one.usual or (stated is not None and one.near(stated.value))
        if one.gain > threshold(NAME, "gain").high and not known:
            right = one.use.fan_in**-0.5
            yield Suspect(
                one,
                right,
                "no scheme gives a matrix of that many inputs so large a deviation",
                f"draw it with 1/√fan_in = {right:.3g}",
                threshold(NAME, "gain").source,
            )


def _changed(evidence: Evidence, suspects: Sequence[Suspect]) -> Trace | None:
    """What a probe sees with all of them as they should be; None where nothing can be run."""
    weights = evidence.weights
    weighed = [one for one in suspects if one.weighs]
    if not weighed or weights.module is None:
        return None
    parts = {(one.one.use.name, one.one.use.axis, one.one.use.places): one for one in weighed}
    changes = [Change(one.one.use, weights.tensor(one.one.use.name), 1 / one.ratio) for one in parts.values()]
    try:
        _ = evidence.trace
        return redrawn(evidence.module, evidence.inputs, changes)
    except (Unobserved, SurdError, RuntimeError):
        return None


def _effect(evidence: Evidence, suspect: Suspect, after: Trace | None) -> tuple[Severity, str]:
    """What its size does: to the logits of its attention, or to what its sub-layer adds to the stream."""
    declared = Severity.WARNING if suspect.depth is not None else Severity.NOTE
    if after is None or not suspect.weighs:
        return declared, ""
    before, attention, part = evidence.trace, suspect.one.attention, suspect.one.use.part
    if attention is not None and part in (Part.QUERY, Part.KEY):
        if attention.qk_norm:
            return Severity.NOTE, "; query and key are normalised, so the logits do not feel it"
        now, then = (logit_std(trace, attention) for trace in (before, after))
        if now and then:
            healthy = threshold(NAME, "logit_std")
            better = healthy.holds(then) or abs(log(then)) < 0.5 * abs(log(now))
            told = f"; the logits have a standard deviation of {now:.3g}, otherwise {then:.3g}"
            return Severity.FAULT if not healthy.holds(now) and better else Severity.NOTE, told
        return Severity.NOTE, ""
    sizes, others = (branches(trace, suspect.one.use.path) for trace in (before, after))
    ratios = {name: sizes[name] / others[name] for name in sizes if others.get(name)}
    if not ratios:
        return declared, ""
    name = max(ratios, key=lambda key: abs(log(ratios[key])) if ratios[key] else inf)
    told = f"; {name} has an rms of {sizes[name]:.3g}, otherwise {others[name]:.3g}"
    harm = not threshold(NAME, "branch").holds(ratios[name])
    return Severity.WARNING if harm else declared, told


def _finding(suspect: Suspect, severity: Severity, effect: str) -> Finding:
    one, healthy = suspect.one, threshold(NAME, "scheme")
    root = one.use.fan_in**0.5
    measured, expected = (suspect.depth, 1.0) if suspect.depth else (one.gain, suspect.right * root)
    return Finding(
        severity=severity,
        site=one.use.name,
        quantity=DEPTH if suspect.depth else QUANTITY,
        measured=measured,
        expected=expected,
        low=expected * healthy.low,
        high=expected * healthy.high,
        source=suspect.source,
        message=f"{one.use.part} is drawn with a standard deviation of {one.std:.3g}, {suspect.ratio:.3g} times the "
        f"{suspect.right:.3g} that it should have: {suspect.cause}{effect}",
        mend=suspect.mend,
    )


def _distance(finding: Finding) -> float:
    return abs(log(float(finding.measured) / float(finding.expected)))


def _tables(evidence: Evidence) -> Iterator[Finding]:
    """Tables of tokens, and the head, far below any scheme: Glorot's rule over rows and columns gives them that."""
    healthy, stated, smallest = threshold(NAME, "scheme"), evidence.declared.std, threshold(NAME, "table").low
    top = head(evidence)
    for name in dict.fromkeys([*tables(evidence), *([top] if top is not None else [])]):
        rows, width = next((use.fan_out, use.fan_in) for use in uses(evidence) if use.name == name)
        if rows < width:
            continue  # a few classes
        size = std(evidence.weights.tensor(name))
        bound = min(smallest, width**-0.5)
        if not size or size >= healthy.low * bound or (stated and healthy.holds(size / stated.value)):
            continue
        fans = healthy.holds(size / glorot(rows, width))
        harm = _are_lost(evidence, name, width**-0.5 / size)
        yield Finding(
            severity=Severity.WARNING if harm else Severity.NOTE,
            site=name,
            quantity="standard deviation of a row for each token",
            measured=size,
            expected=width**-0.5,
            low=healthy.low * bound,
            high=healthy.high * width**-0.5,
            source=threshold(NAME, "table").source,
            message=f"{name} is drawn with a standard deviation of {size:.3g}, expected {bound:.3g} to "
            f"{width**-0.5:.3g}"
            + (f": that is Glorot's rule over {rows} rows, which nothing ever sums over" if fans else "")
            + ("; beside the positions the tokens are lost" if harm else ""),
            mend=f"draw {name} with 1/√d_model = {width**-0.5:.3g}, or with 0.02, whatever the vocabulary",
        )


def _are_lost(evidence: Evidence, name: str, factor: float) -> bool:
    """Whether little of the tokens reaches the first product, which would not be so with rows that much larger."""
    if evidence.weights.module is None:
        return False
    known = [one for one in evidence.trace.embeddings if one.table == name and one.signal_ratio and one.token_share]
    lost, enough = threshold("position-ratio", "token_share"), threshold("position-ratio", "ratio")
    return any(not lost.holds(one.token_share or 0) and enough.low <= (one.signal_ratio or 0) * factor for one in known)


RULE = Rule(
    name=NAME,
    what="A matrix is drawn with another standard deviation than the scheme gives it that the model follows.",
    why="A product of fan_in unit numbers with a matrix of deviation σ has deviation σ·√fan_in. Fans are those of the "
    "product: with d_k in place of d_model σ·√fan_in is √h, so logits are h times as large; with the fans of an "
    "image's kernel a tensor (d_model, h, d_k) gets √(2/(h + d_k)), and logits of 0.03. L layers of two branches add "
    "up to √(2L) branches, which GPT-2 draws 1/√(2L) times as large.",
    when="In untrained models. Any published scheme is right, also two in one model, and zeros are a choice. A number "
    "out of line is a note; a warning where it changes its sub-layer by a factor of two, or where the model is known "
    "to draw otherwise; a fault where the logits of attention leave 0.3 to 3. torch's attention draws query, key and "
    "value as one matrix, 0.71 times as large: that does no harm.",
    example="""
from torch import nn

from surd.audit.specimen import HEADS, WIDTH, language_model

model, d_k = language_model(), WIDTH // HEADS
for block in model.blocks:
    for matrix in (block.attention.query, block.attention.key, block.attention.value):
        nn.init.normal_(matrix.weight, std=d_k**-0.5)
""",
    cure="""
from torch import nn

from surd.audit.specimen import WIDTH, language_model

model = language_model()
for block in model.blocks:
    for matrix in (block.attention.query, block.attention.key, block.attention.value):
        nn.init.normal_(matrix.weight, std=WIDTH**-0.5)
""",
    sources=(
        "Glorot & Bengio 2010; He et al. 2015 (arXiv 1502.01852)",
        "Radford et al. 2019, section 2.3: outputs of branches start at 1/√(branches)",
        "Raffel et al. 2020 (arXiv 1910.10683): T5's 1/√fan_in, its queries 1/√(fan_in · d_k)",
        "keras-team/keras#22789; NVIDIA/apex#910; clankur/einygpt#3; huggingface/transformers#47458",
    ),
    needs=Needs.STATIC,
    models=Models.UNTRAINED,
    follows=(),
    look=look,
)
