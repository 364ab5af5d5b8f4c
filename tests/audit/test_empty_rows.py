"""Rows that see no key: of a sample that is all padding, of padding on the left, of windows inside padding."""

import pytest
import torch
import torch.nn.functional as F
import transformers
from audit.asked import asked, found, silent
from measure.faults import D_MODEL, HEADS, HEALTHY, Attention, merge, split
from torch import Tensor, nn

from surd.audit.finding import Severity

RULE, ROWS, LENGTH = "empty-rows", 6, 13


@pytest.fixture(autouse=True)
def seeded() -> None:
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)


class Encoder(nn.Module):
    """Hides with a number; a causal one too."""

    def __init__(self, fill: float, causal: bool = False, repair: bool = False):
        super().__init__()
        self.fill, self.causal, self.repair = fill, causal, repair
        self.table, self.parts = nn.Embedding(97, D_MODEL), Attention()

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.table(tokens)
        q, k, v = (split(project(x)) for project in (self.parts.query, self.parts.key, self.parts.value))
        mask = torch.ones_like(tokens) if mask is None else mask
        hidden = (mask == 0)[:, None, None, :].expand(-1, 1, tokens.shape[1], -1)
        if self.causal:
            hidden = hidden | torch.ones(hidden.shape[-2:], dtype=torch.bool).triu(1)
        added = torch.zeros(hidden.shape).masked_fill(hidden, self.fill)
        weights = (q @ k.mT * HEALTHY + added).softmax(-1)
        if self.repair:
            weights = weights.masked_fill(hidden.all(-1, keepdim=True), 0.0)
        return x + self.parts.output(merge(weights @ v))


def test_a_sample_of_padding_alone():
    finding = found(Encoder(-torch.inf), RULE)
    assert finding.severity is Severity.FAULT and finding.expected == 0
    assert finding.measured == pytest.approx(1 / ROWS)


def test_padding_on_the_left_of_a_causal_model():
    """Three rows that see only padding, beside the sample that has nothing else."""
    finding = found(Encoder(-torch.inf, causal=True), RULE)
    assert finding.measured == pytest.approx((LENGTH + LENGTH // 4) / (ROWS * LENGTH))
    assert "begins with padding" in finding.message


def test_a_repair_that_leaves_the_gradients_broken():
    model = Encoder(-torch.inf, repair=True)
    finding = found(model, RULE)
    assert finding.quantity == "entries of gradients that are not finite"
    parts = [model.parts.query, model.parts.key]
    assert finding.measured >= sum(p.numel() for part in parts for p in part.parameters() if p.dim() == 2)


@pytest.mark.parametrize("causal", [False, True])
def test_a_finite_fill(causal):
    silent(Encoder(torch.finfo(torch.float32).min / 2, causal), RULE)


def batch(left: bool) -> dict[str, Tensor]:
    mask = torch.ones(4, 12, dtype=torch.int64)
    if left:
        mask[1, :5] = 0
    else:
        mask[3] = 0
    return {"tokens": torch.randint(97, (4, 12)), "mask": mask}


@pytest.mark.parametrize("left", [False, True])
def test_a_row_that_the_given_batch_holds(left):
    """Nothing else is judged by numbers that are no numbers."""
    model = Encoder(-torch.inf, causal=left)
    report = asked(model, inputs=batch(left))
    assert [one.rule for one in report.failing] == [RULE], str(report)
    assert report.failing[0].measured == pytest.approx(5 / 48 if left else 1 / 4)
    assert "the batch that was given" in report.failing[0].message
    assert any(one.rule == "head-layout" and "sees no key" in one.reason for one in report.skipped)
    silent(Encoder(-1e30, causal=left), RULE, inputs=batch(left))


def test_a_repair_in_the_given_batch():
    finding = found(Encoder(-torch.inf, repair=True), RULE, inputs=batch(False))
    assert finding.quantity == "entries of gradients that are not finite" and finding.measured > 0


class Fused(Encoder):
    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.table(tokens)
        q, k, v = (split(project(x)) for project in (self.parts.query, self.parts.key, self.parts.value))
        seen = None if mask is None else mask.bool()[:, None, None, :]
        return x + self.parts.output(merge(F.scaled_dot_product_attention(q, k, v, attn_mask=seen)))


class Flat(nn.Module):
    """Raw parameters, an additive mask of -inf that is made from the id of padding."""

    def __init__(self, fill: float):
        super().__init__()
        self.fill, self.table = fill, nn.Embedding(97, D_MODEL, padding_idx=0)
        self.packed = nn.Parameter(torch.randn(D_MODEL, 3 * D_MODEL) * D_MODEL**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        q, k, v = (split(part) for part in (x @ self.packed).chunk(3, -1))
        added = torch.zeros(tokens.shape).masked_fill(tokens == 0, self.fill)[:, None, None, :]
        return x + merge((q @ k.mT * HEALTHY + added).softmax(-1) @ v)


def test_a_mask_made_from_tokens():
    assert found(Flat(-torch.inf), RULE).measured == pytest.approx(1 / ROWS)
    silent(Flat(-1e9), RULE)


def test_torchs_own():
    layer = nn.TransformerEncoderLayer(D_MODEL, HEADS, 64, batch_first=True)
    silent(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), RULE)
    silent(Fused(0.0), RULE)


def test_a_model_without_a_mask_is_not_passed():
    class Open(Encoder):
        def forward(self, tokens: Tensor) -> Tensor:
            return super().forward(tokens)

    report = asked(Open(-torch.inf), RULE)
    assert report.findings == () and report.passed == () and report.skipped


@pytest.mark.parametrize("name", ["bert", "llama", "bart"])
def test_public_models(name):
    sizes = {"hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 96}
    sizes = {"d_model": 48, "encoder_layers": 1, "decoder_layers": 1} if name == "bart" else sizes
    config = transformers.AutoConfig.for_model(name, vocab_size=97, **sizes)
    silent(transformers.AutoModel.from_config(config), RULE)
