"""Names of causes: what a wrong factor of attention is, told by its number."""

from collections.abc import Sequence
from math import isclose, sqrt

from surd.measure.sites import Attention

EXACT = 2e-3
"""Factors are exact: 1/√65 is no 1/√64."""
ROUNDED = 0.01
"""Of constants in half precision."""
DRAWN = 0.2
"""Where the sizes of drawn weights count."""
MOST = 2**20
"""No width is larger."""


def cause(site: Attention, measured: float, sites: Sequence[Attention], widths: set[int], close: float) -> str:
    """Of a factor that should be 1/√d_k; `sites` are all attentions, `widths` those of the stream."""
    d_k, root = site.d_k, sqrt(site.d_k)
    widths = widths | ({site.heads * d_k} if site.heads else set())
    names = [(1.0, "the factor is missing"), (1 / d_k, "the factor is applied twice"), (root, "multiplied by √d_k")]
    names += [(width**-0.5, "d_model stands where d_k belongs") for width in sorted(widths) if width != d_k]
    names += [(root**-0.5, "only one of two quarter powers is applied")]
    names += [(site.heads**-0.5, "the number of heads stands where d_k belongs")] if site.heads else []
    names += [(site.softmax.keys**-0.5, "the number of keys stands where d_k belongs")] if site.softmax else []
    if _by_layer(sites, close):
        return "it is divided by the number of the layer besides, and not multiplied back"
    for value, name in names:
        if isclose(measured, value, rel_tol=close):
            return name
    whole = round(measured**-2) if 1 < measured**-2 < MOST else 0
    exact = close < DRAWN and whole > 1 and isclose(measured, whole**-0.5, rel_tol=close / whole)
    return f"√{whole} stands where √{d_k} belongs" if exact else "no declared factor explains it"


def cause_beside(site: Attention, measured: float, stated: float, close: float) -> str:
    """Of a factor where another one is stated."""
    one_side = sqrt(stated * site.d_k**-0.5)
    names = [(usual, "it is 1/√d_k, as where nothing is stated") for usual in site.usual]
    names += [(1.0, "the factor is missing"), (stated**2, "the factor is applied twice")]
    names += [(one_side, "what is stated beside 1/√d_k is applied to one of query and key alone")]
    for value, name in names:
        if isclose(measured, value, rel_tol=close):
            return name
    return "no other factor that is known explains it"


def _by_layer(sites: Sequence[Attention], close: float) -> bool:
    """Whether each layer is divided by its number, counted from one."""
    numbers = [next((int(part) + 1 for part in one.site.path.split(".") if part.isdecimal()), 1) for one in sites]
    pairs = list(zip(sites, numbers, strict=True))
    return len(set(numbers)) > 1 and all(
        one.factor is not None and isclose(one.factor * number, one.d_k**-0.5, rel_tol=close) for one, number in pairs
    )
