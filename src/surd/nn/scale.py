"""The factor between query·key and the softmax: the family of attention scales."""

from dataclasses import dataclass

from surd.part import Part


@dataclass(frozen=True, kw_only=True)
class InverseRoot(Part, kind="inverse_root"):
    """1/√d_k: keeps the scores of independent unit queries and keys at variance 1 for every head width.

    Source: Vaswani et al. 2017, section 3.2.1, footnote: q·k of d_k independent unit components has variance d_k.
    """

    def __call__(self, d_k: int) -> float:
        """The factor for heads of width `d_k`."""
        return d_k**-0.5


Scale = InverseRoot
