"""Multi-head attention: the layers that hold its weights, and what stands between projection and softmax."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from surd.measure.signal import Signal, Tape
from surd.measure.sites import Role
from surd.nn.attention import attend, fast_attention, merge_heads, split_heads
from surd.nn.cache import KeysValues
from surd.nn.linear import Linear
from surd.nn.mask import Mask
from surd.nn.mixing import Sight, capped, mixed, scores_of_products, scores_of_sums
from surd.nn.norm import Norm
from surd.nn.position import Rotary
from surd.nn.ragged import Layout
from surd.nn.scale import InverseRoot, Learned, LogLength, Scale
from surd.nn.score import Additive, Dot, Score, dot_scores, soft_cap


@dataclass(frozen=True, kw_only=True)
class Heads:
    """The shape of an attention and every choice in it."""

    d_model: int
    heads: int
    d_k: int
    key_value_heads: int | None = None
    """Heads of keys and values, each shared by as many query heads; none means one for each."""
    scale: Scale = field(default_factory=InverseRoot)
    score: Score = field(default_factory=Dot)
    cap: float | None = None
    """Scores are bent to stay within ± this."""
    norm: Norm | None = None
    """Applied to each query and key over its d_k features."""
    rotary: Rotary | None = None
    rate: float = 0.0
    """Dropout on the attention weights."""

    @property
    def shared(self) -> int:
        """Heads of keys and values."""
        return self.key_value_heads or self.heads


class Fit(nn.Module):
    """How well queries fit keys, and the values mixed accordingly: all that has no big matrix in it."""

    def __init__(self, shape: Heads):
        super().__init__()
        self.d_model, self.d_k, self.scale = shape.d_model, shape.d_k, shape.scale
        self.constant, self.cap, self.rate = shape.scale(shape.d_k), shape.cap, shape.rate
        self.group = shape.heads // shape.shared
        self.rotary = shape.rotary
        # Optional parts: absent ones cost nothing and leave no name in a saved model.
        self.factor = shape.scale.build(shape.heads) if isinstance(shape.scale, Learned | LogLength) else None
        self.score = shape.score.build(shape.heads, shape.d_k) if isinstance(shape.score, Additive) else None
        self.query_norm = shape.norm.build(shape.d_k) if shape.norm else None
        self.key_norm = shape.norm.build(shape.d_k) if shape.norm else None

    def queries(
        self, query: Float[Tensor, "batch heads length d_k"], keys: Tensor, start: int = 0
    ) -> Float[Tensor, "batch heads length d_k"]:
        """Queries ready for the product; `keys` is how many keys each sees, `start` the position of the first."""
        query = query if self.query_norm is None else self.query_norm(query)
        query = query if self.rotary is None else self.rotary.turn(query, start)
        return query if self.factor is None else self.factor(query, keys)

    def keys(
        self, key: Float[Tensor, "batch shared length d_k"], start: int = 0
    ) -> Float[Tensor, "batch shared length d_k"]:
        """Keys ready for the product, and for being remembered."""
        key = key if self.key_norm is None else self.key_norm(key)
        return key if self.rotary is None else self.rotary.turn(key, start)

    def forward(
        self,
        query: Float[Tensor, "batch heads queries d_k"],
        key: Float[Tensor, "batch shared keys d_k"],
        value: Float[Tensor, "batch shared keys d_k"],
        added: Tensor | None,
    ) -> Float[Tensor, "batch heads queries d_k"]:
        """The mixed values; `added` hides keys."""
        if self.group > 1:
            key, value = (x.repeat_interleave(self.group, 1) for x in (key, value))
        rate = self.rate if self.training else 0.0
        if self.score is None and self.cap is None:
            return fast_attention(query, key, value, self.constant, added, rate)
        scores = dot_scores(query, key, self.constant) if self.score is None else self.score(query, key)
        return attend(scores if self.cap is None else soft_cap(scores, self.cap), value, added, rate)

    def expect(self, query: Signal, key: Signal, value: Signal, sight: Sight, tape: Tape) -> Signal:
        """What all of it does to projected signals."""
        query = query if self.query_norm is None else self.query_norm.expect(query, tape)
        key = key if self.key_norm is None else self.key_norm.expect(key, tape)
        if self.rotary is not None:
            query, key = self.rotary.expect(query, self.d_k, tape), self.rotary.expect(key, self.d_k, tape)
        longer = torch.tensor([self.scale.at(int(count)) for count in sight.counts], dtype=torch.float64)
        query = tape.scaled(query, longer[:, None] * longer)
        for role, signal in ((Role.QUERY, query), (Role.KEY, key), (Role.VALUE, value)):
            tape.note(self, role, signal)
        if self.score is None:
            scores = scores_of_products(query, key, self.d_k, self.constant, sight, self.group)
        else:
            scores = scores_of_sums(query, key, self.d_k, sight, self.group)
        scores = scores if self.cap is None else capped(scores, self.cap)
        shown, mix = mixed(scores, value, self.d_k, sight, self.group, tape)
        tape.note(self, Role.SCORE, shown, sight.counts)
        return tape.note(self, Role.MIX, mix)


class SelfAttention(nn.Module):
    """Each sequence attends to itself; query, key and value come from one fused projection."""

    def __init__(self, shape: Heads):
        super().__init__()
        self.heads, self.shared = shape.heads, shape.shared
        widths = (shape.heads * shape.d_k, shape.shared * shape.d_k, shape.shared * shape.d_k)
        self.query_key_value = Linear(shape.d_model, widths)
        self.fit = Fit(shape)
        self.output = Linear(shape.heads * shape.d_k, (shape.d_model,))

    def forward(
        self, x: Float[Tensor, "total d_model"], layout: Layout, mask: Mask, past: KeysValues | None = None
    ) -> Float[Tensor, "total d_model"]:
        """`past`, empty as yet, is given what later steps need; the sequences must then be of one length."""
        parts = (self.heads, self.shared, self.shared)
        query, key, value = split_heads(self.query_key_value(x), layout, parts)
        key = self.fit.keys(key)
        if past is not None:
            past.append(key, value)
        mixed = self.fit(self.fit.queries(query, mask.keys), key, value, mask.added)
        return self.output(merge_heads(mixed, layout))

    def expect(self, x: Signal, sight: Sight, tape: Tape) -> Signal:
        """What `forward` does to a signal."""
        query, key, value = tape.linear(x, self.query_key_value)
        (branch,) = tape.linear(self.fit.expect(query, key, value, sight, tape), self.output)
        return tape.note(self.output, Role.BRANCH, branch)

    def step(self, x: Float[Tensor, "rows d_model"], past: KeysValues) -> Float[Tensor, "rows d_model"]:
        """One new token a row: its key and value join the past, its query looks at all of it."""
        rows, seen = x.shape[0], past.seen
        heads = self.query_key_value(x).view(rows, self.heads + 2 * self.shared, 1, -1)
        query, key, value = heads.split((self.heads, self.shared, self.shared), 1)
        count = torch.full((1, 1, 1, 1), seen + 1.0, device=x.device)
        keys, values = past.append(self.fit.keys(key, seen), value)
        return self.output(self.fit(self.fit.queries(query, count, seen), keys, values, None).reshape(rows, -1))


class CrossAttention(nn.Module):
    """Target positions attend to the encoded source; key and value come from one fused projection."""

    def __init__(self, shape: Heads):
        super().__init__()
        self.heads, self.shared = shape.heads, shape.shared
        self.query = Linear(shape.d_model, (shape.heads * shape.d_k,))
        self.key_value = Linear(shape.d_model, (shape.shared * shape.d_k,) * 2)
        self.fit = Fit(shape)
        self.output = Linear(shape.heads * shape.d_k, (shape.d_model,))

    def keys_values(self, memory: Float[Tensor, "total d_model"], layout: Layout) -> tuple[Tensor, Tensor]:
        """Keys and values of the source, `(batch, shared, longest, d_k)` each."""
        key, value = split_heads(self.key_value(memory), layout, (self.shared, self.shared))
        return self.fit.keys(key), value

    def forward(
        self, x: Float[Tensor, "total d_model"], layout: Layout, memory: Tensor, memory_layout: Layout, mask: Mask
    ) -> Float[Tensor, "total d_model"]:
        (query,) = split_heads(self.query(x), layout, (self.heads,))
        key, value = self.keys_values(memory, memory_layout)
        return self.output(merge_heads(self.fit(self.fit.queries(query, mask.keys), key, value, mask.added), layout))

    def expect(self, x: Signal, memory: Signal, sight: Sight, tape: Tape) -> Signal:
        """What `forward` does to a signal."""
        (query,), (key, value) = tape.linear(x, self.query), tape.linear(memory, self.key_value)
        (branch,) = tape.linear(self.fit.expect(query, key, value, sight, tape), self.output)
        return tape.note(self.output, Role.BRANCH, branch)

    def step(
        self, x: Float[Tensor, "rows d_model"], keys: Tensor, values: Tensor, mask: Mask
    ) -> Float[Tensor, "rows d_model"]:
        """The rows of one sentence (its beam) share its keys, which are never copied: the beam is the query axis."""
        rows, sentences = x.shape[0], keys.shape[0]
        query = self.query(x).view(sentences, rows // sentences, self.heads, -1).transpose(1, 2)
        mixed = self.fit(self.fit.queries(query, mask.keys), keys, values, mask.added)
        return self.output(mixed.transpose(1, 2).reshape(rows, -1))  # (sentences, heads, beam, d_k) before
