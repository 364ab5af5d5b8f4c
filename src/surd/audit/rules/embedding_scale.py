"""Rows of the embedding enter the first block times another number than √d_model, 1, or the declared one."""

from collections.abc import Iterator
from math import isclose, sqrt

import torch

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped, Unobserved
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import threshold
from surd.measure.sites import Embedding, Role
from surd.measure.trials.paths import embedded_difference

NAME = "embedding-scale"
PAPER = "Vaswani et al. 2017, section 3.4"


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    trace = evidence.trace
    if not trace.embeddings and not trace.features:
        raise Unobserved("no table of tokens was read, and no layer reads inputs of numbers")
    wrong = False
    for table in trace.embeddings:
        if table.multiplier is None:
            yield Skipped(site=table.site.name, reason="nothing that enters the model is a multiple of its rows")
            continue
        for finding in _table(evidence, table):
            wrong |= finding.severity.fails
            yield finding
    for layer in trace.features:
        if layer.multiplier is not None:
            yield from _features(evidence, layer)
    if not wrong:
        yield from _other_path(evidence)


def _table(evidence: Evidence, table: Embedding) -> Iterator[Finding]:
    """The multiplier itself, then what it makes of the rows."""
    assert table.multiplier is not None
    tolerance = threshold(NAME, "fp32" if evidence.dtype in (torch.float32, torch.float64) else "half")
    root, stated = sqrt(table.width), evidence.declared.embedding
    if stated is not None:
        if tolerance.holds(table.multiplier / stated.value):
            if not any(tolerance.holds(table.multiplier / known) for known in (1.0, root)):
                yield _finding(Severity.DECLARED, table, stated.value, stated.by, f"declared by {stated.by}")
        else:
            reason = _name(evidence, table, table.multiplier / stated.value)
            yield _finding(Severity.FAULT, table, stated.value, stated.by, reason)
        return
    if not any(tolerance.holds(table.multiplier / known) for known in (1.0, root)):
        nearest = root if abs(table.multiplier) > sqrt(root) else 1.0
        reason = _name(evidence, table, table.multiplier / root)
        yield _finding(Severity.FAULT, table, nearest, PAPER, reason)
        return
    if not evidence.trained and table.multiplier > 1.5:
        yield from _too_large(evidence, table)


def _too_large(evidence: Evidence, table: Embedding) -> Iterator[Finding]:
    """√d_model is for rows of std 1/√d_model: with larger ones, what is added to the tokens is lost beside them."""
    healthy, size = threshold(NAME, "token_rms"), table.token_rms
    if size is None or size <= healthy.high:
        return
    ratio = table.signal_ratio
    branch = next((one.rms for one in evidence.trace.readings if one.site.role is Role.BRANCH), None)
    effects = []
    if ratio is not None and ratio > healthy.high:
        effects.append(f"they are {ratio:.3g} times what is added to them")
    if branch is not None and branch < size / 10:
        effects.append(f"the first branch adds {branch / size:.2g} of their size")
    yield Finding(
        severity=Severity.WARNING if effects else Severity.NOTE,
        site=table.site.name,
        quantity="rms of the tokens where they enter",
        measured=size,
        expected=1.0,
        low=healthy.low,
        high=healthy.high,
        source=healthy.source,
        message=f"{table.table} has a standard deviation of {table.table_std:.3g} and is multiplied by "
        f"{table.multiplier:.4g}: tokens enter with an rms of {size:.3g}, expected about 1"
        + "".join(f"; {effect}" for effect in effects),
        mend=f"draw {table.table} with a standard deviation of 1/√{table.width} = {table.width**-0.5:.3g}, "
        "or leave out the multiplication",
        file=table.site.file,
        line=table.site.line,
    )


def _features(evidence: Evidence, layer: Embedding) -> Iterator[Finding]:
    """A layer's outputs have the size that its initialisation gives them: no root is due."""
    assert layer.multiplier is not None
    tolerance, healthy = threshold(NAME, "half"), threshold(NAME, "token_rms")
    stated = evidence.declared.embedding
    if tolerance.holds(layer.multiplier) or (stated is not None and tolerance.holds(layer.multiplier / stated.value)):
        return
    inputs = next((_read(evidence, layer) for name in evidence.weights.names() if name == layer.table), 0)
    drowned = layer.signal_ratio is not None and layer.signal_ratio > threshold("position-ratio", "ratio").high
    of_features = isclose(layer.multiplier, sqrt(inputs), rel_tol=0.01) and inputs != layer.width
    large = layer.token_rms is not None and layer.token_rms > healthy.high
    reason = f"√{inputs}, of the number of features" if of_features else "a factor that is for rows of a table"
    said = f", {layer.signal_ratio:.3g} times what is added to them" if layer.signal_ratio is not None else ""
    yield Finding(
        severity=Severity.FAULT if of_features else Severity.WARNING if drowned or large else Severity.NOTE,
        site=layer.site.name,
        quantity="multiplier of the features",
        measured=layer.multiplier,
        expected=1.0,
        source="Glorot & Bengio 2010: a layer's initialisation already gives unit inputs unit outputs",
        message=f"what {layer.table or 'a layer'} makes of the inputs is multiplied by {layer.multiplier:.4g} "
        f"({reason}) before it enters the first block{said}; expected 1",
        mend="leave out the multiplication: √d_model belongs to rows of a table with a standard deviation of "
        "1/√d_model",
        file=layer.site.file,
        line=layer.site.line,
    )


