"""The encoder–decoder of "Attention Is All You Need", every choice of it a named setting."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from surd.measure.signal import Expectation, Tape
from surd.measure.sites import Role
from surd.nn.block import DecoderLayer, EncoderLayer, Residual
from surd.nn.cache import Cache
from surd.nn.embedding import Embedding, Multiplier, RootWidth
from surd.nn.feedforward import FeedForward, ReLU
from surd.nn.init import Init, TransformerInit, draws, table_std
from surd.nn.linear import Projection
from surd.nn.loss import LossSums, Terms, smoothed_cross_entropy
from surd.nn.multihead import CrossAttention, Heads, SelfAttention
from surd.nn.norm import LayerNorm, Norm, NormOrder
from surd.nn.position import Position, Rotary, Sinusoidal
from surd.nn.ragged import Layout, Ragged
from surd.nn.scale import InverseRoot, Scale
from surd.nn.score import Dot, Score
from surd.nn.stack import Decoder, Encoder, LastNorm
from surd.nn.tying import Tying, first_gain, tie, verify


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
    """Layers of the decoder."""
    dropout: float = 0.1
    """Share of numbers dropped from each sub-layer's output and from the embedding, rounded to 1/256."""
    attention_dropout: float = 0.0
    """Share of attention weights dropped, rounded to 1/256."""
    norm_order: NormOrder = NormOrder.POST
    """Norm after each sub-layer (`post`) or before it, with a last norm at the end (`pre`)."""
    tying: Tying = Tying.ALL
    """Which of source table, target table and pre-softmax projection are one matrix."""
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


@dataclass(frozen=True)
class Memory:
    """The encoded source: hidden states `(total, d_model)` and where each sequence lies in them."""

    hidden: Float[Tensor, "total d_model"]
    layout: Layout


