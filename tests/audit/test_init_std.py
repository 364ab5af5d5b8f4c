"""Matrices that are drawn by another scheme than their own, and layers that are drawn once and copied."""

import copy
from collections.abc import Callable
from math import sqrt

import pytest
import torch
import transformers
from audit.asked import asked, found, silent
from audit.languages import Flat, Modules
from torch import Tensor, nn

from surd.api import check
from surd.audit.declared import Declared, Stated
from surd.audit.finding import Severity
from surd.audit.judge import judge
from surd.audit.specimen import DEPTH, HEADS, LanguageModel, encoder, language_model
from surd.audit.subject import Subject
from surd.audit.weights import StillWeights

RULE, CLONES = "init-std", "cloned-layers"
WIDTH = 64
TOKENS = (torch.randint(4, 300, (6, 13), generator=torch.Generator().manual_seed(2)),)
SCALED = Declared(depth_scaled=Stated(True, "the paper"))


@pytest.fixture(autouse=True)
def seeded() -> None:
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)


Draw = Callable[[Tensor], object]


class Kernels(nn.Module):
    """Attention of einsums with kernels of three axes, (width, heads, d_k) or (heads, width, d_k)."""

    def __init__(self, heads: int, draw: Draw, heads_first: bool = False, depth: int = 2) -> None:
        super().__init__()
        d_k = WIDTH // heads
        self.into, self.outof = (
            ("btd,hdk->bhtk", "bhtk,hkd->btd") if heads_first else ("btd,dhk->bhtk", "bhtk,hkd->btd")
        )
        shape = (heads, WIDTH, d_k) if heads_first else (WIDTH, heads, d_k)
        self.table = nn.Parameter(torch.randn(300, WIDTH))
        self.kernels = nn.ParameterList(nn.Parameter(torch.empty(shape)) for _ in range(3 * depth))
        self.outputs = nn.ParameterList(
            nn.Parameter(torch.randn(heads, d_k, WIDTH) / sqrt(WIDTH)) for _ in range(depth)
        )
        self.head = nn.Parameter(torch.randn(WIDTH, 300) / sqrt(WIDTH))
        for kernel in self.kernels:
            draw(kernel)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table[tokens]
        for layer, output in enumerate(self.outputs):
            y = nn.functional.layer_norm(x, (WIDTH,))
            q, k, v = (torch.einsum(self.into, y, w) for w in self.kernels[3 * layer : 3 * layer + 3])
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + torch.einsum("bhtk,hkd->btd", mixed, output)
        return nn.functional.layer_norm(x, (WIDTH,)) @ self.head


def by_head(kernel: Tensor) -> None:
    """1/√d_k, where the product sums over the width."""
    nn.init.normal_(kernel, std=kernel.shape[-1] ** -0.5)


def uniform_by_head(kernel: Tensor) -> None:
    """The same by He et al.'s rule, as a uniform draw: twice the variance."""
    limit = sqrt(6 / kernel.shape[-1])
    nn.init.uniform_(kernel, -limit, limit)


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("heads", [4, 8])
def test_the_width_of_a_head_is_no_fan_in(heads: int, heads_first: bool) -> None:
    finding = found(Kernels(heads, by_head, heads_first), RULE, inputs=TOKENS)
    assert (finding.severity, finding.expected) == (Severity.FAULT, pytest.approx(1))
    assert finding.measured == pytest.approx(sqrt(heads), rel=0.05)
    assert len(finding.sites) == 6 and all("kernels" in site for site in finding.sites)


def test_the_same_by_another_rule() -> None:
    finding = found(Kernels(4, uniform_by_head), RULE, inputs=TOKENS)
    assert (finding.severity, finding.expected) == (Severity.FAULT, pytest.approx(sqrt(2)))
    assert finding.measured == pytest.approx(sqrt(2 * 4), rel=0.05)


