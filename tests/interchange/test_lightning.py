"""The watch as a callback of Lightning, or of a loop that calls in its documented order where it is not installed.

The order is that of https://lightning.ai/docs/pytorch/stable/common/lightning_module.html, section "Hooks".
"""

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from measure.learner import Learner, batches, loss_of
from torch import Tensor, nn

from surd.interchange.lightning import WatchCallback
from surd.measure.watching.vitals import Alarm, Vitals

LIGHTNING = importlib.util.find_spec("lightning") is not None
pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning warns of its own imports, loaders and settings


class Steps:
    """The part of a LightningModule that is ours, with the model inside of it or being it."""

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return loss_of(self.inner, batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Plain(Steps, nn.Module):
    """For the stand-in."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Learner(dropout=0.1)


def stand_in(module: Any, folder: Path, callbacks: list[Any], steps: int = 20, accumulate: int = 1) -> list[float]:
    trainer = SimpleNamespace(global_step=0, precision="32-true")
    optimizer, losses = module.configure_optimizers(), []

    def call(event: str, *args: Any) -> None:
        for callback in callbacks:
            getattr(callback, event)(*((trainer, module, *args)))

    call("setup", "fit")
    call("on_fit_start")
    call("on_sanity_check_start")
    call("on_sanity_check_end")
    call("on_train_start")
    call("on_train_epoch_start")
    module.train()
    for number, batch in enumerate(batches(steps * accumulate)):
        call("on_train_batch_start", batch, number)

        def closure(batch: Tensor = batch, number: int = number) -> Tensor:
            loss = module.training_step(batch, number)
            if number % accumulate == 0:
                call("on_before_zero_grad", optimizer)
                optimizer.zero_grad()
            call("on_before_backward", loss)
            (loss / accumulate).backward()
            call("on_after_backward")
            losses.append(loss.item())
            return loss

        def before_the_step(closure: Any = closure) -> Tensor:
            loss = closure()
            call("on_before_optimizer_step", optimizer)
            return loss

        if (number + 1) % accumulate:
            loss = closure()
        else:
            loss = optimizer.step(before_the_step)
            trainer.global_step += 1
        call("on_train_batch_end", {"loss": loss.detach()}, batch, number)
    call("on_train_epoch_end")
    call("on_train_end")
    call("teardown", "fit")
    return losses


def library(module: Any, folder: Path, callbacks: list[Any], steps: int = 20, accumulate: int = 1) -> list[float]:
    import lightning

    losses = []

    class Real(Steps, lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module.inner

        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            loss = super().training_step(batch, batch_idx)
            losses.append(loss.item())
            return loss

    trainer = lightning.Trainer(
        max_steps=steps,
        accumulate_grad_batches=accumulate,
        callbacks=callbacks,
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = torch.utils.data.DataLoader(list(batches(steps * accumulate)), batch_size=None)
    trainer.fit(Real(), data)
    return losses


RUNS = [
    pytest.param(stand_in, id="stand-in"),
    pytest.param(library, id="Lightning", marks=pytest.mark.skipif(not LIGHTNING, reason="needs lightning")),
]


def build() -> Plain:
    torch.manual_seed(0)
    return Plain()


@pytest.mark.parametrize("run", RUNS)
def test_a_training_is_watched_and_the_same_to_the_bit(run: Any, tmp_path: Path) -> None:
    told: list[Vitals] = []
    alarms: list[Alarm] = []
    plain, watched = build(), build()
    torch.manual_seed(4)
    losses = run(plain, tmp_path, [])
    torch.manual_seed(4)
    callback = WatchCallback(every=10, tell=alarms.append, record=told.append)
    assert run(watched, tmp_path, [callback]) == losses
    assert all(map(torch.equal, plain.state_dict().values(), watched.state_dict().values()))
    assert [vitals.step for vitals in told] == [1, 10, 20]
    for vitals in told:
        assert [site.site.name for site in vitals.attention] == [f"inner.layers.{n}:score" for n in (0, 1)]
        assert vitals.stream and vitals.updates and vitals.gradient_norm
        assert vitals.loss == pytest.approx(losses[vitals.step - 1])
    assert not alarms
    assert not watched.inner._forward_hooks and not watched.inner._forward_pre_hooks


@pytest.mark.parametrize("run", RUNS)
def test_accumulated_gradients_are_one_update(run: Any, tmp_path: Path) -> None:
    told: list[Vitals] = []
    run(build(), tmp_path, [WatchCallback(every=1, record=told.append)], steps=4, accumulate=2)
    assert [vitals.step for vitals in told] == [1, 2, 3, 4]
    assert all(len(vitals.attention) == 2 for vitals in told)


@pytest.mark.parametrize("run", RUNS)
def test_the_first_bad_layer_is_named(run: Any, tmp_path: Path) -> None:
    module, calls, alarms = build(), [], []

    def hook(layer: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor:
        calls.append(None)
        return out * float("inf") if len(calls) >= 3 else out

    module.inner.layers[0].up.register_forward_hook(hook)
    run(module, tmp_path, [WatchCallback(every=100, tell=alarms.append)], steps=5)
    (alarm,) = alarms
    assert (alarm.kind, alarm.step) == ("non-finite", 3)
    assert alarm.site.startswith("inner.layers.0.up:mul ")


def test_a_training_that_is_cut_short_leaves_no_hooks() -> None:
    module, callback = build(), WatchCallback()
    callback.on_train_start(SimpleNamespace(global_step=0, precision="16-mixed"), module)
    assert module.inner._forward_hooks
    callback.on_exception(SimpleNamespace(), module, KeyboardInterrupt())
    assert not module.inner._forward_hooks
    assert callback.state_dict() == {} and callback.on_whatever() is None
    with pytest.raises(AttributeError):
        _ = callback.something
