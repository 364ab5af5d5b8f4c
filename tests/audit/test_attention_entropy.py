"""What the softmax of each head does: dead rows, entropy, large logits, growth over layers, learned temperatures."""

from math import exp, log, sqrt

import pytest
import torch
import torch.nn.functional as F
import transformers
from audit.asked import asked, found, silent
from measure.faults import D_K, D_MODEL, HEADS, HEALTHY, Attention, Language, merge, split
from torch import Tensor, nn

from surd.audit.finding import Severity
from surd.measure.probe import probe

SATURATION, ENTROPY, LARGEST, GROWTH = (
    "softmax-saturation",
    "attention-entropy",
    "attention-logit-max",
    "qk-norm-growth",
)
TOKENS = (torch.randint(97, (6, 13), generator=torch.Generator().manual_seed(0)),)


@pytest.fixture(autouse=True)
def seeded() -> None:
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)


class Flat(nn.Module):
    """Functions and raw parameters, fused kernel or written out; `sizes` multiply queries and keys of a layer."""

    def __init__(self, sizes: tuple[float, ...], fused: bool = True, heads: tuple[int, ...] = tuple(range(HEADS))):
        super().__init__()
        self.fused = fused
        self.table = nn.Parameter(torch.randn(97, D_MODEL))
        self.packed = nn.ParameterList(torch.randn(3, HEADS, D_K, D_MODEL) * D_MODEL**-0.5 for _ in sizes)
        with torch.no_grad():
            for packed, size in zip(self.packed, sizes, strict=True):
                packed[:2, heads] *= size

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table[tokens]
        for packed in self.packed:
            mixed = F.linear(F.layer_norm(x, (D_MODEL,)), packed.flatten(0, 2))
            q, k, v = mixed.unflatten(-1, (3, HEADS, D_K)).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v) if self.fused else (q @ k.mT * HEALTHY).softmax(-1) @ v
            x = x + y.transpose(1, 2).flatten(2)
        return x


def gpt2(size: float = 1.0, layers: tuple[int, ...] = (0, 1)) -> nn.Module:
    """A released model whose packed weights of queries and keys are multiplied."""
    config = transformers.GPT2Config(vocab_size=97, n_positions=32, n_embd=48, n_layer=2, n_head=4)
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for layer in layers:
            model.transformer.h[layer].attn.c_attn.weight[:, :96] *= size
    return model


def of_torch(size: float) -> nn.Module:
    layer = nn.TransformerEncoderLayer(D_MODEL, HEADS, 64, batch_first=True, norm_first=True)
    with torch.no_grad():
        layer.self_attn.in_proj_weight[: 2 * D_MODEL] *= size
    return layer