def test_the_width_of_a_head_in_torchs_attention() -> None:
    model = Modules()
    for block in model.blocks:
        nn.init.normal_(block.attention.in_proj_weight, std=(WIDTH // HEADS) ** -0.5)
    finding = found(model, RULE, inputs=TOKENS)
    assert finding.severity is Severity.FAULT
    assert finding.measured == pytest.approx(sqrt(HEADS), rel=0.05)
    assert finding.sites == ("blocks.0.attention.in_proj_weight", "blocks.1.attention.in_proj_weight")


def test_the_width_of_a_head_in_a_stack_of_matrices() -> None:
    """Query and key alone, cut from one parameter that holds all four."""
    model = Flat()
    for matrix in model.W[:2]:
        nn.init.normal_(matrix.data, std=(WIDTH // HEADS) ** -0.5)
    finding = found(model, RULE, inputs=TOKENS)
    assert (finding.severity, finding.site) == (Severity.FAULT, "W")
    assert finding.measured == pytest.approx(sqrt(HEADS), rel=0.05)


def test_kernels_of_three_axes_are_no_images() -> None:
    """torch takes (heads, width, d_k) for channels of a kernel: Glorot's rule over (width + heads) · d_k."""
    finding = found(Kernels(4, nn.init.xavier_uniform_, heads_first=True), RULE, inputs=TOKENS)
    assert (finding.severity, finding.expected) == (Severity.FAULT, pytest.approx(1))
    assert finding.measured == pytest.approx(sqrt(2 * WIDTH / ((WIDTH + 4) * 16)), rel=0.05)
    assert "logits have a standard deviation of" in finding.message


def flat_axes(kernel: Tensor) -> None:
    """Glorot's rule over the two axes that a product has."""
    limit = sqrt(3 / WIDTH)
    nn.init.uniform_(kernel, -limit, limit)


def test_kernels_drawn_as_matrices() -> None:
    for draw in (flat_axes, lambda kernel: nn.init.normal_(kernel, std=WIDTH**-0.5)):
        assert silent(Kernels(4, draw), RULE, inputs=TOKENS).findings == ()


class Packed(nn.Module):
    """Query, key and value of one layer, cut apart behind it."""

    def __init__(self, apart: bool) -> None:
        super().__init__()
        self.packed, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        for part in self.packed.weight.chunk(3) if apart else (self.packed.weight,):
            nn.init.xavier_uniform_(part)
        nn.init.xavier_uniform_(self.out.weight)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.packed(x).chunk(3, -1))
        weights = (q @ k.mT / sqrt(q.shape[-1])).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class FlatPacked(Flat):
    """The same in raw matrices, (inputs, outputs)."""

    def __init__(self) -> None:
        super().__init__()
        self.packed = nn.Parameter(torch.empty(WIDTH, 3 * WIDTH))
        nn.init.xavier_normal_(self.packed)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.E[ids]
        y = nn.functional.rms_norm(x, (WIDTH,), self.g[0]) @ self.packed
        q, k, v = (y[..., i * WIDTH : (i + 1) * WIDTH].view(*ids.shape, HEADS, -1) for i in range(3))
        mixed = nn.functional.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (q, k, v)))
        return self.readout(nn.functional.rms_norm(x + mixed.transpose(1, 2).flatten(2) @ self.W[3], (WIDTH,)))


class Between(nn.Module):
    def __init__(self, apart: bool) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(300, WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.head = Packed(apart), nn.Linear(WIDTH, 300)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        return self.head(x + self.attention(self.norm(x)))


@pytest.mark.parametrize("model", [lambda: Between(apart=False), FlatPacked])
def test_three_parts_drawn_as_one_are_a_note(model: Callable[[], nn.Module]) -> None:
    """√(2 / (d + 3d)) for √(2 / (d + d)): logits have half the deviation, which is in range."""
    report = silent(model(), RULE, inputs=TOKENS)
    (finding,) = report.findings
    assert (finding.severity, finding.expected) == (Severity.NOTE, pytest.approx(1))
    assert finding.measured == pytest.approx(sqrt(1 / 2), rel=0.05)
    assert "gain of 1.4" in finding.mend


def test_three_parts_drawn_one_by_one_and_torchs_attention() -> None:
    for model in (Between(apart=True), Modules(), nn.Transformer(WIDTH, HEADS, 1, 1, 128, batch_first=True)):
        assert asked(model, RULE).findings == ()


def gpt2(layers: int = 3) -> transformers.GPT2LMHeadModel:
    sizes = {"n_embd": 64, "n_layer": layers, "n_head": 4, "vocab_size": 300, "n_positions": 32}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))


@pytest.mark.parametrize("power", [0, 2])
def test_gpt2_shrinks_the_outputs_of_its_branches_once(power: int) -> None:
    model = gpt2()
    assert check(model, select=[RULE]).findings == ()
    root = sqrt(2 * 3)
    for block in model.transformer.h:
        for matrix in (block.attn.c_proj, block.mlp.c_proj):
            nn.init.normal_(matrix.weight, std=0.02 / root**power)
    (finding,) = check(model, select=[RULE]).failing
    assert (finding.severity, finding.expected) == (Severity.WARNING, 1)
    assert finding.measured == pytest.approx(root ** (1 - power), rel=0.05)
    assert len(finding.sites) == 6


