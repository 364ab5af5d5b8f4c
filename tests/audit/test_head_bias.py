"""A bias of the head is one that is only added behind its product; many vectors are as long as the vocabulary."""

import pytest
import torch
import transformers
from audit.asked import asked, found, silent
from audit.languages import VOCABULARY, Modules
from torch import nn

from surd.audit.specimen import WIDTH, LanguageModel, language_model

CHARACTERS = (torch.randint(WIDTH, (4, 16), generator=torch.Generator().manual_seed(2)),)
TOKENS = (torch.randint(4, VOCABULARY, (6, 13), generator=torch.Generator().manual_seed(2)),)


@pytest.fixture(autouse=True)
def seeded() -> None:
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)


def characters(kind: type[LanguageModel], rows: int) -> nn.Module:
    """As many characters as the model is wide, or as its inner layer is."""
    model = language_model()
    model.table = nn.Embedding(rows, WIDTH)
    nn.init.normal_(model.table.weight, std=0.02)
    model.head = nn.Linear(WIDTH, rows, bias=False)
    model.head.weight, model.head.bias = model.table.weight, nn.Parameter(torch.zeros(rows))
    model.__class__ = kind
    return model


class Twice(LanguageModel):
    def logits(self, hidden):
        return self.head(hidden) + self.head.bias


class Probable(Twice):
    """Twice, and out come logarithms of probabilities."""

    def logits(self, hidden):
        return super().logits(hidden).log_softmax(-1)


class Never(LanguageModel):
    def logits(self, hidden):
        return hidden @ self.head.weight.T


@pytest.mark.parametrize("rows", [WIDTH, 4 * WIDTH])
def test_other_vectors_of_that_length_are_no_bias_of_the_head(rows) -> None:
    silent(characters(LanguageModel, rows), "head-bias", inputs=CHARACTERS)
    for kind, factor in ((Twice, 2), (Probable, 2), (Never, 0)):
        finding = found(characters(kind, rows), "head-bias", inputs=CHARACTERS)
        assert (finding.site, finding.measured) == ("head.bias", pytest.approx(factor, abs=1e-3)), kind


def test_unchanged_models_of_bytes() -> None:
    config = transformers.GPT2Config(vocab_size=256, n_embd=64, n_layer=2, n_head=4, n_positions=64)
    report = asked(transformers.GPT2LMHeadModel(config), "head-bias")
    assert report.failing == () and "head" in report.skipped[0].reason


class Sized(Modules):
    """nGPT: a learned scale for each logit."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(VOCABULARY))

    def logits(self, hidden):
        return self.head(hidden) * self.scale


class Copying(Modules):
    """Pointer-generator: logarithms of a mixture, behind which no addend has a derivative of 1."""

    def __init__(self) -> None:
        super().__init__(bias=True)
        self.gate = nn.Linear(self.head.in_features, 1)

    def forward(self, tokens):
        hidden = self.hidden(tokens)
        share = self.gate(hidden).sigmoid()
        copied = torch.zeros(*tokens.shape, VOCABULARY).scatter(-1, tokens[..., None], 1.0)
        return (share * self.head(hidden).softmax(-1) + (1 - share) * copied + 1e-9).log()


@pytest.mark.parametrize("kind", [Sized, Copying])
def test_a_vector_that_multiplies_or_is_mixed_is_none_that_is_added(kind) -> None:
    assert asked(kind(), "head-bias", inputs=TOKENS).failing == ()