@torch.no_grad()
def statistics(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Naively: Jacobian norms and H / ln n of each row."""
    p = (query @ key.mT * HEALTHY).double().softmax(-1)
    jacobian = torch.diag_embed(p) - p[..., :, None] * p[..., None, :]
    entropy = -(p * p.clamp(min=1e-300).log()).sum(-1) / log(p.shape[-1])
    return jacobian.flatten(-2).norm(dim=-1), entropy


@pytest.mark.parametrize("fused", [False, True])
def test_dead_rows(fused):
    model = Flat((4.0,), fused)
    finding = found(model, SATURATION, inputs=TOKENS)
    mixed = F.linear(F.layer_norm(model.table[TOKENS[0]], (D_MODEL,)), model.packed[0].flatten(0, 2))
    q, k, _ = mixed.unflatten(-1, (3, HEADS, D_K)).permute(2, 0, 3, 1, 4)
    assert finding.severity is Severity.WARNING and finding.site.endswith(":score")
    assert finding.measured == pytest.approx(float((statistics(q, k)[0] < 0.01).double().mean()), rel=1e-6)
    assert asked(model, SATURATION, inputs=TOKENS).findings[0].expected == 0.0
    silent(Flat((1.0,), fused), SATURATION, inputs=TOKENS)


def test_few_keys_have_less_entropy_to_lose():
    """What leaves 0.7 of ln 128 leaves 0.43 of ln 13: logits of standard deviation 2 are no fault of either."""
    model = Flat((1.5,))
    silent(model, ENTROPY, inputs=TOKENS)
    (site,) = probe(model, TOKENS).attention
    assert site.softmax is not None
    assert 0.45 < min(site.softmax.entropy) < 0.7


def test_a_few_dead_rows_among_rows_of_few_keys_are_chance():
    """Logits of standard deviation 2.2 are healthy, and leave some causal rows of two or three keys to one of them."""

    def sharp(query: Tensor, key: Tensor, value: Tensor, factor: float) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, scale=6.6 * factor, is_causal=True)

    model = Language(Attention(sharp))
    assert silent(model, SATURATION).passed == (SATURATION,)
    (site,) = probe(model, TOKENS).attention
    assert site.softmax is not None
    assert 0.01 < max(site.softmax.dead) < 0.05 and max(site.softmax.std) < 3


@pytest.mark.parametrize("fused", [False, True])
def test_low_entropy_at_the_start(fused):
    model = Flat((2.2,), fused)
    finding = found(model, ENTROPY, inputs=TOKENS)
    mixed = F.linear(F.layer_norm(model.table[TOKENS[0]], (D_MODEL,)), model.packed[0].flatten(0, 2))
    q, k, _ = mixed.unflatten(-1, (3, HEADS, D_K)).permute(2, 0, 3, 1, 4)
    assert finding.measured == pytest.approx(float(statistics(q, k)[1].mean()), rel=1e-5)
    silent(Flat((1.0,), fused), ENTROPY, inputs=TOKENS)


def test_in_a_layer_of_torch_and_a_released_model():
    inputs = (torch.randn(6, 13, D_MODEL),)
    assert found(of_torch(4.0), SATURATION, inputs=inputs).measured > 0.05
    silent(of_torch(1.0), SATURATION, inputs=inputs)
    assert found(gpt2(30.0), SATURATION).sites[0].startswith("transformer.h.")
    silent(gpt2(), SATURATION)
    silent(gpt2(), ENTROPY)


def test_normalised_without_a_factor_saturates_as_a_consequence():
    """Rows of size 1 at d_k = 256: logits of standard deviation 16, most of the weight on one key."""

    class Normalised(nn.Module):
        def __init__(self, scale: float):
            super().__init__()
            self.table, self.scale = nn.Embedding(97, 256), scale
            self.query, self.key = nn.Linear(256, 256, bias=False), nn.Linear(256, 256, bias=False)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.table(tokens)
            query, key = (F.rms_norm(part(x), (256,)) for part in (self.query, self.key))
            return (query @ key.mT * self.scale).softmax(-1) @ x

    report = asked(Normalised(1.0), "attention-scale", SATURATION)
    assert [one.rule for one in report.failing] == ["attention-scale"]
    assert report.failing[0].measured == pytest.approx(16, rel=0.05)
    assert [one.rule for one in report.failing[0].consequences] == [SATURATION]
    silent(Normalised(256**-0.5), SATURATION)


def test_one_head_is_named():
    finding = found(Flat((5.0,), heads=(2,)), SATURATION, inputs=TOKENS)
    assert finding.site.endswith(":score.2")
    finding = found(Flat((2.2,), heads=(1,)), ENTROPY, inputs=TOKENS)
    assert finding.site.endswith(":score.1")


def test_scores_too_small_to_tell_keys_apart():
    """Queries of 1e-8: every row is uniform to the last digit; where they start at zero, somebody has set them so."""
    for trained in (False, True):
        finding = found(Language(shrunk(1e-8)), ENTROPY, trained=trained)
        assert finding.measured == 1.0
        silent(Language(shrunk(1.0)), ENTROPY, trained=trained)
    silent(Language(shrunk(0.0)), ENTROPY)
    model = gpt2()
    with torch.no_grad():
        model.transformer.h[1].attn.c_attn.weight[:, :48] *= 1e-8
    assert found(model, ENTROPY).site == "transformer.h.1.attn:score"


def shrunk(size: float) -> Attention:
    attention = Attention()
    with torch.no_grad():
        attention.query.weight *= size
        attention.query.bias.zero_()
    return attention


class Sinks(Attention):
    """All heads look at the first key, which has a bias of its own."""

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (split(project(x)) for project in (self.query, self.key, self.value))
        sink = torch.zeros(x.shape[1])
        sink[0] = 30.0
        return self.output(merge((query @ key.mT * HEALTHY + sink).softmax(-1) @ value))


class Previous(Attention):
    """Some heads look at the token before, as in most trained models; one distance for every head is none of that."""

    def __init__(self, heads: int):
        super().__init__()
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (split(project(x)) for project in (self.query, self.key, self.value))
        before = 40.0 * torch.ones(x.shape[1] - 1).diag(-1)
        scores = query @ key.mT * HEALTHY
        scores = torch.cat([scores[:, : self.heads] + before, scores[:, self.heads :]], 1)
        return self.output(merge(scores.softmax(-1) @ value))


def test_heads_of_positions():
    model = Language(Previous(1))
    silent(model, ENTROPY, trained=True)
    (site,) = probe(model, TOKENS).attention
    assert site.softmax is not None
    assert site.softmax.distance[0] > 0.99 and max(site.softmax.distance[1:]) < 0.5


def test_heads_of_a_trained_model():
    """Whole heads on one key each are told; those that all look at one key are sinks; sharp logits are growth."""
    finding = found(Flat((12.0,)), ENTROPY, inputs=TOKENS, trained=True)
    assert finding.measured < 0.02
    silent(Language(Sinks()), ENTROPY, trained=True)
    silent(Flat((2.2,)), ENTROPY, inputs=TOKENS, trained=True)
    assert any(one.rule == SATURATION for one in asked(Flat((4.0,)), SATURATION, trained=True).skipped)


@pytest.mark.parametrize("fused", [False, True])
def test_a_head_of_a_trained_model_that_is_uniform(fused):
    """A whole head with H/ln n = 1 tells no keys apart; before training it may have been begun so."""
    model = Flat((1.0, 1.0), fused)
    nn.init.zeros_(model.packed[1].data[0, 2])
    finding = found(model, ENTROPY, inputs=TOKENS, trained=True)
    assert (finding.measured, finding.site) == (1.0, ":score.2#2")
    silent(model, ENTROPY, inputs=TOKENS)


@pytest.mark.parametrize(("size", "severity"), [(8.0, Severity.WARNING), (160.0, Severity.FAULT)])
@pytest.mark.parametrize("fused", [False, True])
def test_large_logits(size, severity, fused):
    model = Flat((size,), fused)
    finding = found(model, LARGEST, inputs=TOKENS, trained=True)
    mixed = F.linear(F.layer_norm(model.table[TOKENS[0]], (D_MODEL,)), model.packed[0].flatten(0, 2))
    q, k, _ = mixed.unflatten(-1, (3, HEADS, D_K)).permute(2, 0, 3, 1, 4)
    assert finding.severity is severity
    assert finding.measured == pytest.approx(float((q @ k.mT * HEALTHY).detach().amax(-1).abs().max()), rel=1e-4)
    silent(Flat((1.0,), fused), LARGEST, inputs=TOKENS, trained=True)


@pytest.mark.parametrize("fill", [-100.0, -1e4, -1e9])
def test_what_hides_keys_is_no_large_logit(fill):
    class Masked(Attention):
        def forward(self, x: Tensor) -> Tensor:
            query, key, value = (split(project(x)) for project in (self.query, self.key, self.value))
            hidden = torch.ones(x.shape[1], x.shape[1]).triu(1) * fill
            return self.output(merge((query @ key.mT * HEALTHY + hidden).softmax(-1) @ value))

    report = asked(Language(Masked()), LARGEST, ENTROPY, SATURATION)
    assert report.clean


def test_late_layers_that_have_grown():
    """Three times the queries and three times the keys of one layer: nine times σ_max(W_q W_kᵀ)."""
    for model in (Flat((1.0, 1.0, 3.0)), Flat((1.0, 1.0, 3.0), fused=False)):
        packed = [part.detach().double() for part in model.packed]
        norms = [
            max(torch.linalg.matrix_norm(q.mT @ k, 2).item() for q, k in zip(*part[:2], strict=True)) for part in packed
        ]
        finding = found(model, GROWTH, inputs=TOKENS, trained=True)
        assert finding.measured == pytest.approx(norms[2] / (sum(norms[:2]) / 2), rel=1e-3)
        assert finding.measured == pytest.approx(9, rel=0.1)
    assert found(gpt2(3.0, (1,)), GROWTH, trained=True).site == "transformer.h.1.attn:score"
    silent(gpt2(3.0), GROWTH, trained=True)
    silent(Flat((1.0, 1.0, 2.0)), GROWTH, inputs=TOKENS, trained=True)


def test_growth_is_not_asked_of_an_untrained_model():
    report = silent(gpt2(3.0, (1,)), GROWTH)
    assert any("untrained" in one.reason for one in report.skipped)


class Contrast(nn.Module):
    """Similarities of two encodings times a learned temperature, applied in one of three ways."""

    def __init__(self, value: float, way: str):
        super().__init__()
        self.encode = nn.TransformerEncoderLayer(D_MODEL, HEADS, 64, batch_first=True)
        self.logit_scale, self.way = nn.Parameter(torch.tensor(value)), way

    def forward(self, x: Tensor) -> Tensor:
        first, second = (F.normalize(y, dim=-1) for y in self.encode(x)[:, :2].unbind(1))
        if self.way == "bounded":
            return self.logit_scale.exp().clamp(max=100) * first @ second.T
        return (self.logit_scale.exp() if self.way == "exp" else self.logit_scale) * (first @ second.T)


VECTORS = (torch.randn(6, 13, D_MODEL, generator=torch.Generator().manual_seed(0)),)


def test_a_temperature_without_a_bound():
    finding = found(Contrast(5.0, "exp"), GROWTH, inputs=VECTORS)
    assert finding.measured == pytest.approx(exp(5), rel=1e-4) and finding.expected == 100.0
    assert found(Contrast(90.0, "exp"), GROWTH, inputs=VECTORS).severity is Severity.FAULT
    silent(Contrast(log(100), "exp"), GROWTH, inputs=VECTORS)
    silent(Contrast(log(1 / 0.07), "exp"), GROWTH, inputs=VECTORS)


def test_a_logarithm_that_multiplies():
    finding = found(Contrast(log(1 / 0.07), "raw"), GROWTH, inputs=VECTORS)
    assert finding.measured == pytest.approx(2.659, rel=1e-3) and finding.expected == pytest.approx(14.29, rel=1e-3)
    silent(Contrast(14.0, "raw"), GROWTH, inputs=VECTORS)


def test_a_temperature_inside_attention():
    class Cosine(Attention):
        def __init__(self, value: float, exponential: bool):
            super().__init__()
            self.temperature, self.exponential = nn.Parameter(torch.full((), value)), exponential

        def forward(self, x: Tensor) -> Tensor:
            query, key, value = (split(project(x)) for project in (self.query, self.key, self.value))
            factor = torch.exp(self.temperature) if self.exponential else self.temperature
            scores = F.normalize(query, dim=-1) @ F.normalize(key, dim=-1).mT * factor
            return self.output(merge(scores.softmax(-1) @ value))

    assert found(Language(Cosine(log(10), exponential=False)), GROWTH).expected == pytest.approx(10)
    assert found(Language(Cosine(5.0, exponential=True)), GROWTH).measured == pytest.approx(exp(5), rel=1e-4)
    silent(Language(Cosine(log(10), exponential=True)), GROWTH)


class OfHeads(Attention):
    """Cosines times a learned temperature of each head."""

    def __init__(self, value: float, exponential: bool):
        super().__init__()
        self.temperature = nn.ParameterList([nn.Parameter(torch.full((HEADS, 1, 1), value))])
        self.exponential = exponential

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (split(project(x)) for project in (self.query, self.key, self.value))
        factor = self.temperature[0].exp() if self.exponential else self.temperature[0]
        scores = F.normalize(query, dim=-1) @ F.normalize(key, dim=-1).mT * factor
        return self.output(merge(scores.softmax(-1) @ value))


def test_a_temperature_of_each_head():
    finding = found(Language(OfHeads(log(10), exponential=False)), GROWTH)
    assert finding.expected == pytest.approx(10) and finding.site == "attention.temperature.0"
    silent(Language(OfHeads(log(10), exponential=True)), GROWTH)
    silent(Language(OfHeads(10.0, exponential=False)), GROWTH)


def test_a_temperature_without_a_bound_is_the_cause_of_its_factor():
    report = asked(Language(OfHeads(6.0, exponential=True)), GROWTH, "attention-scale")
    assert [one.rule for one in report.failing] == [GROWTH]


def test_one_gain_for_all_heads_is_a_note():
    class Shared(Attention):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(D_K))
            self.register_buffer("sizes", torch.tensor([1.0, 1.0, 1.0, 12.0])[:, None, None])

        def forward(self, x: Tensor) -> Tensor:
            query, key, value = (split(project(x)) for project in (self.query, self.key, self.value))
            query, key = F.rms_norm(query, (D_K,), self.gain) * self.sizes, F.rms_norm(key, (D_K,), self.gain)
            return self.output(merge(F.scaled_dot_product_attention(query, key, value)))

    report = silent(Language(Shared()), GROWTH, trained=True)
    (note,) = report.findings
    assert note.severity is Severity.NOTE and (note.measured, note.expected) == (D_K, D_MODEL)


def test_the_report_shows_every_head():
    report = asked(Flat((1.0,)), ENTROPY, inputs=TOKENS)
    (shown,) = report.heads
    assert set(map(len, shown.values.values())) == {HEADS}
    assert shown.values["logit std"][0] == pytest.approx(1.0, rel=0.5)
    assert sqrt(1.0) >= max(shown.values["entropy over ln n"]) > 0.7
