"""The shape of a model and every choice in it: one tree of settings for encoder–decoders and for language models."""

from dataclasses import dataclass, field

from surd.nn.embedding import Multiplier, RootWidth
from surd.nn.feedforward import FeedForward, ReLU
from surd.nn.init import Init, TransformerInit
from surd.nn.norm import LayerNorm, Norm, NormOrder
from surd.nn.position import Position, Sinusoidal
from surd.nn.scale import InverseRoot, Scale
from surd.nn.score import Dot, Score
from surd.nn.tying import Tying


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Shape and parts of a model; the defaults are the paper's base model."""

    d_model: int = 512
    """Width of the residual stream, of the tables and of the output of each layer."""
    heads: int = 8
    """Attention heads in each attention."""
    d_k: int = 64
    """Width of one head's queries, keys and values; heads · d_k need not equal d_model."""
    key_value_heads: int | None = None
    """Heads of keys and values, each shared by `heads` / so many query heads; none means as many as `heads`."""
    d_ff: int = 2048
    """Inner width of the feed-forward."""
    encoder_layers: int = 6
    """Layers of the encoder."""
    decoder_layers: int = 6
    """Layers of the decoder; a language model has no others."""
    dropout: float = 0.1
    """Share of numbers dropped from each sub-layer's output and from the embedding, rounded to 1/256."""
    attention_dropout: float = 0.0
    """Share of attention weights dropped, rounded to 1/256."""
    norm_order: NormOrder = NormOrder.POST
    """Norm after each sub-layer (`post`) or before it, with a last norm at the end (`pre`)."""
    tying: Tying = Tying.ALL
    """Which of source table, target table and pre-softmax projection are one matrix; a language model has one table."""
    output_bias: bool = False
    """Whether the pre-softmax projection has a bias."""
    scale: Scale = field(default_factory=InverseRoot)
    """Factor on query·key."""
    score: Score = field(default_factory=Dot)
    """How a query is held against a key."""
    cap: float | None = None
    """Attention scores are bent to stay within ± this; none leaves them alone."""
    query_key_norm: Norm | None = None
    """Norm of each query and key over its d_k features; none leaves them alone."""
    multiplier: Multiplier = field(default_factory=RootWidth)
    """Factor on the rows of the tables where they enter the model."""
    input_gradient: float = 1.0
    """Factor on the gradient that reaches the tables through the embedding, not through the pre-softmax."""
    position: Position = field(default_factory=Sinusoidal)
    """Signal that tells positions apart."""
    norm: Norm = field(default_factory=LayerNorm)
    """Kind of norm."""
    feedforward: FeedForward = field(default_factory=ReLU)
    """Kind of position-wise network."""
    init: Init = field(default_factory=TransformerInit)
    """How the weights start."""
