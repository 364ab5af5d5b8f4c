"""Specimens: two small Transformers in plain PyTorch with all scales right, for the rules' pages to break and to mend.

`language_model` is written as GPT-2 is: pre-norm, causal, one matrix for table and head, 0.02 everywhere. `encoder` is
the paper's: post-norm, √d_model, sinusoids, Glorot.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

WIDTH, HEADS, DEPTH, VOCABULARY, LONGEST = 64, 4, 2, 500, 64


class Attention(nn.Module):
    """Multi-head attention; where the mask is True a query sees a key."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def split(self, x: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch heads length d_k"]:
        """Each head its share of the width."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def merge(self, x: Float[Tensor, "batch heads length d_k"]) -> Float[Tensor, "batch length width"]:
        """Heads beside each other."""
        return x.transpose(1, 2).flatten(-2)

    def scores(
        self, query: Float[Tensor, "batch heads queries d_k"], key: Float[Tensor, "batch heads keys d_k"]
    ) -> Float[Tensor, "batch heads queries keys"]:
        """q · k / √d_k."""
        return query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])

    def masked(self, scores: Tensor, visible: Bool[Tensor, "..."] | None) -> Tensor:
        """Nothing of a hidden key."""
        return scores if visible is None else scores.masked_fill(~visible, torch.finfo(scores.dtype).min)

    def forward(self, x: Tensor, visible: Bool[Tensor, "..."] | None = None) -> Tensor:
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        weights = F.softmax(self.masked(self.scores(query, key), visible), dim=-1)
        return self.out(self.merge(weights @ value))


class FeedForward(nn.Module):
    """Two layers, the inner one four times as wide."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(F.gelu(self.inner(x)))


class PreNormBlock(nn.Module):
    """x + f(norm(x)), twice."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.feedforward_norm, self.feedforward = nn.LayerNorm(width), FeedForward(width)

    def forward(self, x: Tensor, visible: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), visible)
        return x + self.feedforward(self.feedforward_norm(x))


class PostNormBlock(nn.Module):
    """norm(x + f(x)), twice."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.attention_norm = Attention(width, heads), nn.LayerNorm(width)
        self.feedforward, self.feedforward_norm = FeedForward(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, visible: Tensor | None = None) -> Tensor:
        x = self.attention_norm(x + self.attention(x, visible))
        return self.feedforward_norm(x + self.feedforward(x))


class LanguageModel(nn.Module):
    """Next tokens from earlier ones."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList(PreNormBlock(WIDTH, HEADS) for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.table.weight

    def embed(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length width"]:
        """Tokens and positions."""
        return self.table(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))

    def visible(self, tokens: Int[Tensor, "batch length"]) -> Bool[Tensor, "length length"]:
        """Each position sees itself and those before it."""
        return torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool, device=tokens.device).tril()

    def logits(self, hidden: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length vocabulary"]:
        """One for each token."""
        return self.head(hidden)

    def forward(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length vocabulary"]:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.visible(tokens))
        return self.logits(self.norm(x))


class Encoder(nn.Module):
    """Vectors that know their neighbours; `mask` is 1 for real tokens and 0 for padding, as elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0)
        self.register_buffer("places", sinusoids(LONGEST, WIDTH), persistent=False)
        self.blocks = nn.ModuleList(PostNormBlock(WIDTH, HEADS) for _ in range(DEPTH))

    def embed(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length width"]:
        """Tokens of unit size, and positions."""
        return self.table(tokens) * math.sqrt(WIDTH) + self.places[: tokens.shape[1]]

    def forward(self, tokens: Int[Tensor, "batch length"], mask: Int[Tensor, "batch length"] | None = None) -> Tensor:
        x = self.embed(tokens)
        visible = None if mask is None else mask.bool()[:, None, None, :]
        for block in self.blocks:
            x = block(x, visible)
        return x


def language_model(seed: int = 0) -> LanguageModel:
    """GPT-2's initialisation: 0.02, positions 0.01, outputs of branches divided by √(2 · depth)."""
    torch.manual_seed(seed)
    model = LanguageModel()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            shrunk = name.endswith(("out.weight", "outer.weight"))
            std = 0.01 if name.startswith("places") else 0.02 / math.sqrt(2 * DEPTH) if shrunk else 0.02
            nn.init.normal_(parameter, std=std)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return model


def encoder(seed: int = 0) -> Encoder:
    """The paper's: tables N(0, 1/√d_model), Glorot for every projection."""
    torch.manual_seed(seed)
    model = Encoder()
    for name, parameter in model.named_parameters():
        if name.startswith("table"):
            nn.init.normal_(parameter, std=WIDTH**-0.5)
            with torch.no_grad():
                parameter[0] = 0
        elif parameter.dim() == 2:
            nn.init.xavier_uniform_(parameter)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return model


def sinusoids(length: int, width: int) -> Float[Tensor, "length width"]:
    """Sines and cosines of position / 10000^(2i / width), interleaved; their rms is 1/√2."""
    angle = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(1)
