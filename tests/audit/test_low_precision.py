"""Half precision: how near numbers come to float16's end, angles of positions, rounded constants, coarse losses."""

from math import sqrt

import pytest
import torch
import torch.nn.functional as F
import transformers
from audit.asked import found, silent
from measure.faults import D_K, D_MODEL, HEALTHY, Attention, Language, merge, split
from torch import Tensor, nn

from surd.api import check
from surd.audit.declared import Declared, Stated
from surd.audit.finding import Severity

HEADROOM, ANGLE, ROUNDING = "precision-headroom", "rope-precision", "constant-rounding"
VOCABULARY = 97
TOKENS = (torch.randint(VOCABULARY, (6, 13), generator=torch.Generator().manual_seed(0)),)


@pytest.fixture(autouse=True)
def seeded() -> None:
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)


class Large(Attention):
    """Queries and keys so large that the product passes the end of float16, and a scale behind it that mends it."""

    def __init__(self, norm: float, before: bool = False):
        super().__init__()
        self.norm, self.before = norm, before

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (split(project(x)) for project in (self.query, self.key, self.value))
        query, key = (F.normalize(y.float(), dim=-1).to(y.dtype) * self.norm for y in (query, key))
        scale = HEALTHY / self.norm**2
        if self.before:
            return self.output(merge((query * scale @ key.mT).softmax(-1) @ value))
        return self.output(merge((query @ key.mT * scale).softmax(-1) @ value))


def test_products_of_queries_and_keys():
    """Norms of 300 reach 9e4 before the scale; scaled before the product they do not."""
    finding = found(Language(Large(300.0)).half(), HEADROOM)
    assert finding.severity is Severity.FAULT and "q·k" in finding.message
    assert finding.measured == pytest.approx(65504 / 300**2, rel=0.25)
    assert found(Language(Large(150.0)).half(), HEADROOM).severity is Severity.WARNING
    silent(Language(Large(300.0, before=True)).half(), HEADROOM)


def test_in_other_types_it_is_a_note_or_nothing():
    report = silent(Language(Large(300.0)), HEADROOM)
    assert [one.severity for one in report.findings] == [Severity.NOTE]
    assert silent(Language(Large(300.0)).bfloat16(), HEADROOM).findings == ()
    declared = Declared(dtype=Stated("float16", "config.dtype"))
    assert found(Language(Large(300.0)), HEADROOM, declared=declared).severity is Severity.FAULT


