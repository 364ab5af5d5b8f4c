"""Smoothed targets are no distribution: their mass is not 1, or ignored positions still have some."""

from collections.abc import Iterator

import torch

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity
from surd.audit.rule import Models, Needs, Rule
from surd.audit.rules.loss_padding_invariance import mass_of
from surd.audit.thresholds import threshold

NAME = "label-smoothing-mass"
SOURCE = "Szegedy et al. 2016 (arXiv 1512.00567), section 7: targets are a distribution"


def look(evidence: Evidence) -> Iterator[Finding]:
    targets = evidence.targets
    weights, largest = targets.weights, float(targets.weights.max())
    # A position that has weight, but no target above the other classes, counts in the smoothed part alone.
    stray = (weights > 1e-9 * largest) & (targets.pointed < 1e-3 * weights)
    if bool(stray.any()) and not bool(stray.all()):
        mass = float(weights[stray].mean() / weights[~stray].max())
        yield _finding(
            "mass of the targets of ignored positions",
            mass,
            0.0,
            f"{int(stray.sum())} positions have no target and still count with {mass:.3g} of one: the smoothed "
            "part of the "
            "loss is not masked",
            "mask both terms of the smoothed loss, that of the target and that of all classes",
        )
        return
    mass = mass_of(targets)
    healthy = threshold(NAME, "mass" if evidence.dtype in (torch.float32, torch.float64) else "half")
    if mass is not None and not healthy.holds(mass):
        yield _finding(
            "mass of the smoothed targets",
            mass,
            1.0,
            f"each target has a mass of {mass:.5g}: what smoothing spreads is not what it takes from the target",
            "spread ε over V classes and keep 1 − ε + ε/V at the target; or over V − 1 others, and keep 1 − ε",
        )


def _finding(quantity: str, measured: float, expected: float, message: str, mend: str) -> Finding:
    return Finding(
        severity=Severity.FAULT,
        site=":loss",
        quantity=quantity,
        measured=measured,
        expected=expected,
        source=SOURCE,
        message=message,
        mend=mend,
    )


_MODEL = """
import torch

from surd.audit.specimen import encoder

PADDING, SMOOTHING = 0, 0.1
tokens = torch.randint(1, 500, (6, 13), generator=torch.Generator().manual_seed(0))
tokens[1::2, 9:] = PADDING
model = torch.nn.Sequential(encoder(), torch.nn.Linear(64, 500))
inputs = (tokens,)
"""

RULE = Rule(
    name=NAME,
    what="The targets of a smoothed loss are no distributions: a mass other than 1, or some at padding.",
    why="A smoothed target has 1 − ε at the right class and ε spread over all, 1 together; an ignored position "
    "has none. The "
    "gradient at the logits is w(M p − y), so its slope in p is the mass M.",
    when="Always: padded batches pull the model towards the uniform distribution, the more the more they are padded.",
    example=f"""{_MODEL}

def loss(logits):
    log_p = logits.log_softmax(-1)
    real = (tokens != PADDING).to(log_p.dtype)
    right = -log_p.gather(-1, tokens[..., None])[..., 0]
    spread = -log_p.mean(-1)
    return ((1 - SMOOTHING) * (right * real).sum() + SMOOTHING * spread.sum()) / real.sum()
""",
    cure=f"""{_MODEL}

def loss(logits):
    log_p = logits.log_softmax(-1)
    real = (tokens != PADDING).to(log_p.dtype)
    right = -log_p.gather(-1, tokens[..., None])[..., 0]
    spread = -log_p.mean(-1)
    return (((1 - SMOOTHING) * right + SMOOTHING * spread) * real).sum() / real.sum()
""",
    sources=(
        "Szegedy et al. 2016 (arXiv 1512.00567), section 7",
        "harvardnlp/annotated-transformer#39: a target that is padding",
        "pytorch/pytorch#73205: the smoothed part counted ignored positions",
    ),
    needs=Needs.PROBE,
    models=Models.BOTH,
    follows=("double-softmax", "loss-padding-invariance"),
    look=look,
)
