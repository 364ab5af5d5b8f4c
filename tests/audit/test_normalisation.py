"""Norms: the epsilon and the gain that they really have, in torch's calls, written out, and in released models."""

from collections.abc import Callable
from math import sqrt

import pytest
import torch
import torch.nn.functional as F
import transformers
from audit.asked import asked, found, silent
from audit.languages import HEADS, LENGTH, VOCABULARY, WIDTH, Modules
from torch import Tensor, nn

from surd.audit.declared import Declared, Stated
from surd.audit.finding import Severity
from surd.interchange.stated import declared as stated
from surd.measure.listeners.norms import Norms

EPSILON, GAIN = "norm-epsilon", "norm-gain-convention"
Rows = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def seeded() -> None:
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)


class Written(nn.Module):
    """A norm as somebody writes it: `rows` divides, `gain` makes of the weight what multiplies."""

    def __init__(self, rows: Rows, weight: Tensor | None = None, gain: Rows = lambda w: w, width: int = WIDTH) -> None:
        super().__init__()
        self.rows, self.gain = rows, gain
        self.weight = nn.Parameter(torch.ones(width) if weight is None else weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.rows(x) * self.gain(self.weight)


def modules(make: Callable[[], nn.Module], last: bool = True) -> Modules:
    """A language model with norms of that make."""
    model = Modules()
    for block in model.blocks:
        block.norm1, block.norm2 = make(), make()
    model.norm = make() if last else model.norm
    return model


class Flat(nn.Module):
    """One function, raw matrices; `norm` takes rows and a gain."""

    def __init__(self, norm: Callable[[Tensor, Tensor], Tensor], gain: Tensor | None = None) -> None:
        super().__init__()
        self.norm = norm
        self.E = nn.Parameter(torch.randn(VOCABULARY, WIDTH) * 0.02)
        self.W = nn.Parameter(torch.randn(4, WIDTH, WIDTH) * WIDTH**-0.5)
        self.H = nn.Parameter(torch.randn(WIDTH, VOCABULARY) * WIDTH**-0.5)
        self.g = nn.Parameter((torch.ones(WIDTH) if gain is None else gain).repeat(2, 1))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.E[ids]
        y = self.norm(x, self.g[0])
        q, k, v = (torch.einsum("btd,dhe->bhte", y, w.view(WIDTH, HEADS, -1)) for w in self.W[:3])
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.norm(x + mixed @ self.W[3], self.g[1]) @ self.H


def rms_rows(epsilon: float = 1e-6) -> Rows:
    return lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)


def layer_rows(correction: int = 0, epsilon: float = 1e-6, outside: bool = False) -> Rows:
    def rows(x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = x.var(-1, keepdim=True, correction=correction)
        return centred / (variance.sqrt() + epsilon if outside else (variance + epsilon).sqrt())

    return rows


# --- What is right, in many styles -----------------------------------------------------------------------------------

RIGHT: dict[str, Rows] = {
    "llama": rms_rows(),
    "bert": layer_rows(),
    "power": lambda x: x * (x.square().mean(-1, keepdim=True) + 1e-6) ** -0.5,
    "length": lambda x: x / (x.norm(dim=-1, keepdim=True) * x.shape[-1] ** -0.5).clamp(min=1e-8),
    "unit": lambda x: F.normalize(x, dim=-1) * x.shape[-1] ** 0.5,
    "einsum": lambda x: x / torch.sqrt(torch.einsum("...d,...d->...", x, x)[..., None] / x.shape[-1] + 1e-6),
    "pair": lambda x: (lambda v, m: (x - m) * torch.rsqrt(v + 1e-6))(
        *torch.var_mean(x, dim=-1, keepdim=True, correction=0)
    ),
    "written over": lambda x: x.clone().mul_(torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)),
    "in place": lambda x: x * x.pow(2).mean(-1, keepdim=True).add_(1e-6).rsqrt_(),
    "torch": lambda x: F.layer_norm(x, x.shape[-1:], eps=1e-6),
    "torch's rms": lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-6),
}


@pytest.mark.parametrize("style", RIGHT)
def test_right_norms_are_silent(style: str) -> None:
    rows = RIGHT[style]
    for model in (modules(lambda: Written(rows)), Flat(lambda x, g: rows(x) * g)):
        listener = Norms(model)
        with listener:
            model(torch.randint(VOCABULARY, (2, 9)))
        assert len(listener.finished()) == (5 if isinstance(model, Modules) else 2)
        assert not asked(model, EPSILON, GAIN).findings
    offset = modules(lambda: Written(rows, torch.randn(WIDTH) * 0.3 + 0.22, lambda w: 1 + w))
    silent(offset, GAIN)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("first", [False, True])
