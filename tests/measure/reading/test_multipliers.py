"""What the probe reads beside attention: multipliers of rows, kinds of positions, the head, and ties."""

from collections.abc import Callable

import pytest
import torch
from measure import constructions as built
from measure.faults import D_MODEL, VOCABULARY, Attention, Language, by_argument
from torch import Tensor, nn

from surd.measure.probe import probe

CLOSE = 1e-3


class InPlace(Language):
    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        x *= self.multiplier
        return self.head(x + self.attention(x))


class Dampened(Language):
    def forward(self, tokens: Tensor) -> Tensor:
        x = built.Dampened.apply(self.table(tokens)) * self.multiplier + torch.randn(tokens.shape[1], D_MODEL)
        return self.head(x + self.attention(x))


class Flat(Language):
    """Rows one after another, without a batch axis."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens.flatten()) * self.multiplier + 0.7
        x = x.view(*tokens.shape, -1)
        return self.head(x + self.attention(x))


@pytest.mark.parametrize("kind", [Language, InPlace, Dampened, Flat])
@pytest.mark.parametrize("multiplier", [1.0, D_MODEL**0.5])
def test_the_multiplier_of_the_rows(kind: type[Language], multiplier: float) -> None:
    (embedding,) = probe(kind(Attention(), multiplier)).embeddings
    assert embedding.multiplier == pytest.approx(multiplier, rel=CLOSE)
    assert (embedding.table, embedding.rows, embedding.width) == ("table.weight", VOCABULARY, D_MODEL)


def test_rows_that_are_mixed_before_they_enter_have_no_multiplier_and_it_is_said() -> None:
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.inner = nn.Embedding(VOCABULARY, D_MODEL), nn.Linear(D_MODEL, VOCABULARY)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.table(tokens)
            return self.inner(x + 2 * x.roll(1, 1))

    trace = probe(Mixed())
    assert trace.embeddings[0].multiplier is None and trace.embeddings[0].r_squared < 0.9
    assert any(unseen.what == "table:token" for unseen in trace.unseen)


@pytest.mark.parametrize("kind", ["added", "rotary", "bias", "none"])
def test_kinds_of_positions(kind: str) -> None:
    class Added(Language):
        def __init__(self, attention: nn.Module):
            super().__init__(attention)
            self.place = nn.Embedding(20, D_MODEL)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.table(tokens) + self.place(torch.arange(tokens.shape[1]))
            return self.head(x + self.attention(x))

    models: dict[str, Callable[[], nn.Module]] = {
        "added": lambda: Added(Attention()),
        "rotary": lambda: Language(built.Rotary()),
        "bias": lambda: Language(built.Masked()),
        "none": lambda: Language(Attention(by_argument)),
    }
    assert probe(models[kind]()).positions == kind


class Ended(Language):
    """A head between two factors and a cap, tied or not to the table."""

    def __init__(self, tie: str = "none"):
        super().__init__(Attention())
        self.last = nn.LayerNorm(D_MODEL)
        if tie == "parameter":
            self.head.weight = self.table.weight
        elif tie == "storage":
            self.head.weight = nn.Parameter(self.table.weight.data)
        elif tie == "values":
            self.head.weight = nn.Parameter(self.table.weight.detach().clone())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.last(self.table(tokens) + self.attention(self.table(tokens)))
        logits = self.head(x * D_MODEL**-0.5) * 0.0625
        return 30.0 * torch.tanh(logits / 30.0)


def test_the_head_is_read_on_both_sides() -> None:
    head = probe(Ended()).head
    assert head is not None
    assert head.input_gain == pytest.approx(D_MODEL**-0.5, rel=CLOSE)
    assert head.output_gain == pytest.approx(0.0625, rel=CLOSE)
    assert head.cap == pytest.approx(30.0, rel=CLOSE)
    assert head.multiplier == pytest.approx(0.0625 * D_MODEL**-0.5, rel=CLOSE)
    assert (head.site.name, head.weight) == ("head:logits", "head.weight")


@pytest.mark.parametrize(
    ("tie", "facts"),
    [
        ("none", (False, False, False)),
        ("values", (False, False, True)),
        ("storage", (False, True, True)),
        ("parameter", (True, True, True)),
    ],
)
def test_three_facts_about_a_tie(tie: str, facts: tuple[bool, bool, bool]) -> None:
    (found,) = probe(Ended(tie)).ties
    assert (found.same_parameter, found.same_storage, found.equal_values) == facts


class Counted(Language):
    """Places are counted over what is no padding, and padding has a place of its own, as in RoBERTa and OPT."""

    def __init__(self, attention: nn.Module, padding: int) -> None:
        super().__init__(attention)
        self.places, self.padding = nn.Embedding(40, D_MODEL), padding

    def forward(self, tokens: Tensor) -> Tensor:
        real = (tokens != 1).long()
        places = real.cumsum(1) * real + self.padding
        x = self.table(tokens) * self.multiplier + self.places(places)
        return self.head(x + self.attention(x))


@pytest.mark.parametrize("padding", [0, 1, 7])
@pytest.mark.parametrize("left", [False, True])
def test_places_beside_padding_are_no_tokens(padding: int, left: bool) -> None:
    tokens = torch.randint(2, VOCABULARY, (6, 13))
    for row in range(5):
        tokens[row, slice(0, row) if left else slice(13 - row, 13)] = 1
    (table,) = probe(Counted(Attention(), padding), tokens).embeddings
    assert table.table == "table.weight"


def test_tokens_that_count_up_are_tokens() -> None:
    tokens = torch.tensor([[3, 4, 5, 6, 7, 1, 1], [3, 4, 5, 6, 7, 8, 9], [3, 4, 5, 1, 1, 1, 1]])
    (table,) = probe(Language(Attention()), tokens).embeddings
    assert table.table == "table.weight"
