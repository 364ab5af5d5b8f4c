"""Heat maps: one statistic of all heads, a row for each attention, a cell for each head, darker where it is worse."""

from collections.abc import Sequence
from html import escape
from math import isfinite

from surd.audit.heads import Heads

SHOWN = {
    "entropy over ln n": (1.0, 0.0, "1 is uniform, 0 one key alone"),
    "dead rows": (0.0, 1.0, "share of rows whose Jacobian passes no gradient"),
    "logit std": (1.0, 8.0, "standard deviation of the scores; 1 is the paper's"),
    "largest logit": (0.0, 50.0, "above 50 training becomes unstable"),
}
"""Best and worst value of each, and what it means."""
LABELS = 16
"""Columns that have a number of their own."""


def heat_maps(heads: Sequence[Heads]) -> str:
    """One map for each statistic, its numbers in a table beneath; nothing without heads."""
    maps = [_map(name, [one for one in heads if one.values.get(name)]) for name in SHOWN]
    return f'<h2>Heads</h2>\n<section class="charts">{"".join(maps)}</section>' if any(maps) else ""


def _map(name: str, heads: Sequence[Heads]) -> str:
    if not heads:
        return ""
    _, worst, meaning = SHOWN[name]
    short = shortened([one.site for one in heads])
    rows = "".join(
        f'<tr><th scope="row" title="{escape(one.site)}">{escape(label)}</th>{_cells(name, one, not number)}</tr>\n'
        for number, (one, label) in enumerate(zip(heads, short, strict=True))
    )
    columns = max(len(one.values[name]) for one in heads)
    label = max(map(len, ("place", *short)))
    return (
        f"<figure><figcaption>{escape(name)}</figcaption>"
        f'<div class="wide"><table class="heat" style="--columns:{columns};--label:{label}">'
        f"{_axis(columns)}<tbody>\n{rows}</tbody></table></div>"
        f'<p class="readout faint" aria-live="polite">{escape(meaning)}; red at {worst:g}</p>'
        f"<details><summary>its numbers</summary>{_numbers(name, heads, short, columns)}</details></figure>\n"
    )


def _axis(columns: int) -> str:
    """What the columns are, and the number of each, or of every few where there are many."""
    step = next(step for step in (1, 2, 4, 8, 16, 32, columns) if columns <= step * LABELS)
    numbers = "".join(
        f'<th scope="col" colspan="{min(step, columns - head)}">{head}</th>' for head in range(0, columns, step)
    )
    return (
        f'<thead><tr><th></th><th scope="colgroup" colspan="{columns}">head</th></tr>'
        f'<tr><th scope="col">place</th>{numbers}</tr></thead>'
    )


def _cells(name: str, one: Heads, first: bool) -> str:
    """Arrow keys lead from cell to cell, so that one stop of the tabulator is enough for a map."""
    best, worst, _ = SHOWN[name]
    cells = []
    for head, value in enumerate(one.values[name]):
        told = f"{one.site}, head {head}: {name} {_number(value)}"
        share = min(1.0, max(0.0, (value - best) / (worst - best))) if isfinite(value) else 0.0
        stop = 0 if first and head == 0 else -1
        cells.append(f'<td tabindex="{stop}" style="--heat:{100 * share:.0f}%" title="{escape(told)}"></td>')
    return "".join(cells)


def _numbers(name: str, heads: Sequence[Heads], labels: Sequence[str], columns: int) -> str:
    top = "".join(f"<th>{head}</th>" for head in range(columns))
    rows = "".join(
        f'<tr><td title="{escape(one.site)}">{escape(label)}</td>'
        f"{''.join(f'<td>{_number(value)}</td>' for value in one.values[name])}</tr>\n"
        for one, label in zip(heads, labels, strict=True)
    )
    return (
        f'<div class="wide" tabindex="0"><table><thead><tr><th>head</th>{top}</tr></thead>'
        f"<tbody>\n{rows}</tbody></table></div>"
    )


def _number(value: float) -> str:
    return f"{value:.3g}" if isfinite(value) else "–"


def shortened(sites: Sequence[str]) -> list[str]:
    """Sites without what all those of one stack, such as the encoder, have in common; whole where that is ambiguous."""
    paths = [site.split(":")[0].split(".") for site in sites]
    while len(sites) > 1 and all(len(path) > 1 and path[0] == paths[0][0] for path in paths):
        paths = [path[1:] for path in paths]
    labels = [".".join([*path[:1], *_varying(path, paths)]) for path in paths]
    return labels if all(labels) and len(set(labels)) == len(labels) else list(sites)


def _varying(path: Sequence[str], paths: Sequence[Sequence[str]]) -> list[str]:
    """The further parts of a path in which those that begin like it, and are as long, differ."""
    alike = [other for other in paths if other[0] == path[0] and len(other) == len(path)]
    return [part for place, part in enumerate(path[1:], 1) if len({other[place] for other in alike}) > 1]