def _read(evidence: Evidence, layer: Embedding) -> int:
    """How many features a layer reads, whichever way its weight lies."""
    shape = evidence.weights.shape(layer.table)
    return shape[0] if shape[-1] == layer.width else shape[1]


def _other_path(evidence: Evidence) -> Iterator[Finding]:
    """Token ids, and the same rows handed in as `inputs_embeds`, must give the same."""
    table = next((one for one in evidence.trace.embeddings if one.multiplier is not None), None)
    if table is None:
        return
    found = embedded_difference(evidence.module, evidence.inputs, table.site.path, table.multiplier or 1.0)
    if found is None or found.factor is None or found.factor < 1:
        return  # vectors that come with their factor are a convention; a second factor on them is none
    yield Finding(
        severity=Severity.FAULT,
        site=table.site.name,
        quantity="multiplier of inputs_embeds over that of input_ids",
        measured=found.factor,
        expected=1.0,
        source="one model: ids, and the rows that its table returns for them, are the same input",
        message=f"rows handed in as inputs_embeds are multiplied by {found.factor:.4g} times what the path of the ids "
        f"multiplies them by: outputs differ by {found.difference:.2g} of their size",
        mend="scale in one place: in the table's module for both paths, or behind the point where both meet",
        file=table.site.file,
        line=table.site.line,
    )


def _name(evidence: Evidence, table: Embedding, ratio: float) -> str:
    """What a ratio to the right factor means."""
    root = sqrt(table.width)
    heads = {one.d_k for one in evidence.trace.attention} | {one.heads for one in evidence.trace.attention if one.heads}
    names = {root: "it is applied twice", 1 / root: "it is missing", 1 / root**2: "it divides instead of multiplying"}
    names |= {sqrt(table.rows) / root: "the root is of the vocabulary, not of the width"}
    names |= {sqrt(head) / root: f"√{head} stands where √{table.width} belongs" for head in heads}
    for value, name in names.items():
        if isclose(ratio, value, rel_tol=0.02):
            return name
    return "no declared factor explains it"


def _finding(severity: Severity, table: Embedding, expected: float, source: str, reason: str) -> Finding:
    assert table.multiplier is not None
    ratio = table.multiplier / expected
    off = "" if severity is Severity.DECLARED else f", {ratio:.3g} times the expected {expected:.4g}"
    return Finding(
        severity=severity,
        site=table.site.name,
        quantity="f of f · row, where tokens enter",
        measured=table.multiplier,
        expected=expected,
        source=source,
        message=f"rows of {table.table} are multiplied by {table.multiplier:.4g}{off} "
        f"(d_model = {table.width}, √d_model = {sqrt(table.width):.4g}): {reason}",
        mend=f"multiply by {expected:.4g} once, where tokens become vectors, and nowhere else",
        file=table.site.file,
        line=table.site.line,
    )


RULE = Rule(
    name=NAME,
    what="Rows of the embedding enter the first block times another number than √d_model, 1, or the declared one.",
    why="A table that is also the pre-softmax matrix wants entries of standard deviation 1/√d_model, so that logits "
    "have standard deviation 1; as an input it then has an rms of 1/√d_model, a sixteenth of a sinusoid at 512. Times "
    "√d_model it is 1. A second time makes it √d_model, and positions and branches are lost beside it.",
    when="From the first step where positions are added or the first attention has no norm before it; a norm at the "
    "entrance hides it. A model that was trained with one factor is wrong with any other, however small the step "
    "looks.",
    example="""
import math

from surd.audit.specimen import WIDTH, Encoder, encoder


class ScaledTwice(Encoder):
    def embed(self, tokens):
        x = self.table(tokens) * math.sqrt(WIDTH)
        return x * math.sqrt(WIDTH) + self.places[: tokens.shape[1]]


model = ScaledTwice()
model.load_state_dict(encoder().state_dict())
""",
    cure="""
import math

from surd.audit.specimen import WIDTH, Encoder, encoder


class ScaledOnce(Encoder):
    def embed(self, tokens):
        return self.table(tokens) * math.sqrt(WIDTH) + self.places[: tokens.shape[1]]


model = ScaledOnce()
model.load_state_dict(encoder().state_dict())
""",
    sources=(
        "Vaswani et al. 2017 (arXiv 1706.03762), section 3.4",
        "huggingface/transformers#32242: resizing replaced a class that multiplies by one that does not",
        "huggingface/peft#2825: adapters looked rows up without the factor",
        "unit8co/darts#672: √ of the number of features on a linear layer",
    ),
    needs=Needs.PROBE,
    models=Models.BOTH,
    follows=("weight-tying", "init-std"),
    look=look,
)
