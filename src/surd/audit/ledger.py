"""The ledger of a check: every scale that was read, beside what it should be; at 1 all is well."""

from collections.abc import Iterator
from dataclasses import dataclass

from surd.audit.declared import Declared
from surd.measure.sites import Trace


@dataclass(frozen=True, kw_only=True)
class Line:
    """One scale at one site."""

    site: str
    quantity: str
    measured: float
    expected: float
    source: str

    @property
    def ratio(self) -> float:
        """Measured over expected."""
        return self.measured / self.expected


def lines(trace: Trace, declared: Declared) -> Iterator[Line]:
    """Factors of attention, multipliers of embeddings and of the head, in the order of the forward."""
    for table in trace.embeddings:
        if table.multiplier is not None:
            expected, source = (declared.embedding.value, declared.embedding.by) if declared.embedding else (
                (1.0, "as stored") if abs(table.multiplier - 1) < abs(table.multiplier - table.width**0.5)
                else (table.width**0.5, "Vaswani et al. 2017, section 3.4")
            )  # fmt: skip
            yield _line(table.site.name, "multiplier of the rows", table.multiplier, expected, source)
    for one in trace.attention:
        if one.factor is not None and not one.qk_norm:
            values = declared.attention.value if declared.attention else one.usual
            source = declared.attention.by if declared.attention else "Vaswani et al. 2017, section 3.2.1"
            if declared.attention_by_path is not None:
                found = [v for part, v in declared.attention_by_path.value.items() if part in f"{one.site.path}."]
                values, source = (tuple(found), declared.attention_by_path.by) if found else (values, source)
            nearest = min(values, key=lambda value: abs(one.factor / value - 1))
            yield _line(one.name, "c of softmax(c · q · k)", one.factor, nearest, source)
    if trace.head is not None:
        expected, source = (declared.head.value, declared.head.by) if declared.head else (1.0, "as projected")
        yield _line(trace.head.site.name, "factor before and behind the head", trace.head.multiplier, expected, source)


def _line(site: str, quantity: str, measured: float, expected: float, source: str) -> Line:
    return Line(site=site, quantity=quantity, measured=measured, expected=expected, source=source)
