"""Attentions as they are found in the wild: right ones, that look wrong to whoever reads arguments or names."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from measure.faults import D_K, D_MODEL, HEADS, HEALTHY, Attention, by_product, merge, split
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return merge(by_product(query, key, value, HEALTHY))


class Adapted(Attention):
    """A low-rank adapter that is larger than what it adapts."""

    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Linear(D_MODEL, 2, bias=False), nn.Linear(2, D_MODEL, bias=False)
        nn.init.normal_(self.up.weight, std=5.0)

    def forward(self, x: Tensor) -> Tensor:
        query = self.query(x) + self.up(self.down(x)) * 8.0
        return self.output(attend(split(query), split(self.key(x)), split(self.value(x))))


class Latent(nn.Module):
    """Keys from a narrow latent, beside one rotary key for all heads, from the same projection."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(D_MODEL, HEADS * D_K)
        self.narrow, self.latent_norm = nn.Linear(D_MODEL, 20 + 4), nn.LayerNorm(20)
        self.wide = nn.Linear(20, HEADS * (8 + D_K))

    def forward(self, x: Tensor) -> Tensor:
        latent, turned = self.narrow(x).split((20, 4), -1)
        wide = self.wide(self.latent_norm(latent)).unflatten(-1, (HEADS, 8 + D_K)).transpose(1, 2)
        plain, value = wide.split((8, D_K), -1)
        rotary = rotate(turned[:, None]).expand(-1, HEADS, -1, -1)
        straight, turning = split(self.query(x)).split((8, 4), -1)
        query = torch.cat([straight, rotate(turning)], -1)
        return attend(query, torch.cat([plain, rotary], -1), value)


