"""Where attention happened and was not seen, the report says so: silence never means healthy."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from measure.constructions import ByHand, quotient, reciprocal_in_place
from measure.faults import D_K, HEALTHY, Attention, Language, merge, split
from torch import Tensor, nn

from surd.api import check
from surd.audit.report.words import verdict

JUDGED_BY_SOFTMAX = {"attention-scale", "attention-entropy", "softmax-saturation", "attention-logit-max"}


class Linear(Attention):
    """Attention without a softmax: (φ(q) · Σ φ(k) vᵀ) / (φ(q) · Σ φ(k))."""

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (split(layer(x)) for layer in (self.query, self.key, self.value))
        query, key = F.elu(query) + 1, F.elu(key) + 1
        mixed = query @ (key.mT @ value) / (query @ key.sum(-2, keepdim=True).mT)
        return self.output(merge(mixed))


class Distances(Attention):
    """The softmax is of distances between queries and keys, which no product made."""

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (split(layer(x)) for layer in (self.query, self.key, self.value))
        apart = (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(-1)
        return self.output(merge((-apart * HEALTHY / 2).softmax(-1) @ value))


@pytest.mark.parametrize("build", [Linear, Distances])
def test_what_is_no_softmax_of_a_product_is_not_passed_as_healthy(build: Callable[[], nn.Module]) -> None:
    report = check(Language(build()), trained=False)
    dark = {one.rule: one.reason for one in report.skipped if not one.site}
    assert dark.keys() >= JUDGED_BY_SOFTMAX
    assert not JUDGED_BY_SOFTMAX & set(report.passed)
    assert "positions mix" in dark["attention-scale"]
    assert verdict(report).endswith("attention not seen")


def test_of_two_blocks_the_one_that_is_not_seen_is_named() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen, self.dark = Attention(), Distances()

        def forward(self, x: Tensor) -> Tensor:
            return self.dark(x + self.seen(x))

    report = check(Language(Both()), select=["attention-scale"], trained=False)
    assert [one.reason for one in report.skipped if one.site and "no product of activations" in one.reason]
    assert "not seen" not in verdict(report)


@pytest.mark.parametrize("softmax", [quotient, reciprocal_in_place])
def test_a_softmax_by_hand_is_judged(softmax: Callable[[Tensor], Tensor]) -> None:
    assert check(Language(ByHand(softmax)), select=["attention-scale"]).clean

    def unscaled(scores: Tensor) -> Tensor:
        return softmax(scores / HEALTHY)

    (found,) = check(Language(ByHand(unscaled)), select=["attention-scale"]).failing
    assert found.measured == pytest.approx(1.0, rel=1e-3)
    assert found.expected == pytest.approx(D_K**-0.5)


def test_rows_of_a_softmax_by_hand_that_runs_sideways_do_not_add_up() -> None:
    def sideways(scores: Tensor) -> Tensor:
        exps = torch.exp(scores)
        return exps / exps.sum(-2, keepdim=True)

    (found,) = check(Language(ByHand(sideways)), select=["softmax-axis"]).failing
    assert found.rule == "softmax-axis"
