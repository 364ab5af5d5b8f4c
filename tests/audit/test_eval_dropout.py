"""Dropout that goes on in eval mode, however it is written, and randomness that is meant."""

import pytest
import torch
import torch.nn.functional as F
from audit.asked import asked, found, silent
from measure.faults import D_MODEL, HEALTHY, Attention, Language, merge, split
from torch import Tensor, nn

from surd.audit.finding import Severity

RULE, RATE = "eval-determinism", 0.1


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


class Dropping(Attention):
    def __init__(self, way: str, always: bool):
        super().__init__()
        self.way, self.always, self.layer = way, always, nn.Dropout(RATE)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(project(x)) for project in (self.query, self.key, self.value))
        on = self.always or self.training
        if self.way == "fused":
            mix = F.scaled_dot_product_attention(q, k, v, dropout_p=RATE if on else 0.0)
        else:
            weights = (q @ k.mT * HEALTHY).softmax(-1)
            if self.way == "function":
                weights = F.dropout(weights, RATE, training=on)
            elif self.way == "module":
                weights = self.layer(weights)
            elif on:
                weights = weights * ((torch.rand(weights.shape) > RATE).float() / (1 - RATE))
            mix = weights @ v
        return self.output(merge(mix))


@pytest.mark.parametrize("way", ["fused", "function", "by hand"])
def test_it_goes_on(way):
    finding = found(Language(Dropping(way, always=True)), RULE)
    assert finding.severity is Severity.FAULT and finding.expected == 0
    assert 0 < finding.measured < 1 and "0.1" in finding.message


def test_the_change_is_that_of_two_forwards():
    model = Language(Dropping("fused", always=True)).eval()
    tokens = torch.randint(97, (6, 13))
    with torch.no_grad():
        changes = [float((model(tokens) - (first := model(tokens))).norm() / first.norm()) for _ in range(20)]
    assert found(model, RULE, inputs=(tokens,)).measured == pytest.approx(sum(changes) / 20, rel=0.2)


@pytest.mark.parametrize("way", ["fused", "function", "module", "by hand"])
def test_it_stops(way):
    model = Language(Dropping(way, always=False)).train()
    silent(model, RULE)
    assert model.attention.layer.training


class Mask(nn.Module):
    """A masked autoencoder's order."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, torch.rand(x.shape[1]).argsort()]


class Latent(nn.Module):
    """A variational autoencoder's sample, mean + spread · noise."""

    def __init__(self, written: str = "by hand") -> None:
        super().__init__()
        self.written, self.mean, self.spread = written, *(nn.Linear(D_MODEL, D_MODEL) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        mean, spread = self.mean(x), self.spread(x).exp()
        if self.written == "by hand":
            return mean + spread * torch.randn_like(spread)
        return torch.distributions.Normal(mean, spread).rsample()


@pytest.mark.parametrize("make", [Mask, Latent, lambda: Latent("torch's")])
def test_randomness_by_design_is_noted(make):
    report = asked(Language(make()), RULE)
    assert [one.severity for one in report.findings] == [Severity.NOTE]


class Disturbed(Attention):
    """Noise on what is computed, or a branch that is left out, whatever the mode."""

    def __init__(self, way: str):
        super().__init__()
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        branch = super().forward(x)
        if self.way == "noise":
            return branch + torch.normal(0.0, 0.1, branch.shape)
        if self.way == "factor":
            return branch * (1 + 0.1 * torch.randn(branch.shape[-1]))
        if self.way == "samples":
            return branch * torch.bernoulli(torch.full((len(x), 1, 1), 0.5)) / 0.5
        return branch if torch.rand(()) < 0.5 else torch.zeros_like(branch)


@pytest.mark.parametrize("way", ["noise", "factor", "samples", "branch"])
def test_noise_and_layers_left_out(way):
    if way == "branch":
        torch.manual_seed(4)
    reports = [asked(Language(Disturbed(way)), RULE) for _ in range(1 if way != "branch" else 8)]
    assert any(report.failing for report in reports)
    assert all(one.severity is Severity.FAULT and one.expected == 0 for report in reports for one in report.findings)
