"""How weights start: the family of initialisations, each a rule from what a matrix is for to its spread."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from surd.errors import SurdError
from surd.measure.signal import Draw
from surd.nn.embedding import Embedding
from surd.nn.feedforward import FeedForwardLayer, GatedLayer
from surd.nn.linear import Linear, Projection
from surd.nn.multihead import CrossAttention, SelfAttention
from surd.nn.position import LearnedTable
from surd.nn.score import AdditiveScore
from surd.nn.special import PAD
from surd.nn.stack import CausalDecoder, Decoder, Encoder
from surd.part import Part

Role = Literal["table", "softmax", "query", "key", "value", "mix", "inner", "outer"]
"""What a matrix is for: a table of embeddings, the pre-softmax, the ways into attention, the way out of it, and both
matrices of the feed-forward."""


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Everything about a matrix that an initialisation may look at."""

    role: Role
    inputs: int
    """What one output is a sum of; a table, of which one row is looked up, has the width here."""
    outputs: int
    heads: int = 1
    """Of its attention."""
    branches: int = 1
    """Residual branches of its stack."""


@dataclass(frozen=True)
class Spread:
    """A distribution around 0."""

    std: float
    uniform: bool = False
    """Uniform between ±√3 std; else normal."""

    def draw(self, weight: Tensor, generator: torch.Generator | None) -> None:
        """Fills `weight` in place."""
        limit = 3**0.5 * self.std
        if self.uniform:
            weight.uniform_(-limit, limit, generator=generator)
        else:
            weight.normal_(0, self.std, generator=generator)


def glorot(inputs: int, outputs: int) -> Spread:
    """Uniform with variance 2 / (fan in + fan out). Source: Glorot & Bengio 2010."""
    return Spread((2 / (inputs + outputs)) ** 0.5, uniform=True)


class InitRule(Part):
    """What the members share: walking a model and drawing every weight anew."""

    def spread(self, matrix: Matrix) -> Spread:
        """The distribution that the weights of a matrix start with."""
        raise NotImplementedError

    def bias_limit(self, matrix: Matrix) -> float:
        """Biases start uniform between ± this."""
        return 0.0

    @torch.no_grad()
    def __call__(self, model: nn.Module, generator: torch.Generator | None = None) -> None:
        """Draws every weight of `model` anew; a shared Parameter is drawn once, as a table if it is one."""
        drawn: set[Tensor] = set()
        for weight, matrix in matrices(model):
            if weight not in drawn:
                self.spread(matrix).draw(weight, generator)
                drawn.add(weight)
                if matrix.role == "table":
                    weight[PAD] = 0
        for linear, matrix in linears(model):
            if linear.bias is not None:
                limit = self.bias_limit(matrix)
                linear.bias.uniform_(-limit, limit, generator=generator) if limit else linear.bias.zero_()
        for module in model.modules():
            if isinstance(module, LearnedTable):
                module.table.normal_(0, module.std, generator=generator)
            elif isinstance(module, AdditiveScore):
                module.weight.normal_(0, module.weight.shape[1] ** -0.5, generator=generator)


@dataclass(frozen=True, kw_only=True)
class TransformerInit(InitRule, kind="transformer"):
    """Tables N(0, 1/√d_model), Glorot for each projection by itself, biases zero, padding row zero.

    A table of standard deviation 1/√d_model gives logits of unit variance for a unit-variance hidden state and, times
    √d_model, embeddings of rms 1: one matrix at the right size on both sides.
    Source: tensor2tensor's `transformer` (a normal of d_model^-0.5 for the shared table); Glorot & Bengio 2010.
    """

    attention_gain: float = 0.5**0.5
    """Factor on Glorot's bound for the projections to query, key and value; √½ starts scores at standard deviation ½.

    It is what Glorot's rule gives over the three stacked in one matrix (torch.nn.MultiheadAttention, fairseq). One
    post-norm translator learnt clearly faster from it than from 1: see docs/decisions/0007-attention-gain.md.
    """

    def __post_init__(self):
        if not 0 < self.attention_gain < float("inf"):
            raise SurdError(f"attention_gain: expected more than 0, found {self.attention_gain}")

    def spread(self, matrix: Matrix) -> Spread:
        """The distribution that the weights of a matrix start with."""
        if matrix.role in ("table", "softmax"):
            return Spread(matrix.inputs**-0.5)
        gain = self.attention_gain if matrix.role in ("query", "key", "value") else 1.0
        return Spread(gain * glorot(matrix.inputs, matrix.outputs).std, uniform=True)


@dataclass(frozen=True, kw_only=True)
class DepthInit(TransformerInit, kind="depth"):
    """As `transformer`, with the last matrix of each residual branch divided by the root of their number.

    So many branches of the size of the stream then add up to one of its size, whatever the depth.
    Source: Radford et al. 2019 (GPT-2), section 2.3.
    """

    def spread(self, matrix: Matrix) -> Spread:
        """The distribution that the weights of a matrix start with."""
        usual = super().spread(matrix)
        share = matrix.branches**-0.5 if matrix.role in ("mix", "outer") else 1.0
        return Spread(share * usual.std, usual.uniform)


