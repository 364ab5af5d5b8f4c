"""What residual connections carry: the stream, or a norm of it where none belongs."""

from collections.abc import Callable

import pytest
import torch
import transformers
from audit.asked import found, silent
from measure.faults import D_MODEL, HEADS, Attention, Language
from torch import Tensor, nn

from surd.audit.finding import Severity
from surd.measure.calling.building import build_inputs

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


class Step(nn.Module):
    """One of a list: `carry` joins the stream and what layers behind a norm make of it."""

    def __init__(self, carry: Callable[[Tensor, Tensor], Tensor]):
        super().__init__()
        self.carry, self.mix = carry, nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True)
        self.feed = nn.Sequential(nn.LayerNorm(D_MODEL), nn.Linear(D_MODEL, 96), nn.GELU(), nn.Linear(96, D_MODEL))

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.rms_norm(x, (D_MODEL,))
        x = x + self.mix(y, y, y, need_weights=False)[0]
        return self.carry(x, self.feed(x))


class Formula(nn.Module):
    """The same in one function, over raw matrices."""

    def __init__(self, carry: Callable[[Tensor, Tensor], Tensor]):
        super().__init__()
        self.carry = carry
        self.w = nn.Parameter(torch.randn(3, 6, D_MODEL, D_MODEL) * D_MODEL**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        for q, k, v, o, up, down in self.w:
            y = nn.functional.layer_norm(x, (D_MODEL,))
            x = x + nn.functional.scaled_dot_product_attention(y @ q, y @ k, y @ v) @ o
            x = self.carry(x, (nn.functional.layer_norm(x, (D_MODEL,)) @ up).relu() @ down)
        return x


def stack(carry: Callable[[Tensor, Tensor], Tensor]) -> nn.Module:
    return nn.Sequential(*(Step(carry) for _ in range(3)))


@pytest.mark.parametrize("make", [stack, Formula])
def test_a_part_of_the_stream_or_nothing_of_it(make):
    for factor in (0.5, 0.9):
        finding = found(Language(make(lambda x, f, c=factor: c * x + f)), RULE)
        assert finding.severity is Severity.FAULT and len(finding.sites) == 3
        assert finding.measured == pytest.approx(1 - factor, rel=1e-3)
    finding = found(Language(make(lambda x, f: f)), RULE)
    assert (finding.severity, finding.measured, finding.expected) == (Severity.FAULT, 1.0, 0.0)


@pytest.mark.parametrize("make", [stack, Formula])
def test_published_factors_are_silent(make):
    """Branches that are scaled (MiniCPM, Granite, ReZero), and both sides, so that the variance stays."""
    alpha = nn.Parameter(torch.zeros(()))
    for carry in (
        lambda x, f: x + 0.22 * f,
        lambda x, f: x + alpha * f,
        lambda x, f: 0.5**0.5 * x + 0.5**0.5 * f,
        lambda x, f: (x + f) * 0.5**0.5,
        lambda x, f: nn.functional.layer_norm(2.5 * x + f, (D_MODEL,)),
    ):
        silent(Language(make(carry)), RULE)


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


class Queries(nn.Module):
    """A post-norm decoder that begins with learned queries instead of tokens, as for detecting objects."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Transformer(D_MODEL, 4, 1, 2, 96, batch_first=True)
        self.queries, self.patches = nn.Parameter(torch.randn(7, D_MODEL)), nn.Linear(20, D_MODEL)

    def forward(self, features: Tensor) -> Tensor:
        return self.inner(self.patches(features), self.queries.expand(len(features), -1, -1))


def test_a_decoder_of_learned_queries():
    silent(Queries(), RULE, inputs=(torch.randn(3, 11, 20),))


class Decoder(nn.Module):
    """Post-norm layers over a target that starts at zero, so that the first sum is a branch alone."""

    def __init__(self, skips_first: bool):
        super().__init__()
        self.skips_first, self.queries = skips_first, nn.Parameter(torch.randn(7, D_MODEL))
        self.layers, self.patches = nn.ModuleList(TwoWay() for _ in range(2)), nn.Linear(20, D_MODEL)

    def forward(self, features: Tensor) -> Tensor:
        memory, asked = self.patches(features), self.queries.expand(len(features), -1, -1)
        x = torch.zeros_like(asked)
        for number, layer in enumerate(self.layers):
            x = layer(x, asked, memory, self.skips_first and number == 0)
        return x


class TwoWay(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.other = (nn.MultiheadAttention(D_MODEL, 4, batch_first=True) for _ in range(2))
        self.norms, self.feed = nn.ModuleList(nn.LayerNorm(D_MODEL) for _ in range(3)), nn.Linear(D_MODEL, D_MODEL)

    def forward(self, x: Tensor, asked: Tensor, memory: Tensor, alone: bool) -> Tensor:
        mixed = self.own(x + asked, x + asked, x + asked)[0]
        x = self.norms[0](mixed if alone else x + mixed)
        x = self.norms[1](x + self.other(x + asked, memory, memory)[0])
        return self.norms[2](x + self.feed(x))


@pytest.mark.parametrize("alone", [False, True])
def test_a_target_that_starts_at_zero(alone):
    silent(Decoder(alone), RULE, inputs=(torch.randn(3, 11, 20),))


KINDS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "pre": lambda x, y, f: x + f,
    "lost": lambda x, y, f: f,
    "twice": lambda x, y, f: x + (x + f),
    "normed": lambda x, y, f: y + f,
}


class Function(nn.Module):
    """All layers in one function, each of its own kind."""

    def __init__(self, *kinds: str, heads: int = 0):
        super().__init__()
        self.kinds, number = kinds, len(kinds)
        self.norms = nn.ModuleList(nn.LayerNorm(D_MODEL) for _ in range(2 * number + 1))
        self.mixes = nn.ModuleList(nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True) for _ in range(number))
        self.feeds = nn.ModuleList(nn.Linear(D_MODEL, D_MODEL) for _ in range(number))
        self.heads = nn.ModuleList(nn.Linear(D_MODEL, D_MODEL) for _ in range(heads))

    def forward(self, x: Tensor) -> Tensor:
        for kind, first, second, mix, feed in zip(
            self.kinds, self.norms[::2], self.norms[1::2], self.mixes, self.feeds, strict=False
        ):
            y = x if "post" in kind else first(x)
            mixed = mix(y, y, y, need_weights=False)[0]
            if "post" in kind:
                x = first(mixed if kind == "post lost" else x + mixed)
                x = second(x + feed(x))
                continue
            x = KINDS[kind](x, y, mixed)
            x = x + feed(second(x))
        x = self.norms[-1](x)
        return sum((x + nn.functional.silu(head(x)) for head in self.heads), x)


def test_layers_of_both_kinds():
    silent(Language(Function("post", "pre", "pre")), RULE)
    assert found(Language(Function("post", "pre", "normed")), RULE).measured > 0


def test_what_heads_add_behind_the_last_norm():
    silent(Language(Function("pre", "pre", heads=2)), RULE)


@pytest.mark.parametrize("kind", ["lost", "twice", "post lost"])
def test_every_attention_without_the_stream_or_with_two(kind):
    finding = found(Language(Function(kind, kind, kind)), RULE)
    assert (finding.severity, finding.measured) == (Severity.FAULT, 1.0)


class ByItself(nn.Module):
    """A block whose stream begins with the norm that its attention begins with too."""

    def __init__(self, right: bool):
        super().__init__()
        self.first, self.second, self.right = nn.LayerNorm(D_MODEL), nn.LayerNorm(D_MODEL), right
        self.attention, self.feed = Attention(), nn.Linear(D_MODEL, D_MODEL)

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.right else self.first(x)
        x = x + self.attention(self.first(x))
        return x + self.feed(self.second(x))


def test_a_stream_that_begins_with_the_norm_of_its_branch():
    silent(Language(nn.Sequential(ByItself(True), ByItself(True))), RULE)
    assert len(found(Language(nn.Sequential(ByItself(False), ByItself(False))), RULE).sites) == 2
