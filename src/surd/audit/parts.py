"""Parts: what each weight of a subject is for; from its use in a forward, or by its name where nothing can be run."""

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from surd.audit.evidence import Evidence
from surd.audit.finding import Unobserved
from surd.audit.weights import Weights
from surd.measure.use import Part, Use

PACKED = r"c_attn|qkv|query_key_value|Wqkv|qkv_proj|in_proj(_weight)?"
NAMES: tuple[tuple[str, Part], ...] = (
    (r"(lm_head|embed_out|output_projection|generator(\.proj)?|unembed|predictions\.decoder|output_layer)$", Part.HEAD),
    (r"(^|\.)(output|head|vocab_projector|lm_head\.decoder|pred_layer\.proj|to_logits)$|^decoder$", Part.HEAD),
    (r"(^|\.)(wpe|embed_positions|position_embeddings?|pos_embed(ding)?s?|pos_emb|positions|places)$", Part.POSITIONS),
    (r"(^|\.)(wte|embed_tokens|shared|embed_in|table|embeddings?|embed|emb|lut)$", Part.TABLE),
    (r"(^|\.)(src|tgt|source|target|enc|dec|word|token|tok)_(emb|embs|embed|embeddings?|table)$", Part.TABLE),
    (r"(^|\.)(q_proj|query|q|wq|q_lin|to_q|query_proj|linear_q)$", Part.QUERY),
    (r"(^|\.)(k_proj|key|k|wk|k_lin|to_k|key_proj|linear_k)$", Part.KEY),
    (r"(^|\.)(v_proj|value|v|wv|v_lin|to_v|value_proj|linear_v)$", Part.VALUE),
    (r"(^|\.)(o_proj|out_proj|out_lin|to_out(\.0)?|SelfAttention\.o|EncDecAttention\.o)$", Part.OUT),
    (r"(^|\.)(self_?)?att(ention|n)?\.(c_proj|dense|out|output\.dense|o|wo|proj)$", Part.OUT),
    (r"(^|\.)(fc1|up_proj|gate_proj|w1|w3|wi(_\d)?|c_fc|dense_h_to_4h|lin1|linear1|inner)$", Part.INNER),
    (r"(^|\.)intermediate\.dense$", Part.INNER),
    (r"(^|\.)(fc2|down_proj|w2|dense_4h_to_h|lin2|linear2|outer|mlp\.c_proj|DenseReluDense\.wo)$", Part.OUTER),
    (r"(^|\.)output\.dense$", Part.OUTER),
)  # fmt: skip
TURNED = r"(c_attn|c_proj|c_fc)$"
"""Layers of GPT-2, whose matrices are (in, out)."""


def uses(evidence: Evidence) -> tuple[Use, ...]:
    """Of the trace, where a forward was seen; else told by the usual names."""
    try:
        seen = evidence.trace.uses
    except Unobserved:
        seen = ()
    if seen:
        return seen
    named = tuple(by_name(evidence.weights))
    return (*named, *_by_layer(evidence.weights, named))


def by_name(weights: Weights) -> Iterator[Use]:
    """For a file of weights: matrices with a usual name, of the usual layout."""
    for name, shape in weights.matrices():
        path = name.removesuffix(".weight")
        rows, columns = (shape[1], shape[0]) if re.search(TURNED, path) else (shape[0], shape[1])
        if re.search(rf"(^|\.)({PACKED})$", path) and rows == 3 * columns:
            for number, part in enumerate((Part.QUERY, Part.KEY, Part.VALUE)):
                places = tuple(range(number * columns, (number + 1) * columns))
                axis = 1 if re.search(TURNED, path) else 0
                yield Use(
                    name=name, part=part, path=path, fan_in=columns, fan_out=columns, axis=axis, places=places
                )  # fmt: skip
            continue
        for pattern, part in NAMES:
            if re.search(pattern, path):
                yield Use(name=name, part=part, path=path, fan_in=columns, fan_out=rows)
                break


