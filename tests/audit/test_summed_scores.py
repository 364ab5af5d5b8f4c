"""Scores that are the sum of several products: d_k is what all of them together sum over."""

import pytest
import torch
from audit.asked import found, silent
from measure.faults import D_K, D_MODEL, HEADS, HEALTHY, Attention, Language, merge, split
from torch import Tensor, nn

RULE = "attention-scale"
PLAIN, TURNED, LATENT = 8, 4, 20
ALL = (PLAIN + TURNED) ** -0.5


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


class Latent(nn.Module):
    """Multi-head latent attention, whose rotary part has a product of its own; `absorbed` as it is served."""

    def __init__(self, factor: float, absorbed: bool = False, normed: bool = True):
        super().__init__()
        self.factor, self.absorbed = factor, absorbed
        self.query = nn.Linear(D_MODEL, HEADS * (PLAIN + TURNED), bias=False)
        self.narrow, self.norm = nn.Linear(D_MODEL, LATENT + TURNED), nn.LayerNorm(LATENT) if normed else nn.Identity()
        self.wide = nn.Linear(LATENT, HEADS * PLAIN, bias=False)
        self.value, self.output = nn.Linear(LATENT, D_MODEL), nn.Linear(D_MODEL, D_MODEL)

    def forward(self, x: Tensor) -> Tensor:
        latent, turned = self.narrow(x).split((LATENT, TURNED), -1)
        latent = self.norm(latent)
        query, turning = self.query(x).unflatten(-1, (HEADS, -1)).transpose(1, 2).split((PLAIN, TURNED), -1)
        if self.absorbed:
            matrix = self.wide.weight.view(HEADS, PLAIN, LATENT)
            scores = torch.einsum("bhik,bjk->bhij", torch.einsum("bhid,hdk->bhik", query, matrix), latent)
        else:
            scores = query @ self.wide(latent).unflatten(-1, (HEADS, PLAIN)).transpose(1, 2).mT
        scores = (scores + turning @ turned[:, None].mT) * self.factor
        return self.output(merge(scores.softmax(-1) @ split(self.value(latent))))


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("absorbed", [True, False])
def test_the_parts_of_a_split_product_add_up(absorbed, normed):
    silent(Language(Latent(ALL, absorbed, normed)), RULE)
    for wrong in (PLAIN**-0.5, (LATENT + TURNED) ** -0.5, 1.0):
        finding = found(Language(Latent(wrong, absorbed, normed)), RULE)
        assert (finding.measured, finding.expected) == (pytest.approx(wrong), pytest.approx(ALL))
        assert f"d_k = {PLAIN + TURNED}" in finding.message


class Untied(Attention):
    """Tokens ask tokens, and positions ask positions with projections of their own."""

    def __init__(self, factor: float):
        super().__init__(factor=factor)
        self.places = nn.Parameter(torch.randn(40, D_MODEL))
        self.asking, self.asked = nn.Linear(D_MODEL, D_MODEL), nn.Linear(D_MODEL, D_MODEL)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (split(project(x)) for project in (self.query, self.key, self.value))
        places = self.places[: x.shape[1]][None]
        scores = query @ key.mT + split(self.asking(places)) @ split(self.asked(places)).mT
        return self.output(merge((scores * self.factor).softmax(-1) @ value))


@pytest.mark.parametrize("factor", [HEALTHY, (2 * D_K) ** -0.5])
def test_a_term_of_positions_counts_or_not(factor):
    silent(Language(Untied(factor)), RULE)


@pytest.mark.parametrize("factor", [1.0, 1 / D_K, D_MODEL**-0.5])
def test_beside_a_term_of_positions(factor):
    assert found(Language(Untied(factor)), RULE).measured == pytest.approx(factor)


class Onward(nn.Module):
    """Each layer adds the scores of the layer before."""

    def __init__(self, factor: float = HEALTHY):
        super().__init__()
        self.first, self.second = Attention(factor=HEALTHY), Attention(factor=factor)

    def forward(self, x: Tensor) -> Tensor:
        before = torch.zeros(())
        for layer in (self.first, self.second):
            query, key, value = (split(project(x)) for project in (layer.query, layer.key, layer.value))
            before = query @ key.mT * layer.factor + before
            x = x + layer.output(merge(before.softmax(-1) @ value))
        return x


def test_scores_of_the_layer_before_are_no_part():
    silent(Language(Onward()), RULE)
    assert found(Language(Onward(1.0)), RULE).measured == pytest.approx(1.0)


class Beside(Attention):
    """Scores of a few keys for all stand beside those of the others, as in Longformer."""

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (split(project(x)) for project in (self.query, self.key, self.value))
        scores = torch.cat([query @ key[:, :, :3].mT, query @ key.mT], -1) * self.factor
        return self.output(merge(scores.softmax(-1) @ torch.cat([value[:, :, :3], value], 2)))


def test_products_side_by_side_are_not_summed():
    silent(Language(Beside()), RULE)
    assert found(Language(Beside(factor=1.0)), RULE).expected == pytest.approx(HEALTHY)


class Talking(Attention):
    """A layer mixes the scores of the heads before the softmax, and another one their weights behind it."""

    def __init__(self, factor: float, convolution: bool, behind: bool = False):
        super().__init__(factor=factor)
        self.behind = behind
        self.first, self.second = (
            nn.Conv2d(HEADS, HEADS, 1) if convolution else nn.Linear(HEADS, HEADS) for _ in range(2)
        )

    def mixed(self, layer: nn.Module, x: Tensor) -> Tensor:
        return layer(x) if isinstance(layer, nn.Conv2d) else layer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (split(project(x)) for project in (self.query, self.key, self.value))
        scores = query @ key.mT
        scores = (
            self.mixed(self.first, scores) * self.factor
            if self.behind
            else self.mixed(self.first, scores * self.factor)
        )
        return self.output(merge(self.mixed(self.second, scores.softmax(-1)) @ value))


@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("convolution", [True, False])
def test_talking_heads_keep_their_factor(convolution, behind):
    silent(Language(Talking(HEALTHY, convolution, behind)), RULE)
    finding = found(Language(Talking(1.0, convolution, behind)), RULE)
    assert finding.measured == pytest.approx(1.0) and "missing" in finding.message
