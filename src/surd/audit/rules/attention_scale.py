"""Scores reach the softmax with another factor than 1/√d_k, or than the one declared."""

from collections.abc import Iterator
from dataclasses import replace
from math import isfinite

import torch

from surd.audit.evidence import Evidence
from surd.audit.factor_names import DRAWN, EXACT, ROUNDED, cause, cause_beside
from surd.audit.finding import Finding, Severity, Skipped, Unobserved
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import Threshold, threshold
from surd.errors import SurdError
from surd.measure.sites import Attention, Role

NAME = "attention-scale"
PAPER = "Vaswani et al. 2017, section 3.2.1"
ALIKE = 1e-3
"""Relative spread of a factor over heads below which they all have it."""


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    tolerance = threshold(NAME, "fp32" if evidence.dtype in (torch.float32, torch.float64) else "half")
    yield from _unseen(evidence)
    for site in evidence.attention:
        if site.factor is None:
            yield Skipped(site=site.name, reason=site.reason or "the factor could not be read")
            continue
        if site.qk_norm:
            found = list(_normalised(evidence, site, tolerance))
        else:
            found = [
                one
                for name, factor in _factors(site)
                for one in _plain(evidence, replace(site, factor=factor), name, tolerance)
            ]
        fails = any(isinstance(one, Finding) and one.severity.fails for one in found)
        if fails and (reason := _no_tokens(evidence, site)):
            yield Skipped(site=site.name, reason=reason)
            continue
        yield from found
        if not fails and not site.qk_norm:
            yield from _other_backend(evidence, site, tolerance)


def _no_tokens(evidence: Evidence, site: Attention) -> str:
    """Why a query or key is no slice of one token, so that products are not sums of d_k independent terms."""
    try:
        layouts = evidence.mixing.layouts
    except (Unobserved, SurdError):
        return ""
    own = next((x for x in layouts if (x.site.path, x.site.call) == (site.site.path, site.site.call)), None)
    if own is not None and own.channels:
        return "channels attend to channels: the product sums over positions"
    if own is not None and own.several:
        return "a query or key is made of several tokens, whose number is part of the factor"
    return ""


def _unseen(evidence: Evidence) -> Iterator[Skipped]:
    """Attention that happened where the probe could not look."""
    told = {site.name for site in evidence.attention}
    for one in evidence.trace.unseen:
        if one.what not in told and not one.what.endswith((f":{Role.TOKEN}", f":{Role.LOGITS}", "gradients")):
            yield Skipped(site=one.what, reason=one.reason)


def _factors(site: Attention) -> Iterator[tuple[str, float]]:
    """The factor of the whole site; of each head, where heads differ."""
    assert site.factor is not None
    heads = {head: factor for head, factor in enumerate(site.by_head) if isfinite(factor)}
    if not heads or max(heads.values()) <= min(heads.values()) * (1 + ALIKE):
        yield site.name, site.factor
        return
    for head, factor in heads.items():
        yield head_name(site, head), factor


def head_name(site: Attention, head: int) -> str:
    """`path:score.3`, heads counted from 0."""
    return site.name.replace(f"{Role.SCORE}", f"{Role.SCORE}.{head}")


def _plain(evidence: Evidence, site: Attention, name: str, tolerance: Threshold) -> Iterator[Finding]:
    """Queries and keys as projected: the factor itself is judged."""
    assert site.factor is not None
    paper = site.d_k**-0.5
    stated = _declared(evidence, site)
    if stated is not None:
        values, by = stated
        nearest = min(values, key=lambda value: abs(site.factor / value - 1))
        if tolerance.holds(site.factor / nearest):
            if not tolerance.holds(site.factor / paper):
                yield _finding(Severity.DECLARED, site, name, site.factor, nearest, by, f"declared by {by}", tolerance)
            return
        reason = f"{cause_beside(site, site.factor, nearest, _close(evidence))}; stated by {by}"
        yield _finding(Severity.FAULT, site, name, site.factor, nearest, by, reason, tolerance)
        return
    share = 1.0 if site.absorbed else _weights_share(evidence, site)
    ratio = site.factor * share / paper
    if share == 1 and any(tolerance.holds(site.factor / usual) for usual in site.usual):
        return
    if share != 1 and threshold(NAME, "in_weights").holds(ratio):
        reason = "the rest stands in the weights of query and key"
        yield _finding(Severity.NOTE, site, name, site.factor, paper, PAPER, reason, tolerance)
        return
    widths = {one.width for one in evidence.trace.embeddings}
    close = DRAWN if share != 1 else _close(evidence)
    reason = cause(site, site.factor * share, evidence.attention, widths, close)
    yield _finding(Severity.FAULT, site, name, site.factor * share, paper, PAPER, reason, tolerance)


