"""Small language models in two styles of writing, whose output side the tests break."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, DEPTH, VOCABULARY, LENGTH = 64, 4, 2, 500, 64


class Block(nn.Module):
    """Pre-norm, with torch's attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, HEADS, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Modules(nn.Module):
    """Built of torch's modules; head and table are two matrices, or one."""

    def __init__(
        self, width: int = WIDTH, tied: bool = False, bias: bool = False, vocabulary: int = VOCABULARY
    ) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(vocabulary, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=bias)
        for table in (self.table, self.places):
            nn.init.normal_(table.weight, std=0.02)
        nn.init.normal_(self.head.weight, std=width**-0.5)
        if tied:
            self.head.weight = self.table.weight

    def hidden(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens) + self.places(torch.arange(tokens.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.head(hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(self.hidden(tokens))


class Flat(nn.Module):
    """Raw matrices and products, in one function."""

    def __init__(self, tied: bool = False, std: float = WIDTH**-0.5) -> None:
        super().__init__()
        self.E = nn.Parameter(torch.randn(VOCABULARY, WIDTH) * 0.02)
        self.P = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.01)
        self.W = nn.Parameter(torch.randn(4, WIDTH, WIDTH) * WIDTH**-0.5)
        self.g = nn.ParameterList(nn.Parameter(torch.ones(WIDTH)) for _ in range(2))
        self.H = None if tied else nn.Parameter(torch.randn(WIDTH, VOCABULARY) * std)
        self.b = nn.Parameter(torch.zeros(VOCABULARY))

    def readout(self, h: Tensor) -> Tensor:
        return h @ (self.E.T if self.H is None else self.H) + self.b

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        x = self.E[ids] + self.P[:length]
        y = F.rms_norm(x, (WIDTH,), self.g[0], 1e-6)
        q, k, v = (torch.einsum("btd,dhe->bhte", y, w.view(WIDTH, HEADS, -1)) for w in self.W[:3])
        s = torch.einsum("bhqe,bhke->bhqk", q, k) * (WIDTH // HEADS) ** -0.5
        s = s.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), float("-inf"))
        mixed = torch.einsum("bhqk,bhke->bqhe", s.softmax(-1), v).flatten(2)
        return self.readout(F.rms_norm(x + mixed @ self.W[3], (WIDTH,), self.g[1], 1e-6))
