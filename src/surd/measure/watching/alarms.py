"""Alarms: what in a training is out of its range, one rule a class, each with its threshold and the source of it.

Two ranges hold where a rule has two: the strict one for the first forward of an untrained model, whose numbers follow
from its initialisation, and a wide one ever after. Sharp attention is no fault in a trained model: heads that look at
the previous token, that copy, or that rest on the first one (Xiao et al. 2023, arXiv 2309.17453) are one-hot and right.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from surd.measure.watching.vitals import Alarm, Range, Vitals

UNTRAINED = "untrained, Gaussian logits of standard deviation 1.5"
"""At 16 keys they have 0.72 of the largest entropy and no dead row in a thousand; 1 is what 1/√d_k gives."""
NON_FINITE = "non-finite"


@dataclass(frozen=True, kw_only=True)
class EntropyCollapse:
    """Whole heads that attend to one key each: Zhai et al. 2023 (arXiv 2303.06296)."""

    lowest: float = 0.7
    """Of every head of an untrained model, entropy over ln n."""
    collapsed: float = 0.02
    """Below, a head counts as collapsed."""
    most: float = 0.25
    """Share of all heads that may be collapsed in a trained model: single ones are normal."""

    def judge(self, now: Vitals, first: Vitals) -> Alarm | None:
        """The lowest head of all."""
        heads = [(entropy, site.site.name) for site in now.attention for entropy in site.entropy if entropy == entropy]
        if not heads:
            return None
        value, site = min(heads)
        limit = self.lowest if now.fresh else self.collapsed
        low = [name for entropy, name in heads if entropy < limit]
        if not low or (not now.fresh and len(low) <= self.most * len(heads)):
            return None
        if now.fresh:
            source = UNTRAINED
            advice = "Divide query·key by √d_k, or start the projections smaller, before training."
        else:
            source = f"at most {self.most:.0%} of all heads below; Zhai et al. 2023"
            advice = "Lower the learning rate or lengthen the warm-up; a norm on queries and keys prevents it."
        return Alarm(
            kind="entropy-collapse",
            site=site,
            step=now.step,
            value=value,
            expected=Range(low=limit, high=1.0, source=source),
            advice=advice,
            others=len(set(low)) - 1,
        )


@dataclass(frozen=True, kw_only=True)
class LogitGrowth:
    """Attention logits that run away: Dehghani et al. 2023 (arXiv 2302.05442), Wortsman et al. 2023."""

    largest: float = 50.0
    """|logit|. Gemma 2 caps its own there (arXiv 2408.00118)."""
    growth: float = 2.0
    """Over the first observation: what was trained with large logits may keep them."""

    def judge(self, now: Vitals, first: Vitals) -> Alarm | None:
        """The site with the largest logit."""
        before = {site.site.name: site.largest for site in first.attention}
        limits = {name: max(self.largest, self.growth * value) for name, value in before.items()}
        if first.fresh:
            limits = {}
        return _worst(
            [(site.largest, site.site.name, limits.get(site.site.name, self.largest)) for site in now.attention],
            now.step,
            "logit-growth",
            "the cap of Gemma 2 (2024); divergence beyond: Wortsman et al. 2023 (arXiv 2309.14322)",
            "Add a norm on queries and keys, or a soft cap; else lower the learning rate.",
        )


@dataclass(frozen=True, kw_only=True)
class DeadRows:
    """Rows of a softmax so sharp that no gradient passes: their Jacobian has a norm below 0.01."""

    untrained: float = 0.01
    """Share of a site's rows in an untrained model: the share of rows is what an unscaled product shows."""
    trained: float = 0.8
    """Share in a trained one, whose sharp heads are mostly right: our own judgement."""

    def judge(self, now: Vitals, first: Vitals) -> Alarm | None:
        """The site with the largest share."""
        limit, source = (self.untrained, UNTRAINED) if now.fresh else (self.trained, "own judgement")
        advice = (
            "Divide query·key by √d_k, or start the projections smaller."
            if now.fresh
            else "The attention of this layer no longer learns: lower the learning rate, or bound its logits."
        )
        return _worst(
            [(site.dead_rows, site.site.name, limit) for site in now.attention],
            now.step,
            "dead-rows",
            source,
            advice,
        )


