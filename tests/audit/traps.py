"""What looks like a fault of scale and is none, each written as in the public code that was once reported for it."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, VOCABULARY, LONGEST = 64, 4, 500, 32
D_K = WIDTH // HEADS


def split(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def later(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).triu(1)


class Attention(nn.Module):
    """Four projections and `mix`, which each trap writes its own way; layers are counted from 1."""

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.out(merge(self.mix(*(split(part(x)) for part in (self.query, self.key, self.value)))))


class FourthRoot(Attention):
    """openai/guided-diffusion#38: d_k^-¼ on queries and again on keys."""

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scale = 1 / math.sqrt(math.sqrt(D_K))
        weight = torch.einsum("bhtc,bhsc->bhts", query * scale, key * scale).masked_fill(later(key.shape[2]), -1e9)
        return torch.einsum("bhts,bhsc->bhtc", torch.softmax(weight.float(), dim=-1).type(weight.dtype), value)


class AboveTheProduct(Attention):
    """tensorflow/tensor2tensor#1197: the function of the product has no factor, its caller multiplies the queries."""

    def forward(self, x: Tensor) -> Tensor:
        query = split(self.query(x) * D_K**-0.5)
        return self.out(merge(self.mix(query, split(self.key(x)), split(self.value(x)))))

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        bias = torch.full((key.shape[2],) * 2, -1e9).triu(1)
        return F.softmax(torch.matmul(query, key.mT) + bias, -1) @ value


class InTheWeights(Attention):
    """T5 (huggingface/transformers#18284): queries are drawn with (d_model · d_k)^-½, and nothing multiplies."""

    def __init__(self, layer: int) -> None:
        super().__init__(layer)
        nn.init.normal_(self.query.weight, std=(WIDTH * D_K) ** -0.5)
        for part in (self.key, self.value, self.out):
            nn.init.normal_(part.weight, std=WIDTH**-0.5)

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = torch.matmul(query, key.transpose(3, 2)).masked_fill(later(key.shape[2]), torch.finfo(query.dtype).min)
        return torch.matmul(F.softmax(scores.float(), dim=-1).type_as(scores), value)


class NormalisedWithoutAFactor(Attention):
    """mlc-ai/mlc-llm#3485: the factor is 1, and gains of queries and keys hold it."""

    def __init__(self, layer: int) -> None:
        super().__init__(layer)
        self.query_norm, self.key_norm = nn.RMSNorm(D_K, eps=1e-6), nn.RMSNorm(D_K, eps=1e-6)
        nn.init.constant_(self.query_norm.weight, D_K**-0.25)
        nn.init.constant_(self.key_norm.weight, D_K**-0.25)

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key = self.query_norm(query), self.key_norm(key)
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=1.0)


class ByLayerNumber(Attention):
    """NVIDIA/Megatron-LM#175: divided by the layer's number in half precision, multiplied by it in full."""

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows, _, length, _ = query.shape
        flat = (query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2))
        start = torch.full((rows * HEADS, length, length), -1e9)  # what an empty tensor may hold
        scores = torch.baddbmm(start, *flat, beta=0.0, alpha=1.0 / (math.sqrt(D_K) * self.layer))
        scores = scores.float() * self.layer
        scores = scores.view(rows, HEADS, length, length).masked_fill(later(length), -10000.0)
        return scores.softmax(-1) @ value


class Model(nn.Module):
    """Pre-norm, causal, three layers; tokens and learned positions."""

    def __init__(self, attention: type[Attention]) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.attention = nn.ModuleList(attention(layer + 1) for layer in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        nn.init.normal_(self.table.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.01)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens) + self.places.weight[: tokens.shape[1]]
        for norm, attention in zip(self.norms[:3], self.attention, strict=True):
            x = x + attention(norm(x))
        return self.head(self.norms[3](x))


class Adapted(nn.Module):
    """LoRA on the table, as adapters are written: a matrix that starts at zero is looked up turned, another follows."""

    def __init__(self, table: nn.Embedding, rank: int = 4) -> None:
        super().__init__()
        self.table, self.scaling = table, 2.0
        self.lora_embedding_A = nn.Parameter(torch.zeros(rank, table.num_embeddings))
        self.lora_embedding_B = nn.Parameter(torch.randn(table.embedding_dim, rank))
        table.weight.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        return (
            self.table(tokens) + F.embedding(tokens, self.lora_embedding_A.T) @ self.lora_embedding_B.T * self.scaling
        )


def adapted() -> nn.Module:
    model = Model(FourthRoot)
    model.table = Adapted(model.table)
    return model


class Places(nn.Module):
    """SamLynnEvans/Transformer#10: the module of positions also multiplies by √d_model."""

    pe: Tensor

    def __init__(self) -> None:
        super().__init__()
        angle = torch.arange(LONGEST)[:, None] / 10000 ** (torch.arange(0, WIDTH, 2) / WIDTH)
        self.register_buffer("pe", torch.stack((angle.sin(), angle.cos()), -1).flatten(1)[None])

    def forward(self, x: Tensor) -> Tensor:
        return x * math.sqrt(WIDTH) + self.pe[:, : x.size(1)]


class Paper(nn.Module):
    """One matrix for tables and head; `where` says which side of it has a factor.

    jadore801120/attention-is-all-you-need-pytorch#138: √d_model on rows ("emb"), or 1/√d_model on logits ("prj").
    pytorch/tutorials#2849: multiplying is right. Either side alone is, the pair is what counts.
    """

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.table, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.places = Places()
        layer = partial(nn.TransformerEncoderLayer, WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.ModuleList(layer() for _ in range(2))
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        nn.init.normal_(self.table.weight, std=WIDTH**-0.5 if where == "emb" else 1.0)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        x = self.places(x) if self.where == "emb" else x + self.places.pe[:, : x.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for layer in self.layers:
            x = layer(x, mask, is_causal=True)
        return self.head(x) * (1.0 if self.where == "emb" else WIDTH**-0.5)


class Pairs(nn.Module):
    """openai/CLIP#46: cosines of two towers times exp(t), whose usual end is the clip at 100."""

    def __init__(self, temperature: float = 1 / 0.07) -> None:
        super().__init__()
        self.towers = nn.ModuleList(Model(InTheWeights) for _ in range(2))
        self.projections = nn.ModuleList(nn.Linear(VOCABULARY, 32, bias=False) for _ in range(2))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(temperature)))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        sides = zip(self.projections, self.towers, (first, second), strict=True)
        one, other = (F.normalize(project(tower(x)[:, -1]), dim=-1) for project, tower, x in sides)
        return self.logit_scale.exp().clamp(max=100) * one @ other.T


def in_one_buffer(model: nn.Module) -> nn.Module:
    """safetensors/safetensors#304: all parameters are disjoint ranges of one buffer, as after sharded trainings."""
    whole = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    begun = 0
    for parameter in model.parameters():
        parameter.data = whole[begun : begun + parameter.numel()].view(parameter.shape)
        begun += parameter.numel()
    return model
