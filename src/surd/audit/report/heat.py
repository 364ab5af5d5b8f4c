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


def heat_maps(heads: Sequence[Heads]) -> str:
    """One map for each statistic, its numbers in a table beneath; nothing without heads."""
    maps = [_map(name, [one for one in heads if one.values.get(name)]) for name in SHOWN]
    return f'<h2>Heads</h2>\n<section class="charts">{"".join(maps)}</section>' if any(maps) else ""


def _map(name: str, heads: Sequence[Heads]) -> str:
    if not heads:
        return ""
    meaning = SHOWN[name][2]
    short = shortened([one.site for one in heads])
    rows = "".join(
        f'<tr><th scope="row" title="{escape(one.site)}">{escape(label)}</th>{_cells(name, one, not number)}</tr>\n'
        for number, (one, label) in enumerate(zip(heads, short, strict=True))
    )
    columns = max(len(one.values[name]) for one in heads)
    return (
        f"<figure><figcaption>{escape(name)}</figcaption>"
        f'<div class="wide"><table class="heat" style="--columns:{columns}"><tbody>\n{rows}</tbody></table></div>'
        f'<p class="readout faint" aria-live="polite">{escape(meaning)}</p>'
        f"<details><summary>its numbers</summary>{_numbers(name, heads, columns)}</details></figure>\n"
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


def _numbers(name: str, heads: Sequence[Heads], columns: int) -> str:
    top = "".join(f"<th>{head}</th>" for head in range(columns))
    rows = "".join(
        f"<tr><td>{escape(one.site)}</td>{''.join(f'<td>{_number(value)}</td>' for value in one.values[name])}</tr>\n"
        for one in heads
    )
    return (
        f'<div class="wide" tabindex="0"><table><thead><tr><th>head</th>{top}</tr></thead>'
        f"<tbody>\n{rows}</tbody></table></div>"
    )


def _number(value: float) -> str:
    return f"{value:.3g}" if isfinite(value) else "–"


def shortened(sites: Sequence[str]) -> list[str]:
    """Sites without the parts of their paths, and the role, that all share."""
    paths = [site.split(":")[0].split(".") for site in sites]
    roles = [site.partition(":")[2] for site in sites]
    common = 0
    while len(sites) > 1 and all(
        len(path) > common + 1 and path[: common + 1] == paths[0][: common + 1] for path in paths
    ):
        common += 1
    labels = [".".join(path[common:]) or site for path, site in zip(paths, sites, strict=True)]
    return labels if len(set(roles)) == 1 and len(set(labels)) == len(labels) else list(sites)
