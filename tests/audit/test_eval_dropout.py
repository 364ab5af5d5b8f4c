"""Dropout that goes on in eval mode, however it is written, and randomness that is meant."""

import pytest
import torch
import torch.nn.functional as F
from audit.asked import asked, found, silent
from measure.faults import HEALTHY, Attention, Language, merge, split
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


def test_randomness_by_design_is_noted():
    class Mask(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, torch.rand(x.shape[1]).argsort()]

    report = asked(Language(Mask()), RULE)
    assert [one.severity for one in report.findings] == [Severity.NOTE]
