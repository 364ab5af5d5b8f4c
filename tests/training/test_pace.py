"""Time budgets: updates that fit, and what they are expected to take."""

import torch

from surd.training.pace import Clock, Costs

COSTS = Costs(update=0.1, evaluation=2.0, final=10.0, timed=20)


def test_a_budget_is_filled_and_not_exceeded() -> None:
    steps = COSTS.updates_within(240, evaluate_every=50)
    assert COSTS.expected(steps, 50) <= 240 < COSTS.expected(steps + 60, 50)


def test_a_budget_too_small_for_anything_makes_one_update() -> None:
    assert COSTS.updates_within(1, evaluate_every=50) == 1


def test_time_left_counts_updates_and_evaluations() -> None:
    clock = Clock(before=100.0, costs=COSTS)
    clock.updates = [(0.5, 1000), (1.5, 3000)]
    assert clock.rate() == 2000
    assert clock.left(step=10, steps=20, evaluate_every=5) == 10 * 1.0 + 2 * 2.0
    assert clock.spent() >= 100


def test_measuring_moves_nothing() -> None:
    from surd.data.batch import Batch
    from surd.data.corpus import DataSettings
    from surd.models.seq2seq import Architecture, Seq2Seq
    from surd.nn.ragged import Ragged
    from surd.recipe import Recipe
    from surd.training.pace import Amount, measure

    sides = Ragged.from_lists([[4, 5, 2], [6, 2]])
    target = Ragged.from_lists([[1, 4, 5], [1, 6]])
    batch = Batch(sides, target, sides.tokens, (0, 1))
    model = Seq2Seq(Architecture(d_model=8, heads=2, d_k=4, d_ff=16, encoder_layers=1, decoder_layers=1), 9, 9)
    before = [weight.detach().clone() for weight in model.parameters()]
    amount = Amount(epoch_tokens=1000, epoch_batches=10, held_out_tokens=50, held_out_sources=5, target_length=3.0)
    recipe = Recipe(task="transduction", data=DataSettings(source="-"))
    state = torch.get_rng_state()
    costs = measure(model, recipe, [[batch]] * 5, amount)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert costs.update > 0 and costs.evaluation > 0 and costs.final > 0 and 1 <= costs.timed <= 21