@dataclass(frozen=True, kw_only=True)
class StreamGrowth:
    """A residual stream that grows over the depth, or in time, until the rest drowns in it.

    Untrained sound models differ widely (tables of standard deviation 0.02 make the stream grow tenfold in two layers),
    so only what is far outside counts: Xiong et al. 2020 (arXiv 2002.04745) expect √(1 + 2 · layers).
    """

    depth: float = 100.0
    """Largest growth from the beginning of a stream to its end, and ten times what it was at first."""
    time: float = 1000.0
    """Largest growth of any site since the first observation."""

    def judge(self, now: Vitals, first: Vitals) -> Alarm | None:
        """Growth over the depth, else over time."""
        before = {site.site.name: site for site in first.stream}
        advice = (
            "Make the layers' outputs start smaller (1/√(2 · layers)), clip the gradient or lower the learning rate."
        )
        deep = [
            (
                site.growth,
                site.site.name,
                max(self.depth, 10 * before[site.site.name].growth)
                if site.site.name in before and not first.fresh
                else self.depth,
            )
            for site in now.stream
            if site.start
        ]
        late = [
            (site.rms / before[site.site.name].rms, site.site.name, self.time)
            for site in now.stream
            if site.site.name in before and before[site.site.name].rms
        ]
        return _worst(deep, now.step, "stream-growth", "own judgement, after Xiong et al. 2020", advice) or _worst(
            late, now.step, "stream-growth", "own judgement, over the first observation", advice
        )


@dataclass(frozen=True, kw_only=True)
class UpdateRatio:
    """Updates so large that a matrix is not what it was.

    Ordinary ones change a matrix by 10⁻⁴ to 10⁻² of its size; in balance with weight decay by √(2 · rate · decay),
    which is 0.014 at 10⁻³ and 0.1: Kosson et al. 2024 (arXiv 2305.17212). Adam's first step moves each entry by the
    whole learning rate, so a small initialisation reaches a tenth.
    """

    largest: float = 0.3

    def judge(self, now: Vitals, first: Vitals) -> Alarm | None:
        """The matrix that is changed most."""
        return _worst(
            [(update.ratio, update.name, self.largest) for update in now.updates if not update.blank],
            now.step,
            "update-ratio",
            "own judgement; Kosson et al. 2024 expect about 0.01",
            "Lower the learning rate of this matrix, or warm it up.",
        )


@dataclass(frozen=True, kw_only=True)
class BrokenTie:
    """Names that should be one Parameter and are several: Press & Wolf 2017 (arXiv 1608.05859)."""

    def judge(self, now: Vitals, first: Vitals) -> Alarm | None:
        """The first of the broken ones."""
        broken = [(float(tie.parameters), " = ".join(tie.names), 1.0) for tie in now.ties if tie.parameters > 1]
        if not broken:
            return None
        return Alarm(
            kind="broken-tie",
            site=broken[0][1],
            step=now.step,
            value=broken[0][0],
            expected=Range(low=1.0, high=1.0, source="a tie is one Parameter"),
            advice="Assign the same Parameter to all names again, then make a new optimiser: this one may hold others.",
            others=len(broken) - 1,
        )


Rule = EntropyCollapse | LogitGrowth | DeadRows | StreamGrowth | UpdateRatio | BrokenTie
"""All rules; that a loss or gradient is not finite needs none."""
RULES: tuple[Rule, ...] = (
    EntropyCollapse(),
    LogitGrowth(),
    DeadRows(),
    StreamGrowth(),
    UpdateRatio(),
    BrokenTie(),
)


def judge(now: Vitals, first: Vitals, rules: Sequence[Rule] = RULES) -> tuple[Alarm, ...]:
    """Everything that is out of its range now; `first` is the first observation of the same watch."""
    return tuple(alarm for rule in rules if (alarm := rule.judge(now, first)) is not None)


def non_finite(step: int, value: float, site: str, advice: str) -> Alarm:
    """The alarm for a loss or gradient that is no number."""
    return Alarm(
        kind=NON_FINITE,
        site=site,
        step=step,
        value=value,
        expected=Range(source="what is infinite or no number reaches every weight with the next update"),
        advice=advice,
    )


def _worst(found: Iterable[tuple[float, str, float]], step: int, kind: str, source: str, advice: str) -> Alarm | None:
    """The alarm for the largest of (value, site, limit), if any is above its limit."""
    above = [(value / limit, value, site, limit) for value, site, limit in found if value > limit]
    if not above:
        return None
    _, value, site, limit = max(above)
    return Alarm(
        kind=kind,
        site=site,
        step=step,
        value=value,
        expected=Range(high=limit, source=source),
        advice=advice,
        others=len({name for *_, name, _ in above}) - 1,
    )
