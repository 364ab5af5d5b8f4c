"""Asks one rule of a model."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from surd.audit.declared import NOTHING, Declared
from surd.audit.finding import Finding
from surd.audit.judge import Report, judge
from surd.audit.subject import of_module
from surd.measure.calling.inputs import Inputs


def asked(
    model: nn.Module,
    *rules: str,
    inputs: Inputs | None = None,
    loss: Callable[[Any], Tensor] | None = None,
    declared: Declared = NOTHING,
    trained: bool | None = False,
) -> Report:
    return judge(of_module(model, inputs, loss, declared, trained), select=rules)


def found(model: nn.Module, rule: str, **known: Any) -> Finding:
    """The one finding that counts against the model."""
    report = asked(model, rule, **known)
    assert len(report.failing) == 1, str(report)
    return report.failing[0]


def silent(model: nn.Module, rule: str, **known: Any) -> Report:
    """Looked and found nothing that counts."""
    report = asked(model, rule, **known)
    assert report.failing == (), str(report)
    assert not any(not one.site for one in report.skipped), str(report)
    return report
