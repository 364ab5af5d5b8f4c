"""A watched training is the same training to the bit, and tells what happens in it."""

import copy
import io
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from measure.learner import Learner, batches, loss_of
from torch import Tensor, nn

from surd.data.batch import Batch
from surd.errors import SurdError
from surd.measure.watch import Watch, watch
from surd.measure.watching.vitals import Alarm, Vitals
from surd.models.seq2seq import Architecture, Seq2Seq
from surd.nn.ragged import Ragged
from surd.training.step import train_step


def silent(alarm: Alarm) -> None:
    """For alarms that are looked at afterwards."""


def train(
    model: nn.Module,
    steps: int,
    *,
    every: int | None = None,
    rate: float = 3e-3,
    optimizer: torch.optim.Optimizer | None = None,
    called: Callable[[Tensor], Tensor] | None = None,
    before: Callable[[int], object] = lambda step: None,
) -> tuple[list[float], list[Vitals]]:
    """Losses, and vitals where they were told; `before` is called with the number of the coming step."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=rate)
    losses, told = [], []
    looking = watch(model if called is None else called, optimizer, every=every, tell=silent) if every else None
    for step, tokens in enumerate(batches(steps), 1):
        before(step)
        loss = loss_of(model if called is None else called, tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if looking is not None and (vitals := looking.step(loss)) is not None:
            told.append(vitals)
    if looking is not None:
        looking.close()
    return losses, told


# Nothing changes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [True, False])
def test_losses_and_weights_are_the_same_to_the_bit(fused: bool) -> None:
    model = Learner(dropout=0.2, fused=fused)
    twin = copy.deepcopy(model)
    torch.manual_seed(2)
    plain, _ = train(model, 12)
    draw = torch.rand(4)
    torch.manual_seed(2)
    watched, told = train(twin, 12, every=2)
    assert watched == plain
    assert torch.equal(torch.rand(4), draw)
    assert all(map(torch.equal, model.state_dict().values(), twin.state_dict().values()))
    assert [vitals.step for vitals in told] == [1, 2, 4, 6, 8, 10, 12]
    assert all(vitals.attention and vitals.stream and vitals.updates for vitals in told)


def test_our_own_training_is_the_same_to_the_bit() -> None:
    small = {"d_model": 48, "heads": 4, "d_k": 12, "d_ff": 64, "encoder_layers": 2, "decoder_layers": 2}
    sentence = Ragged.from_lists([list(range(4, 20)), list(range(4, 14))])
    batch = Batch(source=sentence, target=sentence, labels=sentence.tokens, numbers=(0, 1))
    results = []
    for every in (None, 1):
        torch.manual_seed(3)
        model = Seq2Seq(Architecture(**small, dropout=0.2), 50, 50)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        looking = watch(model, optimizer, every=every) if every else None
        losses, told = [], []
        for _ in range(3):
            result = train_step(model, [batch, batch], optimizer, 1.0, 0.1)
            losses.append(result.loss)
            told.append(looking.step(result.loss) if looking else None)
        results.append((losses, list(model.state_dict().values())))
    (plain, weights), (watched, same) = results
    assert watched == plain and all(map(torch.equal, weights, same))
    for vitals in told:
        assert vitals is not None and len(vitals.attention) == 6 and not vitals.unseen and not vitals.alarms
        assert vitals.gradient_norm is not None and vitals.gradient_norm <= 1.0 + 1e-5
        assert [tie.parameters for tie in vitals.ties] == [1] and len(vitals.ties[0].names) == 3


def test_an_unobserved_step_has_no_mode_and_an_observed_one_has_one() -> None:
    model, stacks = Learner(), []
    model.norm.register_forward_hook(lambda *_: stacks.append(len(torch.overrides._get_current_function_mode_stack())))
    train(model, 8, every=4)
    assert stacks == [1, 0, 0, 1, 0, 0, 0, 1]


def test_evaluation_between_steps_is_not_heard() -> None:
    model = Learner()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    looking = watch(model, optimizer, every=1)
    for tokens in batches(2):
        with torch.no_grad():
            model(tokens[:2])
        loss = loss_of(model, tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        vitals = looking.step(loss)
        assert vitals is not None and len(vitals.attention) == 2
        assert vitals.attention[0].rows > 2 * 2 * 32


def test_only_the_first_micro_batch_is_heard() -> None:
    model = Learner()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    looking = watch(model, optimizer)
    for tokens in batches(3):
        loss = loss_of(model, tokens)
        loss.backward()
    optimizer.step()
    vitals = looking.step(loss)
    assert vitals is not None and [one.site.name for one in vitals.attention] == ["layers.0:score", "layers.1:score"]


def test_closing_takes_all_hooks_off() -> None:
    model = Learner()
    optimizer = torch.optim.AdamW(model.parameters())
    with watch(model, optimizer):
        assert model._forward_pre_hooks and model._forward_hooks and optimizer._optimizer_step_pre_hooks
    assert not model._forward_pre_hooks and not model._forward_hooks and not optimizer._optimizer_step_pre_hooks


def test_a_copy_of_a_watched_model_is_not_watched() -> None:
    """Averages of weights are often made from deep copies, and whole models are saved."""
    model = Learner()
    looking = watch(model, torch.optim.AdamW(model.parameters()))
    twin = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    saved = torch.load(file, weights_only=False)
    tokens = next(batches(1))
    assert torch.equal(loss_of(twin, tokens), loss_of(saved, tokens))
    assert looking.step() is not None and not looking._hooks.calls
    assert file.tell() < 1.5 * 4 * sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("how", ["outside", "in place"])
def test_a_compiled_model_is_heard_in_a_second_forward(how: str, compiled: None) -> None:
    model = Learner(dropout=0.2)
    twin = copy.deepcopy(model)
    results = []
    for one, every in ((model, None), (twin, 2)):
        torch._dynamo.reset()
        called = torch.compile(one, backend="eager") if how == "outside" else one
        if how == "in place":
            one.compile(backend="eager")
        torch.manual_seed(2)
        losses, told = train(one, 4, every=every, called=called)
        results.append(losses)
    assert results[0] == results[1]
    assert [len(vitals.attention) for vitals in told] == [2, 2, 2]
    assert all("compiled" in vitals.unseen[-1].reason and vitals.updates for vitals in told)
    assert not model._forward_hooks and not twin._forward_hooks


def test_a_model_that_is_compiled_behind_the_watch_is_not_heard_and_the_vitals_say_so(compiled: None) -> None:
    model, told = Learner(), []
    torch._dynamo.reset()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    looking = watch(model, optimizer, every=1, tell=silent)
    behind = torch.compile(model, backend="eager")
    for tokens in batches(2):
        loss = loss_of(behind, tokens)
        loss.backward()
        optimizer.step()
        told.append(looking.step(loss))
    assert all("no call of the model was heard" in vitals.unseen[0].reason and vitals.updates for vitals in told)


def test_a_model_in_data_parallel_is_heard_and_run_again(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = Learner()
        parallel = nn.parallel.DistributedDataParallel(model)
        injected(model.layers[1].up, model, float("inf"))
        optimizer, told = torch.optim.AdamW(model.parameters(), lr=1e-3), []
        looking = watch(parallel, optimizer, every=2, tell=told.append)
        for model.now, tokens in enumerate(batches(3), 1):
            loss = loss_of(parallel, tokens)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            vitals = looking.step(loss)
            assert vitals is not None and (model.now == 3 or vitals.attention[0].site.name == "layers.0:score")
        assert [alarm.site.split(" ")[0] for alarm in told] == ["layers.1.up:mul"]
    finally:
        torch.distributed.destroy_process_group()


def test_what_cannot_be_read_does_not_end_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise ValueError("unheard of")

    monkeypatch.setattr("surd.measure.watching.scores.read_logits", broken)
    losses, (vitals,) = train(Learner(), 1, every=1)
    assert losses and not vitals.attention and vitals.stream
    assert {unseen.reason for unseen in vitals.unseen} == {"reading it raised ValueError: unheard of"}


def test_the_second_forward_has_the_dropout_of_the_first() -> None:
    model = Learner(dropout=0.3).train()
    tokens, seen = next(batches(1)), []
    model.norm.register_forward_hook(lambda module, args, out: seen.append(out.detach()))
    looking = watch(model)
    model(tokens)
    looking._hooks.calls[0].again(model, lambda: torch.enable_grad())
    assert torch.equal(seen[0], seen[1])
    assert all(module.training for module in model.modules())


# What is told -------------------------------------------------------------------------------------------------------


def test_updates_and_gradients_are_those_of_the_step() -> None:
    model = Learner(tied=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    _, (vitals,) = train(model, 1, every=1, optimizer=optimizer)
    changes = {name: (p.detach() - before[name]) for name, p in model.named_parameters()}
    norm = torch.cat([change.flatten() / 0.5 for change in changes.values()]).norm()
    assert vitals.gradient_norm == pytest.approx(float(norm), rel=1e-3)
    assert {update.name for update in vitals.updates} == {name for name, p in before.items() if p.dim() > 1}
    for update in vitals.updates:
        whole = float(changes[update.name].square().mean().sqrt() / before[update.name].square().mean().sqrt())
        assert update.ratio == pytest.approx(whole, rel=0.15 if before[update.name].numel() > 2048 else 1e-3)


def test_no_ratio_is_judged_of_what_starts_at_zero() -> None:
    model = Learner()
    nn.init.zeros_(model.layers[0].down.weight)
    _, told = train(model, 4, every=1)
    blank = [update for update in told[1].updates if update.blank]
    assert [update.name for update in blank] == ["layers.0.down.weight"] and blank[0].ratio > 0.3
    assert not any(vitals.alarms for vitals in told)


def test_alarms_are_told_once_when_they_begin() -> None:
    model, told = Learner(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    looking = watch(model, optimizer, every=1, tell=told.append)
    for step, tokens in enumerate(batches(6), 1):
        if step == 3:
            model.head.weight = nn.Parameter(model.table.weight.detach().clone())
        if step == 5:
            model.head.weight = model.table.weight
        if step == 6:
            model.head.weight = nn.Parameter(model.table.weight.detach().clone())
        loss = loss_of(model, tokens)
        loss.backward()
        optimizer.step()
        looking.step(loss)
    assert [(alarm.kind, alarm.step) for alarm in told] == [("broken-tie", 3), ("broken-tie", 6)]


def test_without_being_told_how_alarms_are_warnings_of_a_logger(caplog: pytest.LogCaptureFixture) -> None:
    model = Learner()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    looking = watch(model, optimizer)
    loss = loss_of(model, next(batches(1)))
    loss.backward()
    optimizer.step()
    with caplog.at_level(logging.WARNING, logger="surd.watch"):
        looking.step(loss)
    (record,) = caplog.records
    assert record.name == "surd.watch" and record.getMessage().startswith("step 1: update-ratio at ")


def test_a_resumed_training_counts_on() -> None:
    model = Learner()
    looking = watch(model, None, every=10, start=195, tell=silent)
    steps = []
    for tokens in batches(6):
        loss_of(model, tokens).backward()
        looking.before_update()
        vitals = looking.step()
        steps += [vitals.step] if vitals else []
        assert vitals is None or not vitals.fresh
    assert steps == [196, 200]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every": 0}, "every: expected a whole number of at least 1, found 0"),
        ({"every": 2.5}, "found 2.5"),
        ({"model": nn.LazyLinear(3)}, "lazy layers without weights"),
        ({"model": "gpt2"}, "expected a torch module, found str"),
        ({"optimizer": object()}, "expected an optimiser of torch, found object"),
    ],
)
def test_what_is_wrong_is_said(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SurdError, match=message):
        watch(**({"model": Learner(), "optimizer": None} | arguments))


# Non-finite ---------------------------------------------------------------------------------------------------------


def first_bad(model: nn.Module, loss: Callable[[nn.Module, Tensor], Tensor] = loss_of, step: int = 3) -> Alarm:
    """The alarm of a training that goes wrong in that step; its optimiser would write NaN everywhere."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    looking, told = watch(model, optimizer, every=100), []
    looking.tell = told.append
    for number, tokens in enumerate(batches(step + 2), 1):
        model.now = number
        value = loss(model, tokens)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        vitals = looking.step(value)
        assert (vitals is not None) == (number in (1, step))
    (alarm,) = told
    assert alarm.kind == "non-finite" and alarm.step == step
    return alarm