@dataclass(frozen=True, kw_only=True)
class KerasInit(InitRule, kind="keras"):
    """Tables U(±0.05), Glorot elsewhere, as keras.layers start: what a model written from its tutorials has.

    Until version 3.14 Keras took an attention kernel (d_model, heads, d_k) for one of a convolution, with fans
    d_model · heads and d_model · d_k: far too small. Source: keras-team/keras pull request 22789.
    """

    version: Literal["3.15", "3.14"] = "3.15"
    """`3.14` stands for all versions up to it."""

    def spread(self, matrix: Matrix) -> Spread:
        """The distribution that the weights of a matrix start with."""
        if matrix.role == "table":
            return Spread(0.05 / 3**0.5, uniform=True)
        if self.version == "3.14" and matrix.role in ("query", "key", "value"):
            return glorot(matrix.inputs * matrix.heads, matrix.inputs * matrix.outputs // matrix.heads)
        if self.version == "3.14" and matrix.role == "mix":
            return glorot(matrix.inputs, matrix.heads * matrix.outputs)
        return glorot(matrix.inputs, matrix.outputs)


@dataclass(frozen=True, kw_only=True)
class SmallInit(InitRule, kind="small"):
    """N(0, std) for every matrix, as BERT, GPT-2 and Llama's ports start. Source: Devlin et al. 2019, A.2."""

    std: float = 0.02
    """The standard deviation, whatever the width."""

    def __post_init__(self):
        if not 0 < self.std < float("inf"):
            raise SurdError(f"std: expected a number above 0, found {self.std}")

    def spread(self, matrix: Matrix) -> Spread:
        """The distribution that the weights of a matrix start with."""
        return Spread(self.std)


@dataclass(frozen=True, kw_only=True)
class TorchInit(InitRule, kind="torch"):
    """What torch's own layers start with: tables N(0, 1), Glorot over stacked query, key and value, U(±1/√inputs) else.

    Source: reset_parameters of torch.nn.Embedding, MultiheadAttention and Linear (Kaiming uniform with a = √5).
    """

    def spread(self, matrix: Matrix) -> Spread:
        """The distribution that the weights of a matrix start with."""
        if matrix.role == "table":
            return Spread(1.0)
        if matrix.role in ("query", "key", "value"):
            return glorot(matrix.inputs, 3 * matrix.outputs)
        return Spread((3 * matrix.inputs) ** -0.5, uniform=True)

    def bias_limit(self, matrix: Matrix) -> float:
        """Attention's biases are zero, the others U(±1/√inputs)."""
        return matrix.inputs**-0.5 if matrix.role in ("inner", "outer", "softmax") else 0.0


Init = TransformerInit | DepthInit | KerasInit | SmallInit | TorchInit


def matrices(model: nn.Module) -> Iterator[tuple[Tensor, Matrix]]:
    """Every matrix of a model with what it is for, stacked ones cut apart; a shared one comes first as a table."""
    for module in model.modules():
        if isinstance(module, Embedding):
            yield module.table, _table(module)
    for linear, matrix in linears(model):
        parts = _parts(linear, matrix)
        if len(parts) == 1:  # the Parameter itself, which may be a table too
            yield linear.weight, matrix
        else:
            yield from zip(linear.weight.split(linear.outputs), parts, strict=True)


def draws(model: nn.Module, init: InitRule) -> dict[nn.Module, list[Draw]]:
    """How each linear layer of a model starts, from its parts alone; what is shared with a table starts as one."""
    tables: dict[Tensor, Matrix] = {
        module.table: _table(module) for module in model.modules() if isinstance(module, Embedding)
    }
    return {
        linear: [
            Draw(
                part.outputs,
                init.spread(tables.get(linear.weight, part)).std,
                0.0 if linear.bias is None else init.bias_limit(part) / 3**0.5,
            )
            for part in _parts(linear, matrix)
        ]
        for linear, matrix in linears(model)
    }


def table_std(embedding: Embedding, init: InitRule) -> float:
    """Standard deviation of a table at the start."""
    return init.spread(_table(embedding)).std


def _table(embedding: Embedding) -> Matrix:
    rows, width = embedding.table.shape
    return Matrix(role="table", inputs=width, outputs=rows)


def _parts(linear: Linear, matrix: Matrix) -> list[Matrix]:
    """The matrices that lie above one another in a layer."""
    roles = _STACKED.get((matrix.role, len(linear.outputs)), (matrix.role,) * len(linear.outputs))
    return [
        Matrix(**(vars(matrix) | {"role": role, "outputs": outputs}))
        for role, outputs in zip(roles, linear.outputs, strict=True)
    ]


_STACKED: dict[tuple[Role, int], tuple[Role, ...]] = {
    ("query", 3): ("query", "key", "value"),
    ("key", 2): ("key", "value"),
}


def linears(model: nn.Module) -> Iterator[tuple[Linear, Matrix]]:
    """Every linear layer of a model, as a whole, by the role of its first projection."""
    stacks = [module for module in model.modules() if isinstance(module, Encoder | Decoder | CausalDecoder)]
    branches = {module: stack.branches for stack in stacks for module in stack.modules()}
    for module in model.modules():
        match module:
            case SelfAttention():
                found: list[tuple[Linear, Role]] = [(module.query_key_value, "query"), (module.output, "mix")]
            case CrossAttention():
                found = [(module.query, "query"), (module.key_value, "key"), (module.output, "mix")]
            case FeedForwardLayer() | GatedLayer():
                found = [(module.inner, "inner"), (module.outer, "outer")]
            case Projection():
                found = [(module, "softmax")]
            case _:
                continue
        heads = getattr(module, "heads", 1)
        for linear, role in found:
            sizes = {"inputs": linear.in_features, "outputs": linear.out_features}
            yield linear, Matrix(role=role, heads=heads, branches=branches.get(module, 1), **sizes)
