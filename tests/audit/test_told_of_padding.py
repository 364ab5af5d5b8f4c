"""Padding as people tell a model of it, and what becomes of it: seen, turned over, pooled with the rest."""

import pytest
import torch
from audit.asked import asked, found, silent
from measure.faults import D_MODEL, HEADS
from torch import Tensor, nn

from surd.audit.finding import Severity

LENGTH = 13
LENGTHS = (13, 8, 11, 6)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


class Encoder(nn.Module):
    """Two layers of torch's attention, whose `hides` makes what each is given of padding."""

    def __init__(self, hides=lambda pads, layer: {"key_padding_mask": pads}) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True) for _ in range(2))
        self.norms, self.hides = nn.ModuleList(nn.LayerNorm(D_MODEL) for _ in range(3)), hides

    def forward(self, x: Tensor, pads: Tensor) -> Tensor:
        for number, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=False)):
            y = norm(x)
            x = x + layer(y, y, y, need_weights=False, **self.hides(pads, number))[0]
        return self.norms[2](x)


class Read(nn.Module):
    """Ids and a mask of ones at real ones, to a vector for each position or one for the row."""

    def __init__(self, encoder: Encoder, pool=lambda x, real: x) -> None:
        super().__init__()
        self.table, self.encoder, self.pool = nn.Embedding(97, D_MODEL, padding_idx=0), encoder, pool
        self.head = nn.Linear(D_MODEL, 5)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.encoder(self.table(input_ids), attention_mask == 0)
        return self.head(self.pool(x, attention_mask[..., None].float()))