def injected(layer: nn.Module, model: nn.Module, value: float) -> None:
    def hook(module: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor:
        return out * value if model.now == 3 else out

    layer.register_forward_hook(hook)


@pytest.mark.parametrize("place", ["layers.0.down", "layers.1.query", "norm"])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e38])
def test_the_layer_that_went_infinite_first_is_named(place: str, value: float) -> None:
    model = Learner(dropout=0.1)
    injected(model.get_submodule(place), model, value)
    alarm = first_bad(model)
    if value != 1e38:
        assert alarm.site.startswith(f"{place}:mul ")
        assert "test_watch.py" in alarm.site
    else:
        assert not alarm.site.startswith("table")


def test_a_mask_of_minus_infinity_is_no_culprit() -> None:
    model = Learner(fused=False)
    injected(model.layers[1].down, model, float("inf"))
    assert first_bad(model).site.startswith("layers.1.down:mul ")


def test_an_infinite_weight_is_named() -> None:
    class Writing(Learner):
        def forward(self, tokens: Tensor) -> Tensor:
            if self.now == 3:
                with torch.no_grad():
                    self.layers[1].up.weight[3, 3] = float("inf")
            return super().forward(tokens)

    assert first_bad(Writing()).site == "layers.1.up.weight"


def test_a_loss_that_makes_it_is_named() -> None:
    def loss(model: nn.Module, tokens: Tensor) -> Tensor:
        value = loss_of(model, tokens)
        return value + (value * 0).log() if model.now == 3 else value

    assert first_bad(Learner(), loss).site == "loss"


