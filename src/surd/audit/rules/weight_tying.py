"""Configuration, memory and values disagree about which matrices are one: table and head, encoder and decoder."""

import re
from collections.abc import Iterator
from itertools import combinations

import torch

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped, Unobserved, Value
from surd.audit.parts import cosine, gap, head, is_blank, is_constant, std, tables
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import threshold
from surd.audit.weights import Weights, is_one
from surd.measure.drawn import EDGE, edge_ratio

NAME = "weight-tying"
IDENTITY = "two names of one matrix: Press & Wolf 2017 (arXiv 1608.05859)"
RETIE = (
    "make it one parameter again (head.weight = table.weight, or tie_weights()) behind whatever cut it: loading with "
    "assign=True, a resize, a move that copies, quantisation, a wrapper"
)

FEWEST = 8
"""Rows."""


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    weights = evidence.weights
    names = set(weights.names())
    known, top, said = tables(evidence), head(evidence), evidence.declared.ties
    yield from _lengths(weights)
    yield from _of_the_files(evidence)
    if top is None and known:
        top = _outgrown(weights, known[-1])
    told: set[frozenset[str]] = set()
    apart = False
    for first, second in said.value if said else ():
        by = said.by if said else ""
        if first in names and second in names:
            told.add(frozenset((first, second)))
            yield from _declared(evidence, second, first, by)
        elif weights.in_memory:
            elsewhere = [*_elsewhere(weights, first, second, by)]
            yield from elsewhere
            apart = apart or bool(elsewhere)
    if top is not None and known and top not in evidence.subject.unwritten:
        yield from _head(evidence, known, top, told, apart)
    elif top is None and known and not weights.in_memory:
        yield from _lost(evidence, known[-1])
    elif top is None and (taken := _snapshot(evidence, known)):
        yield taken
        return
    shared = evidence.declared.shared
    for first, second in combinations(known, 2):
        if shared is not None and shared.value and weights.shape(first) == weights.shape(second):
            yield from _declared(evidence, first, second, shared.by)
        elif frozenset((first, second)) not in told and not _copied(weights, first, second):
            yield from _undeclared(evidence, first, second)
    if not told and (top is None or not known):
        what = "table of tokens" if not known else "head that makes logits over a table's rows"
        yield Skipped(site="table and head", reason=f"no {what} was found, and nothing is declared to be one")


def _of_the_files(evidence: Evidence) -> Iterator[Finding]:
    """What was never written on load, or was thrown away."""
    if unwritten := evidence.subject.unwritten:
        yield _finding(
            Severity.FAULT, unwritten[0], "parameters that the files do not hold", len(unwritten), 0, "the files",
            f"{len(unwritten)} of the parameters, {unwritten[0]} first, stand in no file and are tied to nothing that "
            "does: they are as an initialisation draws them",
            "write them too; or declare the tie that made the saver leave them out, so that the loader makes it again",
        )  # fmt: skip
    for kept, other, apart in evidence.subject.discarded:
        if not apart:
            yield _twice(kept, other, "the class of the model")
            continue
        yield _finding(
            Severity.FAULT, other, "max |first − second| in the files", apart, 0.0, "one parameter has one value",
            f"the class makes {kept} and {other} one, and the files hold both with differences up to {apart:.3g}: "
            f"{other} was thrown away",
            f"find out which of the two was trained, and write it as {kept} alone",
        )  # fmt: skip


def _twice(first: str, second: str, by: str) -> Finding:
    """Harmless to a loader that ties, and one that does not reads what it should."""
    return _finding(
        Severity.NOTE, second, "copies in the file", 2, 1, by,
        f"the file holds {first} and {second}, which are declared to be one, twice",
        f"write only {first}",
    )  # fmt: skip


