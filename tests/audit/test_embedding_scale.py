"""What rows of a table are multiplied by before they enter, in the ways that people write it and get it wrong."""

from math import sqrt

import pytest
import torch
import torch.nn.functional as F
import transformers
from audit.asked import asked, found, silent
from measure.faults import D_MODEL, Attention, Language
from torch import Tensor, nn

from surd.audit.declared import Declared, Stated
from surd.audit.finding import Severity
from surd.audit.specimen import sinusoids

RULE = "embedding-scale"
ROOT = sqrt(D_MODEL)
VOCABULARY = 97
TOKENS = (torch.randint(VOCABULARY, (6, 13), generator=torch.Generator().manual_seed(0)),)


@pytest.fixture(autouse=True)
def seeded() -> None:
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)


class Positional(nn.Module):
    """Sinusoids; the factor may stand here."""

    def __init__(self, factor: float = 1.0):
        super().__init__()
        self.factor, self.dropout = factor, nn.Dropout(0.1)
        self.register_buffer("places", sinusoids(64, D_MODEL))

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x * self.factor + self.places[: x.shape[1]])


class Translation(nn.Module):
    """Rows, a factor, positions, a layer of torch's, a head."""

    def __init__(self, outside: float, inside: float = 1.0, std: float = D_MODEL**-0.5, positions: bool = True):
        super().__init__()
        self.table, self.outside = nn.Embedding(VOCABULARY, D_MODEL), outside
        nn.init.normal_(self.table.weight, std=std)
        self.positions = Positional(inside) if positions else nn.Identity()
        self.layer = nn.TransformerEncoderLayer(D_MODEL, 4, 64, batch_first=True)
        self.head = nn.Linear(D_MODEL, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.positions(self.table(tokens) * self.outside)))


class Flat(nn.Module):
    """Functions and raw parameters."""

    def __init__(self, factor: float, std: float = D_MODEL**-0.5):
        super().__init__()
        self.factor = factor
        self.table = nn.Parameter(torch.randn(VOCABULARY, D_MODEL) * std)
        self.places = nn.Parameter(torch.randn(13, D_MODEL) * 0.5)
        self.packed = nn.Parameter(torch.randn(3 * D_MODEL, D_MODEL) * D_MODEL**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.embedding(tokens, self.table).mul(self.factor) + self.places
        q, k, v = F.linear(x, self.packed).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        return (x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)) @ self.table.T


STYLES = (Translation, Flat)


@pytest.mark.parametrize("style", STYLES)
def test_applied_twice(style):
    finding = found(style(D_MODEL), RULE, inputs=TOKENS)
    assert finding.severity is Severity.FAULT and "twice" in finding.message
    assert finding.measured == pytest.approx(D_MODEL, rel=1e-3) and finding.expected == pytest.approx(ROOT)
    silent(style(ROOT), RULE, inputs=TOKENS)


def test_applied_in_two_places():
    """Outside, and again in the module of the positions."""
    finding = found(Translation(ROOT, ROOT), RULE)
    assert finding.measured == pytest.approx(D_MODEL, rel=1e-3)


def test_in_the_module_of_the_positions():
    silent(Translation(1.0, ROOT), RULE)
    assert asked(Translation(1.0, ROOT), RULE).trace.embeddings[0].multiplier == pytest.approx(ROOT, rel=1e-4)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("factor", "named"), [(1 / ROOT, "divides"), (sqrt(VOCABULARY), "vocabulary"), (3.7, "no declared")]
)
def test_another_number(style, factor, named):
    finding = found(style(factor), RULE, inputs=TOKENS)
    assert finding.measured == pytest.approx(factor, rel=1e-3) and named in finding.message
    declared = Declared(embedding=Stated(factor, "config.embedding_multiplier"))
    assert asked(style(factor), RULE, inputs=TOKENS, declared=declared).findings[0].severity is Severity.DECLARED


@pytest.mark.parametrize("style", STYLES)
def test_lost(style):
    """What a resize, an adapter, or a switch for the positions leaves out."""
    declared = Declared(embedding=Stated(ROOT, "config.scale_embedding"))
    finding = found(style(1.0), RULE, inputs=TOKENS, declared=declared)
    assert finding.measured == pytest.approx(1.0) and "missing" in finding.message
    silent(style(ROOT), RULE, inputs=TOKENS, declared=declared)


def test_lost_with_the_positions():
    declared = Declared(embedding=Stated(ROOT, "the options of the training"))
    model = Translation(1.0, ROOT)
    silent(model, RULE, declared=declared)
    model.positions = nn.Identity()
    assert found(model, RULE, declared=declared).measured == pytest.approx(1.0)