def test_torchs_layers_are_silent(first: bool) -> None:
    model = nn.Transformer(WIDTH, HEADS, 2, 2, 64, batch_first=True, norm_first=first)
    inputs = torch.randn(2, 9, WIDTH), torch.randn(2, 8, WIDTH)
    silent(model, EPSILON, inputs=inputs)
    silent(model, GAIN, inputs=inputs)


class Adaptive(nn.Module):
    """A condition makes gain and shift of a norm without any, and closes the branch at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(WIDTH, elementwise_affine=False), nn.LayerNorm(WIDTH)
        nn.init.zeros_(self.last.weight)
        self.condition = nn.Linear(WIDTH, 2 * WIDTH)
        nn.init.zeros_(self.condition.weight)
        self.scaling = nn.Parameter(torch.full((WIDTH,), 1e-5))
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        shift, scale = self.condition(x.mean(1, keepdim=True)).chunk(2, -1)
        x = x + self.scaling * self.inner(self.norm(x) * (1 + scale) + shift)
        return x + self.last(self.inner(x))


def test_gains_of_zero_at_the_end_of_a_branch_are_a_design() -> None:
    silent(Adaptive(), GAIN, inputs=torch.randn(2, 9, WIDTH))


@pytest.mark.parametrize("name", ["gemma3_text", "nemotron", "swinv2", "minimax", "t5"])
def test_released_models_are_silent(name: str) -> None:
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    by_name = {
        "swinv2": {"embed_dim": 24, "depths": [1, 1], "num_heads": [2, 2], "image_size": 32, "window_size": 4},
        "t5": {"d_model": 48, "d_kv": 12, "d_ff": 64, "num_layers": 1, "num_heads": 4},
    }
    more = {} if name == "swinv2" else {"vocab_size": 97}
    more |= {"num_key_value_heads": 2, "head_dim": 12} if name not in by_name else {}
    config = transformers.AutoConfig.for_model(name, **(by_name.get(name, sizes) | more))
    model = transformers.AutoModel.from_config(config)
    report = asked(model, EPSILON, GAIN, declared=stated(config))
    assert not report.failing, str(report)


# --- Epsilon --------------------------------------------------------------------------------------------------------


def test_a_default_stands_where_the_configuration_has_another() -> None:
    """The code's 1e-5 beside the checkpoint's 1e-6."""
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        rms_norm_eps=1e-6,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    said = stated(config)
    silent(model, EPSILON, declared=said)
    for part in model.modules():
        if hasattr(part, "variance_epsilon"):
            vars(part)["variance_epsilon"] = 1e-5
    finding = found(model, EPSILON, declared=said)
    assert (finding.measured, finding.expected) == (1e-5, 1e-6)
    assert len(finding.sites) == 5 and "rms_norm_eps" in finding.source


def test_at_small_rows_another_epsilon_is_grave() -> None:
    """At a variance of 1e-5 an epsilon of 1e-5 leaves 0.707, one of 1e-6 0.953."""
    said = Declared(epsilon=Stated(1e-6, "config.rms_norm_eps"))
    model = Flat(lambda x, g: F.rms_norm(x, (WIDTH,), g, 1e-5))
    nn.init.normal_(model.E, std=1e-5**0.5)
    finding = found(model, EPSILON, declared=said)
    assert finding.severity is Severity.FAULT and finding.measured == 1e-5
    assert "0.7" in finding.message and "0.95" in finding.message


def test_a_port_of_bert_with_torchs_default() -> None:
    config = transformers.BertConfig(
        vocab_size=97, hidden_size=48, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64
    )
    model = transformers.BertModel(config)
    silent(model, EPSILON, declared=stated(config))
    for part in model.modules():
        if isinstance(part, nn.LayerNorm):
            part.eps = 1e-5
    finding = found(model, EPSILON, declared=stated(config))
    assert finding.severity is Severity.WARNING
    assert finding.measured == 1e-5 and finding.expected == 1e-12
    assert len(finding.sites) == 3


def test_one_norm_of_each_block_has_a_default() -> None:
    """Only those behind a branch have 1e-5, all others the configuration's 1e-6."""
    config = transformers.Gemma2Config(
        vocab_size=97, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=12,
    )  # fmt: skip
    model = transformers.Gemma2ForCausalLM(config)
    for layer in model.model.layers:
        layer.post_attention_layernorm.eps = layer.post_feedforward_layernorm.eps = 1e-5
    finding = found(model, EPSILON, declared=stated(config))
    assert finding.measured == 1e-5 and len(finding.sites) == 4
    undeclared = found(model, EPSILON)
    assert (undeclared.measured, undeclared.expected) == (2, 1)
    assert set(undeclared.sites) == set(finding.sites)


