"""Two forwards in eval mode differ: dropout is at work there."""

from collections.abc import Iterator

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import threshold
from surd.measure.trials.chance import drawn_for
from surd.measure.trials.mixing import two_forwards

NAME = "eval-determinism"


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    dropped = evidence.mixing.dropped
    change = two_forwards(evidence.module, evidence.inputs)
    if threshold(NAME, "change").holds(change):
        return
    first = dropped[0] if dropped else None
    # What a published family draws in eval mode it was published with.
    meant = first is None and (evidence.declared.family is not None or drawn_for(evidence.module, evidence.inputs))
    rates = ", ".join(sorted({f"{one.rate:.3g}" for one in dropped}))
    yield Finding(
        severity=Severity.NOTE if meant else Severity.FAULT,
        site=(first.where.path or type(evidence.module).__name__) if first else type(evidence.module).__name__,
        quantity="relative difference of two forwards in eval mode",
        measured=change,
        expected=0.0,
        source="torch.nn.Module.eval: dropout is the identity" if first else "definition of a function",
        message=f"two forwards of the same inputs in eval mode differ by {change:.3g} of the output, expected 0: "
        + (f"dropout of rate {rates} is at work" if first else _told(meant)),
        mend="hand the rate over only in training: dropout_p=self.rate if self.training else 0.0, and "
        "F.dropout(x, rate, training=self.training)"
        if first
        else "draw in training alone (`if self.training`), or pass a generator, if the same input is to give the same "
        "output",
        file=first.where.file if first else "",
        line=first.where.line if first else 0,
    )


def _told(meant: bool) -> str:
    if meant:
        return "the forward draws which positions it keeps, or samples from what it computes"
    return "the forward draws random numbers that change or drop what it computes"


RULE = Rule(
    name=NAME,
    what="Two forwards in eval mode differ: dropout is at work there.",
    why="In eval mode dropout is the identity, so the same input gives the same output to the last bit. The fused "
    "kernel knows nothing of eval: it drops whatever rate it is handed. A rate of 0.1 on the weights of attention "
    "changes the output by a quarter of its size.",
    when="In every evaluation and in all use; training curves show nothing. Layers that are left out at random and "
    "noise on what is computed are for training as dropout is. A model that draws by design, as a masked autoencoder "
    "which positions it keeps, or a variational one its latent vector, is noted and not counted.",
    example="""
import torch.nn.functional as F

from surd.audit.specimen import Attention, language_model


class Fused(Attention):
    def forward(self, x, visible=None):
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        mix = F.scaled_dot_product_attention(query, key, value, attn_mask=visible, dropout_p=0.1)
        return self.out(self.merge(mix))


model = language_model()
for block in model.blocks:
    block.attention.__class__ = Fused
""",
    cure="""
import torch.nn.functional as F

from surd.audit.specimen import Attention, language_model


class Fused(Attention):
    def forward(self, x, visible=None):
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        rate = 0.1 if self.training else 0.0
        mix = F.scaled_dot_product_attention(query, key, value, attn_mask=visible, dropout_p=rate)
        return self.out(self.merge(mix))


model = language_model()
for block in model.blocks:
    block.attention.__class__ = Fused
""",
    sources=(
        "meta-pytorch/torchtune#1791: the fused kernel gets the rate in eval mode too",
        "torch.nn.functional.scaled_dot_product_attention: dropout is applied whatever the mode",
    ),
    needs=Needs.COMPARISON,
    models=Models.BOTH,
    follows=(),
    look=look,
)
