"""Example and cure on every rule's page do what the page says."""

import pytest

from surd.audit.declared import NOTHING
from surd.audit.judge import judge
from surd.audit.rule import named, names
from surd.audit.subject import Subject, of_module


def subject(code: str) -> Subject:
    scope: dict = {}
    exec(compile(code, "page", "exec"), scope)
    known = {key: scope[key] for key in ("inputs", "loss", "trained") if key in scope}
    return of_module(scope["model"], declared=scope.get("declared", NOTHING), **known)


@pytest.mark.parametrize("name", names())
def test_the_example_is_found_for_this_one_reason(name):
    report = judge(subject(named(name).example))
    assert [finding.rule for finding in report.failing] == [name], str(report)


@pytest.mark.parametrize("name", names())
def test_the_cure_has_no_finding(name):
    report = judge(subject(named(name).cure))
    assert report.findings == (), str(report)
    assert name in report.passed, [one for one in report.skipped if one.rule == name]
