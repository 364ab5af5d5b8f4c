"""Configuration, memory and values disagree about which matrices are one: table and head, encoder and decoder."""

from collections.abc import Iterator
from itertools import combinations

from torch import Tensor

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped, Value
from surd.audit.parts import cosine, gap, head, is_constant, is_one, std, tables
from surd.audit.rule import Models, Needs, Rule
from surd.measure.drawn import EDGE, edge_ratio

NAME = "weight-tying"
IDENTITY = "two names of one matrix: Press & Wolf 2017 (arXiv 1608.05859)"
RETIE = (
    "make it one parameter again (head.weight = table.weight, or tie_weights()) behind whatever cut it: loading with "
)
RETIE += "assign=True, a resize, a move that copies, quantisation, a wrapper"


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    names = set(evidence.weights.names())
    yield from _lengths(evidence)
    told: set[frozenset[str]] = set()
    said = evidence.declared.ties
    for first, second in said.value if said else ():
        if first in names and second in names and first != second:
            told.add(frozenset((first, second)))
            yield from _declared(evidence, first, second, said.by if said else "")
    known, top = tables(evidence), head(evidence)
    if top is not None and known:
        yield from _head(evidence, known, top, told)
    elif top is None and known and evidence.subject.module is None and names:
        yield from _lost(evidence, known[-1])
    for first, second in combinations(known, 2):
        if frozenset((first, second)) not in told:
            yield from _undeclared(evidence, first, second)


def _head(evidence: Evidence, known: list[str], top: str, told: set[frozenset[str]]) -> Iterator[Finding]:
    """The head against the tables: tied to any of them it is tied."""
    weights, tied = evidence.weights, evidence.declared.tied
    matrix = weights.tensor(top)
    one = next((name for name in known if name == top or _same(evidence, name, top)), None)
    table = next((name for name in reversed(known) if sorted(weights.shape(name)) == sorted(matrix.shape)), None)
    if one is not None:
        if tied is not None and not tied.value and evidence.subject.module is not None:
            yield _finding(
                Severity.FAULT, top, "the two are one matrix", True, False, tied.by,
                f"{tied.by} says untied, and {top} and {one} are one matrix in memory: what changes one changes both",
                f"give the head its own numbers: {top} = {one}.clone(); or set {tied.by} to True",
            )  # fmt: skip
        return
    if not matrix.count_nonzero():
        yield _finding(
            Severity.WARNING, top, "standard deviation of the head", 0.0, std(weights.tensor(known[-1])), "arithmetic",
            f"{top} is all zeros: every logit is equal, and no gradient reaches the layers below",
            "tie it to the table, or initialise it; who starts a head at zero knowingly can ignore this",
        )  # fmt: skip
        return
    if table is None or frozenset((table, top)) in told:
        return
    if tied is not None and tied.value:
        yield from _declared(evidence, table, top, tied.by)
    else:
        yield from _undeclared(evidence, table, top)


def _declared(evidence: Evidence, first: str, second: str, by: str) -> Iterator[Finding]:
    """Two names that are said to be one."""
    if _same(evidence, first, second):
        return
    one, other = evidence.weights.tensor(first), evidence.weights.tensor(second)
    apart = gap(one, other)
    if apart is None:
        yield _finding(
            Severity.FAULT, second, "shape of the shared numbers", str(tuple(other.shape)), str(tuple(one.shape)), by,
            f"{by} makes {first} and {second} one, and they have shapes {tuple(one.shape)} and {tuple(other.shape)}",
            "resize both, then tie them again",
        )  # fmt: skip
    elif evidence.subject.module is None:
        if apart:
            yield _finding(
                Severity.FAULT, second, "max |table − head| in the file", apart, 0.0, by,
                f"{by} says tied, and the file holds {first} and {second} with differences up to {apart:.3g}: a loader "
                "that ties will throw one of them away",
                f"set {by} to False if both were trained; else write only {first}",
            )  # fmt: skip
        else:
            yield _finding(
                Severity.NOTE, second, "copies in the file", 2, 1, by,
                f"the file holds {first} and {second}, which are declared to be one, twice",
                f"write only {first}",
            )  # fmt: skip
    elif not is_constant(one) or apart:
        yield _finding(
            Severity.FAULT, second, "the two are one matrix", False, True, by,
            f"{by} makes {first} and {second} one; in memory they are two, with differences up to {apart:.3g}"
            + ("" if apart else ": a copy, which training will drive apart")
            + _unwritten(evidence, one, other),
            f"{RETIE}; or declare them untied",
        )  # fmt: skip


