"""The factor between q · k and the softmax, in the ways that people write it and get it wrong."""

import pytest
import torch
import torch.nn.functional as F
import transformers
from audit.asked import asked, found, silent
from measure import constructions
from measure.faults import (
    D_K,
    D_MODEL,
    FAULTS,
    HEADS,
    HEALTHY,
    VOCABULARY,
    WRITINGS,
    Attention,
    Language,
    by_product,
    by_query_and_default,
    merge,
    split,
)
from torch import Tensor, nn

from surd.audit.declared import Declared, Stated
from surd.audit.finding import Severity
from surd.interchange.stated import declared as stated_by

RULE = "attention-scale"
NAMED = {"missing": "missing", "doubled": "twice", "width": "d_model"}


@pytest.fixture(autouse=True)
def seeded() -> None:
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)


@pytest.mark.parametrize("writing", WRITINGS)
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_in_each_writing(writing, fault):
    finding = found(Language(Attention(WRITINGS[writing], FAULTS[fault])), RULE)
    assert finding.severity is Severity.FAULT and finding.site == "attention:score"
    assert finding.measured == pytest.approx(FAULTS[fault], rel=0.01)
    assert finding.expected == pytest.approx(HEALTHY)
    assert NAMED[fault] in finding.message


@pytest.mark.parametrize("writing", WRITINGS)
def test_a_healthy_writing_is_silent(writing):
    silent(Language(Attention(WRITINGS[writing])), RULE)


class Functional(nn.Module):
    """All in one forward, with raw parameters."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor
        self.table = nn.Parameter(torch.randn(97, D_MODEL) * 0.02)
        self.packed = nn.Parameter(torch.randn(D_MODEL, 3 * D_MODEL) * D_MODEL**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.layer_norm(self.table[tokens], (D_MODEL,))
        q, k, v = (split(part) for part in (x @ self.packed).chunk(3, -1))
        return (x + merge((q @ k.mT * self.factor).softmax(-1) @ v)) @ self.table.T


def test_missing():
    """No division anywhere."""
    tokens = torch.randint(97, (6, 13))
    for model in (Functional(1.0), Language(Attention(factor=1.0))):
        assert found(model, RULE, inputs=(tokens,)).measured == pytest.approx(1.0)
    silent(Functional(HEALTHY), RULE, inputs=(tokens,))


def llama(scaling: float | None = None, layers: tuple[int, ...] = (0, 1), backend: str = "sdpa") -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        attn_implementation=backend,
    )
    model = transformers.LlamaForCausalLM(config)
    for layer in layers:
        if scaling is not None:
            model.model.layers[layer].self_attn.scaling = scaling
    return model


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("factor", FAULTS.values())
def test_a_released_model_with_surgery(backend, factor):
    finding = found(llama(factor, backend=backend), RULE)
    assert finding.sites == tuple(f"model.layers.{layer}.self_attn:score" for layer in (0, 1))
    assert finding.measured == pytest.approx(factor, rel=1e-3)
    silent(llama(backend=backend), RULE)


def test_one_wrong_layer():
    finding = found(llama(1.0, layers=(1,)), RULE)
    assert finding.sites == ("model.layers.1.self_attn:score",)


def test_doubled_before_the_kernel():
    """Queries are scaled, and the kernel scales by default."""
    finding = found(Language(Attention(by_query_and_default)), RULE)
    assert finding.measured == pytest.approx(1 / D_K) and "twice" in finding.message
    silent(llama(), RULE)


def test_kernel_asked_for_one_is_missing():
    """An engine that takes the factor for granted: the configuration says none, the kernel's default divides."""
    declared = Declared(attention=Stated((1.0,), "config.scale_attn_weights"))
    finding = found(llama(), RULE, declared=declared)
    assert finding.measured == pytest.approx(HEALTHY) and finding.expected == 1.0
    silent(llama(1.0), RULE, declared=declared)


def test_width_in_place_of_the_head():
    for model in (llama(D_MODEL**-0.5), Language(Attention(factor=D_MODEL**-0.5))):
        finding = found(model, RULE)
        assert finding.measured / finding.expected == pytest.approx(HEADS**-0.5)
        assert "d_model stands" in finding.message