def _head(evidence: Evidence, known: list[str], top: str, told: set[frozenset[str]], apart: bool) -> Iterator[Finding]:
    """The head against the tables: tied to any of them it is tied; `apart` where it was found to be kept elsewhere."""
    weights, tied = evidence.weights, evidence.declared.tied
    shape = weights.shape(top)
    one = next((name for name in known if weights.same(name, top)), None)
    if one is not None:
        if tied is not None and not tied.value and weights.in_memory:
            yield _finding(
                Severity.FAULT, top, "the two are one matrix", True, False, tied.by,
                f"{tied.by} says untied, and {top} and {one} are one matrix in memory: what changes one changes both",
                f"give the head its own numbers: {top} = {one}.clone(); or set {tied.by} to True",
            )  # fmt: skip
        elif not apart and not weights.one_parameter(one, top) and weights.learns(one) and weights.learns(top):
            yield _finding(
                Severity.WARNING, top, "parameters over one memory", 2, 1, "torch.nn.Parameter",
                f"{top} and {one} are one matrix in memory and two parameters: each has a gradient and a state of the "
                "optimiser, and one matrix takes two steps, until a move or a cast makes it two",
                "use the parameter itself at both places (head.weight = table.weight, or h @ table.T), not its data",
            )  # fmt: skip
        return
    alike = [name for name in known if sorted(weights.shape(name)) == sorted(shape)]
    table = next(reversed(alike or [name for name in known if weights.shape(name)[-1] == shape[-1]]), None)
    if table is None or frozenset((table, top)) in told:
        return
    if tied is not None and tied.value:
        yield from _declared(evidence, table, top, tied.by)
    elif is_blank(weights, top):
        yield _finding(
            Severity.FAULT if evidence.trained else Severity.WARNING, top, "standard deviation of the head", 0.0,
            std(weights.tensor(table)), "arithmetic: grad h = Wᵀ · grad logits",
            f"{top} is all zeros: every logit is equal, the loss is ln V, and no gradient reaches the layers below",
            "tie it to the table, load it, or initialise it; who starts a head at zero knowingly can ignore this",
        )  # fmt: skip
    else:
        yield from _undeclared(evidence, table, top)


def _snapshot(evidence: Evidence, known: list[str]) -> Finding | None:
    """No parameter makes the logits, and a buffer holds a table's numbers, perhaps turned, as they once were."""
    weights = evidence.weights
    if evidence.subject.module is None:
        return None
    try:
        widths = {x.shape[-1] for x in evidence.outputs if x.is_floating_point() and x.dim() > 1}
    except Unobserved:
        return None
    for name in known:
        table = weights.tensor(name)
        if len(table) not in widths or is_constant(weights, name):
            continue
        for path, held in evidence.module.named_buffers():
            alike = any(held.shape == one.shape and torch.equal(held, one) for one in (table, table.mT))
            if alike and held.grad_fn is None and not is_one(held, table):
                return _finding(
                    Severity.WARNING, path, "the two are one matrix", False, True, IDENTITY,
                    f"{path} is a buffer with the numbers of {name}, equal to the last bit, and no parameter makes the "
                    "logits: a copy, which no training moves",
                    f"read {name} itself wherever {path} is read",
                )  # fmt: skip
    return None


def _outgrown(weights: Weights, table: str) -> str | None:
    """A matrix that was the table, until one of them was resized: no output is then as wide as there are rows."""
    rows, *width = weights.shape(table)
    for name, shape in weights.matrices():
        like = min(shape[0], rows) >= FEWEST and [*shape[1:]] == width and shape[0] != rows and name != table
        if like and torch.equal(weights.rows(name, 0, FEWEST), weights.rows(table, 0, FEWEST)):
            return name if gap(weights, table, name) == 0 and not is_constant(weights, table) else None
    return None


