"""What every model of ours shares: an architecture, the layers built from it, and the pre-softmax projection."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from surd.measure.ledger import Telling, Trial
from surd.measure.signal import Expectation, Signal, Tape
from surd.measure.sites import Role
from surd.models.architecture import Architecture
from surd.nn.block import Residual
from surd.nn.embedding import Embedding
from surd.nn.feedforward import PositionWise
from surd.nn.linear import Projection
from surd.nn.loss import LossSums
from surd.nn.multihead import Heads
from surd.nn.norm import NormOrder
from surd.nn.position import Rotary
from surd.nn.ragged import Ragged
from surd.nn.special import SPECIALS
from surd.nn.stack import LastNorm
from surd.nn.tying import Tying

TRIAL_SENTENCES, TRIAL_LENGTHS = 24, (13, 14)
"""What the ledger measures on: sequences, and positions in each of them, prime to the widths of heads."""


class Model(Telling):
    """A stack to be built between tables and softmax; a subclass is final.

    Weights are kept in fp32; `compute_dtype` is the dtype of the activations. The projection is assigned last: what is
    tied is stored, and drawn, under the name of its table.
    """

    projection: Projection
    expect: Callable[..., dict[str, Expectation]]
    """What the parts say of each site at the start, for so many positions in each sequence that is read."""
    loss: Callable[..., LossSums]
    """Sums of the loss over what a batch says, from what it reads."""

    @property
    def vocabularies(self) -> tuple[int, ...]:
        """Sizes of its vocabularies, last that of what it writes."""
        raise NotImplementedError

    def __init__(self, architecture: Architecture):
        super().__init__()
        self.architecture = architecture
        self.compute_dtype = torch.float32

    def tie(self) -> None:
        """Makes the declared ties and verifies them; called after every operation that could break one."""
        raise NotImplementedError

    def verify_ties(self) -> None:
        """Asserts that exactly the declared matrices are one Parameter."""
        raise NotImplementedError

    def embedding(self, vocabulary: int) -> Embedding:
        """The way from tokens into the stream."""
        a = self.architecture
        return Embedding(vocabulary, a.d_model, a.multiplier(a.d_model), a.position, a.dropout, a.input_gradient)

    def residual(self, gain: float = 1.0) -> Residual:
        """What joins a sub-layer to the stream."""
        a = self.architecture
        return Residual(a.norm.build(a.d_model, gain), a.norm_order, a.dropout)

    def last_norm(self, gain: float = 1.0) -> LastNorm:
        """What a stack ends in: a pre-norm one in a norm, a post-norm one has it already."""
        a = self.architecture
        return a.norm.build(a.d_model, gain) if a.norm_order is NormOrder.PRE else nn.Identity()

    def feedforward(self) -> PositionWise:
        """The position-wise network of a layer."""
        return self.architecture.feedforward.build(self.architecture.d_model, self.architecture.d_ff)

    def heads(self, itself: bool) -> Heads:
        """Attention of a sequence to itself, or to another one: distances mean nothing there."""
        a = self.architecture
        return Heads(
            d_model=a.d_model,
            heads=a.heads,
            d_k=a.d_k,
            key_value_heads=a.key_value_heads,
            scale=a.scale,
            score=a.score,
            cap=a.cap,
            norm=a.query_key_norm,
            rotary=a.position if itself and isinstance(a.position, Rotary) else None,
            rate=a.attention_dropout,
        )

    def softmax_projection(self, vocabulary: int) -> Projection:
        """The way out to the scores of so many tokens."""
        return Projection(self.architecture.d_model, vocabulary, bias=self.architecture.output_bias)

    def logits(self, hidden: Float[Tensor, "rows d_model"]) -> Float[Tensor, "rows vocabulary"]:
        """Scores of every token of the vocabulary that is written."""
        return self.projection(hidden)

    def wide_logits(self, hidden: Float[Tensor, "rows d_model"]) -> Float[Tensor, "rows vocabulary"]:
        """The same, in fp32 at least."""
        logits = self.logits(hidden)
        return logits.float() if logits.dtype.itemsize < 4 else logits

    def expect_logits(self, hidden: Signal, tape: Tape) -> dict[str, Expectation]:
        """What the parts say of each site, once the last hidden states are known as a signal."""
        tied = self.architecture.tying is not Tying.NONE
        self.projection.expect(tape.note(self.projection, Role.HIDDEN, hidden), tied, tape)
        return tape.expectations()

    def trial(self) -> Trial:
        """Random tokens for the ledger, and what the parts predict of them."""
        generator = torch.Generator().manual_seed(0)
        lengths = TRIAL_LENGTHS[-len(self.vocabularies) :]
        *inputs, labels = (
            Ragged.from_lists(
                torch.randint(len(SPECIALS), size, (TRIAL_SENTENCES, length), generator=generator).tolist()
            )
            for size, length in zip((*self.vocabularies, self.vocabularies[-1]), (*lengths, lengths[-1]), strict=True)
        )
        device = self.projection.weight.device
        wanted = labels.tokens.to(device)
        return Trial(
            inputs=tuple(ragged.to(device) for ragged in inputs),
            loss=lambda hidden: F.cross_entropy(self.wide_logits(hidden), wanted, reduction="sum"),
            expected=self.expect(*lengths),
        )

    def parameter_counts(self) -> tuple[int, int]:
        """Numbers held (a shared matrix once), and numbers that tying saved."""
        unique = sum(p.numel() for p in self.parameters())
        named = sum(p.numel() for _, p in self.named_parameters(remove_duplicate=False))
        return unique, named - unique
