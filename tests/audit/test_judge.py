"""One cause is one finding: what follows from it stands beneath it, unless nothing that fails explains it."""

import pytest
from audit.asked import asked

from surd.audit.finding import Finding, Severity
from surd.audit.judge import grouped
from surd.audit.rule import named
from surd.audit.specimen import language_model

RULES = [named(name) for name in ("attention-scale", "attention-entropy", "softmax-saturation")]


def finding(rule: str, severity: Severity) -> Finding:
    return Finding(
        rule=rule,
        severity=severity,
        site="attention:score",
        quantity="",
        measured=1.0,
        expected=0.25,
        source="",
        message="",
        mend="",
    )


def test_what_follows_from_a_fault_stands_beneath_it() -> None:
    found = [finding("softmax-saturation", Severity.WARNING), finding("attention-scale", Severity.FAULT)]
    (primary,) = grouped(found, RULES)
    assert primary.rule == "attention-scale"
    assert [one.rule for one in primary.consequences] == ["softmax-saturation"]


@pytest.mark.parametrize(
    ("cause", "effect"),
    [
        ("weight-tying", "head-bias"),  # a bias of two names that was cut: one of the two is added no more
        ("padding-row", "position-ratio"),  # the whole table was cleared with its row of padding
        ("residual-growth", "attention-logit-max"),
        ("norm-gain-convention", "residual-growth"),
        ("weight-tying", "parameter-count"),
    ],
)
def test_causes_that_stand_in_other_rules(cause: str, effect: str) -> None:
    found = [finding(effect, Severity.FAULT), finding(cause, Severity.WARNING)]
    (primary,) = grouped(found, [named(cause), named(effect)])
    assert primary.rule == cause and [one.rule for one in primary.consequences] == [effect]


def test_what_is_declared_hides_no_fault() -> None:
    found = [finding("attention-scale", Severity.DECLARED), finding("attention-entropy", Severity.WARNING)]
    assert [one.rule for one in grouped(found, RULES)] == ["attention-entropy", "attention-scale"]


def test_what_was_released_as_it_is_explains_what_follows() -> None:
    found = [finding("attention-scale", Severity.DECLARED), finding("attention-entropy", Severity.WARNING)]
    (primary,) = grouped(found, RULES, {"attention-scale": "its paper"})
    assert [one.rule for one in primary.consequences] == ["attention-entropy"]


def test_a_note_explains_nothing_and_follows_from_nothing() -> None:
    found = [finding("attention-scale", Severity.NOTE), finding("attention-entropy", Severity.WARNING)]
    assert len(grouped(found, RULES)) == 2
    found = [finding("attention-scale", Severity.FAULT), finding("attention-entropy", Severity.NOTE)]
    assert len(grouped(found, RULES)) == 2


def test_rules_that_are_not_selected_do_not_look() -> None:
    report = asked(language_model(), "attention-scale")
    assert report.passed == ("attention-scale",) and not report.skipped
