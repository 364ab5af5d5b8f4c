"""`surd check`: whether the scales of a Transformer are right, where not, by how much, why, and the mend."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from surd.audit.judge import Report

FOUND = 1


def check(
    model: str | None = None,
    /,
    *,
    against: str | None = None,
    select: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    ignore: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    static: bool = False,
    batch: Path | None = None,
    state: Literal["auto", "trained", "untrained"] = "auto",
    format: Literal["table", "json", "github"] = "table",
    html: Path | None = None,
    baseline: Path | None = None,
    write_baseline: Path | None = None,
    rule: str | None = None,
    list: bool = False,
) -> int:
    """Checks the scales of a Transformer: a run of surd, a Hugging Face folder, a Keras file, or a module of your own.

    It ends with 0 where nothing counts against the model, with 1 where a fault or a warning is left, and with 2 where
    nothing was looked at.

    No code of a folder is run, no pickle is read, nothing is fetched. Only package.module:factory runs code: yours.

    Parameters
    ----------
    model
        A run, a Hugging Face folder (config.json alone will do), a .keras or .safetensors file, or module:factory.
    against
        Another model to compare with, place by place; or the same one as it is eager, padded, saved or resized.
    select
        Let this rule alone look; may be given several times.
    ignore
        Do not tell what this rule finds; may be given several times.
    static
        Run nothing: look at weights and configuration alone, tensor by tensor.
    batch
        A .safetensors file with the arguments of one call of the model, by name, in place of made-up ones.
    state
        Whether the model has been trained; told from its weights unless given.
    format
        A table, JSON, or annotations for GitHub.
    html
        Write a page with pictures to this file, too.
    baseline
        A file of known findings, which do not count.
    write_baseline
        Write all that counts to this file, as known from now on, and end with 0.
    rule
        Print the page of this rule instead: the fault, why, when it matters, example and cure.
    list
        List the rules instead.
    """
    if list:
        return listed()
    if rule is not None:
        return explained(rule)
    from surd.api import check as checked
    from surd.audit.baseline import read_baseline, without_known
    from surd.audit.baseline import write_baseline as write
    from surd.errors import SurdError
    from surd.files import refuse_unwritable

    if model is None:
        raise SurdError("check: name a model: a folder, a file, or package.module:factory. --list shows the rules")
    for file in (html, write_baseline):
        if file is not None:
            refuse_unwritable(file)
    if baseline is not None:
        read_baseline(baseline)
    report = checked(
        model,
        against=against,
        select=select,
        ignore=ignore,
        static=static,
        batch=batch,
        trained=None if state == "auto" else state == "trained",
    )
    whole = report
    if baseline is not None:
        report = without_known(report, baseline)
    if not report.looked:
        sys.stdout.write(told(report, format) + "\n")
        raise SurdError(f"{report.subject}: nothing was looked at, so nothing is known of its scales")
    if write_baseline is not None:
        write(whole, write_baseline)
    if html is not None:
        from surd.audit.report.page import write_page

        write_page(report, html)
        sys.stderr.write(f"page: {html}\n")
    sys.stdout.write(told(report, format) + "\n")
    return 0 if report.clean or write_baseline is not None else FOUND


def told(report: "Report", format: str) -> str:
    """The report in one of the formats."""
    from surd.audit.report.github import annotations
    from surd.audit.report.record import as_json
    from surd.audit.report.table import table

    return {"table": table, "json": as_json, "github": annotations}[format](report)


def listed() -> int:
    """Prints name and first line of each rule."""
    from surd.audit.rule import titles

    found = [*titles()]
    width = max(len(name) for name, _ in found)
    sys.stdout.write("".join(f"{name.ljust(width)}  {title}\n" for name, title in found))
    return 0


def explained(name: str) -> int:
    """Prints the page of a rule."""
    from surd.audit.report.rule_page import rule_page
    from surd.audit.rule import named

    sys.stdout.write(rule_page(named(name)) + "\n")
    return 0
