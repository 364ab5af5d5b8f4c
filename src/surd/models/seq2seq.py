"""The encoder–decoder of "Attention Is All You Need", every choice of it a named setting."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from surd.measure.signal import Expectation, Tape
from surd.models.architecture import Architecture
from surd.models.model import Model
from surd.nn.block import DecoderLayer, EncoderLayer
from surd.nn.cache import Cache
from surd.nn.init import draws, table_std
from surd.nn.loss import LossSums, Terms, smoothed_cross_entropy
from surd.nn.multihead import CrossAttention, SelfAttention
from surd.nn.ragged import Layout, Ragged
from surd.nn.stack import Decoder, Encoder
from surd.nn.tying import first_gain, tie, verify

VECTOR = 16
"""Numbers that a processor works on at once, in fp32 and at the most."""


@dataclass(frozen=True)
class Memory:
    """The encoded source: hidden states `(total, d_model)` and where each sequence lies in them."""

    hidden: Float[Tensor, "total d_model"]
    layout: Layout


class Seq2Seq(Model):
    """Encoder, decoder, two embeddings and the pre-softmax projection."""

    def __init__(self, architecture: Architecture, source_vocabulary: int, target_vocabulary: int):
        super().__init__(architecture)
        a = self.architecture
        self.source, self.target = self.embedding(source_vocabulary), self.embedding(target_vocabulary)
        gain = first_gain(a.tying, a.norm_order, a.d_model)
        self.encoder = Encoder([self._encoder_layer() for _ in range(a.encoder_layers)], self.last_norm())
        self.decoder = Decoder([self._decoder_layer() for _ in range(a.decoder_layers)], self.last_norm(gain))
        self.projection = self.softmax_projection(target_vocabulary)
        self.tie()
        a.init(self)

    def _encoder_layer(self) -> EncoderLayer:
        return EncoderLayer(SelfAttention(self.heads(itself=True)), self.feedforward(), self.residual)

    def _decoder_layer(self) -> DecoderLayer:
        attention, cross = SelfAttention(self.heads(itself=True)), CrossAttention(self.heads(itself=False))
        return DecoderLayer(attention, cross, self.feedforward(), self.residual)

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
        if not torch.is_grad_enabled():  # an answer must not depend on how long its neighbours are
            layout = replace(layout, multiple=VECTOR)
        x = self.source(source.tokens, layout.positions, layout.reach, self.compute_dtype)
        return Memory(self.encoder(x, layout), layout)

    def forward(self, source: Ragged, target: Ragged) -> Float[Tensor, "target_total d_model"]:
        """Hidden states before the softmax, one for each target token; `target` begins with BOS."""
        memory, layout = self.encode(source), target.layout
        x = self.target(target.tokens, layout.positions, layout.longest, self.compute_dtype)
        return self.decoder(x, layout, memory.hidden, memory.layout)

    def expect(self, source_length: int, target_length: int) -> dict[str, Expectation]:
        """What the parts say of each site at the start: for sentences of that many random tokens, without dropout."""
        a, tape = self.architecture, Tape(self, draws(self, self.architecture.init), self.architecture.d_model)
        source = self.source.expect(source_length, table_std(self.source, a.init), tape)
        target = self.target.expect(target_length, table_std(self.target, a.init), tape)
        memory = self.encoder.expect(source, tape)
        hidden = self.decoder.expect(target, memory, tape)
        return self.expect_logits(hidden, tape)

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
        return self.wide_logits(self.decoder.step(x, cache))

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
