"""Sound encoders and translators as people write them: a course's, an annotated paper's, a library's for images."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, DEPTH, VOCABULARY, LONGEST = 128, 4, 2, 500, 32


def clones(module: nn.Module, count: int) -> nn.ModuleList:
    return nn.ModuleList(copy.deepcopy(module) for _ in range(count))


class LayerNorm(nn.Module):
    """The annotated paper's: an unbiased deviation, and eps outside of the root."""

    def __init__(self, features: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.a_2, self.b_2, self.eps = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features)), eps

    def forward(self, x: Tensor) -> Tensor:
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.a_2 * (x - mean) / (std + self.eps) + self.b_2


class SublayerConnection(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dropout = LayerNorm(WIDTH), nn.Dropout(0.1)

    def forward(self, x: Tensor, sublayer) -> Tensor:
        return x + self.dropout(sublayer(self.norm(x)))


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: nn.Module) -> Tensor:
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    return torch.matmul(dropout(scores.softmax(dim=-1)), value)


class MultiHeadedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linears, self.dropout = clones(nn.Linear(WIDTH, WIDTH), 4), nn.Dropout(0.1)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        mask = None if mask is None else mask.unsqueeze(1)
        count = query.size(0)
        query, key, value = (
            lin(x).view(count, -1, HEADS, WIDTH // HEADS).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value), strict=False)
        )
        x = attention(query, key, value, mask, self.dropout)
        return self.linears[-1](x.transpose(1, 2).contiguous().view(count, -1, WIDTH))


class Layer(nn.Module):
    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.self_attn = MultiHeadedAttention()
        self.src_attn = MultiHeadedAttention() if reads else None
        self.feed_forward = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.sublayer = clones(SublayerConnection(), 3 if reads else 2)

    def forward(self, x: Tensor, mask: Tensor | None, memory: Tensor | None = None, src: Tensor | None = None):
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))
        if self.src_attn is not None:
            x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory, src))
        return self.sublayer[-1](x, self.feed_forward)


class Embeddings(nn.Module):
    """√d_model on the rows, and sinusoids."""

    pe: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.lut, self.dropout = nn.Embedding(VOCABULARY, WIDTH), nn.Dropout(0.1)
        position = torch.arange(0, LONGEST).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, WIDTH, 2) * -(math.log(10000.0) / WIDTH))
        pe = torch.zeros(LONGEST, WIDTH)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(position * div_term), torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x: Tensor) -> Tensor:
        x = self.lut(x) * math.sqrt(WIDTH)
        return self.dropout(x + self.pe[:, : x.size(1)].requires_grad_(False))


class AnnotatedTransformer(nn.Module):
    """Encoder, decoder and generator; every matrix by Glorot. `ends`: the generator's log-softmax is applied."""

    def __init__(self, ends: bool = False) -> None:
        super().__init__()
        self.src_embed, self.tgt_embed, self.ends = Embeddings(), Embeddings(), ends
        self.encoder, self.decoder = clones(Layer(False), DEPTH), clones(Layer(True), DEPTH)
        self.encoder_norm, self.decoder_norm = LayerNorm(WIDTH), LayerNorm(WIDTH)
        self.generator = nn.Linear(WIDTH, VOCABULARY)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
        memory = self.src_embed(src)
        for layer in self.encoder:
            memory = layer(memory, src_mask)
        memory, x = self.encoder_norm(memory), self.tgt_embed(tgt)
        for layer in self.decoder:
            x = layer(x, tgt_mask, memory, src_mask)
        logits = self.generator(self.decoder_norm(x))
        return F.log_softmax(logits, dim=-1) if self.ends else logits


def pair() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Source, target and their masks, without padding."""
    drawn = torch.Generator().manual_seed(1)
    src, tgt = (
        torch.randint(2, VOCABULARY, (6, 13), generator=drawn),
        torch.randint(2, VOCABULARY, (6, 11), generator=drawn),
    )
    return src, tgt, (src != 0).unsqueeze(-2), (tgt != 0).unsqueeze(-2) & torch.ones(1, 11, 11).tril().bool()


class CourseClassifier(nn.Module):
    """A course's first: positions are learned, one post-norm block, a mean over positions; torch's own attention.

    The tables are drawn from U(±0.05), as Keras does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.token_emb, self.pos_emb = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.att = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.ffn = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.layernorm1, self.layernorm2 = nn.LayerNorm(WIDTH, eps=1e-6), nn.LayerNorm(WIDTH, eps=1e-6)
        self.dropout1, self.dropout2, self.dense = nn.Dropout(0.1), nn.Dropout(0.1), nn.Linear(WIDTH, 2)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.uniform_(parameter, -0.05, 0.05) if "emb" in name else nn.init.xavier_uniform_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        x = self.token_emb(x) + self.pos_emb(torch.arange(x.shape[1]))
        x = self.layernorm1(x + self.dropout1(self.att(x, x, x, need_weights=False)[0]))
        x = self.layernorm2(x + self.dropout2(self.ffn(x)))
        return self.dense(x.mean(1))


class ImageAttention(nn.Module):
    """In the manner of timm."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.scale, self.fused = (WIDTH // HEADS) ** -0.5, fused
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, HEADS, C // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        if self.fused:
            x = F.scaled_dot_product_attention(q, k, v)
        else:
            x = ((q * self.scale) @ k.transpose(-2, -1)).softmax(dim=-1) @ v
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


class LayerScale(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(value * torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class ImageBlock(nn.Module):
    def __init__(self, fused: bool, scale: float | None) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(WIDTH, eps=1e-6), ImageAttention(fused)
        self.ls1, self.ls2 = (nn.Identity() if scale is None else LayerScale(scale) for _ in range(2))
        self.norm2 = nn.LayerNorm(WIDTH, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x)))
        return x + self.ls2(self.mlp(self.norm2(x)))


class VisionTransformer(nn.Module):
    """A class token, learned positions, and a head that starts at zero, as for fine-tuning, where `blank`."""

    def __init__(self, fused: bool = True, scale: float | None = None, blank: bool = False) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, WIDTH, 8, 8)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.empty(1, 17, WIDTH))
        self.blocks = nn.Sequential(*(ImageBlock(fused, scale) for _ in range(DEPTH)))
        self.norm, self.head = nn.LayerNorm(WIDTH, eps=1e-6), nn.Linear(WIDTH, 10)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.normal_(self.cls_token, std=1e-6)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        if blank:
            nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])