def _undeclared(evidence: Evidence, first: str, second: str) -> Iterator[Finding]:
    """Nothing is said: two copies of one matrix, or one that a loader has forgotten, tell of a tie that was cut."""
    if evidence.weights.shape(first) != evidence.weights.shape(second) or _same(evidence, first, second):
        return
    one, other = evidence.weights.tensor(first), evidence.weights.tensor(second)
    if is_constant(one) or is_constant(other):
        return
    if gap(one, other) == 0:
        in_file = evidence.subject.module is None
        yield _finding(
            Severity.NOTE if in_file else Severity.WARNING, second, "the two are one matrix", False, True, IDENTITY,
            f"{first} and {second} are equal to the last bit and lie apart: a tie that was cut, and each half will be "
            "trained by itself",
            RETIE if not in_file else f"write only {first}, and declare the tie",
        )  # fmt: skip
    elif evidence.trained and (text := _unwritten(evidence, one, other)):
        drawn = second if _drawn(other) else first
        yield _finding(
            Severity.FAULT, drawn, "cosine of the two", cosine(one, other), 1.0, IDENTITY,
            f"{first} and {second}{text}",
            f"load {drawn} from the checkpoint, or tie the two",
        )  # fmt: skip


def _lost(evidence: Evidence, table: str) -> Iterator[Finding]:
    """A file without a head, of a class that has one and does not tie it."""
    tied, causal = evidence.declared.tied, evidence.declared.causal
    if tied is not None and not tied.value and causal is not None and causal.value:
        yield _finding(
            Severity.FAULT, table, "copies of the head in the file", 0, 1, tied.by,
            f"{tied.by} says untied, and the file holds {table} and no head: a loader leaves the head as it was drawn",
            f"set {tied.by} to True if the head was the table, or write it",
        )  # fmt: skip


def _lengths(evidence: Evidence) -> Iterator[Finding]:
    """A bias that kept its length when the rows of its matrix grew."""
    weights = evidence.weights
    names = set(weights.names())
    for name in weights.names():
        path, _, kind = name.rpartition(".")
        if kind != "bias" or len(weights.shape(name)) != 1:
            continue
        for matrix in (f"{path}.weight", f"{path}.decoder.weight"):
            shape = weights.shape(matrix) if matrix in names else ()
            if len(shape) == 2 and weights.shape(name)[0] not in shape and min(shape) > 1:
                yield _finding(
                    Severity.FAULT, name, "length of the bias", weights.shape(name)[0], shape[0], "arithmetic",
                    f"{name} has {weights.shape(name)[0]} numbers and {matrix} has {shape[0]} rows: one was resized alone",
                    f"resize {name} to {shape[0]} too",
                )  # fmt: skip


def _unwritten(evidence: Evidence, one: Tensor, other: Tensor) -> str:
    """That one of two is trained, and the other still as it was drawn."""
    if one.dim() != 2 or one.shape != other.shape or _drawn(one) == _drawn(other):
        return ""
    return f": one is trained and the other is as an initialisation draws it (cosine {cosine(one, other):.2g}), never loaded"


def _drawn(x: Tensor) -> bool:
    ratio = edge_ratio(x)
    return ratio is not None and ratio <= EDGE


def _same(evidence: Evidence, first: str, second: str) -> bool:
    if evidence.subject.module is None:
        return False
    return is_one(evidence.weights.tensor(first), evidence.weights.tensor(second))


def _finding(
    severity: Severity, site: str, quantity: str, measured: Value, expected: Value, source: str, message: str, mend: str
) -> Finding:
    return Finding(
        severity=severity,
        site=site,
        quantity=quantity,
        measured=measured,
        expected=expected,
        source=source,
        message=message,
        mend=mend,
    )


_CODE = """
import torch
from torch import nn

from surd.audit.specimen import language_model

model = language_model()
state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
model.load_state_dict(state, assign=True)
"""

RULE = Rule(
    name=NAME,
    what="Two matrices that should be one are two, or one that should be two is one.",
    why="One matrix used twice gets the sum of both gradients; two copies get one each and drift apart from the first "
    "step. A loader that ties then throws one of them away, and a saver that drops one name may drop the trained one.",
    when="After loading with assign=True, resizing, moving, quantising, wrapping or merging. Untied by choice is fine: "
    "nothing is told where nothing is declared and the two differ. Views into one flat buffer at different offsets are "
    "no tie.",
    example=_CODE,
    cure=f"{_CODE}model.head.weight = model.table.weight\n",
    sources=(
        "Press & Wolf 2017 (arXiv 1608.05859): the output matrix may be the input table",
        "torch.nn.Module.load_state_dict: `assign=True` makes each name its own tensor (pytorch/pytorch#188346)",
    ),
    needs=Needs.STATIC,
    models=Models.BOTH,
    follows=(),
    look=look,
)
