"""The watch as a callback of Hugging Face's Trainer, or of a loop that calls in its order where that does not run."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from surd.interchange.transformers_trainer import WatchCallback
from surd.measure.watching.vitals import Alarm, Vitals

ACCELERATE = importlib.util.find_spec("accelerate") is not None
pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")


def tiny() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=32, n_embd=32, n_layer=2, n_head=2, n_positions=32)
    return transformers.GPT2LMHeadModel(config)


def examples(count: int) -> list[dict[str, Tensor]]:
    rows = torch.randint(32, (count, 16), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in rows]


def library(model: nn.Module, folder: Path, callbacks: list[Any], **settings: Any) -> list[float]:
    """The Trainer itself, 20 updates."""
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=20,
        per_device_train_batch_size=2,
        learning_rate=1e-3,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        **settings,
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=examples(80), callbacks=callbacks)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def stand_in(model: nn.Module, folder: Path, callbacks: list[Any], **settings: Any) -> list[float]:
    """The order of the Trainer's calls, with two micro-batches an update where asked for."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    accumulation = settings.get("gradient_accumulation_steps", 1)
    arguments, state, control = SimpleNamespace(fp16=False), SimpleNamespace(global_step=0), object()

    def call(event: str) -> None:
        for callback in callbacks:
            assert getattr(callback, event)(arguments, state, control, model=model, optimizer=optimizer) is None

    losses = []
    call("on_init_end")
    call("on_train_begin")
    call("on_epoch_begin")
    data = examples(80)
    for number in range(0, len(data), 2):
        if number // 2 % accumulation == 0:
            call("on_step_begin")
        model.train()
        loss = model(
            input_ids=torch.stack([row["input_ids"] for row in data[number : number + 2]]),
            labels=torch.stack([row["labels"] for row in data[number : number + 2]]),
        ).loss
        (loss / accumulation).backward()
        if number // 2 % accumulation < accumulation - 1:
            call("on_substep_end")
            continue
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        call("on_pre_optimizer_step")
        optimizer.step()
        call("on_optimizer_step")
        model.zero_grad()
        state.global_step += 1
        losses.append(loss.item())
        call("on_step_end")
        call("on_log")
        if state.global_step == 20:
            break
    call("on_epoch_end")
    call("on_train_end")
    return losses


RUNS = [
    pytest.param(stand_in, id="stand-in"),
    pytest.param(library, id="Trainer", marks=pytest.mark.skipif(not ACCELERATE, reason="needs accelerate")),
]


@pytest.mark.parametrize("run", RUNS)
def test_a_training_is_watched_and_the_same_to_the_bit(run: Any, tmp_path: Path) -> None:
    told: list[Vitals] = []
    alarms: list[Alarm] = []
    plain, watched = tiny(), tiny()
    torch.manual_seed(4)
    losses = run(plain, tmp_path / "plain", [])
    torch.manual_seed(4)
    callback = WatchCallback(every=10, tell=alarms.append, record=told.append)
    assert run(watched, tmp_path / "watched", [callback]) == losses
    assert all(map(torch.equal, plain.state_dict().values(), watched.state_dict().values()))
    assert [vitals.step for vitals in told] == [1, 10, 20]
    for vitals in told:
        assert [site.site.name for site in vitals.attention] == [f"transformer.h.{n}.attn:score" for n in (0, 1)]
        assert vitals.stream and vitals.updates and vitals.gradient_norm
        assert vitals.loss == pytest.approx(losses[vitals.step - 1], abs=1e-3)
        assert [tie.parameters for tie in vitals.ties] == [1]
    assert not alarms
    assert not watched._forward_hooks and not watched._forward_pre_hooks


@pytest.mark.parametrize("run", RUNS)
def test_accumulated_gradients_are_one_update(run: Any, tmp_path: Path) -> None:
    told: list[Vitals] = []
    run(tiny(), tmp_path, [WatchCallback(every=1, record=told.append)], gradient_accumulation_steps=2)
    assert [vitals.step for vitals in told] == list(range(1, 21))
    assert all(len(vitals.attention) == 2 for vitals in told)


@pytest.mark.parametrize("run", RUNS)
def test_the_first_bad_layer_is_named(run: Any, tmp_path: Path) -> None:
    model, calls, alarms = tiny(), [], []

    def hook(module: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor:
        calls.append(None)
        return out * float("nan") if len(calls) >= 5 else out

    model.transformer.h[1].mlp.c_fc.register_forward_hook(hook)
    run(model, tmp_path, [WatchCallback(every=100, tell=alarms.append)])
    (alarm,) = alarms
    assert (alarm.kind, alarm.step) == ("non-finite", 5)
    assert alarm.site.startswith("transformer.h.1.mlp.c_fc:mul ")


def test_every_event_is_answered_and_nothing_else() -> None:
    callback = WatchCallback()
    assert callback.on_something_of_the_next_version(None, None, None, model=None) is None
    assert callback.on_step_end(None, None, None) is None
    with pytest.raises(AttributeError, match="no attribute 'something'"):
        _ = callback.something
    events = [name for name in dir(transformers.TrainerCallback) if name.startswith("on_")]
    assert len(events) > 10 and all(callable(getattr(callback, name)) for name in events)