def gemma() -> nn.Module:
    config = transformers.Gemma3TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=D_MODEL,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        intermediate_size=64,
        pad_token_id=0,
    )
    return transformers.Gemma3ForCausalLM(config)


def test_lost_in_a_released_model():
    """The class that multiplies is replaced by one that does not, and an adapter looks rows up by function."""
    declared = Declared(embedding=Stated(ROOT, "Gemma's code"))
    silent(gemma(), RULE, declared=declared)
    resized = gemma()
    resized.model.embed_tokens = nn.Embedding.from_pretrained(resized.model.embed_tokens.weight.detach(), freeze=False)
    assert found(resized, RULE, declared=declared).measured == pytest.approx(1.0)

    class Adapter(nn.Module):
        def __init__(self, base: nn.Embedding):
            super().__init__()
            self.base = base

        def forward(self, tokens: Tensor) -> Tensor:
            return F.embedding(tokens, self.base.weight)

    adapted = gemma()
    adapted.model.embed_tokens = Adapter(adapted.model.embed_tokens)
    finding = found(adapted, RULE, declared=declared)
    assert finding.measured / finding.expected == pytest.approx(1 / ROOT)


class TwoPaths(nn.Module):
    """Takes ids or their vectors; `again` scales vectors that have been scaled."""

    def __init__(self, again: float):
        super().__init__()
        self.inner, self.again = Translation(1.0), again
        self.inner.table = Scaled(VOCABULARY, D_MODEL)

    def forward(self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None) -> Tensor:
        x = self.inner.table(input_ids) if inputs_embeds is None else inputs_embeds * self.again
        return self.inner.head(self.inner.layer(self.inner.positions(x)))


class Scaled(nn.Embedding):
    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.embedding_dim**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) * self.embedding_dim**0.5


def test_vectors_are_scaled_again():
    inputs = {"input_ids": TOKENS[0]}
    finding = found(TwoPaths(ROOT), RULE, inputs=inputs)
    assert finding.measured == pytest.approx(ROOT) and finding.expected == 1.0
    silent(TwoPaths(1.0), RULE, inputs=inputs)


def test_unit_rows_times_the_root():
    """torch's N(0, 1) and the paper's factor: each is right without the other."""
    for model in (Translation(ROOT, std=1.0), Flat(ROOT, std=1.0)):
        finding = found(model, RULE, inputs=TOKENS)
        assert finding.severity is Severity.WARNING
        assert finding.measured == pytest.approx(ROOT, rel=0.05)
    silent(Translation(1.0, std=1.0), RULE)
    silent(Translation(ROOT), RULE)


class Forecast(nn.Module):
    """Numbers, a layer, a factor, sinusoids, torch's layer."""

    def __init__(self, features: int, factor: float):
        super().__init__()
        self.encode, self.factor = nn.Linear(features, D_MODEL), factor
        self.places = Positional()
        self.layer = nn.TransformerEncoderLayer(D_MODEL, 4, 64, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.places(self.encode(x) * self.factor))


class FlatForecast(nn.Module):
    def __init__(self, features: int, factor: float):
        super().__init__()
        self.weight, self.factor = nn.Parameter(torch.randn(features, D_MODEL) * features**-0.5), factor
        self.layer = nn.TransformerEncoderLayer(D_MODEL, 4, 64, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.factor * (x @ self.weight) + sinusoids(x.shape[1], D_MODEL))


@pytest.mark.parametrize("style", [Forecast, FlatForecast])
def test_root_of_the_features(style):
    inputs = (torch.randn(6, 13, 10),)
    finding = found(style(10, sqrt(10)), RULE, inputs=inputs)
    assert finding.severity is Severity.FAULT and finding.expected == 1.0
    assert finding.measured == pytest.approx(sqrt(10), rel=1e-3)
    silent(style(10, 1.0), RULE, inputs=inputs)


class Dampened(nn.Module):
    """A tenth of the gradient reaches the table, and all of the rows the model."""

    def __init__(self):
        super().__init__()
        self.inner = Language(Attention())

    def forward(self, tokens: Tensor) -> Tensor:
        rows = self.inner.table(tokens)
        x = rows * 0.1 + rows.detach() * 0.9
        return self.inner.head(x + self.inner.attention(self.inner.norm(x)))


def test_what_looks_wrong_and_is_right():
    silent(Dampened(), RULE)
    for factor in (1.0, ROOT):
        silent(Language(Attention(), factor), RULE, trained=True)
    silent(Language(Attention()), RULE)