class Autocast(nn.Module):
    """Weights in fp32, and a forward in float16."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            return self.inner(tokens)


def test_autocast():
    finding = found(Autocast(Language(Large(300.0))), HEADROOM, inputs=TOKENS)
    assert finding.severity is Severity.FAULT and finding.measured == pytest.approx(65504 / 300**2, rel=0.25)
    silent(Autocast(Language(Attention())), HEADROOM, inputs=TOKENS)


class FlatFeedForward(nn.Module):
    """The layer behind attention reaches 66 thousand; raw parameters."""

    def __init__(self, size: float):
        super().__init__()
        self.table = nn.Parameter(torch.randn(VOCABULARY, D_MODEL))
        self.inner = nn.Parameter(torch.randn(D_MODEL, D_MODEL) * D_MODEL**-0.5)
        self.outer = nn.Parameter(torch.eye(D_MODEL) * size / 64)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table[tokens]
        x = x + F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0] @ self.inner
        return F.layer_norm((torch.relu(x).clamp(max=1.0) * 64 @ self.outer).float(), (D_MODEL,)).to(x.dtype)


def test_outputs_of_a_layer():
    finding = found(FlatFeedForward(66246.0).half(), HEADROOM, inputs=TOKENS)
    assert finding.measured == pytest.approx(65504 / 66246, rel=0.05)
    silent(FlatFeedForward(6000.0).half(), HEADROOM, inputs=TOKENS)


def test_sums_over_the_vocabulary():
    """Label smoothing that sums all log-probabilities: V · ln V passes the end."""

    def loss(logits: Tensor) -> Tensor:
        return -logits.log_softmax(-1).sum(-1).mean().float() / logits.shape[-1]

    class Wide(nn.Module):
        def __init__(self, vocabulary: int):
            super().__init__()
            self.inner, self.vocabulary = Language(Attention()), vocabulary

        def forward(self, tokens: Tensor) -> Tensor:
            return self.inner(tokens)[:1, :1, :1].expand(-1, -1, self.vocabulary) * 0

    inputs = TOKENS
    finding = found(Wide(20_000).half(), HEADROOM, inputs=inputs, loss=loss)
    assert finding.measured == pytest.approx(65504 / (20_000 * torch.tensor(20_000.0).log().item()), rel=0.05)
    silent(Wide(500).half(), HEADROOM, inputs=inputs, loss=loss)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cross_entropy_of_half_logits(dtype):
    targets = TOKENS[0].flatten()

    def coarse(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets)

    def fine(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1).float(), targets)

    model = Language(Attention()).to(dtype)
    silent(model, HEADROOM, inputs=TOKENS, loss=fine)
    if dtype is torch.bfloat16:
        value = float(coarse(model(TOKENS[0])).detach())
        step = 2.0 ** (torch.tensor(value).log2().floor().item() - 7)
        assert found(model, HEADROOM, inputs=TOKENS, loss=coarse).measured == pytest.approx(step)
    else:
        silent(model, HEADROOM, inputs=TOKENS, loss=coarse)


def test_masks_are_no_large_numbers():
    for fill in (-1e4, -65504.0, torch.finfo(torch.float16).min):

        class Masked(Attention):
            def __init__(self, fill: float = fill):
                super().__init__()
                self.fill = fill

            def forward(self, x: Tensor) -> Tensor:
                query, key, value = (split(project(x)) for project in (self.query, self.key, self.value))
                hidden = torch.ones(x.shape[1], x.shape[1], dtype=x.dtype).triu(1) * self.fill
                return self.output(merge((query @ key.mT * HEALTHY + hidden).softmax(-1) @ value))

        assert silent(Language(Masked()).half(), HEADROOM).findings == ()


def test_a_mask_is_none_either_where_it_is_made():
    class Subtracted(Attention):
        def forward(self, x: Tensor) -> Tensor:
            query, key, value = (split(project(x)) for project in (self.query, self.key, self.value))
            hidden = (1.0 - torch.ones(x.shape[1], x.shape[1], dtype=x.dtype).tril()) * 1e4
            return self.output(merge((query @ key.mT * HEALTHY - hidden).softmax(-1) @ value))

    assert silent(Language(Subtracted()).half(), HEADROOM).findings == ()


def frequencies(width: int = D_K, base: float = 10000.0) -> Tensor:
    return base ** -(torch.arange(0, width, 2).float() / width)


class Rotary(Attention):
    """Angles computed in the forward; `how` rounds nothing, the frequencies, or the product."""

    def __init__(self, how: str):
        super().__init__()
        self.how = how
        table = frequencies()
        self.register_buffer("inverse", table.bfloat16().float() if how == "frequencies" else table)

    def angle(self, length: int) -> Tensor:
        place = torch.arange(length)[:, None]
        if self.how == "product":
            return place.bfloat16() * self.inverse.bfloat16()
        if self.how == "widened":
            return (place.bfloat16() * self.inverse.bfloat16()).float()
        return place * self.inverse

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (split(project(x)) for project in (self.query, self.key, self.value))
        angle = self.angle(x.shape[1])
        cosine, sine = (torch.cat((part, part), -1).to(x.dtype) for part in (angle.cos(), angle.sin()))
        query, key = (
            y * cosine + torch.cat((-y[..., D_K // 2 :], y[..., : D_K // 2]), -1) * sine for y in (query, key)
        )
        return self.output(merge(F.scaled_dot_product_attention(query, key, value)))


def phase_error(rounded: Tensor, width: int, positions: int) -> float:
    exact = torch.arange(positions).double()[:, None] * 10000.0 ** -(torch.arange(0, width, 2).double() / width)
    return float((rounded.double() - exact).abs().max())


@pytest.mark.parametrize("how", ["frequencies", "product", "widened"])
def test_angles_computed_in_the_forward(how):
    place = torch.arange(4096)[:, None]
    half = frequencies().bfloat16()
    rounded = place.bfloat16() * half if how != "frequencies" else place.double() * half.double()
    finding = found(Language(Rotary(how)), ANGLE)
    assert finding.severity is Severity.WARNING
    assert finding.measured == pytest.approx(phase_error(rounded, D_K, 4096), rel=0.05)
    silent(Language(Rotary("")), ANGLE)
    silent(Language(Rotary("")).float(), ANGLE)


def test_a_released_model_moved_with_its_buffers():
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=512,
    )
    model = transformers.LlamaForCausalLM(config)
    silent(model, ANGLE)
    finding = found(model.bfloat16(), ANGLE)
    rounded = torch.arange(512).double()[:, None] * frequencies(32).bfloat16().double()
    assert finding.measured == pytest.approx(phase_error(rounded, 32, 512), rel=0.05)
    kept = transformers.LlamaForCausalLM(config)
    inverse = kept.model.rotary_emb.inv_freq.clone()
    kept.bfloat16().model.rotary_emb.inv_freq = inverse
    silent(kept, ANGLE)


class Kept(Attention):
    """A table of cosines and sines, made once, complex or in halves."""

    def __init__(self, rounded: bool, complex: bool):
        super().__init__()
        table = frequencies().bfloat16().double() if rounded else frequencies().double()
        angle = torch.arange(256).double()[:, None] * table
        whole = torch.polar(torch.ones_like(angle), angle)
        kept = whole.to(torch.complex64) if complex else torch.cat((whole.imag, whole.real), -1).float()
        self.complex = complex
        self.register_buffer("table", kept)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (split(project(x)) for project in (self.query, self.key, self.value))
        table = self.table[: x.shape[1]]
        cosine, sine = (table.real, table.imag) if self.complex else table.chunk(2, -1)[::-1]

        def turned(y: Tensor) -> Tensor:
            first, second = y.chunk(2, -1)
            return torch.cat((first * cosine - second * sine, first * sine + second * cosine), -1)

        return self.output(merge(F.scaled_dot_product_attention(turned(query), turned(key), value)))


@pytest.mark.parametrize("complex", [False, True])
def test_tables_that_are_kept(complex):
    finding = found(Language(Kept(True, complex)), ANGLE)
    rounded = torch.arange(256).double()[:, None] * frequencies().bfloat16().double()
    assert finding.measured == pytest.approx(phase_error(rounded, D_K, 256), rel=0.05)
    silent(Language(Kept(False, complex)), ANGLE)


class Grid(nn.Module):
    """Positions of a picture: half of the width tells the row, half the column, so no angle grows evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, side = Language(Attention()), 4
        row, column = torch.arange(side).repeat_interleave(side), torch.arange(side).repeat(side)
        angles = [place[:, None] * frequencies(D_MODEL // 2).double() for place in (row, column)]
        table = torch.cat([torch.stack((angle.sin(), angle.cos()), -1).flatten(1) for angle in angles], -1)
        self.register_buffer("positions", table.float())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.inner.table(tokens) + self.positions[: tokens.shape[1]]
        return self.inner.head(x + self.inner.attention(x))


def test_a_table_of_two_axes_is_not_rounded():
    silent(Grid(), ANGLE)


class Scaled(nn.Module):
    """Rows times a factor that is kept in some type."""

    def __init__(self, factor: float | Tensor):
        super().__init__()
        self.inner, self.factor = Language(Attention()), factor

    def forward(self, tokens: Tensor) -> Tensor:
        inner = self.inner
        x = (inner.table(tokens) * self.factor).to(inner.norm.weight.dtype)
        return inner.head(x + inner.attention(inner.norm(x)))


ROOT = sqrt(D_MODEL)
HALF_ROOT = float(torch.tensor(ROOT).bfloat16())


def test_a_root_that_is_rounded():
    """6.9375 for √48 = 6.9282, +0.13 %: told where the reference has the other number, a note where none is known."""
    exact, half = (Declared(embedding=Stated(value, "the training's code")) for value in (ROOT, HALF_ROOT))
    for model in (Scaled(HALF_ROOT), Scaled(torch.tensor(HALF_ROOT))):
        finding = found(model, ROUNDING, declared=exact)
        assert finding.measured == pytest.approx(HALF_ROOT / ROOT - 1, rel=0.05)
        assert silent(model, ROUNDING, declared=half).findings == ()
        assert [one.severity for one in silent(model, ROUNDING).findings] == [Severity.NOTE]
    assert found(Scaled(ROOT), ROUNDING, declared=half).measured == pytest.approx(ROOT / HALF_ROOT - 1, rel=0.05)
    assert silent(Scaled(ROOT), ROUNDING, declared=exact).findings == ()


def test_a_bfloat16_model_rounds_as_its_reference():
    exact = Declared(embedding=Stated(ROOT, "the training's code"))
    half = torch.tensor(ROOT, dtype=torch.bfloat16)
    assert silent(Scaled(half).bfloat16(), ROUNDING, declared=exact).findings == ()


def test_a_bfloat16_model_with_a_factor_in_full():
    """6.9282 for 6.9375, -0.13 %: told where the reference is known to round, a note elsewhere."""
    by = "the training's code"
    rounded = Declared(embedding=Stated(ROOT, by), embedding_rounded=Stated(True, by))
    finding = found(Scaled(ROOT).bfloat16(), ROUNDING, declared=rounded)
    assert finding.severity is Severity.WARNING
    assert finding.measured == pytest.approx(ROOT / HALF_ROOT - 1, rel=0.05)
    assert silent(Scaled(HALF_ROOT).bfloat16(), ROUNDING, declared=rounded).findings == ()
    assert silent(Scaled(ROOT), ROUNDING, declared=rounded).findings == ()
    assert silent(Scaled(ROOT).bfloat16(), ROUNDING, declared=Declared(embedding=Stated(ROOT, by))).findings == ()
    assert [one.severity for one in silent(Scaled(ROOT).bfloat16(), ROUNDING).findings] == [Severity.NOTE]


def test_a_released_factor_is_kept_in_the_type_of_its_rows():
    torch.manual_seed(0)
    sizes = {"hidden_size": 112, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.GemmaConfig(vocab_size=96, head_dim=16, intermediate_size=48, **sizes)
    assert check(transformers.GemmaForCausalLM(config).bfloat16(), select=[ROUNDING]).findings == ()
    model = transformers.GemmaForCausalLM(config).bfloat16()
    table = model.model.embed_tokens
    table.forward = lambda ids: (F.embedding(ids, table.weight).float() * 112**0.5).to(table.weight.dtype)
    (finding,) = check(model, select=[ROUNDING]).failing
    assert finding.measured == pytest.approx(112**0.5 / 10.5625 - 1, rel=0.05)


def test_a_factor_that_widens():
    finding = found(Widened().bfloat16(), ROUNDING)
    assert (finding.measured, finding.expected) == ("float32", "bfloat16")
    silent(Scaled(ROOT).bfloat16(), ROUNDING)


class Widened(nn.Module):
    """One number in a tensor of fp32."""

    def __init__(self):
        super().__init__()
        self.inner = Language(Attention())

    def forward(self, tokens: Tensor) -> Tensor:
        inner = self.inner
        x = inner.table(tokens) * torch.tensor([ROOT])
        normed = F.layer_norm(x, (D_MODEL,)).to(torch.bfloat16)
        return inner.head(x.to(torch.bfloat16) + inner.attention(normed))
