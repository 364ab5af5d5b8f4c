"""Attention: the equation, its fast twin for short sequences, and the way to heads and back."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from surd.nn.dropout import dropout
from surd.nn.ragged import Layout, pad, unpad
from surd.nn.score import dot_scores

# Below this many keys the plain products win on a CPU: the backward of its fused kernel took 54 % of a training step
# with sentences of 13 tokens. Above, the scores of all pairs would no longer fit the cache.
PLAIN_KEYS = 256
# Where nothing is learnt the plain products go further: what the fused kernel makes of a row depends on the padding
# beside it, and so an answer would on its neighbours.
INVARIANT_KEYS = 1024


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
    return attend(dot_scores(query, key, scale), value, mask, rate)


def attend(
    scores: Float[Tensor, "batch heads queries keys"],
    value: Float[Tensor, "batch heads keys d_v"],
    mask: Float[Tensor, "#batch #heads #queries keys"] | None = None,
    rate: float = 0.0,
) -> Float[Tensor, "batch heads queries d_v"]:
    """softmax(scores + mask) V, with dropout of `rate` on the weights: the part of attention after any score."""
    if mask is not None:
        scores = scores + mask
    weights = dropout(scores.softmax(-1), rate, rate > 0)
    return weights @ value


def fast_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None = None, rate: float = 0.0
):
    """The same function as `attention` by the quickest way for its size and device."""
    plain_keys = PLAIN_KEYS if torch.is_grad_enabled() else INVARIANT_KEYS
    if query.device.type == "cpu" and rate == 0.0 and key.shape[-2] <= plain_keys:
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


def split_heads(flat: Tensor, layout: Layout, parts: tuple[int, ...]) -> tuple[Tensor, ...]:
    """`(total, sum(parts)·d_k)` -> for each part of so many heads a tensor `(batch, heads, longest, d_k)`."""
    return _SplitHeads.apply(pad(flat, layout), parts)


class _SplitHeads(torch.autograd.Function):
    """One pass over memory each way; autograd would stack the parts' gradients first and turn the axes after."""

    @staticmethod
    def forward(ctx, padded: Tensor, parts: tuple[int, ...]) -> tuple[Tensor, ...]:
        ctx.parts = parts
        heads = padded.view(*padded.shape[:2], sum(parts), -1)  # (batch, longest, heads of all parts, d_k)
        return tuple(part.transpose(1, 2).contiguous() for part in heads.split(parts, 2))

    @staticmethod
    def backward(ctx, *gradients: Tensor):
        batch, _, longest, d_k = gradients[0].shape
        heads = gradients[0].new_empty(batch, longest, sum(ctx.parts), d_k)
        for part, gradient in zip(heads.split(ctx.parts, 2), gradients, strict=True):
            part.copy_(gradient.transpose(1, 2))
        return heads.view(batch, longest, -1), None


def merge_heads(mixed: Float[Tensor, "batch heads longest d_k"], layout: Layout) -> Float[Tensor, "total heads*d_k"]:
    """Undoes `split_heads` for one part."""
    return unpad(mixed.transpose(1, 2).reshape(layout.batch, layout.longest, -1), layout)