def rotate(x: Tensor) -> Tensor:
    """Half of the features with the other half, by an angle that grows with the position."""
    angle = torch.arange(x.shape[-2])[:, None] * 10.0 ** -torch.arange(x.shape[-1] // 2)
    cosine, sine = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


class Rotary(Attention):
    def forward(self, x: Tensor) -> Tensor:
        query, key = rotate(split(self.query(x))), rotate(split(self.key(x)))
        return self.output(attend(query, key, split(self.value(x))))


class Shared(Attention):
    """Two query heads a key head, cut out of one packed projection."""

    def __init__(self):
        super().__init__()
        self.packed = nn.Linear(D_MODEL, 2 * D_MODEL)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.packed(x).split((D_MODEL, D_MODEL // 2, D_MODEL // 2), -1)
        key, value = (y.unflatten(-1, (HEADS // 2, D_K)).transpose(1, 2) for y in (key, value))
        key, value = (y.repeat_interleave(2, 1) for y in (key, value))
        return self.output(attend(split(query), key, value))


class ScaledInPlace(Attention):
    def forward(self, x: Tensor) -> Tensor:
        query = self.query(x)
        query /= D_K**0.5
        return self.output(merge((split(query) @ split(self.key(x)).mT).softmax(-1) @ split(self.value(x))))


class Sink(Attention):
    """Every row may also look at nothing: one more logit, dropped after the softmax."""

    def __init__(self):
        super().__init__()
        self.sinks = nn.Parameter(torch.randn(HEADS))

    def forward(self, x: Tensor) -> Tensor:
        scores = split(self.query(x)) @ split(self.key(x)).mT * HEALTHY
        scores = torch.cat([scores, self.sinks[:, None, None].expand(*scores.shape[:-1], 1)], -1)
        scores = scores - scores.amax(-1, keepdim=True)
        return self.output(merge(scores.softmax(-1)[..., :-1] @ split(self.value(x))))


class Normed(Attention):
    def __init__(self):
        super().__init__()
        self.query_norm, self.key_norm = nn.RMSNorm(D_K), nn.RMSNorm(D_K)

    def forward(self, x: Tensor) -> Tensor:
        query, key = self.query_norm(split(self.query(x))), self.key_norm(split(self.key(x)))
        return self.output(attend(query, key, split(self.value(x))))


class Cosine(Attention):
    """Queries and keys of length 1, normalised without a function or module of that name; factor 10."""

    def forward(self, x: Tensor) -> Tensor:
        query, key = (split(project(x)) for project in (self.query, self.key))
        query, key = (y / y.norm(dim=-1, keepdim=True) for y in (query, key))
        return self.output(merge(by_product(query, key, split(self.value(x)), 10.0)))


class Capped(Attention):
    """The cap bends hard here: scores reach several times its value."""

    def forward(self, x: Tensor) -> Tensor:
        scores = split(self.query(x)) @ split(self.key(x)).mT * HEALTHY
        return self.output(merge((torch.tanh(scores / 0.2) * 0.2).softmax(-1) @ split(self.value(x))))


class Masked(Attention):
    """Causal, with a bias that falls with the distance."""

    def forward(self, x: Tensor) -> Tensor:
        scores = split(self.query(x)) @ split(self.key(x)).mT * HEALTHY
        place = torch.arange(x.shape[1])
        scores = scores - 0.3 * (place[:, None] - place).abs()
        scores = scores.masked_fill(place[:, None] < place, -torch.inf)
        return self.output(merge(scores.softmax(-1) @ split(self.value(x))))


class Disentangled(Attention):
    """Content with content plus content with position, both at 1/√(2·d_k)."""

    def __init__(self):
        super().__init__()
        self.relative, self.position_key = nn.Parameter(torch.randn(13, D_MODEL)), nn.Linear(D_MODEL, D_MODEL)

    def forward(self, x: Tensor) -> Tensor:
        query, factor = split(self.query(x)), (2 * D_K) ** -0.5
        position = split(self.position_key(self.relative)[None])
        scores = query @ split(self.key(x)).mT * factor + query @ position.mT * factor
        return self.output(merge(scores.softmax(-1) @ split(self.value(x))))


class WithoutGradient(Attention):
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Checkpointed(Attention):
    def __init__(self, reentrant: bool):
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=self.reentrant)


class Flexible(Attention):
    """Flex attention, whose kernel has no gradient on a processor; with a mask and a change of the scores."""

    def __init__(self, scale: float | None = None, twice: bool = False):
        super().__init__()
        self.scale, self.twice = scale, twice

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (split(layer(x)) for layer in (self.query, self.key, self.value))
        length = query.shape[-2]
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length, device=x.device)

        def change(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score * (HEALTHY if self.twice else 1) + 0.01 * (i - j)

        return self.output(merge(flex_attention(query, key, value, change, mask, self.scale)))


class Sideways(Attention):
    """The softmax runs over the queries."""

    def forward(self, x: Tensor) -> Tensor:
        scores = split(self.query(x)) @ split(self.key(x)).mT * HEALTHY
        return self.output(merge(scores.softmax(-2) @ split(self.value(x))))


def quotient(scores: Tensor) -> Tensor:
    exps = scores.exp()
    return exps / exps.sum(-1, keepdim=True)


def reciprocal_in_place(scores: Tensor) -> Tensor:
    exps = (scores - scores.amax(-1, keepdim=True)).exp_()
    return exps * (1 / (exps.sum(-1, keepdim=True) + 1e-9))


def masked_afterwards(scores: Tensor) -> Tensor:
    exps = torch.exp(scores - scores.detach().max()) * torch.ones_like(scores).tril()
    exps /= exps.sum(-1, keepdim=True)
    return exps


def of_base_two(scores: Tensor) -> Tensor:
    powers = torch.exp2(scores / math.log(2))
    return powers / powers.sum(-1, keepdim=True)


def from_logsumexp(scores: Tensor) -> Tensor:
    return (scores - scores.logsumexp(-1, keepdim=True)).exp()


def from_log_softmax(scores: Tensor) -> Tensor:
    return scores.log_softmax(-1).exp()


class ByHand(Attention):
    """exp over sum of exp, without a softmax of torch's."""

    def __init__(self, softmax: Callable[[Tensor], Tensor] = quotient):
        super().__init__()
        self.softmax = softmax

    def forward(self, x: Tensor) -> Tensor:
        weights = self.softmax(split(self.query(x)) @ split(self.key(x)).mT * HEALTHY)
        return self.output(merge(weights @ split(self.value(x))))


class Kernel(torch.autograd.Function):
    """An attention of which nobody sees the inside."""

    @staticmethod
    def forward(ctx, query: Tensor, key: Tensor, value: Tensor, factor: float) -> Tensor:
        weights = (query.detach().numpy() @ key.detach().mT.numpy()) * factor
        ctx.save_for_backward(query, key, value)
        ctx.factor = factor
        return torch.from_numpy(weights).softmax(-1) @ value

    @staticmethod
    def backward(ctx, gradient: Tensor):
        with torch.enable_grad():
            parts = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            return *torch.autograd.grad(by_product(*parts, ctx.factor), parts, gradient), None


class Heads(torch.autograd.Function):
    """Splits heads; its own gradient has none, as it is written in place."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return split(x).contiguous()

    @staticmethod
    def backward(ctx, gradient: Tensor):
        flat = torch.empty(gradient.shape[0], gradient.shape[2], D_MODEL)
        for part, one in zip(flat.view(*flat.shape[:2], HEADS, D_K).unbind(2), gradient.unbind(1), strict=True):
            part.copy_(one)
        return flat


class Opaque(Attention):
    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (Heads.apply(project(x)) for project in (self.query, self.key, self.value))
        return self.output(merge(Kernel.apply(query * self.factor, key, value, 1.0)))


class Dampened(torch.autograd.Function):
    """The identity, with a tenth of the gradient."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return gradient / 10


class Cross(nn.Module):
    """A decoder's attention to a source of its own tokens."""

    def __init__(self, vocabulary: int):
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, D_MODEL), nn.Embedding(vocabulary, D_MODEL)
        self.attention = nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True)
        self.own = nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True)
        self.head = nn.Linear(D_MODEL, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        hidden = self.target(target)
        later = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        hidden = hidden + self.own(hidden, hidden, hidden, attn_mask=later, need_weights=False)[0]
        memory = self.source(source)
        return self.head(hidden + self.attention(hidden, memory, memory)[0])


def functional_cosine(query: Tensor, key: Tensor, value: Tensor, factor: float) -> Tensor:
    return by_product(F.normalize(query, dim=-1), F.normalize(key, dim=-1), value, 10.0)