def test_two_epsilons_in_one_stack_of_hand_written_blocks() -> None:
    model = modules(lambda: Written(rms_rows(1e-6)))
    for block in model.blocks:
        block.norm2 = Written(rms_rows(1e-5))
    report = silent(model, EPSILON)  # at rows of this size nobody can tell them apart
    assert [one.severity for one in report.findings] == [Severity.NOTE]
    for matrix in (x for x in model.parameters() if x.dim() == 2):
        nn.init.normal_(matrix, std=0.02)
    finding = found(model, EPSILON)
    assert (finding.measured, finding.expected) == (2, 1)
    assert finding.sites == ("blocks.0.norm2:norm", "blocks.1.norm2:norm")


def test_an_epsilon_that_half_precision_does_not_have() -> None:
    """1e-8 is 0 in float16, so a row of zeros is 0/0."""
    for model in (modules(lambda: Written(rms_rows(1e-8))), Flat(lambda x, g: rms_rows(1e-12)(x) * g)):
        assert not asked(model, EPSILON).failing
        finding = found(model.half(), EPSILON)
        assert finding.severity is Severity.FAULT
        assert finding.measured == 0 and "float16" in finding.message
    norm = model.norm(torch.zeros(1, WIDTH, dtype=torch.float16), torch.ones(WIDTH, dtype=torch.float16))
    assert norm.isnan().all()
    silent(modules(lambda: Written(lambda x: rms_rows(1e-8)(x.float()).to(x.dtype))).half(), EPSILON)
    report = silent(modules(lambda: nn.LayerNorm(WIDTH, eps=1e-12)).half(), EPSILON)  # torch adds it in float32
    assert [(one.severity, one.measured) for one in report.findings] == [(Severity.NOTE, 0.0)]


