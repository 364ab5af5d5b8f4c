"""Attention: the equation, its fast twin for short sequences, and the two layers that hold its weights."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from surd.nn.cache import KeysValues
from surd.nn.dropout import dropout
from surd.nn.linear import Linear
from surd.nn.ragged import Layout, pad, unpad

# Below this many keys the plain products win on a CPU: the backward of its fused kernel took 54 % of a training step
# with sentences of 13 tokens. Above, the scores of all pairs would no longer fit the cache.
PLAIN_KEYS = 256


def attention(
    query: Float[Tensor, "batch heads queries d_k"],
    key: Float[Tensor, "batch heads keys d_k"],
    value: Float[Tensor, "batch heads keys d_v"],
    scale: float,
    mask: Float[Tensor, "#batch #heads #queries keys"] | None = None,
    rate: float = 0.0,
) -> Float[Tensor, "batch heads queries d_v"]:
    """softmax(scale · Q Kᵀ + mask) V, with dropout of `rate` on the weights.

    A row whose keys are all hidden is NaN. Source: Vaswani et al. 2017, equation 1.
    """
    scores = query @ key.transpose(-1, -2) * scale
    if mask is not None:
        scores = scores + mask
    weights = dropout(scores.softmax(-1), rate, rate > 0)
    return weights @ value


def fast_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None = None, rate: float = 0.0
):
    """The same function as `attention` by the quickest way for its size and device."""
    if query.device.type == "cpu" and rate == 0.0 and key.shape[-2] <= PLAIN_KEYS:
        return _ShortAttention.apply(query, key, value, scale, mask)
    if rate > 0.0:
        return attention(query, key, value, scale, mask, rate)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)


class _ShortAttention(torch.autograd.Function):
    """`attention` in as few passes over memory as plain products allow; keeps the weights for the backward pass.

    The softmax is spelt out: torch's own takes six times as long on rows that do not fill its vectors, such as 13 keys.
    """

    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None) -> Tensor:
        batch, heads, queries, _ = query.shape
        query, key, value = (x.reshape(batch * heads, *x.shape[2:]) for x in (query, key, value))
        scores = torch.baddbmm(query.new_empty(1), query, key.transpose(1, 2), beta=0, alpha=scale)
        if mask is not None:
            scores.view(batch, heads, queries, -1).add_(mask)
        weights = scores.sub_(scores.amax(-1, keepdim=True)).exp_()
        weights.div_(weights.sum(-1, keepdim=True))
        ctx.save_for_backward(query, key, value, weights)
        ctx.scale, ctx.shape = scale, (batch, heads)
        return torch.bmm(weights, value).view(batch, heads, queries, -1)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        query, key, value, weights = ctx.saved_tensors
        gradient = gradient.reshape(*weights.shape[:2], -1)
        d_value = torch.bmm(weights.transpose(1, 2), gradient)
        d_weights = torch.bmm(gradient, value.transpose(1, 2))
        d_scores = d_weights.mul_(weights)
        d_scores.sub_(weights * d_scores.sum(-1, keepdim=True))
        d_query = torch.baddbmm(query, d_scores, key, beta=0, alpha=ctx.scale)
        d_key = torch.baddbmm(key, d_scores.transpose(1, 2), query, beta=0, alpha=ctx.scale)
        unmerge = [x.view(*ctx.shape, *x.shape[1:]) for x in (d_query, d_key, d_value)]
        return *unmerge, None, None


def split_heads(flat: Tensor, layout: Layout, parts: int, heads: int) -> tuple[Tensor, ...]:
    """`(total, parts·heads·d_k)` -> `parts` tensors `(batch, heads, longest, d_k)`."""
    return _SplitHeads.apply(pad(flat, layout), parts, heads)


class _SplitHeads(torch.autograd.Function):
    """One pass over memory each way; autograd would stack the parts' gradients first and turn the axes after."""

    @staticmethod
    def forward(ctx, padded: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
        split = padded.view(*padded.shape[:2], parts, heads, -1)  # (batch, longest, parts, heads, d_k)
        return tuple(part.transpose(1, 2).contiguous() for part in split.unbind(2))

    @staticmethod
    def backward(ctx, *gradients: Tensor):
        batch, heads, longest, d_k = gradients[0].shape
        split = gradients[0].new_empty(batch, longest, len(gradients), heads, d_k)
        for part, gradient in zip(split.unbind(2), gradients, strict=True):
            part.copy_(gradient.transpose(1, 2))
        return split.view(batch, longest, -1), None, None


def merge_heads(mixed: Float[Tensor, "batch heads longest d_k"], layout: Layout) -> Float[Tensor, "total heads*d_k"]:
    """Undoes `split_heads` for one part."""
    return unpad(mixed.transpose(1, 2).reshape(layout.batch, layout.longest, -1), layout)


class SelfAttention(nn.Module):
    """Each sequence attends to itself; query, key and value come from one fused projection."""

    def __init__(self, d_model: int, heads: int, d_k: int, scale: float, rate: float):
        super().__init__()
        self.heads, self.scale, self.rate = heads, scale, rate
        self.query_key_value = Linear(d_model, heads * d_k, stacked=3)
        self.output = Linear(heads * d_k, d_model)

    def readers(self) -> tuple[Linear, ...]:
        """The projections that make queries, keys and values."""
        return (self.query_key_value,)

    def forward(
        self, x: Float[Tensor, "total d_model"], layout: Layout, mask: Tensor | None
    ) -> Float[Tensor, "total d_model"]:
        query, key, value = split_heads(self.query_key_value(x), layout, 3, self.heads)
        rate = self.rate if self.training else 0.0
        return self.output(merge_heads(fast_attention(query, key, value, self.scale, mask, rate), layout))

    def step(self, x: Float[Tensor, "rows d_model"], past: KeysValues) -> Float[Tensor, "rows d_model"]:
        """One new token a row: its key and value join the past, its query looks at all of it."""
        rows = x.shape[0]
        query, key, value = self.query_key_value(x).view(rows, 3, self.heads, 1, -1).unbind(1)
        keys, values = past.append(key, value)
        return self.output(attention(query, keys, values, self.scale).reshape(rows, -1))


class CrossAttention(nn.Module):
    """Target positions attend to the encoded source; key and value come from one fused projection."""

    def __init__(self, d_model: int, heads: int, d_k: int, scale: float, rate: float):
        super().__init__()
        self.heads, self.scale, self.rate = heads, scale, rate
        self.query = Linear(d_model, heads * d_k)
        self.key_value = Linear(d_model, heads * d_k, stacked=2)
        self.output = Linear(heads * d_k, d_model)

    def readers(self) -> tuple[Linear, ...]:
        """The projections that make queries, keys and values."""
        return self.query, self.key_value

    def keys_values(self, memory: Float[Tensor, "total d_model"], layout: Layout) -> tuple[Tensor, Tensor]:
        """Keys and values of the source, `(batch, heads, longest, d_k)` each."""
        key, value = split_heads(self.key_value(memory), layout, 2, self.heads)
        return key, value

    def forward(
        self,
        x: Float[Tensor, "total d_model"],
        layout: Layout,
        memory: Tensor,
        memory_layout: Layout,
        mask: Tensor | None,
    ) -> Float[Tensor, "total d_model"]:
        (query,) = split_heads(self.query(x), layout, 1, self.heads)
        key, value = self.keys_values(memory, memory_layout)
        rate = self.rate if self.training else 0.0
        return self.output(merge_heads(fast_attention(query, key, value, self.scale, mask, rate), layout))

    def step(
        self, x: Float[Tensor, "rows d_model"], keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Float[Tensor, "rows d_model"]:
        """The rows of one sentence (its beam) share its keys, which are never copied: the beam is the query axis."""
        rows, sentences = x.shape[0], keys.shape[0]
        query = self.query(x).view(sentences, rows // sentences, self.heads, -1).transpose(1, 2)
        mixed = attention(query, keys, values, self.scale, mask)  # (sentences, heads, beam, d_k)
        return self.output(mixed.transpose(1, 2).reshape(rows, -1))
