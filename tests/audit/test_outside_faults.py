"""Faults of scale in packages that people use, built here as the packages build them, each with its number.

`benchmarks/outside_faults.py` finds the same ones in the packages themselves.
"""

from math import log, sqrt

import pytest
import torch
import transformers
from torch import Tensor, nn

from surd.api import check
from surd.audit.finding import Finding, Severity
from surd.audit.judge import Report

WIDTH, HEADS, DEPTH, VOCABULARY = 64, 4, 4, 300


@pytest.fixture(autouse=True)
def seeded() -> None:
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)


def only(report: Report, rule: str) -> Finding:
    """The findings of a rule, of which there is one; whatever else counts against the model follows from it."""
    assert [one.rule for one in report.failing] == [rule], str(report)
    return report.failing[0]


class Translation(nn.Module):
    """torch's own encoder and decoder between tables and head; `prepare` does to it what a toolkit does."""

    def __init__(self, norm_first: bool = True, final: bool = True, depth: int = DEPTH) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(VOCABULARY, WIDTH)
        options = {"dropout": 0.0, "batch_first": True, "norm_first": norm_first}
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, **options) for _ in range(depth)
        )
        self.encoder_norm = nn.LayerNorm(WIDTH) if final else nn.Identity()
        self.decoder = nn.ModuleList(
            nn.TransformerDecoderLayer(WIDTH, HEADS, 2 * WIDTH, **options) for _ in range(DEPTH)
        )
        self.decoder_norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        for table in (self.source, self.target):
            nn.init.normal_(table.weight, std=WIDTH**-0.5)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.source(source) * sqrt(WIDTH)
        for layer in self.encoder:
            memory = layer(memory)
        memory = self.encoder_norm(memory)
        hidden = self.target(target) * sqrt(WIDTH)
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        for layer in self.decoder:
            hidden = layer(hidden, memory, mask)
        return self.head(self.decoder_norm(hidden))


def test_a_translation_as_it_should_be_has_no_finding() -> None:
    assert check(Translation()).failing == ()


def test_gains_of_norms_drawn_like_everything_else() -> None:
    """Eole's and OpenNMT-py's default: every parameter is drawn from U(−0.1, 0.1), the gains of norms too."""
    model = Translation()
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.1, 0.1)
    report = check(model)
    gains = [one for one in report.failing if one.rule == "norm-gain-convention"]
    assert gains and gains[0].severity.fails, str(report)
    assert gains[0].measured == pytest.approx(0.1 / sqrt(3), rel=0.1)
    assert {"encoder", "decoder"} <= {site.partition(".")[0] for site in gains[0].sites}


