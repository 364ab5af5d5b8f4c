"""Sound language models as people write them: in one file, fused or spelt out, with rotary positions and gates."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, DEPTH, VOCABULARY, LONGEST = 64, 4, 2, 500, 32


class FusedAttention(nn.Module):
    """In the manner of nanoGPT."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.c_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.dropout = 0.1
        self.resid_dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (y.view(B, T, HEADS, C // HEADS).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0, is_causal=True)
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C)))


class SpeltOutAttention(nn.Module):
    """In the manner of minGPT."""

    bias: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attn_dropout, self.resid_dropout = nn.Dropout(0.1), nn.Dropout(0.1)
        self.register_buffer("bias", torch.tril(torch.ones(LONGEST, LONGEST)).view(1, 1, LONGEST, LONGEST))

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        k = k.view(B, T, HEADS, C // HEADS).transpose(1, 2)
        q = q.view(B, T, HEADS, C // HEADS).transpose(1, 2)
        v = v.view(B, T, HEADS, C // HEADS).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = self.attn_dropout(F.softmax(att, dim=-1))
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class Block(nn.Module):
    def __init__(self, attention: type[nn.Module]) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(WIDTH), attention(), nn.LayerNorm(WIDTH)
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(WIDTH, 4 * WIDTH), "c_proj": nn.Linear(4 * WIDTH, WIDTH), "dropout": nn.Dropout(0.1)}
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        m = self.mlp
        return x + m["dropout"](m["c_proj"](F.gelu(m["c_fc"](self.ln_2(x)))))


class GPT(nn.Module):
    """The whole model in a file; `forward` returns logits and a loss, and without targets the last logits alone."""

    def __init__(self, attention: type[nn.Module], tied: bool, only_last: bool) -> None:
        super().__init__()
        self.only_last = only_last
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCABULARY, WIDTH),
                "wpe": nn.Embedding(LONGEST, WIDTH),
                "drop": nn.Dropout(0.1),
                "h": nn.ModuleList(Block(attention) for _ in range(DEPTH)),
                "ln_f": nn.LayerNorm(WIDTH),
            }
        )
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.transformer["wte"].weight = self.lm_head.weight
        self.apply(self._init_weights)
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, mean=0.0, std=0.02 / math.sqrt(2 * DEPTH))

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.transformer["drop"](self.transformer["wte"](idx) + self.transformer["wpe"](pos))
        for block in self.transformer["h"]:
            x = block(x)
        x = self.transformer["ln_f"](x)
        if targets is not None:
            logits = self.lm_head(x)
            return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return self.lm_head(x[:, [-1], :] if self.only_last else x), None


def nano_gpt() -> nn.Module:
    return GPT(FusedAttention, tied=True, only_last=True)


def mini_gpt() -> nn.Module:
    return GPT(SpeltOutAttention, tied=False, only_last=False)


def rotate_half(x: Tensor) -> Tensor:
    x = x.unflatten(-1, (-1, 2))
    first, second = x.unbind(-1)
    return torch.stack((-second, first), -1).flatten(-2)


class RotaryAttention(nn.Module):
    """In the manner of x-transformers: no biases, rotary positions, l2-normalised queries and keys where asked."""

    def __init__(self, qk_norm: bool) -> None:
        super().__init__()
        d_k = WIDTH // HEADS
        self.to_q, self.to_k, self.to_v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.to_out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.qk_norm = qk_norm
        self.scale = 10.0 if qk_norm else d_k**-0.5
        if qk_norm:
            self.qk_norm_q_scale, self.qk_norm_k_scale = (nn.Parameter(torch.ones(HEADS, 1, d_k)) for _ in range(2))

    def forward(self, x: Tensor, freqs: Tensor) -> Tensor:
        q, k, v = (
            project(x).unflatten(-1, (HEADS, -1)).permute(0, 2, 1, 3) for project in (self.to_q, self.to_k, self.to_v)
        )
        if self.qk_norm:
            q, k = F.normalize(q, dim=-1) * self.qk_norm_q_scale, F.normalize(k, dim=-1) * self.qk_norm_k_scale
        q, k = ((t * freqs.cos() + rotate_half(t) * freqs.sin()) for t in (q, k))
        sim = torch.einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        i, j = sim.shape[-2:]
        causal_mask = torch.ones((i, j), dtype=torch.bool, device=x.device).triu(j - i + 1)
        sim = sim.masked_fill(causal_mask, -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1, dtype=torch.float32).type(sim.dtype)
        out = torch.einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.to_out(out.permute(0, 2, 1, 3).flatten(2))


class GLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj, self.out = nn.Linear(WIDTH, 8 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x, gate = self.proj(x).chunk(2, dim=-1)
        return self.out(x * F.silu(gate))


class RMSNorm(nn.Module):
    """√d · x / ‖x‖ · g."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.g = WIDTH**0.5, nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1) * self.scale * self.g


class XTransformer(nn.Module):
    """`layers` holds norm, block and norm again, as the wrapper of a decoder does."""

    inv_freq: Tensor

    def __init__(self, qk_norm: bool = False, tied: bool = False) -> None:
        super().__init__()
        self.token_emb = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.kaiming_normal_(self.token_emb.weight)
        d_k = WIDTH // HEADS
        self.register_buffer("inv_freq", 1.0 / (10000 ** (torch.arange(0, d_k, 2).float() / d_k)))
        self.layers = nn.ModuleList(
            nn.ModuleList([RMSNorm(), block]) for _ in range(DEPTH) for block in (RotaryAttention(qk_norm), GLU())
        )
        self.final_norm = RMSNorm()
        self.to_logits = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            nn.init.normal_(self.token_emb.weight, std=0.02)
            self.to_logits.weight = self.token_emb.weight

    def forward(self, x: Tensor) -> Tensor:
        t = torch.arange(x.shape[1], device=x.device)
        freqs = torch.einsum("i , j -> i j", t.type_as(self.inv_freq), self.inv_freq).repeat_interleave(2, -1)
        x = self.token_emb(x)
        for norm, block in self.layers:
            x = x + (block(norm(x), freqs) if isinstance(block, RotaryAttention) else block(norm(x)))
        return self.to_logits(self.final_norm(x))