class OddHead(Attention):
    """One head's scores are not divided."""

    def __init__(self, fused: bool):
        super().__init__()
        self.fused = fused
        self.register_buffer("factors", torch.tensor([1.0, 1.0, D_K**0.5, 1.0])[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (split(project(x)) for project in (self.query, self.key, self.value))
        if self.fused:
            return self.output(merge(F.scaled_dot_product_attention(query * self.factors, key, value)))
        return self.output(merge((query @ key.mT * HEALTHY * self.factors).softmax(-1) @ value))


class OneKey(Attention):
    """Keys without an axis of heads, which an einsum multiplies with the queries of all."""

    def __init__(self, factor: float, odd: float = 1.0):
        super().__init__(factor=factor)
        self.key, self.value = nn.Linear(D_MODEL, D_K), nn.Linear(D_MODEL, D_K)
        self.register_buffer("factors", torch.tensor([1.0, 1.0, odd, 1.0])[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.einsum("bhid,bjd->bhij", split(self.query(x)), self.key(x)) * self.factor * self.factors
        return self.output(merge(torch.einsum("bhij,bjd->bhid", scores.softmax(-1), self.value(x))))


@pytest.mark.parametrize("rows", [3, HEADS])
def test_one_key_for_all_heads(rows):
    tokens = torch.randint(VOCABULARY, (rows, 13))
    silent(Language(OneKey(HEALTHY)), RULE, inputs=(tokens,))
    assert found(Language(OneKey(1.0)), RULE, inputs=(tokens,)).site == "attention:score"
    finding = found(Language(OneKey(HEALTHY, odd=2.0)), RULE, inputs=(tokens,))
    assert finding.site == "attention:score.2" and finding.measured == pytest.approx(2 * HEALTHY)


@pytest.mark.parametrize("fused", [False, True])
def test_one_wrong_head(fused):
    finding = found(Language(OddHead(fused)), RULE)
    assert finding.site == "attention:score.2" and finding.measured == pytest.approx(1.0)


class OfTorch(nn.Module):
    """torch's attention by its two paths; `share` stands in the rows of the packed weight that make queries."""

    def __init__(self, need_weights: bool, share: float = 1.0):
        super().__init__()
        self.need_weights = need_weights
        self.norm = nn.LayerNorm(D_MODEL)
        self.attention = nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True)
        with torch.no_grad():
            self.attention.in_proj_weight[:D_MODEL] *= share

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return x + self.attention(x, x, x, need_weights=self.need_weights)[0]


@pytest.mark.parametrize("need_weights", [False, True])
def test_in_the_weights_and_in_the_kernel(need_weights):
    inputs = (torch.randn(6, 13, D_MODEL),)
    finding = found(OfTorch(need_weights, HEALTHY), RULE, inputs=inputs)
    assert finding.measured == pytest.approx(1 / D_K, rel=0.05) and "twice" in finding.message
    silent(OfTorch(need_weights), RULE, inputs=inputs)


def test_layers_of_torch_are_silent():
    layer = nn.TransformerEncoderLayer(D_MODEL, HEADS, 64, batch_first=True, dropout=0.0)
    silent(layer, RULE, inputs=(torch.randn(6, 13, D_MODEL),))
    model = nn.Transformer(D_MODEL, HEADS, 1, 1, 64, batch_first=True)
    silent(model, RULE, inputs=(torch.randn(6, 13, D_MODEL), torch.randn(6, 13, D_MODEL)))


class InTheWeights(Attention):
    """No factor anywhere, and queries drawn 1/√d_k smaller, as T5 does."""

    def __init__(self, kernel: bool):
        super().__init__(by_query_and_default if kernel else by_product, 1.0)
        for project in (self.query, self.key, self.value):
            nn.init.normal_(project.weight, std=D_MODEL**-0.5)
            nn.init.zeros_(project.bias)
        with torch.no_grad():
            self.query.weight *= HEALTHY


def test_a_factor_in_the_weights():
    report = silent(Language(InTheWeights(kernel=False)), RULE)
    assert [one.severity for one in report.findings] == [Severity.NOTE]
    finding = found(Language(InTheWeights(kernel=True)), RULE)
    assert finding.measured == pytest.approx(1 / D_K, rel=0.05)


class Learned(Attention):
    """A learnable scale that starts at one."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (split(project(x)) for project in (self.query, self.key, self.value))
        scores = torch.einsum("bhid,bhjd->bhij", query, key) * self.scale
        return self.output(merge(scores.softmax(-1) @ value))


def test_a_learned_scale_that_starts_at_one():
    finding = found(Language(Learned()), RULE)
    assert finding.measured == pytest.approx(1.0) and "missing" in finding.message


class Checkpointed(constructions.Checkpointed):
    def __init__(self, reentrant: bool, factor: float):
        super().__init__(reentrant)
        self.factor = factor


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed(reentrant):
    assert found(Language(Checkpointed(reentrant, 1.0)), RULE).measured == pytest.approx(1.0)
    silent(Language(Checkpointed(reentrant, HEALTHY)), RULE)


def test_compiled():
    assert found(torch.compile(Language(Attention(factor=1.0))), RULE).measured == pytest.approx(1.0)


class Adapted(Attention):
    """A low-rank adapter beside the query's projection."""

    def __init__(self, factor: float):
        super().__init__(factor=factor)
        self.down, self.up = nn.Linear(D_MODEL, 2, bias=False), nn.Linear(2, D_MODEL, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query = self.query(x) + self.up(self.down(x)) * 2.0
        parts = (split(y) for y in (query, self.key(x), self.value(x)))
        return self.output(merge(by_product(*parts, self.factor)))


def test_adapted():
    assert found(Language(Adapted(1.0)), RULE).measured == pytest.approx(1.0, rel=0.01)
    silent(Language(Adapted(HEALTHY)), RULE)
    silent(Language(constructions.Adapted()), RULE)


@pytest.mark.parametrize(
    ("applied", "stated", "name"),
    [
        (HEALTHY, 0.0625, "it is 1/√d_k"),
        (HEALTHY, 1.0, "it is 1/√d_k"),
        (HEALTHY, HEALTHY * 1.369**2, "it is 1/√d_k"),
        (HEALTHY * 1.369, HEALTHY * 1.369**2, "one of query and key"),
        (1.0, 0.0625, "missing"),
        (0.0625**2, 0.0625, "twice"),
    ],
)
def test_the_cause_is_told_beside_what_is_stated(applied, stated, name):
    declared = Declared(attention=Stated((stated,), "config.multiplier"))
    message = found(llama(applied), RULE, declared=declared).message
    assert name in message and "stated by config.multiplier" in message


def test_the_cause_is_told_by_the_exact_number():
    """1/√49 beside a width of 48; the number of heads; of keys; another width."""
    inputs = {"input_ids": torch.randint(97, (3, 31))}
    named = {49: "√49 stands", HEADS: "number of heads", 31: "number of keys", D_MODEL: "d_model stands"}
    for count, name in named.items():
        assert name in found(llama(count**-0.5), RULE, inputs=inputs).message


def test_divided_by_the_number_of_the_layer():
    model = llama(HEALTHY / 2, layers=(1,))
    assert "number of the layer" in found(model, RULE).message


def test_a_family_behind_norms_has_the_factor_of_its_code():
    sizes = {"num_key_value_heads": 2, "intermediate_size": 64, "head_dim": 32}
    config = transformers.Qwen3Config(
        vocab_size=97, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, **sizes
    )
    model = transformers.Qwen3ForCausalLM(config)
    silent(model, RULE, declared=stated_by(config))
    model.model.layers[0].self_attn.scaling = (64 // 4) ** -0.5
    assert "family" in found(model, RULE, declared=stated_by(config)).message


def test_other_numbers_of_a_configuration():
    """224 where 256 belongs, the other way round, and a declared value that is not applied."""
    declared = Declared(attention=Stated((256**-0.5,), "config.query_pre_attn_scalar"))
    finding = found(llama(224**-0.5), RULE, declared=declared)
    assert finding.measured / finding.expected == pytest.approx((256 / 224) ** 0.5)
    report = silent(llama(256**-0.5), RULE, declared=declared)
    assert [one.severity for one in report.findings] == [Severity.DECLARED]


@pytest.mark.parametrize("factor", [40.0, 4.0])
def test_magnitude_of_yarn(factor):
    """(0.1 ln s + 1)² on the whole logit is declared, and left out."""
    magnitude = (0.1 * torch.tensor(factor).log().item() + 1) ** 2
    declared = Declared(attention=Stated((HEALTHY * magnitude,), "config.rope_parameters"))
    finding = found(llama(), RULE, declared=declared)
    assert finding.measured / finding.expected == pytest.approx(1 / magnitude, rel=1e-3)
    silent(llama(HEALTHY * magnitude), RULE, declared=declared)


def test_a_factor_for_each_layer():
    """1 / (layer + 1) is declared and only the first layer has it."""
    by_layer = {f"layers.{layer}.": HEALTHY / (layer + 1) for layer in range(2)}
    declared = Declared(attention_by_path=Stated(by_layer, "config.scale_attn_by_inverse_layer_idx"))
    finding = found(llama(), RULE, declared=declared)
    assert finding.site == "model.layers.1.self_attn:score"
    assert finding.measured / finding.expected == pytest.approx(2.0)


class Normalised(Attention):
    """Queries and keys of length one or of size one, and the kernel's factor."""

    def __init__(self, scale: float | None, length: bool):
        super().__init__()
        self.scale, self.length = scale, length

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (split(project(x)) for project in (self.query, self.key, self.value))
        if self.length:
            query, key = F.normalize(query, dim=-1), F.normalize(key, dim=-1)
        else:
            query, key = F.rms_norm(query, (D_K,)), F.rms_norm(key, (D_K,))
        return self.output(merge(F.scaled_dot_product_attention(query, key, value, scale=self.scale)))


def test_cosines_with_the_factor_of_the_kernel():
    finding = found(Language(Normalised(None, length=True)), RULE)
    assert finding.measured == pytest.approx(1 / D_K, rel=0.01)
    silent(Language(Normalised(D_K**0.5, length=True)), RULE)


def test_normalised_without_a_factor():
    finding = found(Language(Normalised(1.0, length=False)), RULE)
    assert finding.measured == pytest.approx(D_K**0.5, rel=0.01)
    silent(Language(Normalised(None, length=False)), RULE)
    declared = Declared(qk_norm=Stated(True, "config.qk_norm"))
    report = asked(Language(Normalised(1.0, length=False)), RULE, declared=declared)
    assert report.clean and report.findings[0].severity is Severity.DECLARED


def test_a_kernel_that_scales_what_needs_no_scale():
    """Normalised queries and keys whose reference has a factor of 1."""
    declared = Declared(attention=Stated((1.0,), "the reference's code"), qk_norm=Stated(True, "the reference's code"))
    finding = found(Language(Normalised(None, length=False)), RULE, declared=declared)
    assert finding.measured / finding.expected == pytest.approx(HEALTHY, rel=0.01)
    silent(Language(Normalised(1.0, length=False)), RULE, declared=declared)


class Quarters(Attention):
    """d_k^-¼ on queries and again on keys."""

    def __init__(self, both: bool = True):
        super().__init__()
        self.both = both

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (split(project(x)) for project in (self.query, self.key, self.value))
        key = key * D_K**-0.25 if self.both else key
        return self.output(merge((query * D_K**-0.25 @ key.mT).softmax(-1) @ value))


class Layered(Attention):
    """Divided by the layer's number in half precision's favour, and multiplied back before the softmax."""

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (split(project(x)) for project in (self.query, self.key, self.value))
        return self.output(merge(((query / (7 * D_K**0.5) @ key.mT) * 7).softmax(-1) @ value))


class Above(nn.Module):
    """The queries are scaled a level above the product."""

    def __init__(self):
        super().__init__()
        self.inner = Attention()
        self.inner.factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        inner = self.inner
        query = split(inner.query(x) * HEALTHY)
        return inner.output(merge(inner.mixing(query, split(inner.key(x)), split(inner.value(x)), 1.0)))


TRAPS = (Quarters, Layered, Above, constructions.Latent, constructions.Rotary, constructions.Shared)
TRAPS += (constructions.ScaledInPlace, constructions.Sink, constructions.Capped, constructions.Masked)


@pytest.mark.parametrize("attention", TRAPS)
def test_what_looks_wrong_and_is_right(attention):
    silent(Language(attention()), RULE)


def test_one_of_two_quarter_powers():
    finding = found(Language(Quarters(both=False)), RULE)
    assert finding.measured == pytest.approx(D_K**-0.25) and "quarter" in finding.message


def test_mup_is_declared():
    declared = Declared(attention=Stated((1 / D_K,), "Yang et al. 2022 (arXiv 2203.03466)"))
    report = silent(llama(1 / D_K), RULE, declared=declared)
    assert [one.severity for one in report.findings] == [Severity.DECLARED]


def test_trained_models_are_judged_too():
    assert found(llama(1.0), RULE, trained=True).measured == pytest.approx(1.0)
    silent(llama(), RULE, trained=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    silent(llama().to(dtype), RULE)
    assert found(llama(1 / D_K).to(dtype), RULE).measured == pytest.approx(1 / D_K, rel=0.03)
