"""Angles of positions are computed in half precision, and err by more with every position."""

from collections.abc import Iterator

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped, Unobserved
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import threshold
from surd.measure.listeners.rotation import angles

NAME = "rope-precision"


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    found = angles(evidence.module, evidence.heard[1])
    if not found:
        raise Unobserved("no table of cosines and sines, and none computed in the forward")
    healthy = threshold(NAME, "angle")
    for one in found:
        if one.cause and not healthy.holds(one.error):
            yield Finding(
                severity=Severity.WARNING,
                site=one.site,
                quantity="largest error of an angle, in rad",
                measured=one.error,
                expected=0.0,
                high=healthy.high,
                source=healthy.source,
                message=f"{one.cause}: at position {one.positions - 1} an angle is off by up to {one.error:.3g} rad, "
                f"expected at most {healthy.high:g}",
                mend="compute positions times frequencies, and cos and sin of them, in fp32, outside autocast; round "
                "the table afterwards",
            )


RULE = Rule(
    name=NAME,
    what="Angles of positions are computed in half precision, and err by more with every position.",
    why="bfloat16 holds 769 different numbers of the first 4096 positions; a frequency rounded to 8 bits is off by up "
    "to 0.2 %, and position 4095 turns by 0.002 · 4095 = 8 rad the wrong way. Cosines rounded after fp32 are right to "
    "0.004.",
    when="With long texts, in models that are moved to half precision as a whole, buffers included, or run in "
    "autocast.",
    example="""
import torch

from surd.audit.specimen import Attention, language_model


class Rotary(Attention):
    def turned(self, x):
        frequency = (10000.0 ** -(torch.arange(8) / 8)).bfloat16().float()
        angle = torch.arange(x.shape[-2])[:, None] * frequency
        cosine, sine = torch.cat((angle, angle), -1).cos(), torch.cat((angle, angle), -1).sin()
        first, second = x.chunk(2, -1)
        return x * cosine + torch.cat((-second, first), -1) * sine

    def scores(self, query, key):
        return super().scores(self.turned(query), self.turned(key))


model = language_model()
for block in model.blocks:
    rotary = Rotary(block.attention.width, block.attention.heads)
    rotary.load_state_dict(block.attention.state_dict())
    block.attention = rotary
""",
    cure="""
import torch

from surd.audit.specimen import Attention, language_model


class Rotary(Attention):
    def turned(self, x):
        frequency = 10000.0 ** -(torch.arange(8) / 8)
        angle = torch.arange(x.shape[-2])[:, None] * frequency
        cosine, sine = torch.cat((angle, angle), -1).cos(), torch.cat((angle, angle), -1).sin()
        first, second = x.chunk(2, -1)
        return x * cosine + torch.cat((-second, first), -1) * sine

    def scores(self, query, key):
        return super().scores(self.turned(query), self.turned(key))


model = language_model()
for block in model.blocks:
    rotary = Rotary(block.attention.width, block.attention.heads)
    rotary.load_state_dict(block.attention.state_dict())
    block.attention = rotary
""",
    sources=(
        "Su et al. 2021 (arXiv 2104.09864)",
        "huggingface/transformers#29285: a rotary table under autocast",
        "sgl-project/sglang-jax#1472: rounded inverse frequencies",
    ),
    needs=Needs.PROBE,
    models=Models.BOTH,
    follows=(),
    look=look,
)