def test_a_factor_of_depth_that_is_declared_and_lost() -> None:
    model = language_model()
    silent(model, RULE, inputs=TOKENS, declared=SCALED)
    for block in model.blocks:
        for matrix in (block.attention.out, block.feedforward.outer):
            nn.init.normal_(matrix.weight, std=0.02)
    assert silent(model, RULE, inputs=TOKENS).findings == ()  # nothing says that there should be one
    finding = found(model, RULE, inputs=TOKENS, declared=SCALED)
    assert finding.measured == pytest.approx(sqrt(2 * DEPTH), rel=0.05)
    assert finding.source == "the paper"


def test_a_file_of_weights_tells_it_too() -> None:
    model = gpt2()
    for name in (still := StillWeights(model)).names():
        if name.endswith("c_proj.weight"):
            nn.init.normal_(still.tensor(name), std=0.02)
    report = judge(Subject(name="file", weights=still, declared=SCALED, trained=False), select=[RULE])
    (finding,) = report.failing
    assert finding.measured == pytest.approx(sqrt(2 * 3), rel=0.05)


def t5(kind: str) -> nn.Module:
    sizes = {"vocab_size": 300, "d_model": 64, "d_kv": 16, "d_ff": 256, "num_layers": 2, "num_heads": 4}
    config, model = getattr(transformers, f"{kind}Config"), getattr(transformers, f"{kind}ForConditionalGeneration")
    return model(config(**sizes))


@pytest.mark.parametrize("kind", ["T5", "UMT5"])
def test_t5_in_the_librarys_usual_scheme(kind: str) -> None:
    """Nothing divides its scores: Glorot's rule gives logits of √d_k."""
    model = t5(kind)
    assert check(model, select=[RULE]).findings == ()
    for name, weight in model.named_parameters():
        if weight.dim() == 2 and "relative" not in name and "shared" not in name:
            nn.init.xavier_uniform_(weight)
    (finding,) = check(model, select=[RULE]).failing
    assert finding.severity is Severity.FAULT
    assert finding.site.endswith("q.weight")
    assert finding.measured / finding.expected == pytest.approx(4, rel=0.05)
    assert any(site.endswith(("wi.weight", "wi_0.weight")) for site in finding.sites)


class Large(LanguageModel):
    """A table of many rows, whose positions are of one size with those of others."""

    def __init__(self, rows: int, places: float) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, WIDTH)
        self.head = nn.Linear(WIDTH, 300, bias=False)
        nn.init.xavier_uniform_(self.table.weight)
        nn.init.normal_(self.places.weight, std=places)
        nn.init.normal_(self.head.weight, std=0.02)


ROWS = 20000


def test_nothing_sums_over_the_rows_of_a_table() -> None:
    """√(2 / (V + d)): 0.01 here, 0.0063 at 50 000 rows of 512."""
    report = silent(Large(ROWS, 0.005), RULE, inputs=TOKENS)
    (finding,) = report.findings
    assert (finding.severity, finding.site) == (Severity.NOTE, "table.weight")
    assert finding.measured == pytest.approx(sqrt(2 / (ROWS + WIDTH)), rel=0.05)
    report = check(Large(ROWS, 0.1), TOKENS)
    assert [one.rule for one in report.failing] == [RULE], str(report)
    assert report.failing[0].severity is Severity.WARNING
    assert report.failing[0].measured == pytest.approx(sqrt(2 / (ROWS + WIDTH)), rel=0.05)
    assert asked(Large(300, 0.02), RULE, inputs=TOKENS).findings == ()


def test_the_factor_of_depth_on_a_table_besides() -> None:
    model = Large(ROWS, 0.01)
    with torch.no_grad():
        model.table.weight *= (8 * DEPTH) ** -0.25
    (finding,) = silent(model, RULE, inputs=TOKENS).findings
    assert finding.measured == pytest.approx(sqrt(2 / (ROWS + WIDTH)) * (8 * DEPTH) ** -0.25, rel=0.05)


def test_the_rows_of_a_head() -> None:
    model = Modules(vocabulary=ROWS)
    nn.init.xavier_normal_(model.head.weight)
    (finding,) = silent(model, RULE, inputs=TOKENS).findings
    assert (finding.severity, finding.site) == (Severity.NOTE, "head.weight")
    assert finding.measured == pytest.approx(sqrt(2 / (ROWS + WIDTH)), rel=0.05)


class Randn(Flat):
    """Raw matrices as torch.randn gives them."""

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.randn(4, WIDTH, WIDTH))


def test_matrices_of_unit_entries() -> None:
    for model in (Randn(), randn_modules()):
        finding = found(model, RULE, inputs=TOKENS)
        assert finding.severity is Severity.FAULT
        assert finding.measured == pytest.approx(sqrt(WIDTH), rel=0.05)


