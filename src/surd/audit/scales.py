"""Scales: everything of a model that a comparison holds beside the same of another, each with its place."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, isfinite

import torch

from surd.audit.evidence import Evidence
from surd.audit.weights import Weights
from surd.measure.sites import Attention, Role
from surd.measure.tensors import storage

RULES = {
    Role.TOKEN: "embedding-scale",
    Role.EMBED: "embedding-scale",
    Role.QUERY: "qk-norm-growth",
    Role.KEY: "qk-norm-growth",
    Role.VALUE: "residual-growth",
    Role.SCORE: "attention-logit-max",
    Role.WEIGHT: "attention-entropy",
    Role.MIX: "head-layout",
    Role.BRANCH: "residual-growth",
    Role.STREAM: "residual-growth",
    Role.NORM: "norm-gain-convention",
    Role.HIDDEN: "logit-scale",
    Role.LOGITS: "logit-scale",
}
"""The rule that a size at a site belongs to."""
SAMPLE = 2**20
"""Numbers of a weight that are read for its standard deviation."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """One number, count, or yes and no, of one model."""

    rule: str
    """The rule that explains what it is good for."""
    quantity: str
    site: str
    value: float | int | bool | str | None
    reason: str = ""
    """Why there is no value."""
    kind: str = ""
    """Sites of one kind follow each other in the order of the forward; weights of one kind have one shape."""
    size: bool = False
    """Whether it is a size, which follows from weights and inputs; else it is a constant of the model."""
    file: str = ""
    line: int = 0


def constants(evidence: Evidence) -> Iterator[Scale]:
    """What no training moves: factors, caps, epsilons, shares, what sees what."""
    trace = evidence.trace
    for table in trace.embeddings:
        yield Scale(
            rule="embedding-scale",
            quantity="f of f · row, where tokens enter",
            site=table.site.name,
            value=table.multiplier,
            reason="nothing that enters the model is a multiple of its rows",
            file=table.site.file,
            line=table.site.line,
        )
    for one in trace.attention:
        yield from _of_attention(one)
    if (head := trace.head) is not None:
        where = {"site": head.site.name, "file": head.site.file, "line": head.site.line}
        yield Scale(rule="logit-scale", quantity="factor before and behind the head", value=head.multiplier, **where)
        yield Scale(rule="soft-cap", quantity="cap of the logits", value=head.cap or inf, **where)
    for norm in evidence.norms:
        if not norm.unit or norm.floor or not norm.epsilon:
            continue
        yield Scale(
            rule="norm-epsilon",
            quantity="epsilon beside the variance",
            site=f"{norm.where.path}:{Role.NORM}",
            value=norm.epsilon,
            file=norm.where.file,
            line=norm.where.line,
        )
        if norm.offset is not None:
            yield Scale(
                rule="norm-gain-convention",
                quantity="gain minus the parameter that holds it",
                site=f"{norm.where.path}:{Role.NORM}",
                value=norm.offset,
                file=norm.where.file,
                line=norm.where.line,
            )
    if trace.positions is not None:
        yield Scale(rule="position-ratio", quantity="how positions enter", site="the model", value=trace.positions)
    own = [flow for flow in trace.flows if flow.own]
    if own:
        later = any(flow.sees_later for flow in own)
        yield Scale(rule="causality", quantity="an output sees later tokens", site="the model", value=later)
        other = any(flow.sees_other_rows for flow in own)
        yield Scale(rule="batch-isolation", quantity="an output sees other rows", site="the model", value=other)
    if trace.head is not None and trace.embeddings:
        tables = {table.table for table in trace.embeddings}
        tied = any(
            tie.same_storage and trace.head.weight in (tie.first, tie.second) and tables & {tie.first, tie.second}
            for tie in trace.ties
        )
        tied = tied or trace.head.weight in tables
        site = trace.head.site.name
        yield Scale(rule="weight-tying", quantity="table and head are one matrix", site=site, value=tied)


def _of_attention(one: Attention) -> Iterator[Scale]:
    where = {"kind": "cross" if one.cross else "", "file": one.site.file, "line": one.site.line}
    told = one.reason or "the factor could not be read"
    heads = [factor for factor in one.by_head if isfinite(factor)]
    even = one.factor is None or len(heads) < len(one.by_head) or not heads or max(heads) <= min(heads) * 1.001
    for number, factor in enumerate([one.factor] if even else one.by_head):
        site = one.name if even else one.name.replace(f"{Role.SCORE}", f"{Role.SCORE}.{number}")
        yield Scale(
            rule="attention-scale", quantity="c of softmax(c · q · k)", site=site, value=factor, reason=told, **where
        )
    yield Scale(rule="soft-cap", quantity="cap of the scores", site=one.name, value=one.cap or inf, **where)
    yield Scale(rule="head-layout", quantity="d_k", site=one.name, value=one.d_k, **where)
    yield Scale(
        rule="head-layout", quantity="heads", site=one.name, value=one.heads, reason="its heads cannot be told", **where
    )
    yield Scale(
        rule="attention-scale", quantity="query and key are normalised", site=one.name, value=one.qk_norm, **where
    )
    axis = one.softmax_over_keys
    yield Scale(rule="softmax-axis", quantity="the softmax runs over keys", site=one.name, value=axis, **where)


def sizes(evidence: Evidence) -> Iterator[Scale]:
    """Root mean squares at every site of the forward, in its order."""
    for one in evidence.trace.readings:
        yield Scale(
            rule=RULES[one.site.role],
            quantity=f"rms of {one.site.role}",
            site=one.site.name,
            value=one.rms,
            kind=f"{one.site.role}{one.site.cross}",
            size=True,
            file=one.site.file,
            line=one.site.line,
        )


def stored(weights: Weights) -> Iterator[Scale]:
    """Of the weights alone: how many different numbers there are, and how large each matrix and each vector is."""
    unique = distinct(weights)
    count = sum(weights.shape(name).numel() for name in unique)
    yield Scale(rule="parameter-count", quantity="distinct parameters", site="the model", value=count)
    for name in unique:
        if not weights.dtype(name).is_floating_point or weights.dtype(name).itemsize < 2:
            continue
        shape = tuple(sorted(weights.shape(name)))
        if len(shape) < 1 or weights.shape(name).numel() < 2:
            continue
        vector = len(shape) == 1
        yield Scale(
            rule="norm-gain-convention" if vector else "init-std",
            quantity="rms of the vector" if vector else "std of the matrix",
            site=name,
            value=spread(weights, name, vector),
            kind=f"{shape}{_sort(name) if vector else ''}",
            size=True,
        )


def distinct(weights: Weights) -> list[str]:
    """One name of each tensor: names that are one place in memory are one."""
    if not weights.in_memory:
        return weights.names()
    found: dict[object, str] = {}
    for name in weights.names():
        tensor = weights.tensor(name)
        memory = storage(tensor)
        key = name if memory is None else (memory, tensor.storage_offset(), tuple(tensor.shape))
        found.setdefault(key, name)
    return list(found.values())


@torch.no_grad()
def spread(weights: Weights, name: str, vector: bool) -> float:
    """Standard deviation of a matrix, root mean square of a vector, over a sample where it is large."""
    x = weights.tensor(name).detach().reshape(-1)
    x = x[:: max(1, x.numel() // SAMPLE) | 1].float()
    return float(x.square().mean().sqrt() if vector else x.std(correction=0))


def _sort(name: str) -> str:
    """Gains and biases are vectors of one shape; only their names tell them apart."""
    return "bias" if name.rpartition(".")[2].startswith(("bias", "b_", "beta")) else "gain"
