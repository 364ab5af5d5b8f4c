"""What residual connections carry: the stream, or a norm of it where none belongs."""

import pytest
import torch
import transformers
from audit.asked import found, silent
from measure.faults import D_MODEL, HEADS, Attention, Language
from torch import Tensor, nn

from surd.audit.finding import Severity
from surd.measure.building import build_inputs

RULE = "residual-path"


@pytest.fixture(autouse=True)
def seeded() -> None:
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, style: str):
        super().__init__()
        self.style = style
        self.first, self.second = nn.LayerNorm(D_MODEL), nn.LayerNorm(D_MODEL)
        self.attention = Attention()
        self.feedforward = nn.Sequential(nn.Linear(D_MODEL, 96), nn.GELU(), nn.Linear(96, D_MODEL))

    def forward(self, x: Tensor) -> Tensor:
        if self.style == "pre":
            x = x + self.attention(self.first(x))
            return x + self.feedforward(self.second(x))
        if self.style == "post":
            x = self.first(x + self.attention(x))
            return self.second(x + self.feedforward(x))
        if self.style == "parallel":
            normed = self.first(x)
            return x + self.attention(normed) + self.feedforward(normed)
        if self.style == "sandwich":
            return x + self.second(self.attention(self.first(x)))
        if self.style == "behind":
            x = x + self.first(self.attention(x))
            return x + self.second(self.feedforward(x))
        if self.style == "merged":
            x = self.second(x + self.attention(self.first(x)))
            return x + self.feedforward(x)
        if self.style == "called twice":
            x = self.first(x) + self.attention(self.first(x))
            return self.second(x) + self.feedforward(self.second(x))
        x = self.first(x)
        x = x + self.attention(x)
        x = self.second(x)
        return x + self.feedforward(x)


class Stack(nn.Module):
    def __init__(self, style: str, shared: bool = False):
        super().__init__()
        blocks = [Block(style)] * 2 if shared else [Block(style), Block(style)]
        self.entry, self.blocks = nn.LayerNorm(D_MODEL), nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("style", ["pre", "post", "parallel", "sandwich", "behind"])
@pytest.mark.parametrize("shared", [False, True])
def test_published_styles_are_silent(style, shared):
    silent(Language(Stack(style, shared)), RULE)


def test_one_norm_on_the_path():
    model = Language(Stack("merged"))
    finding = found(model, RULE)
    assert finding.severity is Severity.FAULT and finding.expected == 0
    block = model.attention.blocks[int(finding.site.split(".")[2].split(":")[0])]
    seen: list[Tensor] = []
    block.second.register_forward_hook(lambda module, args, out: seen.extend((args[0].detach(), out.detach())))
    model.eval()(**build_inputs(model))
    assert finding.measured == pytest.approx(float((seen[1] - seen[0]).norm() / seen[0].norm()), rel=0.05)


@pytest.mark.parametrize("style", ["normed", "called twice"])
def test_all_norms_on_the_path(style):
    finding = found(Language(Stack(style)), RULE)
    assert len(finding.sites) == 4 and finding.measured > 0


class Sublayer(nn.Module):
    """A wrapper of a branch, as many write it."""

    def __init__(self, branch: nn.Module, right: bool):
        super().__init__()
        self.norm, self.branch, self.right = nn.LayerNorm(D_MODEL), branch, right

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        return (x if self.right else normed) + self.branch(normed)


def test_a_wrapper_that_carries_the_norm():
    for right in (False, True):
        layers = [Sublayer(Attention(), right), Sublayer(nn.Linear(D_MODEL, D_MODEL), right)]
        model = Language(nn.Sequential(*layers, Sublayer(Attention(), right)))
        if right:
            silent(model, RULE)
        else:
            assert found(model, RULE).measured > 0


@pytest.mark.parametrize("first", [False, True])
def test_torchs_layers(first):
    layer = nn.TransformerEncoderLayer(D_MODEL, HEADS, 64, batch_first=True, norm_first=first)
    silent(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), RULE)


@pytest.mark.parametrize("name", ["albert", "gpt2", "openai-gpt", "gptj"])
def test_public_models(name):
    sizes = {"n_embd": 48, "n_head": 4, "n_layer": 2, "rotary_dim": 4} if "gpt" in name else {"hidden_size": 48}
    sizes |= {"num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 96} if name == "albert" else {}
    config = transformers.AutoConfig.for_model(name, vocab_size=97, **sizes)
    silent(transformers.AutoModel.from_config(config), RULE)