def _normalised(evidence: Evidence, site: Attention, tolerance: Threshold) -> Iterator[Finding | Skipped]:
    """Behind norms of query and key only a declared factor means anything; else logits are judged, at the start."""
    if evidence.trained:
        yield Skipped(site=site.name, reason="query and key are normalised, and training has moved their gains")
        return
    said = _declared(evidence, site)
    if said is not None and site.factor is not None:
        nearest = min(said[0], key=lambda value: abs(site.factor / value - 1))
        if not tolerance.holds(site.factor / nearest):
            reason = f"query and key are normalised; stated by {said[1]}"
            yield _finding(Severity.FAULT, site, site.name, site.factor, nearest, said[1], reason, tolerance)
            return
    healthy, std = threshold(NAME, "logit_std"), _logit_std(evidence, site)
    if std is None:
        yield Skipped(site=site.name, reason="the sizes of query and key could not be read")
        return
    if healthy.holds(std):
        return
    if _unbounded(evidence, site):
        yield Skipped(site=site.name, reason="its factor is a learned temperature without a bound: see qk-norm-growth")
        return
    stated = evidence.declared.attention or evidence.declared.qk_norm
    yield Finding(
        severity=Severity.DECLARED if stated else Severity.FAULT,
        site=site.name,
        quantity="standard deviation of the logits, query and key normalised",
        measured=std,
        expected=1.0,
        low=healthy.low,
        high=healthy.high,
        source=stated.by if stated else healthy.source,
        message=f"the logits of normalised queries and keys have a standard deviation of {std:.3g}, by c = "
        f"{site.factor:.4g}; expected about 1" + (f" (declared by {stated.by})" if stated else ""),
        mend=f"give the softmax c = {(site.factor or 1) / std:.3g}, or hand the factor you set to the kernel (scale=…)",
        file=site.site.file,
        line=site.site.line,
    )


def _unbounded(evidence: Evidence, site: Attention) -> bool:
    """Whether the factor is a learned temperature that the rule of those tells of."""
    largest = max([abs(factor) for factor in site.by_head if isfinite(factor)], default=abs(site.factor or 0.0))
    try:
        learned = [one.value for one in evidence.heard[2].found.values() if one.exponential]
    except Unobserved:
        return False
    bound = threshold("qk-norm-growth", "temperature")
    return any(not bound.holds(value) and abs(largest / value - 1) < ALIKE for value in learned)


def _logit_std(evidence: Evidence, site: Attention) -> float | None:
    """Of the products alone, without biases: slope · rms(q) · rms(k) · √d_k, for independent entries."""
    query, key = (evidence.size(site.name.replace(f"{Role.SCORE}", f"{role}")) for role in (Role.QUERY, Role.KEY))
    if query is None or key is None or site.slope is None:
        return None
    return site.slope * query * key * site.d_k**0.5


def _other_backend(evidence: Evidence, site: Attention, tolerance: Threshold) -> Iterator[Finding]:
    """Fused or written out, an attention has one factor."""
    name, trace = evidence.other_backend or ("", None)
    other = next((one for one in trace.attention if one.name == site.name), None) if trace is not None else None
    if other is None or other.factor is None or site.factor is None or tolerance.holds(other.factor / site.factor):
        return
    yield Finding(
        severity=Severity.FAULT,
        site=site.name,
        quantity=f"c of softmax(c · q · k), attention computed by {name}",
        measured=other.factor,
        expected=site.factor,
        low=site.factor * tolerance.low,
        high=site.factor * tolerance.high,
        source="one model: its attention, computed in another way",
        message=f"with {name}, scores are multiplied by {other.factor:.4g}, {other.factor / site.factor:.3g} times "
        f"the {site.factor:.4g} of {site.backend}, which is right",
        mend=f"hand {site.factor:.4g} to both: scale={site.factor:.4g} for the kernel, and the same where scores are "
        "written out",
        file=other.site.file,
        line=other.site.line,
    )


def _declared(evidence: Evidence, site: Attention) -> tuple[tuple[float, ...], str] | None:
    """What is stated of this site's factor, and by whom."""
    declared = evidence.declared
    if declared.attention_by_path is not None:
        for part, value in declared.attention_by_path.value.items():
            if part in f"{site.site.path}.":
                return (value,), declared.attention_by_path.by
    if declared.attention is not None:
        return declared.attention.value, declared.attention.by
    return None