def randn_modules() -> nn.Module:
    model = language_model()
    for block in model.blocks:
        for matrix in (block.attention.query, block.attention.key, block.attention.value):
            nn.init.normal_(matrix.weight)
    return model


def deep(layers: int = 4) -> Modules:
    model = Modules()
    model.blocks = nn.ModuleList(copy.deepcopy(model.blocks[0]) for _ in range(layers))
    for weight in model.blocks.parameters():
        if weight.dim() == 2:
            nn.init.normal_(weight, std=0.02)
    return model


def test_one_layer_that_was_left_out() -> None:
    model = deep()
    assert silent(model, RULE, inputs=TOKENS).findings == ()
    nn.init.xavier_uniform_(model.blocks[2].down.weight)
    finding = found(model, RULE, inputs=TOKENS)
    assert (finding.severity, finding.site) == (Severity.WARNING, "blocks.2.down.weight")
    assert finding.measured == pytest.approx(sqrt(2 / 5) * 2, rel=0.05)
    assert finding.expected == pytest.approx(0.02 * sqrt(4 * WIDTH), rel=0.05)
    model = gpt2(4)
    nn.init.normal_(model.transformer.h[1].mlp.c_fc.weight, std=0.2)
    (finding,) = check(model, select=[RULE]).failing
    assert finding.measured / finding.expected == pytest.approx(10, rel=0.05)


def test_one_layer_without_effect_is_a_note() -> None:
    model = deep()
    nn.init.normal_(model.blocks[1].down.weight, std=0.03)
    (finding,) = silent(model, RULE, inputs=TOKENS).findings
    assert finding.severity is Severity.NOTE


def drawn(model: nn.Module, draw: Draw) -> nn.Module:
    for weight in model.parameters():
        if weight.dim() == 2:
            draw(weight)
    return model


@pytest.mark.parametrize(
    "model",
    [
        language_model,
        encoder,
        Modules,
        Flat,
        lambda: drawn(Modules(), nn.init.xavier_uniform_),
        lambda: drawn(Modules(), nn.init.kaiming_normal_),
        lambda: drawn(Modules(), lambda weight: nn.init.kaiming_normal_(weight, mode="fan_out")),
        lambda: drawn(Modules(), nn.init.orthogonal_),
        lambda: drawn(language_model(), lambda weight: nn.init.trunc_normal_(weight, std=0.02, a=-0.04, b=0.04)),
        lambda: drawn(Modules(width=128), lambda weight: nn.init.normal_(weight, std=0.02)),
    ],
)
def test_every_published_scheme_is_right(model: Callable[[], nn.Module]) -> None:
    assert silent(model(), RULE, inputs=TOKENS).findings == ()


def test_what_starts_at_zero_was_set_so() -> None:
    model = language_model()
    for block in model.blocks:
        nn.init.zeros_(block.attention.out.weight)
        nn.init.zeros_(block.feedforward.outer.weight)
    assert silent(model, RULE, inputs=TOKENS).findings == ()


def test_the_model_is_as_it_was_and_a_trained_one_is_not_judged() -> None:
    model = Kernels(8, by_head)
    before = copy.deepcopy(model.state_dict())
    found(model, RULE, inputs=TOKENS)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    report = asked(model, RULE, inputs=TOKENS, trained=True)
    assert report.findings == () and [one.rule for one in report.skipped] == [RULE]


def test_copied_layers() -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 128, batch_first=True)
    model = gpt2()
    for block in list(model.transformer.h)[1:]:
        block.load_state_dict(model.transformer.h[0].state_dict())
    for copied in (nn.TransformerEncoder(layer, 3), model):
        finding = found(copied, CLONES)
        assert (finding.severity, finding.measured) == (Severity.FAULT, 0.0)
        weights = dict(copied.named_parameters())
        expected = float(weights[finding.site].detach().std()) * sqrt(2)
        assert finding.expected == pytest.approx(expected, rel=0.05)
        assert len(finding.sites) == 4 * 3


def test_layers_that_are_drawn_or_shared_are_no_copies() -> None:
    shared = language_model()
    shared.blocks = nn.ModuleList([shared.blocks[0], shared.blocks[0]])
    albert = transformers.AlbertModel(
        transformers.AlbertConfig(
            vocab_size=100, embedding_size=16, hidden_size=32, num_attention_heads=2, intermediate_size=48,
            num_hidden_layers=3,
        )
    )  # fmt: skip
    for model in (gpt2(), shared, albert, nn.TransformerEncoderLayer(WIDTH, HEADS, 128)):
        assert asked(model, CLONES).findings == ()
