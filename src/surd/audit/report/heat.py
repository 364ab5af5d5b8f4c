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
    """One map for each statistic; nothing without heads."""
    maps = [_map(name, heads) for name in SHOWN if any(name in one.values for one in heads)]
    return f'<h2>Heads</h2>\n<section class="charts">{"".join(maps)}</section>' if maps else ""


def _map(name: str, heads: Sequence[Heads]) -> str:
    best, worst, meaning = SHOWN[name]
    rows = "".join(
        f'<tr><th scope="row">{escape(one.site)}</th>'
        + "".join(_cell(name, one.site, head, value, best, worst) for head, value in enumerate(one.values[name]))
        + "</tr>\n"
        for one in heads
        if name in one.values
    )
    return (
        f"<figure><figcaption>{escape(name)}</figcaption>"
        f'<div class="wide" tabindex="0"><table class="heat"><tbody>\n{rows}</tbody></table></div>'
        f'<p class="faint">{escape(meaning)}</p></figure>\n'
    )


def _cell(name: str, site: str, head: int, value: float, best: float, worst: float) -> str:
    told = f"{site}, head {head}: {name} {value:.3g}"
    share = min(1.0, max(0.0, (value - best) / (worst - best))) if isfinite(value) else 0.0
    text = f"{value:.2g}" if isfinite(value) else "–"
    return f'<td tabindex="0" style="--heat:{100 * share:.0f}%" title="{escape(told)}">{text}</td>'