def test_a_gradient_that_is_no_number_is_traced_to_its_module() -> None:
    """The root of zero has an infinite slope, and zero times that is no number."""

    class Rooted(Learner):
        def forward(self, tokens: Tensor) -> Tensor:
            x = self.table(tokens) + self.position.weight[: tokens.shape[1]]
            x = self.layers[0](x)
            if self.now == 3:
                x = x + (x * 0).sqrt()
            return self.head(self.norm(self.layers[1](x)))

    alarm = first_bad(Rooted(tied=False))
    assert alarm.site == "layers.0.down:gradient"


def test_a_batch_that_holds_it_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    looking, told = watch(model, torch.optim.SGD(model.parameters(), lr=0.1)), []
    looking.tell = told.append
    x = torch.randn(5, 4)
    x[2, 1] = float("nan")
    model(x).mean().backward()
    looking.before_update()
    looking.step(model(x).mean())
    assert [alarm.site for alarm in told if alarm.kind == "non-finite"] == ["input"]


def test_the_micro_batch_that_made_it_is_run_again() -> None:
    model = Learner()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    told: list[Alarm] = []
    looking = watch(model, optimizer, every=100, tell=told.append)

    def hook(module: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor:
        return out * float("inf") if bool((args[0] == 15).all()) else out

    model.table.register_forward_hook(hook)
    for tokens in [*batches(1), torch.full((16, 32), 15), *batches(1)]:
        loss = loss_of(model, tokens)
        loss.backward()
    optimizer.step()
    looking.step(loss)
    assert [alarm.site.split(" ")[0] for alarm in told if alarm.kind == "non-finite"] == ["table:mul"]


def test_a_loop_that_does_not_step_is_looked_at_afterwards() -> None:
    """As ours: train_step leaves the weights alone when the gradient is not finite."""
    model, told = Learner(), []
    looking = watch(model, every=100, tell=told.append)
    model.now = 3
    injected(model.layers[0].up, model, float("nan"))
    loss_of(model, next(batches(1)))
    looking.step(float("nan"))
    assert told[0].site.startswith("layers.0.up:mul ")


def test_running_again_leaves_the_model_alone() -> None:
    class Counting(Learner):
        def __init__(self) -> None:
            super().__init__(dropout=0.1)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, tokens: Tensor) -> Tensor:
            self.calls += 1
            x = super().forward(tokens)
            return x * float("nan") if self.now == 3 else x

    model = Counting()
    model.layers[0].dropout.eval()
    first_bad(model)
    assert model.calls == 5
    assert model.training and not model.layers[0].dropout.training
    assert all(p.requires_grad for p in model.parameters())


def test_infinite_gradients_of_a_scaled_loss_are_the_scalers_business() -> None:
    model, told = Learner(), []
    looking = watch(model, every=100, tell=told.append)
    (loss_of(model, next(batches(1))) * float("inf")).backward()
    looking.before_update(scaled=True)
    looking.step(2.7)
    assert not [alarm for alarm in told if alarm.kind == "non-finite"]


def test_the_loss_of_the_models_own_output_counts() -> None:
    config = transformers.GPT2Config(vocab_size=16, n_embd=32, n_layer=1, n_head=2, n_positions=32)
    model = transformers.GPT2LMHeadModel(config)
    looking = watch(model)
    tokens = next(batches(1))
    out = model(tokens, labels=tokens)
    out.loss.backward()
    looking.before_update()
    vitals = looking.step()
    assert vitals is not None and vitals.loss == float(out.loss.detach())


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a test leaves open is closed, since the swap of `apply` is global while a forward runs."""
    made: list[Watch] = []
    original = Watch.__init__

    def init(self: Watch, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(Watch, "__init__", init)
    yield
    for one in made:
        if hasattr(one, "_hooks"):
            one.close()