class Heard(nn.Module):
    """Sound and how long each row of it is."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.enters, self.encoder = nn.Linear(20, D_MODEL), encoder

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        return self.encoder(self.enters(features), torch.arange(features.shape[1]) >= lengths[:, None])


class Observed(Encoder):
    """A series and what of it was observed, hidden by a number that is added."""

    def __init__(self, fill: float) -> None:
        super().__init__(lambda pads, layer: {"attn_mask": self.added(pads)})
        self.enters, self.fill = nn.Linear(3, D_MODEL), fill

    def added(self, observed: Tensor) -> Tensor:
        rows, length = observed.shape
        hidden = (1 - observed)[:, None, None, :].expand(rows, HEADS, length, length)
        return (hidden * self.fill).flatten(0, 1)

    def forward(self, series: Tensor, observed: Tensor) -> Tensor:
        return super().forward(self.enters(series), observed)


def masked() -> dict[str, Tensor]:
    real = torch.arange(LENGTH) < torch.tensor(LENGTHS)[:, None]
    return {"input_ids": torch.randint(1, 97, real.shape) * real, "attention_mask": real.long()}


def sounding() -> dict[str, Tensor]:
    return {"features": torch.randn(4, LENGTH, 20), "lengths": torch.tensor(LENGTHS)}


def lost(pads: Tensor, layer: int) -> dict[str, Tensor]:
    return {}


def turned(pads: Tensor, layer: int) -> dict[str, Tensor]:
    return {"key_padding_mask": ~pads}


def queries(pads: Tensor, layer: int) -> dict[str, Tensor]:
    whole = pads[:, :, None].expand(-1, -1, pads.shape[1]) & ~torch.eye(pads.shape[1], dtype=torch.bool)
    return {"attn_mask": whole.repeat_interleave(HEADS, 0)}


def tiled(pads: Tensor, layer: int) -> dict[str, Tensor]:
    return {"attn_mask": pads[:, None].expand(-1, pads.shape[1], -1).repeat(HEADS, 1, 1)}


def each(pads: Tensor, layer: int) -> dict[str, Tensor]:
    return {"attn_mask": pads[:, None].expand(-1, pads.shape[1], -1).repeat_interleave(HEADS, 0)}


def first(pads: Tensor, layer: int) -> dict[str, Tensor]:
    return {} if layer else {"key_padding_mask": pads}


WRONG = [lost, turned, queries, tiled, first]


@pytest.mark.parametrize("hides", WRONG)
def test_a_mask_that_is_given_with_padding(hides):
    assert found(Read(Encoder(hides)), "mask-leak", inputs=masked()).severity is Severity.FAULT


@pytest.mark.parametrize("hides", WRONG)
def test_lengths_tell_of_padding(hides):
    assert found(Heard(Encoder(hides)), "mask-leak", inputs=sounding()).severity is Severity.FAULT


@pytest.mark.parametrize("encoder", [Encoder(), Encoder(each)])
@pytest.mark.parametrize("rule", ["mask-leak", "empty-rows", "causality"])
def test_right_masks(encoder, rule):
    silent(Read(encoder), rule, inputs=masked())
    assert rule in silent(Heard(encoder), rule, inputs=sounding()).passed or rule == "causality"


def test_lengths_of_which_one_alone_is_the_longest():
    """The forward cuts to the longest row."""

    class Cut(Heard):
        def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
            return super().forward(features[:, : int(lengths.max())], lengths)

    assert "mask-leak" in silent(Cut(Encoder()), "mask-leak", inputs=sounding()).passed
    assert "lengths changes nothing" in found(Cut(Encoder(lost)), "mask-leak", inputs=sounding()).message


def test_a_mask_that_is_turned_over_shows_padding_alone():
    finding = found(Read(Encoder(turned)), "mask-leak", inputs=masked())
    assert finding.measured == pytest.approx(1) and "turned over" in finding.message and "True" in finding.mend


def test_ids_of_which_the_mask_is_turned_over():
    class ByIds(Read):
        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.encoder(self.table(tokens), tokens == 0))

    tokens = (masked()["input_ids"],)
    assert "turned over" in found(ByIds(Encoder(turned)), "mask-leak", inputs=tokens).message
    silent(ByIds(Encoder()), "mask-leak", inputs=tokens)


def first_of(x: Tensor, real: Tensor) -> Tensor:
    return x[:, 0]


def mean_of_real(x: Tensor, real: Tensor) -> Tensor:
    return (x * real).sum(1) / real.sum(1).clamp(min=1)


def last_of(x: Tensor, real: Tensor) -> Tensor:
    return x[:, -1]


@pytest.mark.parametrize("pool", [first_of, mean_of_real, last_of])
def test_padding_that_reaches_one_output_for_the_row(pool):
    finding = found(Read(Encoder(lost), pool), "mask-leak", inputs=masked())
    assert finding.measured == pytest.approx(4 / LENGTH, rel=0.1) and "of the padded row" in finding.message
    assert silent(Read(Encoder(), pool), "mask-leak", inputs=masked()).findings == ()


def test_a_mean_over_padding_is_noted():
    report = asked(Read(Encoder(), lambda x, real: x.mean(1)), "mask-leak", inputs=masked())
    assert [one.severity for one in report.findings] == [Severity.NOTE] and report.findings[0].measured > 1e-3


@pytest.mark.parametrize("fill, rule", [(-1e-9, "mask-leak"), (-5.0, "mask-leak"), (-1e9, None)])
def test_ones_and_zeros_mark_what_was_observed(fill, rule):
    given = {"series": torch.randn(4, LENGTH, 3), "observed": masked()["attention_mask"].float()}
    report = asked(Observed(fill), "mask-leak", "mask-fill", inputs=given)
    assert [one.rule for one in report.failing] == ([rule] if rule else []) and "mask-fill" in report.passed


@pytest.mark.parametrize("padded", [False, True])
def test_a_mask_of_ones_is_not_added(padded):
    """As in the Decision Transformer, whose time steps are no tokens of a decoder."""

    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.times, self.enters, self.q = (
                nn.Embedding(40, D_MODEL),
                nn.Linear(3, D_MODEL),
                nn.Linear(D_MODEL, 3 * D_MODEL),
            )

        def forward(self, states: Tensor, timesteps: Tensor, attention_mask: Tensor) -> Tensor:
            q, k, v = self.q(self.enters(states) + self.times(timesteps)).chunk(3, -1)
            scores = q @ k.mT / D_MODEL**0.5 + (1 - attention_mask[:, None]) * -1e4
            future = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
            return scores.masked_fill(future, -1e4).softmax(-1) @ v

    real = masked()["attention_mask"].float().flip(1) if padded else torch.ones(4, LENGTH)
    given = {
        "states": torch.randn(4, LENGTH, 3),
        "timesteps": torch.arange(LENGTH).repeat(4, 1),
        "attention_mask": real,
    }
    report = asked(Steps(), "empty-rows", "mask-leak", inputs=given)
    assert report.findings == () and len(report.passed) == 2, str(report)