def _declared(evidence: Evidence, first: str, second: str, by: str) -> Iterator[Finding]:
    """Two names that are said to be one."""
    weights = evidence.weights
    if weights.same(first, second):
        return
    shapes = tuple(weights.shape(first)), tuple(weights.shape(second))
    apart = gap(weights, first, second)
    if sorted(shapes[0]) != sorted(shapes[1]) or apart is None:
        yield _finding(
            Severity.FAULT, second, "shape of the shared numbers", str(shapes[1]), str(shapes[0]), by,
            f"{by} makes {first} and {second} one, and they have shapes {shapes[0]} and {shapes[1]}",
            "resize both, then tie them again",
        )  # fmt: skip
    elif not weights.in_memory:
        if apart:
            yield _finding(
                Severity.FAULT, second, "max |table − head| in the file", apart, 0.0, by,
                f"{by} says tied, and the file holds {first} and {second} with differences up to {apart:.3g}: a loader "
                f"that ties will throw one of them away{_unwritten(weights, first, second)}",
                f"set {by} to False if both were trained; else write only {first}",
            )  # fmt: skip
        else:
            yield _twice(first, second, by)
    elif not is_constant(weights, first) or apart:
        yield _finding(
            Severity.FAULT, second, "the two are one matrix", False, True, by,
            f"{by} makes {first} and {second} one; in memory they are two, with differences up to {apart:.3g}"
            + ("" if apart else ": a copy, which training will drive apart")
            + _unwritten(weights, first, second),
            f"{RETIE}; or declare them untied",
        )  # fmt: skip


def _elsewhere(weights: Weights, first: str, second: str, by: str) -> Iterator[Finding]:
    """One of two that are said to be one is kept in a form of its own: quantised, or made from other parameters."""
    paths = [name.rpartition(".")[0] for name in (first, second)]
    if not set(paths) <= weights.layers().keys():
        return
    held = [[name for name in weights.names() if name.startswith(f"{path}.")] for path in paths]
    made = any(".parametrizations." in name for names in held for name in names)
    if not made and any(weights.same(one, other) for one in held[0] for other in held[1]):
        return  # beneath an adapter they still are
    missing = 0 if first not in weights.names() else 1
    kind = weights.layers()[paths[missing]]
    yield _finding(
        Severity.FAULT, (first, second)[missing], "the two are one matrix", False, True, by,
        f"{by} makes {first} and {second} one; {paths[missing]} is a {kind}, which keeps numbers of its own",
        "quantise or parametrise both or neither; or declare them untied",
    )  # fmt: skip


def _undeclared(evidence: Evidence, first: str, second: str) -> Iterator[Finding]:
    """Nothing is said: two copies of one matrix, or one that a loader has forgotten, tell of a tie that was cut."""
    weights, tied = evidence.weights, evidence.declared.tied
    turned = weights.shape(first) == weights.shape(second)[::-1]
    if (not turned and weights.shape(first)[1:] != weights.shape(second)[1:]) or weights.same(first, second):
        return
    if is_constant(weights, first) or is_constant(weights, second):
        return
    rows = weights.shape(first)[0], weights.shape(second)[1 if turned else 0]
    if tied is None and weights.learns(first) and weights.learns(second):  # else each was meant to be by itself
        apart, near = gap(weights, first, second), cosine(weights, first, second)
        if rows[0] != rows[1]:
            if apart == 0:
                yield _finding(
                    Severity.WARNING, second, "rows", rows[1], rows[0], IDENTITY,
                    f"{first} has {rows[0]:,} rows and {second} {rows[1]:,}, those that both have equal to the last "
                    "bit: one of a tied pair was resized alone",
                    "resize both, then tie them again",
                )  # fmt: skip
            return
        if apart == 0 or (near > threshold(NAME, "cosine").high and not weights.one_parameter(first, second)):
            in_file = not weights.in_memory and apart == 0
            how = "are equal to the last bit" if apart == 0 else f"are apart by {apart:.3g} at most (cosine {near:.6g})"
            yield _finding(
                Severity.NOTE if in_file else Severity.WARNING, second, "the two are one matrix", False, True, IDENTITY,
                f"{first} and {second} {how}, and lie apart in memory: a tie that was cut, and each half is trained by "
                "itself",
                RETIE if not in_file else f"write only {first}, and declare the tie",
            )  # fmt: skip
            return
    if rows[0] == rows[1] and evidence.trained and evidence.grown and (text := _unwritten(weights, first, second)):
        drawn = second if _drawn(weights, second) else first
        yield _finding(
            Severity.FAULT, drawn, "cosine of the two", cosine(weights, first, second), 1.0, IDENTITY,
            f"{first} and {second}{text}",
            f"load {drawn} from the checkpoint, or tie the two",
        )  # fmt: skip


