"""Further heads that begin as copies of the head stand beside each other; layers that were copied stand in a row."""

import copy

import torch
from audit.asked import asked, found
from torch import nn

from surd.audit.specimen import LanguageModel, language_model

RULE = "cloned-layers"


class Ahead(LanguageModel):
    """Medusa: heads for the tokens after the next one, each behind a layer that starts as nothing."""

    def logits(self, hidden):
        return torch.stack([self.head(hidden), *(head(hidden + layer(hidden)) for layer, head in self.further)])


def ahead() -> nn.Module:
    model = language_model()
    model.further = nn.ModuleList(
        nn.ModuleList([nn.Linear(model.head.in_features, model.head.in_features), copy.deepcopy(model.head)])
        for _ in range(3)
    )
    for layer, _ in model.further:
        nn.init.zeros_(layer.weight)
    model.__class__ = Ahead
    return model


def test_heads_that_begin_as_the_head() -> None:
    assert asked(ahead(), RULE).failing == ()


def test_a_layer_that_is_kept_beside_its_copies() -> None:
    """As torch's own encoder is handed one, and takes copies of it."""
    model = language_model()
    model.layer = model.blocks[0]
    model.blocks = nn.ModuleList(copy.deepcopy(model.layer) for _ in range(2))
    assert found(model, RULE).site == "blocks.0.attention.query.weight"
    both = ahead()
    both.blocks = nn.ModuleList(copy.deepcopy(both.blocks[0]) for _ in range(2))
    assert found(both, RULE).site.startswith("blocks.0")
