"""A small decoder with everything that a watch looks at, and a task that it learns in 200 updates."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, PERIOD, LENGTH = 16, 8, 32


class Layer(nn.Module):
    """Pre-norm attention and feed-forward, hand-written or fused."""

    def __init__(self, width: int, heads: int, d_k: int, scale: float, fused: bool, dropout: float):
        super().__init__()
        self.heads, self.scale, self.fused = heads, scale, fused
        self.attention_norm, self.feedforward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, heads * d_k, bias=False) for _ in range(3))
        self.output = nn.Linear(heads * d_k, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def mix(self, x: Tensor) -> Tensor:
        query, key, value = (
            p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.query, self.key, self.value)
        )
        if self.fused:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.scale)
        else:
            future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            scores = (query @ key.mT * self.scale).masked_fill(future, float("-inf"))
            mixed = scores.softmax(-1) @ value
        return self.output(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.mix(self.attention_norm(x)))
        return x + self.dropout(self.down(F.gelu(self.up(self.feedforward_norm(x)), approximate="tanh")))


class Learner(nn.Module):
    """Tokens to logits."""

    def __init__(
        self,
        *,
        width: int = 64,
        heads: int = 2,
        d_k: int = 32,
        layers: int = 2,
        scale: float | None = None,
        fused: bool = False,
        dropout: float = 0.0,
        tied: bool = True,
    ):
        super().__init__()
        scale = d_k**-0.5 if scale is None else scale
        self.table, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.layers = nn.ModuleList(Layer(width, heads, d_k, scale, fused, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        nn.init.normal_(self.table.weight, std=width**-0.5)
        nn.init.normal_(self.position.weight, std=width**-0.5)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens) + self.position.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def batches(steps: int, rows: int = 16) -> Iterator[Tensor]:
    """Random words of eight letters, each repeated: whoever looks back eight places knows what comes."""
    random = torch.Generator().manual_seed(1)
    for _ in range(steps):
        yield torch.randint(VOCABULARY, (rows, PERIOD), generator=random).repeat(1, LENGTH // PERIOD)


def loss_of(model: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
    """Mean over what is not the first time."""
    logits = model(tokens)[:, PERIOD - 1 : -1]
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, PERIOD:].flatten())