def _copied(weights: Weights, first: str, second: str) -> bool:
    """Whether two tables lie in towers that were copied whole: an encoder and a decoder that begin as one model."""
    one, other = first.split("."), second.split(".")
    while one and other and one[-1] == other[-1]:
        one.pop(), other.pop()
    before, after = ".".join(one) + ".", ".".join(other) + "."
    names = set(weights.names())
    for name, shape in weights.matrices():
        twin = after + name.removeprefix(before)
        if name != first and name.startswith(before) and twin in names and weights.shape(twin) == shape:
            return not is_constant(weights, name) and gap(weights, name, twin) == 0
    return False


def _lost(evidence: Evidence, table: str) -> Iterator[Finding | Skipped]:
    """A file without a head, of a class that has one and does not tie it."""
    weights, tied, writes = evidence.weights, evidence.declared.tied, evidence.declared.writes
    if tied is None or tied.value or writes is None or not writes.value:
        return
    shape = sorted(weights.shape(table))
    inner = re.compile(r"(^|\.)\d+\.")
    others = [(name, sorted(other)) for name, other in weights.matrices() if name != table and not inner.search(name)]
    if like := [name for name, other in others if other == shape]:
        yield Skipped(site=like[-1], reason="it has the shape of a head, and no name that tells what it is")
        return
    yield _finding(
        Severity.FAULT, table, "copies of the head in the file", 0, 1, tied.by,
        f"{tied.by} says untied, and the file holds {table} and no head: a loader leaves the head as it was drawn",
        f"set {tied.by} to True if the head was the table, or write it",
    )  # fmt: skip


def _lengths(weights: Weights) -> Iterator[Finding]:
    """A bias that kept its length when the rows of its matrix grew: nothing else has it, something a little more."""
    names = weights.names()
    shapes = {name: weights.shape(name) for name in names}
    sizes = {size for shape in shapes.values() if len(shape) > 1 for size in shape}
    largest = max((name for name in names if len(shapes[name]) == 2), key=lambda name: max(shapes[name]), default="")
    for name in names:
        path, _, kind = name.rpartition(".")
        if "bias" not in kind or len(shapes[name]) != 1:
            continue
        length = shapes[name][0]
        matrix = next((one for one in (f"{path}.weight", f"{path}.decoder.weight") if one in shapes), "")
        own = shapes.get(matrix, ())
        if len(own) == 2 and min(own) > 1:
            if length not in own:
                yield _length(weights, name, matrix)
        elif not own and largest and length not in sizes and max(sizes) / 1.5 < length < max(shapes[largest]):
            yield _length(weights, name, largest)


def _length(weights: Weights, name: str, matrix: str) -> Finding:
    found, rows = weights.shape(name)[0], weights.shape(matrix)[0]
    return _finding(
        Severity.FAULT, name, "length of the bias", found, rows, "arithmetic",
        f"{name} has {found:,} numbers and {matrix} has {rows:,} rows: one was resized alone",
        f"resize {name} to {rows:,} too",
    )  # fmt: skip


def _unwritten(weights: Weights, first: str, second: str) -> str:
    """That one of two is trained, and the other still as it was drawn."""
    if len(weights.shape(first)) != 2 or weights.shape(first) != weights.shape(second):
        return ""
    if _drawn(weights, first) == _drawn(weights, second):
        return ""
    near = cosine(weights, first, second)
    return f": one is trained and the other is as an initialisation draws it (cosine {near:.2g}), never loaded"


def _drawn(weights: Weights, name: str) -> bool:
    ratio = edge_ratio(weights.top(name))
    return ratio is not None and ratio <= EDGE


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
    "nothing is told where nothing is declared and the two differ, or where they are declared to be two. Views into "
    "one flat buffer at different offsets are no tie.",
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
