"""What attends, or is attended to, need not be tokens: no heads were cut, and no factor of d_k terms is due."""

import pytest
import torch
import torch.nn.functional as F
from audit.asked import asked, found
from torch import Tensor, nn

from surd.audit.specimen import encoder

HEADS, LENGTH, WIDTH, LANDMARKS = 4, 12, 64, 4
TOKENS = (torch.randint(500, (3, LENGTH), generator=torch.Generator().manual_seed(2)),)
RULES = ("head-layout", "softmax-axis", "attention-scale")


class Parts(nn.Module):
    """Projections of all that is asked for."""

    def __init__(self, factor: float = (WIDTH / HEADS) ** -0.5):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.factor = factor

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def forward(self, x: Tensor, visible: Tensor | None = None) -> Tensor:
        parts = (self.split(one(x)) for one in (self.query, self.key, self.value))
        return self.out(self.attend(*parts).transpose(1, 2).flatten(-2))

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        raise NotImplementedError


class Shortened(Parts):
    """Linformer: keys and values are sums over the length."""

    def __init__(self, factor: float = (WIDTH / HEADS) ** -0.5):
        super().__init__(factor)
        self.short = nn.Parameter(torch.randn(LENGTH, LANDMARKS) * LENGTH**-0.5)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key, value = (torch.einsum("bhnd,nk->bhkd", x, self.short) for x in (key, value))
        return (query @ key.mT * self.factor).softmax(-1) @ value


class Channels(Parts):
    """XCiT, and DaViT's without norms."""

    normed = True

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key = query.mT, key.mT
        if self.normed:
            query, key = F.normalize(query, dim=-1), F.normalize(key, dim=-1)
        return ((query @ key.mT * (1 if self.normed else LENGTH**-0.5)).softmax(-1) @ value.mT).mT


class Bare(Channels):
    normed = False


class Landmarks(Parts):
    """Nyström attention: means of neighbours ask, and are asked."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query = query * self.factor
        few, fewer = (x.unflatten(-2, (LANDMARKS, -1)).mean(-2) for x in (query, key))
        near, middle, far = (a @ b.mT for a, b in ((query, fewer), (few, fewer), (few, key)))
        return near.softmax(-1) @ torch.linalg.pinv(middle.softmax(-1)) @ (far.softmax(-1) @ value)


class Latent(Parts):
    """What is asked is the value too, repeated for every head."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        one = key[:, :1].expand_as(query)
        weights = (torch.einsum("bhqd,bhkd->bhqk", query, one) * self.factor).softmax(-1)
        return torch.einsum("bhqk,bhkd->bhqd", weights, one)


class Slots(Parts):
    """Slot attention: keys compete for queries, and weights are made to add up to 1 afterwards; several times."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        for _ in range(2):
            weights = (key @ query.mT * self.factor).softmax(-1) + 1e-8
            query = (weights / weights.sum(-2, keepdim=True)).mT @ value
        return query


class Online(Parts):
    """The softmax by blocks, divided once at the end."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mixed, total = torch.zeros_like(query), query.new_zeros((*query.shape[:-1], 1))
        highest = torch.full_like(total, -1e30)
        for keys, values in zip(key.split(5, -2), value.split(5, -2), strict=True):
            scores = query @ keys.mT * self.factor
            higher = torch.maximum(highest, scores.amax(-1, keepdim=True))
            weights, kept = (scores - higher).exp(), (highest - higher).exp()
            mixed, total, highest = mixed * kept + weights @ values, total * kept + weights.sum(-1, True), higher
        return mixed / total


def model(kind: type[Parts], factor: float = (WIDTH / HEADS) ** -0.5) -> nn.Module:
    torch.manual_seed(0)
    made = encoder()
    for block in made.blocks:
        block.attention = kind(factor) if kind not in (Channels, Bare) else kind()
        for part in block.attention.children():
            nn.init.xavier_uniform_(part.weight)
    return made


@pytest.mark.parametrize("kind", [Shortened, Channels, Bare, Landmarks, Latent, Slots, Online])
def test_no_fault_of_layout_axis_or_factor(kind):
    report = asked(model(kind), *RULES, inputs=TOKENS)
    assert report.failing == (), str(report)


@pytest.mark.parametrize("kind", [Shortened, Latent, Slots])
def test_a_missing_factor_no_longer_hides(kind):
    report = asked(model(kind, 1.0), *RULES, inputs=TOKENS)
    assert {one.rule for one in report.failing} == {"attention-scale"}, str(report)


class Idle(Online):
    """Never divided."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return (query @ key.mT * self.factor).exp() @ value


def test_weights_that_are_divided_nowhere():
    assert found(model(Idle), "softmax-axis", inputs=TOKENS).measured > 2
