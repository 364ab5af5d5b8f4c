"""The softmax of a head is one-hot, or exactly uniform."""

from collections.abc import Iterator
from math import log

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped, as_one
from surd.audit.rule import Models, Needs, Rule
from surd.audit.rules.attention_scale import head_name
from surd.audit.thresholds import threshold
from surd.measure.sites import Attention, Role
from surd.measure.softmax.statistics import FEWEST_KEYS

NAME = "attention-entropy"
REFERENCE = 128
"""Keys of the rows that the threshold is written for."""


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    uniform: list[Finding] = []
    sharp: list[Finding] = []
    for site in evidence.attended:
        if site.softmax is None or site.softmax.keys < FEWEST_KEYS:
            yield Skipped(site=site.name, reason=f"no row of its softmax was seen with {FEWEST_KEYS} keys or more")
            continue
        uniform += _uniform(evidence, site)
        if evidence.trained:
            sharp += _one_hot(site)
        elif not site.qk_norm:  # behind a norm of query and key the size of the logits is a choice, and judged as such
            sharp += _sharp(site)
    yield from as_one(uniform, lambda one: float(one.measured))
    yield from as_one(sharp, lambda one: -float(one.measured))


def _uniform(evidence: Evidence, site: Attention) -> Iterator[Finding]:
    """Logits so small that all keys weigh the same to the last digit; at zero they were set so, and learn.

    Where values are as small, all of the stream is, and the logits are as large as they can be. What is still zero
    after training has learned nothing.
    """
    assert site.softmax is not None
    healthy, spread = threshold(NAME, "beside_values"), site.softmax.std
    value = evidence.size(site.name.replace(f"{Role.SCORE}", f"{Role.VALUE}"))
    flat = [head for head, std in enumerate(spread) if std == 0 and evidence.trained]
    if value and site.factor and not site.qk_norm:
        usual = abs(site.factor) * site.d_k**0.5 * value**2
        flat += [head for head, std in enumerate(spread) if 0 < std < healthy.low * min(usual, 1.0)]
    if flat:
        std = max(site.softmax.std[head] for head in flat)
        yield _finding(
            site,
            flat,
            measured=1.0,
            range=(None, 1.0),
            message=f"{len(flat)} of {len(site.softmax.std)} heads weigh all keys alike to the last digit: H/ln n = 1 "
            f"with logits of a standard deviation of {std:.2g}, expected about 1",
            mend="let these heads go, or draw their queries and keys anew: a head of zeros has no gradient to either"
            if evidence.trained
            else "draw query and key with the standard deviation of the other matrices: what either learns from is the "
            "size of the other",
            source=healthy.source,
        )


def _one_hot(site: Attention) -> Iterator[Finding]:
    """A whole head that looks at one key in every row.

    Where that is one key for all rows, it is a sink; where it is the one at the same distance, as the token before, it
    is a head of positions, which is normal among others (Clark et al. 2019, arXiv 1906.04341, section 3.1).
    """
    assert site.softmax is not None
    healthy, sink = threshold(NAME, "trained"), threshold(NAME, "sink")
    pairs = list(zip(site.softmax.entropy, site.softmax.shared, strict=True))
    sharp = [head for head, (entropy, shared) in enumerate(pairs) if entropy < healthy.low and shared < sink.high]
    placed = [head for head in sharp if not threshold(NAME, "distance").holds(site.softmax.distance[head])]
    if len(placed) < len(pairs):
        sharp = [head for head in sharp if head not in placed]
    if sharp:
        measured = sum(pairs[head][0] for head in sharp) / len(sharp)
        yield _finding(
            site,
            sharp,
            measured=measured,
            range=(healthy.low, None),
            message=f"{len(sharp)} of {len(pairs)} heads put all their weight on one key in every row: H/ln n = "
            f"{measured:.2g}, logits up to {max(site.softmax.largest[head] for head in sharp):.3g}",
            mend="normalise query and key, cap the logits, or lower the learning rate of their projections and warm it "
            "up longer",
            source=healthy.source,
        )