def _weights_share(evidence: Evidence, site: Attention) -> float:
    """√d_k to some power that the weights of query and key hold; else 1.

    Queries and keys of a cross attention read different inputs: it goes as the others do, if its logits agree.
    """
    if not site.cross:
        return _own_share(evidence, site)
    others = [one for one in evidence.attention if not one.cross and one.d_k == site.d_k]
    shares = {_own_share(evidence, one) for one in others}
    std = max(site.softmax.std) if site.softmax else 0.0
    return max(shares) if shares and 1.0 not in shares and threshold(NAME, "logit_std").holds(std) else 1.0


def _own_share(evidence: Evidence, site: Attention) -> float:
    """√d_k to some power that the weights of query and key hold, beside those of the value; else 1.

    T5 divides by √d_k where it draws the query's weights. All three read the same input, so their sizes tell. Or the
    input of the query's projection was divided, which then is smaller than the key's.
    """
    near = threshold(NAME, "in_weights")
    if site.reads is not None and not site.cross and site.reads[1]:
        before = site.reads[0] / site.reads[1]
        if near.holds(before * site.d_k**0.5):
            return before
    if evidence.trained:
        return 1.0
    parts = (site.name.replace(f":{Role.SCORE}", f":{role}") for role in (Role.QUERY, Role.KEY, Role.VALUE))
    query, key, value = map(evidence.size, parts)
    if not query or not key or not value or not site.query_gain or not site.key_gain or not site.factor:
        return 1.0
    query, key = query / site.query_gain, key / site.key_gain
    # Beside a right factor the query alone must be small: sizes of all three may agree with a root by chance.
    right = threshold(NAME, "fp32").holds(site.factor * site.d_k**0.5)
    share = query / key if right else query * key / value**2
    power = site.d_k**-0.5
    return share if near.holds(share / power) else 1.0


def _close(evidence: Evidence) -> float:
    return EXACT if evidence.dtype in (torch.float32, torch.float64) else ROUNDED


def _finding(
    severity: Severity,
    site: Attention,
    name: str,
    measured: float,
    expected: float,
    source: str,
    reason: str,
    tolerance: Threshold,
) -> Finding:
    paper = site.d_k**-0.5
    off = "" if severity is Severity.DECLARED else f", {measured / expected:.3g} times the expected {expected:.4g}"
    return Finding(
        severity=severity,
        site=name,
        quantity="c of softmax(c · q · k)",
        measured=measured,
        expected=expected,
        low=expected * tolerance.low,
        high=expected * tolerance.high,
        source=source,
        message=f"scores are multiplied by {measured:.4g}{off} (d_k = {site.d_k}, 1/√d_k = {paper:.4g}): {reason}",
        mend=f"multiply queries times keys by {expected:.4g} once: scale={expected:.4g} for the kernel, "
        "and no factor on q, k or the scores beside it",
        file=site.site.file,
        line=site.site.line,
    )


RULE = Rule(
    name=NAME,
    what="Queries times keys reach the softmax with another factor than 1/√d_k, or than the one declared.",
    why="q and k of d_k independent unit entries have a product of variance d_k, so scores of standard deviation √d_k: "
    "8 at d_k = 64, where most rows of a softmax put all their weight on one key and pass no gradient. Divided by √d_k "
    "they have standard deviation 1 at any width.",
    when="From the first step, and the more the wider the heads. At one visible key a softmax is 1 whatever the "
    "factor. A scale that stands in the query's weights (T5), before the kernel, or half on q and half on k is found "
    "where it is, and counts.",
    example="""
from surd.audit.specimen import Attention, language_model


class Unscaled(Attention):
    def scores(self, query, key):
        return query @ key.transpose(-2, -1)


model = language_model()
for block in model.blocks:
    block.attention = Unscaled(block.attention.width, block.attention.heads)
""",
    cure="""
from surd.audit.specimen import Attention, language_model


class Scaled(Attention):
    def scores(self, query, key):
        return query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5


model = language_model()
for block in model.blocks:
    block.attention = Scaled(block.attention.width, block.attention.heads)
""",
    sources=(
        "Vaswani et al. 2017 (arXiv 1706.03762), section 3.2.1 and footnote 4",
        "Raffel et al. 2020 (arXiv 1910.10683): T5 keeps the factor in the initialisation of the queries",
        "Yang et al. 2022 (arXiv 2203.03466): μP uses 1/d_k",
    ),
    needs=Needs.PROBE,
    models=Models.BOTH,
    follows=("head-layout", "softmax-axis"),
    look=look,
)
