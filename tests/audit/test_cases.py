"""Every public report of a wrong scale has a fixture that shows its fault, or the reason why no small model can."""

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

from surd.audit.rule import names

HERE = Path(__file__).parent
REPORTS = (HERE / "cases" / "reports.txt").read_text(encoding="utf-8").split()
TABLES = sorted((HERE / "cases").glob("*.toml"))
RULES = """attention-entropy attention-logit-max attention-scale batch-isolation causality cloned-layers constant-rounding
double-softmax embedding-scale empty-rows eval-determinism head-bias head-layout init-std initial-loss
label-smoothing-mass logit-scale loss-padding-invariance mask-fill mask-leak norm-epsilon norm-gain-convention padding-row
parameter-count position-axis position-ratio precision-headroom qk-norm-growth residual-growth residual-path
rope-precision soft-cap softmax-axis softmax-saturation tied-init-std vocab-rows weight-tying""".split()


def entries(path: Path) -> dict[str, dict[str, str]]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


@cache
def functions(name: str) -> frozenset[str]:
    tree = ast.parse((HERE / name).read_bytes())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_there_are_thirty_seven_rules() -> None:
    assert names() == sorted(RULES)
    assert len(RULES) == 37


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