def _sharp(site: Attention) -> Iterator[Finding]:
    """At the start every key gets some weight."""
    assert site.softmax is not None
    lowest = _lowest(site.softmax.keys)
    sharp = [head for head, one in enumerate(site.softmax.entropy) if one < lowest]
    if sharp:
        measured = sum(site.softmax.entropy[head] for head in sharp) / len(sharp)
        std = sum(site.softmax.std[head] for head in sharp) / len(sharp)
        yield _finding(
            site,
            sharp,
            measured=measured,
            range=(lowest, None),
            message=f"before any training {len(sharp)} of {len(site.softmax.entropy)} heads look at few keys: H/ln n = "
            f"{measured:.3g}, expected at least {lowest:.2g}; logits have a standard deviation of {std:.3g}",
            mend=f"make the logits {max(std, 1.0):.2g} times smaller, by the initialisation of query and key or by "
            "what is added to the scores",
            source=threshold(NAME, "untrained").source,
        )


def _lowest(keys: int) -> float:
    """What logits that leave the lowest healthy share of ln 128 leave of ln n: fewer keys, less to lose it from."""
    low = threshold(NAME, "untrained").low
    assert low is not None, "the table says so"
    return 1 - (1 - low) * log(REFERENCE) / log(min(keys, REFERENCE))


def _finding(
    site: Attention,
    heads: list[int],
    *,
    measured: float,
    range: tuple[float | None, float | None],
    message: str,
    mend: str,
    source: str,
) -> Finding:
    assert site.softmax is not None
    whole = len(heads) == len(site.softmax.std)
    return Finding(
        severity=Severity.WARNING,
        site=site.name if whole else head_name(site, heads[0]),
        quantity="H / ln n, mean over rows",
        measured=measured,
        expected=0.9,
        low=range[0],
        high=range[1],
        source=source,
        message=message,
        mend=mend,
        file=site.site.file,
        line=site.site.line,
    )


RULE = Rule(
    name=NAME,
    what="The softmax of a head is one-hot, or exactly uniform.",
    why="Logits of standard deviation s over n keys leave H/ln n = 1 − s²/(2 ln n): 0.9 at s = 1 and n = 128. Far "
    "below, a row reads one position; at 1 to the last digit, logits are so small that neither query nor key learns, "
    "since each learns from the size of the other.",
    when="Low entropy matters at the start, and in a trained model where a whole head has it. Heads that all look at "
    "one key are sinks and normal; heads that start uniform because a projection starts at zero are a choice.",
    example="""
import torch

from surd.audit.specimen import Attention, language_model


class Distance(Attention):
    def scores(self, query, key):
        place = torch.arange(query.shape[-2])
        return super().scores(query, key) - 1.5 * (place[:, None] - place).abs()


model = language_model()
for block in model.blocks:
    attention = Distance(block.attention.width, block.attention.heads)
    attention.load_state_dict(block.attention.state_dict())
    block.attention = attention
""",
    cure="""
import torch

from surd.audit.specimen import Attention, language_model


class Distance(Attention):
    def scores(self, query, key):
        place = torch.arange(query.shape[-2])
        return super().scores(query, key) - 0.15 * (place[:, None] - place).abs()


model = language_model()
for block in model.blocks:
    attention = Distance(block.attention.width, block.attention.heads)
    attention.load_state_dict(block.attention.state_dict())
    block.attention = attention
""",
    sources=(
        "Zhai et al. 2023 (arXiv 2303.06296): entropy collapse",
        "Xiao et al. 2023 (arXiv 2309.17453): attention sinks",
        "lucidrains/x-transformers#245: scores of 1e-9",
    ),
    needs=Needs.PROBE,
    models=Models.BOTH,
    follows=(
        "softmax-saturation",
        "attention-scale",
        "attention-logit-max",
        "embedding-scale",
        "init-std",
        "soft-cap",
        "residual-growth",
    ),
    look=look,
)
