"""The watch: three lines in anybody's own training loop, and its scales are read as it runs.

    watch = surd.watch(model, optimizer)
    for batch in batches:
        loss = ...
        loss.backward()
        optimizer.step()
        watch.step(loss)

There is no `with` around the forward: a hook on the model knows when it is called, so the loop keeps its shape, and a
loop that somebody else wrote (a trainer, a method `model.loss`) needs nothing but a place for the last line.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite, nan
from typing import Any

import torch
from torch import Tensor, nn

from surd.errors import SurdError
from surd.measure.probe import unwrapped
from surd.measure.sites import Unseen
from surd.measure.trials.culprit import IN_LOSS, Culprit, find_culprit
from surd.measure.watching.alarms import RULES, Rule, judge, non_finite
from surd.measure.watching.hooks import Hooks
from surd.measure.watching.listen import Listener
from surd.measure.watching.vitals import Alarm, Memory, Vitals, without_files
from surd.measure.watching.weights import Before, blank_matrices, find_ties, gradient_norm, is_fresh, read_ties

COMPILED = "the model is compiled: it was run once more, uncompiled, after the update"
NOT_CALLED = "no call of the model was heard: give the watch the object that the loop calls, compiled if it compiles"


def log(alarm: Alarm) -> None:
    """Tells an alarm as a warning of the logger `surd.watch`, which Python shows unless it is told otherwise."""
    logging.getLogger("surd.watch").warning("%s", alarm)


def watch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    every: int = 100,
    tell: Callable[[Alarm], object] = log,
    rules: Sequence[Rule] = RULES,
    start: int = 0,
    memory: Memory | None = None,
) -> "Watch":
    """Watches the training of any module; `step(loss)` after each update is all that the loop has to do.

    Observed are the first update and every `every`-th one, on their own forwards: no number of the training changes.
    `model` is what the loop calls, with its compilation and its wrappers. `optimizer` tells when gradients are ready;
    without it, the loop calls `before_update()` between backward and update. `tell` is called with each alarm when it
    begins. `start` is how many updates were made before, and `memory` what the watch of those knew at their end
    (`Watch.memory`): without it, alarms that it told are told again.
    """
    return Watch(model, optimizer, every=every, tell=tell, rules=rules, start=start, memory=memory)


class Watch:
    """One training under observation.

    Between two steps it keeps references to the arguments of the model's calls, and the state of the random generators
    (5 kB a call on a CPU): what it takes to run a batch again. Weights are never copied, but for 2048 entries of each
    matrix during an observed update. When a loss or gradient is not finite, the last good weights are those that the
    model still has: gradients are looked at (two vectors of them) before the optimiser writes anything. That reads
    one number a step from an accelerator.
    A compiled model is observed by a second forward, uncompiled, after the update.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        every: int = 100,
        tell: Callable[[Alarm], object] = log,
        rules: Sequence[Rule] = RULES,
        start: int = 0,
        memory: Memory | None = None,
        called: Sequence[nn.Module] = (),
    ) -> None:
        """`called` are the modules that the loop calls, where it does not call the model as a whole."""
        if not isinstance(model, nn.Module):
            raise SurdError(f"watch: expected a torch module, found {type(model).__name__}")
        if optimizer is not None and not hasattr(optimizer, "register_step_pre_hook"):
            raise SurdError(
                f"watch: expected an optimiser of torch, found {type(optimizer).__name__}; "
                "without one, call before_update() between backward and update"
            )
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise SurdError(f"watch: every: expected a whole number of at least 1, found {every!r}")
        if any(isinstance(parameter, nn.parameter.UninitializedParameter) for parameter in model.parameters()):
            raise SurdError("watch: the model has lazy layers without weights; expected a model that has run once")
        self.every, self.tell, self.rules = every, tell, tuple(rules)
        self.updates = start
        """Updates made so far."""
        self.first: Vitals | None = memory.first if memory is not None else None
        """The first observation, which growth is measured against."""
        self._model = unwrapped(model)
        self._ties = find_ties(self._model)
        self._blank = frozenset(memory.blank) if memory is not None else blank_matrices(self._model)
        self._sentinels = _sentinels(self._model)
        self._before: Before | None = None
        self._norm: float | None = None
        self._culprit: Culprit | None = None
        self._sounding: set[str] = set(memory.sounding) if memory is not None else set()
        self._fresh = is_fresh(self._model)
        self._hooks = Hooks(self._model, called or (model,), lambda: self.due)
        self._optimizer_hook = optimizer.register_step_pre_hook(self._stepping) if optimizer is not None else None

    @property
    def due(self) -> bool:
        """Whether the update that comes next is to be observed."""
        return self.first is None or (self.updates + 1) % self.every == 0

    @property
    def memory(self) -> Memory:
        """What a watch that goes on with this training later begins with."""
        first = self.first and without_files(self.first)
        return Memory(first=first, sounding=tuple(sorted(self._sounding)), blank=tuple(sorted(self._blank)))

    def close(self) -> None:
        """Takes the hooks off; nothing of the watch stays at the model or the optimiser."""
        self._hooks.close()
        if self._optimizer_hook is not None:
            self._optimizer_hook.remove()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def before_update(self, *, scaled: bool = False) -> None:
        """Between backward and update: looks whether the gradient is finite, and what the update starts from.

        Called by a hook of the optimiser, or by a loop that gave none. `scaled`: the gradient belongs to a loss that
        is scaled for fp16, where infinite ones are skipped and mean nothing.
        """
        loss_is_finite = self._hooks.loss is None or isfinite(float(self._hooks.loss))
        if not (loss_is_finite and (scaled or self._gradient_is_finite())):
            self._look_for_culprit(loss_is_finite)
        if self.due:
            self._before, self._norm = Before(self._model, self._blank), gradient_norm(self._model)

    def step(self, loss: Tensor | float | None = None) -> Vitals | None:
        """After an update: what was seen of it, if it was observed or went non-finite.

        Without a loss, the `loss` of the model's own output counts, if it has one.
        """
        due = self.due
        self.updates += 1
        told = loss if loss is not None else self._hooks.loss
        number = float(told.detach() if isinstance(told, Tensor) else told) if told is not None else None
        if number is not None and not isfinite(number):
            self._look_for_culprit(loss_is_finite=False)
            if self._culprit is not None and self._culprit.in_backward:
                self._culprit = IN_LOSS  # the gradient was looked at before the loop told its loss
        alarms: list[Alarm] = []
        if self._culprit is None:
            self._sounding.discard("non-finite")
        elif "non-finite" not in self._sounding:
            value = number if number is not None and not isfinite(number) else nan
            alarms.append(non_finite(self.updates, value, self._culprit.site, self._culprit.advice))
        vitals = self._observe(number) if due else None
        if vitals is not None:
            self.first = self.first or (vitals if self._culprit is None else None)
            alarms += judge(vitals, self.first or vitals, self.rules)
            self._sounding &= {alarm.kind for alarm in alarms} | {"non-finite"}
        elif alarms:
            vitals = self._vitals(number, Listener(self._model), heard=False)
        new = tuple(alarm for alarm in alarms if alarm.kind not in self._sounding)
        self._sounding |= {alarm.kind for alarm in new}
        self._forget()
        for alarm in new:
            self.tell(alarm)
        return replace(vitals, alarms=new) if vitals is not None else None

    def _stepping(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called by torch before an update. A closure is yet to make the gradient."""
        if len(args) < 2 and kwargs.get("closure") is None:
            self.before_update(scaled=getattr(optimizer, "found_inf", None) is not None)

    def _gradient_is_finite(self) -> bool:
        gradients = [p.grad.detach() for p in self._sentinels if p.grad is not None and not p.grad.is_sparse]
        return all(isfinite(float(gradient.float().sum())) for gradient in gradients)

    def _look_for_culprit(self, loss_is_finite: bool) -> None:
        if self._culprit is None:
            if "non-finite" in self._sounding:
                self._culprit = Culprit(site="as before", advice="")
            else:
                with self._hooks.paused():
                    self._culprit = find_culprit(self._model, self._hooks.calls, loss_is_finite)

    def _observe(self, loss: float | None) -> Vitals:
        if self._hooks.listener is not None:
            return self._vitals(loss, self._hooks.listener, heard=True)
        listener = Listener(self._model)
        if not self._hooks.calls:
            vitals = self._vitals(loss, listener, heard=False)
            return replace(vitals, unseen=(Unseen(what="attention", reason=NOT_CALLED),))
        reason = COMPILED
        with self._hooks.paused():
            try:
                self._hooks.calls[0].again(self._model, listener.installed)
            except Exception as error:  # a training is not to end because it was watched
                reason = f"the compiled model does not run uncompiled: {type(error).__name__}: {error}"
        vitals = self._vitals(loss, listener, heard=True)
        return replace(vitals, unseen=(*vitals.unseen, Unseen(what="own forward", reason=reason)))

    def _vitals(self, loss: float | None, listener: Listener, heard: bool) -> Vitals:
        return Vitals(
            step=self.updates,
            fresh=self._fresh and self.first is None and self.updates == 1,
            loss=loss,
            gradient_norm=self._norm,
            attention=listener.attention,
            stream=listener.stream,
            updates=self._before.updates() if self._before is not None else (),
            ties=read_ties(self._model, self._ties),
            unseen=listener.unseen if heard else (),
        )

    def _forget(self) -> None:
        self._hooks.forget()
        self._before = self._norm = self._culprit = None


def _sentinels(model: nn.Module) -> tuple[nn.Parameter, ...]:
    """The parameters whose gradients are looked at every step: short ones at both ends of the model.

    A gradient runs through all layers to the first, and what is no number spreads with it.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    vectors = [p for p in trained if p.dim() < 2] or sorted(trained, key=lambda p: p.numel())[:1]
    return (vectors[0], vectors[-1]) if vectors else ()