@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize("std", [True, False])
def test_a_deviation_over_n_minus_1(width: int, std: bool) -> None:
    def rows(x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        if std:
            return centred / (x.std(-1, keepdim=True) + 1e-6)
        return centred * torch.rsqrt(centred.square().sum(-1, keepdim=True) / (x.shape[-1] - 1) + 1e-12)

    model = nn.Sequential(nn.Linear(width, width), Written(rows, width=width), nn.Linear(width, width))
    flat = Flat(lambda x, g: rows(x) * g)
    inputs = torch.randn(2, 9, width)
    finding = found(model, EPSILON, inputs=inputs)
    assert finding.measured == pytest.approx(sqrt((width - 1) / width), rel=1e-4) and finding.expected == 1
    assert found(flat, EPSILON).measured == pytest.approx(sqrt((WIDTH - 1) / WIDTH), rel=1e-4)


def test_an_epsilon_beside_the_root() -> None:
    """At rms 1e-3 one of 1e-5 leaves 0.990 beside the root and 0.302 under it."""

    def rows(x: Tensor) -> Tensor:
        return x / (x.norm(dim=-1, keepdim=True) / x.shape[-1] ** 0.5 + 1e-5)

    small = Flat(lambda x, g: rows(x) * g)
    nn.init.normal_(small.E, std=1e-3)
    model = modules(lambda: Written(rows))
    for table in (model.table, model.places):
        nn.init.normal_(table.weight, std=1e-3 / sqrt(2))
    for one in (small, model):
        finding = found(one, EPSILON)
        assert finding.severity is Severity.FAULT
        assert finding.measured == pytest.approx(0.990, rel=0.01)
        assert finding.expected == pytest.approx(0.302, rel=0.05)
    silent(Flat(lambda x, g: rms_rows(1e-5)(x) * g), EPSILON)


def test_an_epsilon_that_outweighs_the_variance() -> None:
    """A hundredth where rows have a variance of 4e-4: what comes out has rms √(4 / 104)."""
    for model in (modules(lambda: nn.LayerNorm(WIDTH, eps=1e-2)), Flat(lambda x, g: rms_rows(1e-2)(x) * g)):
        if isinstance(model, Modules):
            nn.init.zeros_(model.places.weight)
        finding = found(model, EPSILON)
        assert finding.severity is Severity.WARNING
        assert finding.measured == pytest.approx(1e-2 / 4e-4, rel=0.05)
    half = modules(lambda: nn.LayerNorm(WIDTH, eps=8e-4))  # rms 0.58: gains make up for it
    nn.init.zeros_(half.places.weight)
    assert {one.severity for one in silent(half, EPSILON).findings} == {Severity.NOTE}
    usual = modules(lambda: nn.LayerNorm(WIDTH, eps=1e-5))
    assert not asked(usual, EPSILON).findings


# --- Gains ----------------------------------------------------------------------------------------------------------


def gemma(name: str) -> torch.Tensor:
    torch.manual_seed(3)
    return {"offset": torch.randn(WIDTH) * 0.3 + 0.22, "whole": torch.randn(WIDTH) * 0.3 + 1.22}[name]


CONVENTIONS = {"w": lambda w: w, "1 + w": lambda w: 1.0 + w.float(), "2 + w": lambda w: (1 + w) + 1}


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(("weights", "read"), [("offset", "w"), ("whole", "1 + w"), ("offset", "2 + w")])
def test_the_other_convention(weights: str, read: str, trained: bool) -> None:
    w, gain = gemma(weights), CONVENTIONS[read]
    right = CONVENTIONS["1 + w" if weights == "offset" else "w"]
    if trained:  # trained gains have few entries below zero where they are whole
        w = w.clamp(min=0.1) if weights == "whole" else w
    for make in (
        lambda gain: modules(lambda: Written(rms_rows(), w.clone(), gain)),
        lambda gain: Flat(lambda x, g: rms_rows()(x) * gain(g), w),
        lambda gain: Flat(lambda x, g: F.rms_norm(x, (WIDTH,), gain(g), 1e-6), w),
    ):
        finding = found(make(gain), GAIN, trained=trained)
        assert finding.measured == pytest.approx(float(gain(w).square().mean().sqrt()), rel=0.05)
        assert finding.expected == pytest.approx(float(right(w).square().mean().sqrt()), rel=0.05)
        silent(make(right), GAIN, trained=trained)


def test_gemma_with_weights_that_hold_the_one() -> None:
    config = transformers.Gemma3TextConfig(
        vocab_size=97, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=12,
    )  # fmt: skip
    model = transformers.Gemma3ForCausalLM(config)
    silent(model, GAIN, declared=stated(config))
    for part in model.modules():
        if isinstance(part, type(model.model.norm)):
            nn.init.ones_(part.weight)
    finding = found(model, GAIN, declared=stated(config))
    assert finding.severity is Severity.FAULT
    assert (finding.measured, finding.expected) == (2.0, 1.0)
    for part in model.modules():  # a kernel that takes the offset for the gain, and weights as they start
        if isinstance(part, type(model.model.norm)):
            nn.init.zeros_(part.weight)
            part.forward = lambda x, own=part: own._norm(x.float()).type_as(x) * own.weight
    finding = found(model, GAIN, declared=stated(config))
    assert (finding.measured, finding.expected) == (0.0, 1.0)


def test_a_gain_that_multiplies_twice_or_never() -> None:
    for times in (2, 0):

        def forward(own: Written, x: Tensor, times: int = times) -> Tensor:
            x = own.rows(x)
            for _ in range(times):
                x = x * own.weight
            return x

        kind = type("Norm", (Written,), {"forward": forward})
        finding = found(modules(lambda kind=kind: kind(rms_rows())), GAIN)
        assert finding.severity is Severity.FAULT
        assert (finding.measured, finding.expected) == (times, 1)
        assert len(finding.sites) == 5


@pytest.mark.parametrize("fused", [False, True])
def test_gains_drawn_as_matrices_are(fused: bool) -> None:
    """A blanket initialiser: U(±0.1) has rms 0.058."""
    model = modules(lambda: nn.LayerNorm(WIDTH)) if fused else Flat(lambda x, g: rms_rows()(x) * g)
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.1, 0.1)
    finding = found(model, GAIN)
    assert finding.severity is Severity.FAULT
    assert finding.measured == pytest.approx(0.1 / sqrt(3), rel=0.1)
    assert finding.expected == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("fused", [False, True])
def test_gains_begun_at_another_constant_after_a_few_updates(fused: bool) -> None:
    """They are no longer equal, and the weights still look drawn: a design, not gains drawn as matrices are."""
    model = modules(lambda: nn.LayerNorm(WIDTH)) if fused else Flat(lambda x, g: rms_rows()(x) * g)
    gains = [x for name, x in model.named_parameters() if name == "g" or ("norm" in name and name.endswith("weight"))]
    for gain in gains:
        nn.init.constant_(gain, WIDTH**-0.25)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(4):
        ids = torch.randint(VOCABULARY, (4, LENGTH))
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        optimiser.step()
        optimiser.zero_grad()
    assert all(0 < float(gain.detach().std()) < 0.1 for gain in gains)
    silent(model, GAIN)
    for gain in gains:
        nn.init.normal_(gain, std=WIDTH**-0.25)
    assert found(model, GAIN).severity is Severity.FAULT


def test_the_eye_leaves_the_model_as_it_was() -> None:
    model = Flat(lambda x, g: rms_rows()(x) * g)
    ids = torch.randint(VOCABULARY, (2, LENGTH))
    before = model(ids)
    asked(model, EPSILON, GAIN)
    assert torch.equal(model(ids), before)
