"""Public architectures, small and at real widths, and checkpoints: what a check has against each.

    python benchmarks/silence.py                  every type small, and those of `WIDE` wide
    python benchmarks/silence.py gpt2 t5          some of them
    python benchmarks/silence.py --minutes 4      as many as fit; again with --more for those that are not done
    python benchmarks/silence.py --checkpoint D   the trained weights in a folder besides, by the real command

Ends with 1 where anything counts against a type that is not known to be wrong, or where a check raised.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

import report

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # the types belong to the tests

from audit.architectures import FAULTY, TABLE, WIDE, built, is_missing

from surd.api import check

SIZES = {"small": False, "wide": True}
SOURCE = Path(__file__).parent.parent / "src"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("types", nargs="*", metavar="TYPE", help="some types instead of all")
    parser.add_argument("--size", choices=SIZES, help="only one of both sizes")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no new type is begun after that")
    parser.add_argument("--more", action="store_true", help="what stands in the result file already is kept")
    parser.add_argument("--checkpoint", type=Path, action="append", default=[], help="a folder of Hugging Face")
    parser.add_argument("--results", type=Path, default=report.RESULTS, help="folder for the result files")
    arguments = parser.parse_args()
    if unknown := sorted({*arguments.types} - {*TABLE}):
        parser.error(f"no such type: {', '.join(unknown)}")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    file = arguments.results / "silence.json"
    told = json.loads(file.read_text())["checks"] if arguments.more and file.exists() else []
    done = {(one["type"], one["size"]) for one in told}
    begun = time.monotonic()
    for name, size in wanted(arguments.types, arguments.size):
        if (name, size) not in done and time.monotonic() - begun < 60 * arguments.minutes:
            told.append(checked(name, size))
            print(f"{name:24}{size:6}{told[-1]['seconds']:6.1f} s  {verdict(told[-1])}", flush=True)
    told += [by_command(folder) for folder in arguments.checkpoint if (name_of(folder), "trained") not in done]
    return written(told, arguments.results)


def wanted(types: list[str], size: str | None) -> Iterator[tuple[str, str]]:
    """What is to be checked, in order."""
    for one, names in (("small", TABLE), ("wide", WIDE)):
        if size in (None, one):
            yield from ((name, one) for name in names if not types or name in types)


def checked(name: str, size: str) -> dict[str, Any]:
    """One model of a type, and what came of its check."""
    record: dict[str, Any] = {"type": name, "size": size, "seconds": 0.0}
    if is_missing(name):
        return {**record, "missing": True}
    model = built(name, SIZES[size])
    record |= {"parameters": sum(x.numel() for x in model.parameters()), "longest axis": longest(model)}
    begun = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = check(model)
    except Exception:
        return {**record, "raised": traceback.format_exc()}
    counts = {severity: sum(one.severity == severity for one in found.findings) for severity in ("declared", "note")}
    known = FAULTY.get(name, (set(), ""))[0]
    failing = [
        {name: str(getattr(one, name)) for name in ("rule", "severity", "site", "message")}
        | {"known": one.rule in known}
        for one in found.failing
    ]
    skipped = {one.rule: one.reason for one in found.skipped if not one.site}
    return {**record, "seconds": round(time.perf_counter() - begun, 2), "passed": len(found.passed), **counts,
            "failing": failing, "skipped": skipped}  # fmt: skip


def name_of(folder: Path) -> str:
    """The folder's, and its parent's."""
    return "/".join(folder.resolve().parts[-2:])


def by_command(folder: Path) -> dict[str, Any]:
    """The same of trained weights."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "surd", "check", str(folder), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)})
    record = {"type": name_of(folder), "size": "trained", "seconds": round(time.perf_counter() - begun, 2)}
    record |= {"parameters": sum(file.stat().st_size for file in folder.glob("*.safetensors")) // 4, "longest axis": 0}
    if not done.stdout:
        return {**record, "raised": done.stderr}
    found = json.loads(done.stdout)
    counts = {severity: sum(x["severity"] == severity for x in found["findings"]) for severity in ("declared", "note")}
    failing = [
        {name: x[name] for name in ("rule", "severity", "site", "message")} | {"known": False}
        for x in found["findings"]
        if x["severity"] in ("fault", "warning")
    ]
    skipped = {one["rule"]: one["reason"] for one in found["skipped"] if not one["site"]}
    return {**record, "passed": len(found["passed"]), **counts, "failing": failing, "skipped": skipped}


def longest(model: torch.nn.Module) -> int:
    """The longest axis of a matrix that is no table: at least as wide as the model."""
    tables = {id(x.weight) for x in model.modules() if isinstance(x, torch.nn.Embedding)}
    return max(max(x.shape) for x in model.parameters() if x.dim() > 1 and id(x) not in tables)


def verdict(one: dict[str, Any]) -> str:
    """What is against a type, in words."""
    if "missing" in one:
        return "not in this version"
    if "raised" in one:
        return "raised: " + one["raised"].strip().splitlines()[-1]
    lines = [f"{x['severity']} {x['rule']}{' (known)' if x['known'] else ''}: {x['message']}" for x in one["failing"]]
    return "; ".join(lines) or "silent"


def is_right(one: dict[str, Any]) -> bool:
    """Whether nothing is against it but what is known."""
    return "raised" not in one and all(x["known"] for x in one.get("failing", ()))


def written(told: list[dict[str, Any]], folder: Path) -> int:
    """The result files, and the exit code."""
    heads = ("type", "size", "parameters", "longest axis", "rules passed", "could not look", "declared", "notes",
             "seconds", "faults and warnings")  # fmt: skip
    looked = [one for one in told if "missing" not in one]
    rows = [
        (one["type"], one["size"], f"{one['parameters']:,}", one["longest axis"], one.get("passed", ""),
         len(one.get("skipped", ())), one.get("declared", ""), one.get("note", ""), one["seconds"], verdict(one))
        for one in looked
    ]  # fmt: skip
    lines = []
    for size in (*SIZES, "trained"):
        of_size = [one for one in looked if one["size"] == size]
        silent = sum(not one.get("failing") and "raised" not in one for one in of_size)
        if of_size:
            seconds = sum(x["seconds"] for x in of_size)
            lines.append(f"{size}: {silent} of {len(of_size)} silent, in {seconds:.0f} s")
    missing = sorted({one["type"] for one in told if "missing" in one})
    if missing:
        lines.append(f"not in this version of the library: {', '.join(missing)}")
    lines += [f"{name} is wrong as released: {reason}" for name, (_, reason) in FAULTY.items()]
    table = report.markdown_table(heads, rows)
    text = "\n".join(f"- {line}." for line in lines)
    report.write("silence", "Silence on public architectures", {"checks": told}, f"{text}\n\n{table}", folder)
    return int(not all(map(is_right, told)))


if __name__ == "__main__":
    sys.exit(main())
