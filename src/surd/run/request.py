"""Request: what is asked of a translator besides the best output of a search."""

from dataclasses import dataclass

from surd.decode.decoding import Decoding
from surd.decode.sample import Sampling, without_chance
from surd.errors import Faults


@dataclass(frozen=True, kw_only=True)
class Request:
    """How many outputs, found how, and what is told of them."""

    n_best: int = 1
    """Outputs of each line: the best ones that a search found, or so many draws."""
    sampling: Sampling | None = None
    """How an output is drawn; none searches. An output is as long as `Decoding` allows, searched for or drawn."""
    seed: int = 0
    """Start of the random choices: a line's follow from it and the number of the line."""
    align: bool = False
    """Whether each output comes with its alignment."""
    guard: bool = True
    """Whether an output that goes in circles is replaced."""

    def refuse_unless_possible(self, decoding: Decoding) -> None:
        """Refuses what a search by `decoding` cannot give."""
        faults = []
        if self.n_best < 1:
            faults.append(f"n_best: expected at least 1, found {self.n_best}")
        if self.sampling is None and self.n_best > decoding.beam:
            faults.append(
                f"n_best: expected at most the beam, since no more hypotheses are followed ({decoding.beam}), "
                f"found {self.n_best}; ask for a beam of {self.n_best}"
            )
        if faults:
            raise Faults(faults)


PLAIN = Request()
"""The best output of a search, and nothing else."""


def requested(
    beam: int | None = None,
    n_best: int = 1,
    align: bool = False,
    guard: bool = True,
    sample: bool = False,
    *,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
) -> Request:
    """The request that single settings make; those that contradict each other are refused."""
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    drawing = [name for name, value in given.items() if value is not None]
    faults = []
    if drawing and not sample:
        faults.append(f"{', '.join(drawing)}: for outputs that are drawn, and these are searched for; sample them")
    if sample and beam is not None:
        faults.append("sample draws outputs instead of searching for them: it does not go with a beam or greedy")
    if sample and temperature == 0:
        faults += without_chance(
            {"top_k": top_k, "top_p": top_p, "seed": seed, "n_best": n_best if n_best > 1 else None}
        )
    if faults:
        raise Faults(faults)
    sampling = None
    if sample:
        warmth = 1.0 if temperature is None else temperature
        sampling = Sampling(temperature=warmth, top_k=top_k, top_p=1.0 if top_p is None else top_p)
    return Request(n_best=n_best, sampling=sampling, seed=seed or 0, align=align, guard=guard)
