"""Every public report of a wrong scale has a fixture that shows its fault, or the reason why no small model can."""

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

from surd.audit.rule import named, names

HERE = Path(__file__).parent
REPORTS = (HERE / "cases" / "reports.txt").read_text(encoding="utf-8").split()
TABLES = sorted((HERE / "cases").glob("*.toml"))
RULES = (HERE / "cases" / "rules.txt").read_text(encoding="utf-8").split()


def entries(path: Path) -> dict[str, dict[str, str]]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


@cache
def functions(name: str) -> frozenset[str]:
    tree = ast.parse((HERE / name).read_bytes())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_there_are_thirty_seven_rules() -> None:
    assert names() == sorted(RULES)
    assert len(RULES) == 37


def test_no_rule_follows_from_itself() -> None:
    """In a circle of causes no finding would be the first one."""
    follows = {name: named(name).follows for name in names()}
    for name in follows:
        reached, todo = set(), [name]
        while todo:
            new = [one for one in follows.get(todo.pop(), ()) if one not in reached]
            reached.update(new)
            todo += new
        assert name not in reached, name


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_entry_names_a_rule_and_a_test_or_a_reason(path: Path) -> None:
    for report, entry in entries(path).items():
        assert entry["rule"] in RULES, (report, entry)
        assert set(entry) in ({"rule", "test"}, {"rule", "reason"}), (report, entry)
        if "test" in entry:
            file, _, function = entry["test"].partition("::")
            assert function in functions(file), (report, entry["test"])
        else:
            assert len(entry["reason"].split()) > 3, (report, entry)


def test_every_report_has_one_entry() -> None:
    told = [report for path in TABLES for report in entries(path)]
    assert sorted(told) == sorted(REPORTS)
    assert len(set(REPORTS)) == len(REPORTS)
