"""The decoder-only language model: the probability of each token of a text, given those before it."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from surd.measure.signal import Expectation, Tape
from surd.models.architecture import Architecture
from surd.models.model import Model
from surd.nn.block import CausalLayer
from surd.nn.cache import Past
from surd.nn.init import draws, table_std
from surd.nn.loss import LossSums, Terms, smoothed_cross_entropy
from surd.nn.multihead import SelfAttention
from surd.nn.norm import NormOrder
from surd.nn.ragged import Layout, Ragged
from surd.nn.stack import CausalDecoder
from surd.nn.tying import first_gain, tie, verify


class Language(Model):
    """One embedding, causal layers, the pre-softmax projection. Source: Radford et al. 2018, 2019 (GPT, GPT-2).

    The layers are the decoder's of the encoder–decoder without their attention to a source.
    """

    def __init__(self, architecture: Architecture, vocabulary: int):
        super().__init__(architecture)
        a = self.architecture
        self.text = self.embedding(vocabulary)
        layers = [self._layer() for _ in range(a.decoder_layers)]
        # Without a source two sub-layers a layer take little from the row that was read, in a post-norm stack too.
        gain = first_gain(a.tying, NormOrder.PRE, a.d_model)
        if a.norm_order is NormOrder.POST:
            layers[-1].feedforward_residual = self.residual(gain)
        self.decoder = CausalDecoder(layers, self.last_norm(gain))
        self.projection = self.softmax_projection(vocabulary)
        self.tie()
        a.init(self)

    def _layer(self) -> CausalLayer:
        return CausalLayer(SelfAttention(self.heads(itself=True)), self.feedforward(), self.residual)

    def tie(self) -> None:
        """Makes the declared tie and verifies it; called after every operation that could break it."""
        tie(self.architecture.tying, None, self.text, self.projection)
        self.verify_ties()

    def verify_ties(self) -> None:
        """Asserts that table and projection are one Parameter exactly where that is declared."""
        verify(self.architecture.tying, None, self.text, self.projection)

    def forward(self, text: Ragged) -> Float[Tensor, "total d_model"]:
        """Hidden states before the softmax, one for each token, from it and those before it in its sequence."""
        return self._states(text.tokens, text.layout, None)

    def expect(self, length: int) -> dict[str, Expectation]:
        """What the parts say of each site at the start: for texts of that many random tokens, without dropout."""
        tape = Tape(self, draws(self, self.architecture.init), self.architecture.d_model)
        text = self.text.expect(length, table_std(self.text, self.architecture.init), tape)
        return self.expect_logits(self.decoder.expect(text, tape), tape)

    def loss(
        self, text: Ragged, labels: Int[Tensor, " total"], smoothing: float = 0.0, terms: Terms | None = None
    ) -> LossSums:
        """Sums of the loss over all tokens; `labels` is what follows each token of `text`."""
        hidden, out = self(text), self.projection
        return smoothed_cross_entropy(hidden, out.weight, out.bias, labels, smoothing, terms, self.text.table)

    def read(self, tokens: Int[Tensor, "rows length"]) -> tuple[Float[Tensor, "rows vocabulary"], Past]:
        """Reads the beginnings of sequences at once: the scores of what follows each, and what `step` goes on from."""
        rows, length = tokens.shape
        past = self.decoder.start()
        hidden = self._states(tokens.flatten(), Layout((length,) * rows, tokens.device), past)
        return self.wide_logits(hidden.view(rows, length, -1)[:, -1]), past

    def step(self, tokens: Int[Tensor, " rows"], past: Past) -> Float[Tensor, "rows vocabulary"]:
        """Reads one token a row and scores the next one; logits come back in fp32 (float64 for a float64 model)."""
        position = past.position
        x = self.text(tokens, torch.full_like(tokens, position), position + 1, self.compute_dtype)
        return self.wide_logits(self.decoder.step(x, past))

    def _states(self, tokens: Tensor, layout: Layout, past: Past | None) -> Float[Tensor, "total d_model"]:
        x = self.text(tokens, layout.positions, layout.longest, self.compute_dtype)
        return self.decoder(x, layout, past)

    @property
    def vocabularies(self) -> tuple[int]:
        """The size of its vocabulary."""
        return (len(self.text.table),)
