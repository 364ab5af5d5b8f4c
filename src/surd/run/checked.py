"""The check of the weights that a training begins with: its verdict lies in the run, in the form that is published."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from surd.errors import SurdError
from surd.files import read_json, write_json
from surd.run.folder import CHECK, Run

if TYPE_CHECKING:
    from surd.audit.judge import Report
    from surd.models.model import Model


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What a check of the first weights said."""

    verdict: str
    """In a line."""
    findings: tuple[str, ...]
    """Those that count, in a line each."""


def checked(model: "Model", trained: bool) -> "Report":
    """Judges a model, computed in fp32 as `surd check` does. It stays as it was, and so does every random state."""
    from surd.audit.judge import judge
    from surd.models.subject import subject

    computed = model.compute_dtype
    model.compute_dtype = torch.float32
    try:
        return judge(subject(model, trained=trained))
    finally:
        model.compute_dtype = computed


def keep(run: Run, report: "Report") -> None:
    """Writes it into the run. Places in the code of this machine are left out."""
    from surd.audit.report.record import record

    told = record(report)
    write_json(run.folder / CHECK, told | {"findings": [_without_code(one) for one in told["findings"]]})


def _without_code(finding: Mapping[str, Any]) -> dict[str, Any]:
    followers = [_without_code(one) for one in finding["consequences"]]
    return {**finding, "file": "", "line": 0, "consequences": followers}


def kept(run: Run) -> Checked | None:
    """What a run has; none where it began without."""
    from surd.audit.finding import Severity
    from surd.audit.report.words import counts, reach

    path = run.folder / CHECK
    if not path.exists():
        return None
    found = read_json(path)
    try:
        findings = [(Severity(one["severity"]), f"{one['rule']}: {one['message']}") for one in found["findings"]]
        dark = {str(one["rule"]) for one in found["skipped"] if not one["site"]}
        looked = reach(len(found["passed"]), len(dark))
    except (KeyError, TypeError, ValueError) as error:
        raise SurdError(f"{path}: damaged, not the report of a check ({error!r})") from None
    return Checked(
        verdict=f"{counts(severity for severity, _ in findings)}; {looked}",
        findings=tuple(f"{severity} {told}" for severity, told in findings if severity.fails),
    )