class Seq2Seq(nn.Module):
    """Encoder, decoder, two embeddings and the pre-softmax projection.

    Weights are kept in fp32; `compute_dtype` is the dtype of the activations.
    """

    def __init__(self, architecture: Architecture, source_vocabulary: int, target_vocabulary: int):
        super().__init__()
        a = self.architecture = architecture
        self.compute_dtype = torch.float32
        multiplier = a.multiplier(a.d_model)
        settings = (a.d_model, multiplier, a.position, a.dropout, a.input_gradient)
        self.source = Embedding(source_vocabulary, *settings)
        self.target = Embedding(target_vocabulary, *settings)
        gain = first_gain(a.tying, a.norm_order, a.d_model)
        self.encoder = Encoder([self._encoder_layer() for _ in range(a.encoder_layers)], self._last_norm())
        self.decoder = Decoder([self._decoder_layer() for _ in range(a.decoder_layers)], self._last_norm(gain))
        self.projection = Projection(a.d_model, target_vocabulary, bias=a.output_bias)
        self.tie()
        a.init(self)

    def _residual(self) -> Residual:
        a = self.architecture
        return Residual(a.norm.build(a.d_model), a.norm_order, a.dropout)

    def _last_norm(self, gain: float = 1.0) -> LastNorm:
        a = self.architecture
        return a.norm.build(a.d_model, gain) if a.norm_order is NormOrder.PRE else nn.Identity()

    def _heads(self, itself: bool) -> Heads:
        """Attention of a sequence to itself, or to another one: distances mean nothing there."""
        a = self.architecture
        return Heads(
            d_model=a.d_model,
            heads=a.heads,
            d_k=a.d_k,
            key_value_heads=a.key_value_heads,
            scale=a.scale,
            score=a.score,
            cap=a.cap,
            norm=a.query_key_norm,
            rotary=a.position if itself and isinstance(a.position, Rotary) else None,
            rate=a.attention_dropout,
        )

    def _encoder_layer(self) -> EncoderLayer:
        a = self.architecture
        return EncoderLayer(
            SelfAttention(self._heads(itself=True)), a.feedforward.build(a.d_model, a.d_ff), self._residual
        )

    def _decoder_layer(self) -> DecoderLayer:
        a = self.architecture
        attention, cross = SelfAttention(self._heads(itself=True)), CrossAttention(self._heads(itself=False))
        return DecoderLayer(attention, cross, a.feedforward.build(a.d_model, a.d_ff), self._residual)

    def tie(self) -> None:
        """Makes the declared ties and verifies them; called after every operation that could break one."""
        tie(self.architecture.tying, self.source, self.target, self.projection)
        self.verify_ties()

    def verify_ties(self) -> None:
        """Asserts that exactly the declared matrices are one Parameter."""
        verify(self.architecture.tying, self.source, self.target, self.projection)

    def encode(self, source: Ragged) -> Memory:
        """Source ids, each sequence ended by EOS, to hidden states."""
        layout = source.layout
        x = self.source(source.tokens, layout.positions, layout.longest, self.compute_dtype)
        return Memory(self.encoder(x, layout), layout)

    def forward(self, source: Ragged, target: Ragged) -> Float[Tensor, "target_total d_model"]:
        """Hidden states before the softmax, one for each target token; `target` begins with BOS."""
        memory, layout = self.encode(source), target.layout
        x = self.target(target.tokens, layout.positions, layout.longest, self.compute_dtype)
        return self.decoder(x, layout, memory.hidden, memory.layout)

    def expect(self, source_length: int, target_length: int) -> dict[str, Expectation]:
        """What the parts say of each site at the start: for sentences of that many random tokens, without dropout."""
        a, tape = self.architecture, Tape(self, draws(self, self.architecture.init))
        source = self.source.expect(source_length, table_std(self.source, a.init), tape)
        target = self.target.expect(target_length, table_std(self.target, a.init), tape)
        memory = self.encoder.expect(source, tape)
        hidden = self.decoder.expect(target, memory, tape)
        self.projection.expect(tape.note(self.projection, Role.HIDDEN, hidden), a.tying is not Tying.NONE, tape)
        return tape.expectations()

    def logits(self, hidden: Float[Tensor, "rows d_model"]) -> Float[Tensor, "rows vocabulary"]:
        """Scores of every token of the target vocabulary."""
        return self.projection(hidden)

    def loss(
        self,
        source: Ragged,
        target: Ragged,
        labels: Int[Tensor, " target_total"],
        smoothing: float = 0.0,
        terms: Terms | None = None,
    ) -> LossSums:
        """Sums of the loss over all target tokens; `labels` is what should follow each token of `target`."""
        hidden, out = self(source, target), self.projection
        return smoothed_cross_entropy(hidden, out.weight, out.bias, labels, smoothing, terms, self.target.table)

    def start(self, memory: Memory, beam: int = 1) -> Cache:
        """The cache for decoding `beam` continuations of each source, before their first token (which is BOS)."""
        return self.decoder.start(memory.hidden, memory.layout, beam)

    def step(self, tokens: Int[Tensor, " rows"], cache: Cache) -> Float[Tensor, "rows vocabulary"]:
        """Reads one token a row and scores the next one; logits come back in fp32 (float64 for a float64 model)."""
        position = cache.position
        x = self.target(tokens, torch.full_like(tokens, position), position + 1, self.compute_dtype)
        logits = self.logits(self.decoder.step(x, cache))
        return logits.float() if logits.dtype.itemsize < 4 else logits

    def resize(self, source_vocabulary: int, target_vocabulary: int) -> None:
        """Grows or cuts the tables; rows that stay keep their values, new ones are drawn like the old ones were."""
        fresh = Seq2Seq(self.architecture, source_vocabulary, target_vocabulary)
        grown = [(self.source, fresh.source, "table"), (self.target, fresh.target, "table")]
        grown += [(self.projection, fresh.projection, "weight"), (self.projection, fresh.projection, "bias")]
        with torch.no_grad():
            for old, new, name in grown:
                before, after = getattr(old, name), getattr(new, name)
                if before is not None and after is not None:
                    rows = min(len(before), len(after))
                    after = after.to(before)
                    after[:rows] = before[:rows]
                    setattr(old, name, nn.Parameter(after))
        self.projection.out_features = target_vocabulary
        self.tie()

    @property
    def vocabularies(self) -> tuple[int, int]:
        """Sizes of the source and target vocabulary."""
        return len(self.source.table), len(self.target.table)

    def parameter_counts(self) -> tuple[int, int]:
        """Numbers held (a shared matrix once), and numbers that tying saved."""
        unique = sum(p.numel() for p in self.parameters())
        named = sum(p.numel() for _, p in self.named_parameters(remove_duplicate=False))
        return unique, named - unique