def t5(kind: str) -> nn.Module:
    sizes = {"vocab_size": 2000, "d_model": 512, "d_kv": 64, "d_ff": 128, "num_layers": 8, "num_heads": 8}
    if kind == "mt5":
        return transformers.MT5ForConditionalGeneration(transformers.MT5Config(**sizes))
    config = transformers.T5Config(**sizes, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    return transformers.T5ForConditionalGeneration(config)


@pytest.mark.parametrize("kind", ["mt5", "t5 v1.1"])
def test_t5_of_version_1_1_starts_at_more_than_a_hundred(kind: str) -> None:
    """The head is drawn with a standard deviation of 1, and nothing divides by √d_model."""
    report = check(t5(kind), select=["initial-loss"])
    finding = only(report, "initial-loss")
    assert finding.severity is Severity.FAULT
    assert isinstance(finding.measured, float)
    assert 141 < log(2000) + finding.measured < 162
    whole = check(t5(kind))
    assert {one.rule for one in whole.failing} <= {"initial-loss", "tied-init-std", "logit-scale", "init-std"}, str(
        whole
    )
    assert whole.failing


def test_marian_from_scratch_does_not_scale_its_tokens() -> None:
    """Rows of 0.02 that are not multiplied, beside sinusoids of 1/√2."""
    sizes = {"d_model": 512, "vocab_size": 1000, "decoder_vocab_size": 1000, "pad_token_id": 999}
    layers = {
        f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in (("layers", 1), ("ffn_dim", 64))
    }
    config = transformers.MarianConfig(**sizes, **layers, decoder_start_token_id=999)
    finding = only(check(transformers.MarianMTModel(config)), "position-ratio")
    assert finding.measured == pytest.approx(0.02 * sqrt(2), rel=0.05)
    assert len(finding.sites) == 2


class Classifier(nn.Module):
    """A table, and torch's encoder, which copies one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, DEPTH)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.table(tokens)).mean(1))


def test_the_layers_of_torchs_encoder_start_as_one() -> None:
    finding = only(check(Classifier()), "cloned-layers")
    assert finding.measured == 0


class Einsum(nn.Module):
    """Keras' attention: kernels of three axes (width, heads, d_k), whose Glorot takes the width for an image's."""

    def __init__(self, right: bool) -> None:
        super().__init__()
        d_k = self.width // self.heads
        self.query, self.key, self.value = (nn.Parameter(torch.empty(self.width, self.heads, d_k)) for _ in range(3))
        self.output = nn.Parameter(torch.empty(self.heads, d_k, self.width))
        for kernel in (self.query, self.key, self.value, self.output):
            first, middle, last = kernel.shape
            fans = first + middle * last if kernel is not self.output else first * middle + last
            limit = sqrt(6 / (fans if right else first * (middle + last)))
            nn.init.uniform_(kernel, -limit, limit)

    width, heads = 512, 8

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (torch.einsum("btd,dhk->bhtk", x, kernel) for kernel in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        return torch.einsum("bhtk,hkd->btd", mixed, self.output)


class Scores(nn.Module):
    def __init__(self, right: bool) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(VOCABULARY, Einsum.width), nn.LayerNorm(Einsum.width)
        self.attention = Einsum(right)
        self.head = nn.Linear(Einsum.width, VOCABULARY, bias=False)
        nn.init.normal_(self.head.weight, std=Einsum.width**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        return self.head(x + self.attention(self.norm(x)))


def test_kernels_of_three_axes_are_drawn_as_images() -> None:
    """Keras up to 3.14: logits of standard deviation 0.03 where Glorot over the right fans gives about 1."""
    report = check(Scores(right=False))
    finding = only(report, "init-std")
    # √fan_in times the deviation √(2 / (width · (heads + d_k))) that it draws, over that of the right fans
    assert finding.measured == pytest.approx(sqrt(2 / (8 + 64)), rel=0.05)
    assert report.trace is not None
    (site,) = report.trace.attention
    assert site.softmax is not None
    assert max(site.softmax.std) == pytest.approx(0.03, rel=0.3)
    assert check(Scores(right=True)).failing == ()


def test_a_pre_norm_encoder_without_a_last_norm() -> None:
    """JoeyNMT's default: its layers are pre-norm, and the norm at the end is only made when asked for by name."""
    model = Translation(final=False, depth=6)
    for matrix in (x for x in model.encoder.parameters() if x.dim() == 2):  # JoeyNMT draws every matrix so
        nn.init.xavier_uniform_(matrix)
    finding = only(check(model), "residual-growth")
    assert finding.severity is Severity.WARNING
    assert isinstance(finding.measured, float) and finding.measured > 2
    assert all("multihead_attn" in site for site in finding.sites)
    plain = check(Translation(final=False))
    assert plain.failing == ()
    assert [one.severity for one in plain.findings if one.rule == "residual-growth"] == [Severity.NOTE]


def test_the_head_of_luke_is_declared_tied_and_is_not() -> None:
    config = transformers.LukeConfig(
        vocab_size=200, entity_vocab_size=50, hidden_size=48, entity_emb_size=16, num_hidden_layers=1,
        num_attention_heads=4, intermediate_size=64,
    )  # fmt: skip
    finding = only(check(transformers.LukeForMaskedLM(config)), "weight-tying")
    assert finding.severity is Severity.FAULT


def test_cvt_is_told_as_it_was_released() -> None:
    """It multiplies by 1/√width where others do by 1/√d_k, and was trained so."""
    config = transformers.CvtConfig(embed_dim=[16, 32, 48], num_heads=[1, 2, 4], depth=[1, 2, 3])
    report = check(transformers.CvtModel(config))
    assert report.failing == ()
    told = [one for one in report.findings if one.rule == "attention-scale"]
    assert told and {one.severity for one in told} == {Severity.DECLARED}
    assert any("released" in one.message for one in told)
    assert any(one.measured == pytest.approx(48**-0.5, rel=0.01) for one in told)
