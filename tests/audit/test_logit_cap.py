"""A cap on the logits bounds the loss from below: one that nobody can learn under is a fault, whatever is declared."""

from math import exp, log

import pytest
import torch
from audit.asked import asked, found, silent
from audit.languages import VOCABULARY, Modules

from surd.audit.declared import Declared, Stated
from surd.audit.finding import Severity

TOKENS = (torch.randint(4, VOCABULARY, (6, 13), generator=torch.Generator().manual_seed(2)),)
RULE = "logit-scale"


class Capped(Modules):
    def __init__(self, inner: float, outer: float) -> None:
        super().__init__()
        self.inner, self.outer = inner, outer

    def logits(self, hidden):
        return self.outer * (self.head(hidden) / self.inner).tanh()


@pytest.mark.parametrize("cap", [15.0, 30.0])
def test_a_cap_of_which_nothing_is_felt(cap) -> None:
    silent(Capped(cap, cap), RULE, inputs=TOKENS)


@pytest.mark.parametrize("trained", [False, True])
def test_a_cap_that_is_not_multiplied_back(trained) -> None:
    finding = found(Capped(30.0, 1.0), RULE, inputs=TOKENS, trained=trained)
    assert finding.severity is Severity.FAULT
    assert finding.measured == pytest.approx(log(1 + (VOCABULARY - 1) * exp(-2)), rel=0.01)


def test_beside_a_declared_cap_it_is_one_finding() -> None:
    declared = Declared(logit_cap=Stated(30.0, "config.final_logit_softcapping"))
    report = asked(Capped(30.0, 1.0), RULE, "soft-cap", inputs=TOKENS, declared=declared)
    assert [one.rule for one in report.failing] == ["soft-cap"], str(report)
