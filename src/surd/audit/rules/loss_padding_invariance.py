"""The loss changes when padding is added or the batch is doubled: it is no mean over the real targets."""

from collections.abc import Iterator

import torch

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import threshold
from surd.measure.trials.target_weights import TargetWeights

NAME = "loss-padding-invariance"
CLOSE = 0.05
"""How near to a count a sum of weights must be to be one; targets of another mass than 1 are another rule's."""
SMOOTHED = 1e-3
"""Share of a target's mass from which what is spread over the other classes is no rounding."""
MOST = 1.5
"""The largest mass that smoothing gives by mistake: ε beside a whole target makes 1 + ε."""


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    targets, untargeted = evidence.targets, evidence.untargeted
    share = _share(targets, untargeted)
    if share is None:
        yield Skipped(site="padding", reason="the inputs hold no padding whose id is known: give a batch with some")
    elif not threshold(NAME, "padding").holds(share) and _whole(targets, untargeted):
        yield _finding(
            Severity.FAULT,
            "share of the loss that padding has",
            share,
            0.0,
            f"{share:.1%} of the loss is that of padded positions, which then teach the model to predict padding",
            "ignore padding in the loss: ignore_index, or a mask on every term of it, and divide by what is left",
        )
        return
    counted, total = targets.counted, targets.total
    mass = mass_of(targets) or 1.0
    if abs(total / mass / counted - 1) < CLOSE and counted > 1:
        yield _finding(
            Severity.WARNING,
            "loss of a doubled batch over that of the batch",
            2.0,
            1.0,
            f"the loss is a sum over {counted:,} targets: it and its gradient grow with the batch",
            "divide by the number of real targets of the whole accumulated batch",
        )
    elif abs(total / mass - 1) > CLOSE:
        yield _divided(targets, mass)
    elif (ratio := _by_row(targets)) is not None:
        yield _finding(
            Severity.WARNING,
            "weight of a target of the shortest row over that of one of the longest",
            ratio,
            1.0,
            f"the loss is a mean of means: a target of the shortest row counts {ratio:.3g} times as much as one of the "
            "longest",
            "add the losses of all targets, and divide once by the number of real targets of the whole batch",
        )


def _divided(targets: TargetWeights, mass: float) -> Finding:
    """A sum over targets by a number that is not theirs: that of all positions, that of the rows, or one of its own."""
    counted, positions, total = targets.counted, len(targets.weights), targets.total / mass
    divisor, rows = counted / total, targets.shape[0]
    if counted < positions and abs(divisor / positions - 1) < CLOSE:
        return _finding(
            Severity.FAULT,
            "sum of the weights of all targets",
            total,
            1.0,
            f"the weights of {counted:,} targets sum to {total:.4g}: the loss depends on how much padding stands "
            f"beside them (1/{total:.3g} = {1 / total:.3g} times as many positions as targets)",
            "divide by the number of real targets, and not by that of all positions",
        )
    if len(targets.shape) == 2 and abs(divisor / rows - 1) < CLOSE:
        return _finding(
            Severity.FAULT,
            "sum of the weights of all targets",
            total,
            1.0,
            f"the losses of {counted:,} targets are divided by the {rows} rows of the batch: the loss and its gradient "
            "grow with the length of the rows",
            "divide by the number of real targets",
        )
    return _finding(
        Severity.NOTE,
        "sum of the weights of all targets",
        total,
        1.0,
        f"the loss is {total:.3g} times a mean over {counted:,} targets: a factor of its own, such as that of one of "
        "several terms, or of accumulated batches",
        "nothing, if the factor is meant",
    )


def mass_of(targets: TargetWeights) -> float | None:
    """The mass of smoothed targets, of a mean or of a sum; None where nothing is smoothed, or a mean explains it."""
    weights = targets.weights
    real = weights > 1e-9 * weights.max()
    spread = 1 - float((targets.pointed[real] / weights[real]).median())
    total, counted, positions = targets.total, targets.counted, len(weights)
    if spread < SMOOTHED or abs(total * positions / counted - 1) < SMOOTHED:
        return None
    fit = [mass for mass in (total, total / counted) if 1 / MOST < mass < MOST]
    return min(fit, key=lambda mass: abs(mass - 1)) if fit else None


def _by_row(targets: TargetWeights) -> float | None:
    """How much more a target counts in the shortest row than in the longest, where each row has a mean of its own."""
    if len(targets.shape) != 2:
        return None
    weights = targets.weights.view(targets.shape)
    counts = (weights > 1e-9 * weights.max()).sum(1)
    if int(counts.min()) == 0 or int(counts.min()) == int(counts.max()):
        return None
    sums = weights.sum(1)
    if float((sums / sums.mean() - 1).abs().max()) > SMOOTHED:
        return None
    return int(counts.max()) / int(counts.min())


def _share(targets: TargetWeights, untargeted: torch.Tensor | None) -> float | None:
    """Of the weight at padding in all of it."""
    if untargeted is None or not bool(untargeted.any()):
        return None
    return float(targets.weights[untargeted].sum() / targets.weights.sum())


def _whole(targets: TargetWeights, untargeted: torch.Tensor | None) -> bool:
    """Whether padding counts as a target, rather than only in the smoothed part of one."""
    return untargeted is not None and bool((targets.pointed[untargeted] > 0.5 * targets.weights[untargeted]).any())


def _finding(severity: Severity, quantity: str, measured: float, expected: float, message: str, mend: str) -> Finding:
    return Finding(
        severity=severity,
        site=":loss",
        quantity=quantity,
        measured=measured,
        expected=expected,
        source="definition of a mean over real targets",
        message=message,
        mend=mend,
    )


_MODEL = """
import torch
import torch.nn.functional as F

from surd.audit.specimen import encoder

PADDING = 0
tokens = torch.randint(1, 500, (6, 13), generator=torch.Generator().manual_seed(0))
tokens[1::2, 9:] = PADDING
model = torch.nn.Sequential(encoder(), torch.nn.Linear(64, 500))
inputs = (tokens,)
"""

RULE = Rule(
    name=NAME,
    what="The loss counts padding, is a sum, or is divided by something else than the number of real targets.",
    why="A mean over N real targets gives each the weight 1/N, and padding none. The gradient at the logits is "
    "w(p − y) for "
    "a target of weight w, so the weights can be read from it: they sum to 1 whatever is padded and however large "
    "the batch.",
    when="In every batch of unequal lines: long padding makes the loss small and the gradient of real words "
    "with it. A sum "
    "is right where the trainer divides by the targets of the whole accumulated batch; then say so with a baseline.",
    example=f"""{_MODEL}

def loss(logits):
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
""",
    cure=f"""{_MODEL}

def loss(logits):
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), ignore_index=PADDING)
""",
    sources=(
        "huggingface/transformers#7546: a smoothed loss that was a sum",
        "k-tahiro/bert-summarizer#41: a smoothing loss that did not ignore padding",
        "huggingface/transformers#34191: means over unequal micro-batches",
    ),
    needs=Needs.COMPARISON,
    models=Models.BOTH,
    follows=("double-softmax",),
    look=look,
)
