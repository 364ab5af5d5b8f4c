"""One layer of encoder or decoder, with a source or without: sub-layers joined to the residual stream."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from surd.measure.signal import Signal, Tape
from surd.measure.sites import Role
from surd.nn.cache import KeysValues
from surd.nn.dropout import add_dropped
from surd.nn.feedforward import PositionWise
from surd.nn.mask import Mask
from surd.nn.mixing import Sight
from surd.nn.multihead import CrossAttention, SelfAttention
from surd.nn.norm import NormLayer, NormOrder
from surd.nn.ragged import Layout


class Residual(nn.Module):
    """Joins a sub-layer to the stream: post-norm `norm(x + drop(f(x)))`, pre-norm `x + drop(f(norm(x)))`."""

    def __init__(self, norm: NormLayer, order: NormOrder, rate: float):
        super().__init__()
        self.norm, self.order, self.rate = norm, order, rate

    def forward(
        self, x: Float[Tensor, "rows d_model"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "rows d_model"]:
        if self.order is NormOrder.PRE:
            return add_dropped(x, sublayer(self.norm(x)), self.rate, self.training)
        return self.norm(add_dropped(x, sublayer(x), self.rate, self.training))

    def expect(self, x: Signal, sublayer: Callable[[Signal], Signal], tape: Tape) -> Signal:
        """What `forward` does to a signal."""
        before = self.order is NormOrder.PRE
        x = tape.note(self, Role.STREAM, tape.added(x, sublayer(self.norm.expect(x, tape) if before else x)))
        return x if before else self.norm.expect(x, tape)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, attention: SelfAttention, feedforward: PositionWise, residual: Callable[[], Residual]):
        super().__init__()
        self.attention, self.feedforward = attention, feedforward
        self.attention_residual, self.feedforward_residual = residual(), residual()

    def forward(self, x: Float[Tensor, "total d_model"], layout: Layout, mask: Mask) -> Float[Tensor, "total d_model"]:
        x = self.attention_residual(x, lambda h: self.attention(h, layout, mask))
        return self.feedforward_residual(x, self.feedforward)

    def expect(self, x: Signal, sight: Sight, tape: Tape) -> Signal:
        """What `forward` does to a signal."""
        x = self.attention_residual.expect(x, lambda h: self.attention.expect(h, sight, tape), tape)
        return self.feedforward_residual.expect(x, lambda h: self.feedforward.expect(h, tape), tape)


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the source, then feed-forward."""

    def __init__(
        self,
        attention: SelfAttention,
        cross: CrossAttention,
        feedforward: PositionWise,
        residual: Callable[[], Residual],
    ):
        super().__init__()
        self.attention, self.cross, self.feedforward = attention, cross, feedforward
        self.attention_residual, self.cross_residual, self.feedforward_residual = residual(), residual(), residual()

    def forward(
        self,
        x: Float[Tensor, "total d_model"],
        layout: Layout,
        mask: Mask,
        memory: Float[Tensor, "source_total d_model"],
        memory_layout: Layout,
        memory_mask: Mask,
    ) -> Float[Tensor, "total d_model"]:
        x = self.attention_residual(x, lambda h: self.attention(h, layout, mask))
        x = self.cross_residual(x, lambda h: self.cross(h, layout, memory, memory_layout, memory_mask))
        return self.feedforward_residual(x, self.feedforward)

    def expect(self, x: Signal, causal: Sight, memory: Signal, sight: Sight, tape: Tape) -> Signal:
        """What `forward` does to a signal."""
        x = self.attention_residual.expect(x, lambda h: self.attention.expect(h, causal, tape), tape)
        x = self.cross_residual.expect(x, lambda h: self.cross.expect(h, memory, sight, tape), tape)
        return self.feedforward_residual.expect(x, lambda h: self.feedforward.expect(h, tape), tape)

    def step(
        self,
        x: Float[Tensor, "rows d_model"],
        past: KeysValues,
        source: tuple[Tensor, Tensor],
        memory_mask: Mask,
    ) -> Float[Tensor, "rows d_model"]:
        """One new target token a row."""
        x = self.attention_residual(x, lambda h: self.attention.step(h, past))
        x = self.cross_residual(x, lambda h: self.cross.step(h, *source, memory_mask))
        return self.feedforward_residual(x, self.feedforward)


class CausalLayer(EncoderLayer):
    """Causal self-attention, then feed-forward: a decoder that has no source."""

    def forward(
        self, x: Float[Tensor, "total d_model"], layout: Layout, mask: Mask, past: KeysValues | None = None
    ) -> Float[Tensor, "total d_model"]:
        x = self.attention_residual(x, lambda h: self.attention(h, layout, mask, past))
        return self.feedforward_residual(x, self.feedforward)

    def step(self, x: Float[Tensor, "rows d_model"], past: KeysValues) -> Float[Tensor, "rows d_model"]:
        """One new token a row."""
        x = self.attention_residual(x, lambda h: self.attention.step(h, past))
        return self.feedforward_residual(x, self.feedforward)
