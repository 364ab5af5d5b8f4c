"""`surd info`: what a run is, from what it was made, how good it is, and its scales."""

import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from surd.run.info import Info


def info(run: Path, /, *, json: bool = False) -> None:
    """Tells what a run is: its data and origin, scores, updates, parameters, vocabulary and scales.

    Parameters
    ----------
    run
        The folder of a run.
    json
        Print JSON instead of lines.
    """
    from surd.run.info import info as of

    found = of(run)
    sys.stdout.write(as_json(found) if json else as_lines(found))


def as_json(info: "Info") -> str:
    """Everything, for programs."""
    return json.dumps(asdict(info), indent=2, ensure_ascii=False) + "\n"


def as_lines(info: "Info") -> str:
    """Names and values in two columns."""
    rows = list(rows_of(info))
    width = max(len(name) for name, _ in rows)
    return "".join(f"{name.ljust(width)}  {value}".rstrip() + "\n" for name, value in rows)


def rows_of(info: "Info") -> Iterator[tuple[str, str]]:
    """What is shown, in order; a row without a name goes on with the one above."""
    from surd.run.info import origin_lines

    yield "run", info.run
    yield "task", info.task
    yield "data", ", ".join(info.data) or "unnamed"
    for number, line in enumerate(origin_lines(info.origin)):
        yield "" if number else "origin", line
    yield "made", f"{info.created} by {info.surd}"
    yield "training", training(info)
    if info.chosen:
        yield "weights", info.chosen
    for number, score in enumerate(info.scores):
        yield "" if number else "scores", f"{score}  {score.signature}"
    if info.scores:
        yield "", f"on {info.basis}"
    shared = f", {info.shared:,} more are saved by tying" if info.shared else ""
    yield "parameters", f"{info.parameters:,}{shared}"
    yield "layers", info.layers
    sizes = [f"{size:,} ({kind})" for size, kind in zip(info.vocabularies, info.tokenizers, strict=True)]
    yield "vocabulary", f"{sizes[0]}, joint" if info.joint else " and ".join(sizes)
    yield "attention", info.scales.attention
    yield "embedding", info.scales.embedding
    yield "initialisation", info.scales.initialisation
    yield "tying", info.scales.tying
    if info.sizes:
        yield "scales", info.sizes
    if info.check is None:
        yield "check", f"not made at the start; now: surd check {shlex.quote(info.run)}"
    else:
        yield "check", f"at the start: {info.check.verdict}"
        yield from (("", line) for line in info.check.findings)


def training(info: "Info") -> str:
    """How far it has come."""
    if info.updates is None:
        return "hardly begun: no model yet"
    of = f" of at most {info.limit:,}" if info.limit else ""
    return f"{info.updates:,} updates{of}, {'finished' if info.finished else 'not finished'}"
