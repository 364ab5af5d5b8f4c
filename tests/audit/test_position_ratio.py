"""Tokens beside positions where they are added, and the axis along which positions run."""

from math import sqrt

import pytest
import torch
import torch.nn.functional as F
import transformers
from audit.asked import asked, found, silent
from measure.faults import D_MODEL, Attention
from torch import Tensor, nn

from surd.audit.declared import Declared, Stated
from surd.audit.finding import Severity
from surd.audit.specimen import sinusoids

RATIO, AXIS = "position-ratio", "position-axis"
VOCABULARY = 97


@pytest.fixture(autouse=True)
def seeded() -> None:
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)


class Added(nn.Module):
    """Post-norm, with whatever positions it is given; `width` may be large, as ratios are told by it."""

    def __init__(self, places: Tensor, factor: float, std: float, width: int = D_MODEL, learned: bool = False):
        super().__init__()
        self.table, self.factor = nn.Embedding(VOCABULARY, width), factor
        nn.init.normal_(self.table.weight, std=std)
        self.places = nn.Parameter(places.clone()) if learned else None
        self.register_buffer("fixed", places)
        self.layer = nn.TransformerEncoderLayer(width, 4, 64, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        places = self.fixed if self.places is None else self.places
        return self.layer(self.table(tokens) * self.factor + places[: tokens.shape[1]])


class Looked(nn.Module):
    """GPT's way: positions are looked up, a norm stands before attention."""

    def __init__(self, places_std: float, std: float = 0.02, ids: str = "range"):
        super().__init__()
        self.table, self.places, self.ids = nn.Embedding(VOCABULARY, D_MODEL), nn.Embedding(32, D_MODEL), ids
        nn.init.normal_(self.table.weight, std=std)
        nn.init.normal_(self.places.weight, std=places_std)
        self.norm, self.attention = nn.LayerNorm(D_MODEL), Attention()

    def forward(self, tokens: Tensor) -> Tensor:
        ids = torch.arange(tokens.shape[1])
        x = self.table(tokens) + self.places(ids if self.ids == "range" else ids * 0)
        return (x + self.attention(self.norm(x))) @ self.table.weight.T


@pytest.mark.parametrize("width", [64, 512])
def test_sinusoids_drown_rows_without_the_root(width):
    finding = found(Added(sinusoids(64, width), 1.0, width**-0.5, width), RATIO)
    assert finding.severity is Severity.WARNING
    assert finding.measured == pytest.approx(sqrt(2 / width), rel=0.05)
    assert f"√{width}" in finding.mend
    silent(Added(sinusoids(64, width), sqrt(width), width**-0.5, width), RATIO)


def test_marian_from_scratch():
    """std 0.02, no factor, and sinusoids: its published configuration sets `scale_embedding`."""
    sizes = {"vocab_size": VOCABULARY, "d_model": 48, "encoder_layers": 1, "decoder_layers": 1, "pad_token_id": 0}
    sizes |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    sizes |= {"decoder_start_token_id": 0, "eos_token_id": 1, "forced_eos_token_id": None}
    model = transformers.MarianMTModel(transformers.MarianConfig(**sizes))
    assert found(model, RATIO).measured == pytest.approx(0.02 * sqrt(2), rel=0.05)
    silent(transformers.MarianMTModel(transformers.MarianConfig(**sizes, scale_embedding=True)), RATIO)


def test_features_times_the_root():
    """Features of unit size times √512 beside sinusoids."""

    class Speech(nn.Module):
        def __init__(self, factor: float):
            super().__init__()
            self.encode, self.factor = nn.Linear(80, 512), factor
            nn.init.normal_(self.encode.weight, std=80**-0.5)
            self.layer = nn.TransformerEncoderLayer(512, 4, 64, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.encode(x) * self.factor + sinusoids(x.shape[1], 512))

    inputs = (torch.randn(4, 13, 80),)
    assert found(Speech(sqrt(512)), RATIO, inputs=inputs).measured == pytest.approx(32, rel=0.05)
    silent(Speech(1.0), RATIO, inputs=inputs)


@pytest.mark.parametrize("learned", [False, True])
def test_positions_too_faint(learned):
    """Positions are divided by √d."""
    places = torch.randn(32, 256) * 256**-0.5
    finding = found(Added(places, 1.0, 1.0, 256, learned), RATIO)
    assert finding.measured == pytest.approx(16, rel=0.05)
    silent(Added(torch.randn(32, 256), 1.0, 1.0, 256, learned), RATIO)


def test_positions_at_zero():
    """Parameters or a table that start at zero: one token is the same everywhere."""
    for model in (Added(torch.zeros(32, D_MODEL), 1.0, 0.02, learned=True), Looked(0.0)):
        assert found(model, RATIO).measured == float("inf")
        finding = found(model, AXIS)
        assert finding.measured == 0.0
        report = asked(model, RATIO, AXIS)
        assert [one.rule for one in report.failing] == [RATIO]
        assert [one.rule for one in report.failing[0].consequences] == [AXIS]


def test_ratios_that_are_published():
    """GPT-2's 2, both at 0.02, mBART's learned positions of ten times the tokens; a range alone is a note."""
    silent(Looked(0.01), RATIO)
    silent(Looked(0.02), RATIO)
    report = silent(Looked(0.2), RATIO)
    assert [one.severity for one in report.findings] == [Severity.NOTE]
    assert found(Looked(1.0), RATIO).measured == pytest.approx(0.02, rel=0.05)


def test_half_the_positions_is_in_range():
    """Positions of 0.02 beside tokens of 0.02, where the original has 0.01, is a ratio of 1 for 2: both are sound."""
    ratios = [asked(Looked(std), RATIO).trace.embeddings[0].signal_ratio for std in (0.02, 0.01)]
    assert ratios == [pytest.approx(1.0, rel=0.05), pytest.approx(2.0, rel=0.05)]


class ByRow(nn.Module):
    """A table for (length, batch) added to (batch, length)."""

    def __init__(self, places: Tensor):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, D_MODEL)
        self.register_buffer("places", places)
        self.layer = nn.TransformerEncoderLayer(D_MODEL, 4, 64, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        return self.layer(x + self.places[: x.size(0)])


class Square(nn.Module):
    """The batch is as large as the longest text, and so the wrong axis fits."""

    def __init__(self):
        super().__init__()
        self.table, self.places = nn.Embedding(VOCABULARY, D_MODEL), nn.Embedding(6, D_MODEL)
        self.layer = nn.TransformerEncoderLayer(D_MODEL, 4, 64, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(self.table(tokens) + self.places(torch.arange(tokens.shape[0]))[:, None])


def test_positions_along_the_batch():
    for model, inputs in ((ByRow(sinusoids(64, D_MODEL)[:, None]), None), (Square(), (torch.randint(97, (6, 6)),))):
        finding = found(model, AXIS, inputs=inputs)
        assert finding.severity is Severity.FAULT and finding.measured > 0.05
    silent(Looked(0.01), AXIS)


def test_one_row_of_positions_for_all_places():
    assert found(Looked(0.01, ids="zero"), AXIS).measured == 0.0
    silent(Looked(0.01), AXIS)


class Without(nn.Module):
    """Causal, and without positions: the mask tells places apart."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, D_MODEL)
        self.packed = nn.Linear(D_MODEL, 3 * D_MODEL)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        q, k, v = self.packed(F.layer_norm(x, (D_MODEL,))).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        return x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def test_positions_that_are_declared_and_absent():
    silent(Without(), AXIS)
    declared = Declared(positions=Stated("added", "config.position_embedding_type"))
    assert found(Without(), AXIS, declared=declared).measured == 0.0


def test_a_batch_behind_the_length_is_no_fault():
    """Sequence first: the first axis is the text."""

    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(VOCABULARY, D_MODEL)
            self.layer = nn.TransformerEncoderLayer(D_MODEL, 4, 64)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.table(tokens) + sinusoids(64, D_MODEL)[: tokens.shape[0], None]
            return self.layer(x)

    assert asked(First(), AXIS, inputs=(torch.randint(97, (13, 6)),)).clean


class TimeFirst(nn.Module):
    """Tokens of (length, batch), causal along the first axis, where the positions stand too."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(97, 32), nn.Embedding(32, 32)
        self.layer = nn.TransformerEncoderLayer(32, 2, 64, 0.0)
        self.head = nn.Linear(32, 97)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[0]
        x = self.table(tokens) + self.places(torch.arange(length))[:, None]
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        return self.head(self.layer(x, src_mask=hidden))


def test_positions_along_the_first_axis_of_a_model_that_has_time_there() -> None:
    report = asked(TimeFirst(), "position-axis", inputs=(torch.randint(97, (9, 4)),))
    assert report.failing == () and "first axis" in report.skipped[0].reason
