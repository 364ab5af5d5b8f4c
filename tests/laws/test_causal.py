"""The decoder never looks ahead, always looks back, and sees all of its own source and nothing of another."""

import pytest
import torch
from parity.small import pairs, sentences, small_model
from torch import Tensor

from surd.models.seq2seq import Seq2Seq
from surd.nn.norm import NormOrder

SOURCE, TARGET = (4, 6), (7, 5)
CHANGED = 3
"""The target position whose token is changed: position 0 reads BOS."""


def hidden(model: Seq2Seq, sources: list[list[int]], targets: list[list[int]]) -> tuple[Tensor, ...]:
    source, target, _ = pairs(sources, targets)
    return model(source, target).split(target.lengths)


@pytest.fixture(params=list(NormOrder))
def model(request: pytest.FixtureRequest) -> Seq2Seq:
    return small_model(norm_order=request.param)


def test_a_later_token_changes_nothing_before_it(model: Seq2Seq) -> None:
    sources, targets = sentences(SOURCE), sentences(TARGET)
    before = hidden(model, sources, targets)
    targets[0][CHANGED - 1] = 4 + (targets[0][CHANGED - 1] - 3) % 30
    after = hidden(model, sources, targets)
    assert torch.equal(before[0][:CHANGED], after[0][:CHANGED])
    assert torch.equal(before[1], after[1])
    moved = (before[0][CHANGED:] - after[0][CHANGED:]).abs().amax(1)
    assert (moved > 1e-9).all(), "the token itself and every later position must notice"


def test_gradients_do_not_come_from_the_future(model: Seq2Seq) -> None:
    """The table row of a token that is read once gets a gradient from its position on, none from before."""
    targets = [[4, 5, 6, 7, 8, 9], [10, 11]]
    sources = [[20, 21], [22]]
    model_rows = model.target.table
    source, target, _ = pairs(sources, targets)
    states = model(source, target)
    (gradient,) = torch.autograd.grad(states[2].square().sum(), model_rows, retain_graph=True)
    read = gradient.abs().sum(1) > 0
    assert read[targets[0][0]] and read[targets[0][1]]
    assert not read[targets[0][2:] + targets[1]].any()


def test_every_source_token_reaches_every_target_position(model: Seq2Seq) -> None:
    for position in range(SOURCE[0]):
        torch.manual_seed(1)
        sources, targets = sentences(SOURCE), sentences(TARGET)
        before = hidden(model, sources, targets)
        sources[0][position] = 4 + (sources[0][position] - 3) % 30
        after = hidden(model, sources, targets)
        assert ((before[0] - after[0]).abs().amax(1) > 1e-9).all()
        assert torch.equal(before[1], after[1])


def test_the_order_of_source_tokens_matters(model: Seq2Seq) -> None:
    sources, targets = [[5, 9, 12, 7]], sentences((4,))
    before = hidden(model, sources, targets)[0]
    assert (before - hidden(model, [[9, 5, 12, 7]], targets)[0]).abs().max() > 1e-6
