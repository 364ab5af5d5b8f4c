"""A model that has learned for a while is none that was just drawn, and a drawn one has not learned."""

import pytest
import torch
import torch.nn.functional as F
from audit.asked import asked
from torch import nn

from surd.audit.specimen import VOCABULARY, language_model
from surd.measure.drawn import has_learned, is_drawn


def learned(steps: int) -> nn.Module:
    """A few updates on next tokens, as short as matrices still look drawn."""
    torch.manual_seed(0)
    model = language_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        tokens = torch.randint(VOCABULARY // 4, (4, 16))
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def told(model: nn.Module) -> tuple[bool, bool]:
    parameters = [x.detach() for x in model.parameters()]
    return has_learned(parameters), is_drawn(x for x in parameters if x.dim() == 2)


def test_gains_tell_what_matrices_do_not_tell_yet() -> None:
    assert told(learned(0)) == (False, True)
    assert told(learned(8)) == (True, True)


def test_a_check_asks_both_and_no_table_stands_out_yet() -> None:
    report = asked(learned(8), "initial-loss", "weight-tying", trained=None)
    assert report.trained and report.failing == (), str(report)
    assert not asked(learned(0), "initial-loss", trained=None).trained


@pytest.mark.parametrize("draw", [lambda x: nn.init.normal_(x, 0, 0.02), nn.init.ones_, nn.init.zeros_])
def test_gains_that_were_drawn_or_filled_have_not_learned(draw) -> None:
    assert not has_learned([draw(torch.empty(32)) for _ in range(4)])


def test_one_vector_between_zero_and_two_is_no_training() -> None:
    assert not has_learned([torch.linspace(0.5, 1.5, 32), torch.ones(32), torch.ones(32)])
    assert not has_learned([torch.linspace(0.5, 1.5, 32)])