def _by_layer(weights: Weights, named: tuple[Use, ...]) -> Iterator[Use]:
    """What no name told, by the class of the layer: the table with most rows, and a projection of its shape."""
    kinds = weights.layers()
    known = {use.name for use in named}
    held = [
        (name, path, weights.shape(name))
        for name, _ in weights.matrices()
        if name.endswith(".weight") and (path := name.removesuffix(".weight")) in kinds
    ]
    tables = [(use.fan_out, use.fan_in) for use in named if use.part is Part.TABLE]
    if not tables:
        found = [(shape[0], name, path, shape) for name, path, shape in held if kinds[path] == "Embedding"]
        found = [one for one in found if one[1] not in known]
        if not found:
            return
        _, name, path, shape = max(found)
        yield Use(name=name, part=Part.TABLE, path=path, fan_in=shape[1], fan_out=shape[0])
        tables = [(shape[0], shape[1])]
    if all(use.part is not Part.HEAD for use in named):
        for name, path, shape in held:
            if kinds[path] == "Linear" and tuple(shape) in tables and not re.search(r"(^|\.)\d+\.", name):
                yield Use(name=name, part=Part.HEAD, path=path, fan_in=shape[1], fan_out=shape[0])


def tables(evidence: Evidence) -> list[str]:
    """Tables whose rows are looked up by tokens, each name once, in the order of the forward: a decoder's is last."""
    held = set(evidence.weights.names())
    return list(dict.fromkeys(use.name for use in uses(evidence) if use.part is Part.TABLE and use.name in held))


def head(evidence: Evidence) -> str | None:
    """The matrix that makes the logits; the table itself, where it is one and the same.

    Of several, as beneath an adapter, it is the largest. A file of a tied model holds the table alone.
    """
    weights, tied = evidence.weights, evidence.declared.tied
    held = set(weights.names())
    found = [use.name for use in uses(evidence) if use.part is Part.HEAD and use.name in held]
    if found:
        return max(reversed(found), key=lambda name: weights.shape(name).numel())
    known = tables(evidence)
    return known[-1] if not weights.in_memory and known and tied is not None and tied.value else None


def gap(weights: Weights, first: str, second: str) -> float | None:
    """The largest difference of two matrices, of the rows that both have; None when they have other widths."""
    shapes = weights.shape(first), weights.shape(second)
    if 0 in (*shapes[0], *shapes[1]):
        return None
    if shapes[0][1:] == shapes[1][1:]:
        return max(_apart(*pair) for pair in zip(weights.blocks(first), weights.blocks(second), strict=False))
    if len(shapes[0]) == 2 and shapes[0] == shapes[1][::-1]:
        return _apart(weights.tensor(first), weights.tensor(second).mT)
    return None


def _apart(one: Tensor, other: Tensor) -> float:
    rows = min(len(one), len(other)) if one.dim() else 1
    one, other = (x.detach().float().reshape(-1) if not x.dim() else x.detach()[:rows].float() for x in (one, other))
    return float((one - other.to(one.device)).abs().max())


def is_blank(weights: Weights, name: str) -> bool:
    """Whether all entries are zero."""
    return not any(bool(block.count_nonzero()) for block in weights.blocks(name))


def sample(x: Tensor, most: int = 2**18) -> Tensor:
    """Some entries of a tensor, in fp32."""
    flat = x.detach().reshape(-1)
    # A copy: a view would keep all of the tensor in memory.
    return flat[:: max(1, flat.numel() // most) | 1].to(torch.float32, copy=True)


def std(x: Tensor) -> float:
    """Standard deviation of a sample of the entries; rows of zeros, such as that of padding, change little."""
    return float(sample(x).std(correction=0)) if x.numel() else 0.0


def part_std(weights: Weights, use: Use) -> float:
    """Of the part of a weight that a use is about."""
    return std(use.of(weights.tensor(use.name)))


def is_constant(weights: Weights, name: str) -> bool:
    """Whether all entries are equal."""
    some = sample(weights.top(name), 4096)
    return bool((some == some[0]).all()) if some.numel() else True


def cosine(weights: Weights, first: str, second: str) -> float:
    """Between two matrices, over the rows that both have; entries that are all positive are not alike for that.

    One may be turned.
    """
    dot = ones = others = 0.0
    middle = float(weights.top(first).float().mean())
    turned = weights.shape(first) == weights.shape(second)[::-1] and weights.shape(first) != weights.shape(second)
    whole = [(weights.tensor(first), weights.tensor(second).mT)] if turned else None
    for one, other in whole or zip(weights.blocks(first), weights.blocks(second), strict=False):
        rows = min(len(one), len(other))
        a = one.detach()[:rows].float().flatten() - middle
        b = other.detach()[:rows].float().flatten().to(a.device) - middle
        dot, ones, others = dot + float(a @ b), ones + float(a @ a), others + float(b @ b)
    return dot / max((ones * others) ** 0.5, 1e-30)
