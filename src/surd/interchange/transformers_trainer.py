"""The watch as a callback of Hugging Face's Trainer: `Trainer(..., callbacks=[WatchCallback()])`.

It has the shape of a TrainerCallback without being one, so nothing of transformers is imported.
"""

from collections.abc import Callable, Sequence
from typing import Any

from surd.measure.alarms import RULES, Rule
from surd.measure.vitals import Alarm, Vitals
from surd.measure.watch import Watch, log, watch


class WatchCallback:
    """Watches what the Trainer trains. Its losses and weights are the same with and without.

    The loss is that of the model's own output; where the Trainer computes another one, as it does for label smoothing,
    the vitals tell none and a loss that is not finite is known by its gradient. Under `fp16` gradients are not
    judged: the Trainer skips the infinite ones itself. A model that the Trainer compiles (`torch_compile`) is not
    heard, which the vitals say.
    """

    def __init__(
        self,
        *,
        every: int = 100,
        tell: Callable[[Alarm], object] = log,
        record: Callable[[Vitals], object] | None = None,
        rules: Sequence[Rule] = RULES,
    ) -> None:
        """As `surd.watch`; `record` is called with the vitals of each observed update."""
        self.every, self.tell, self.record, self.rules = every, tell, record, rules
        self._watch: Watch | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any, **others: Any) -> None:
        """Begins with the model as it is trained, and with the number of updates that a resumed run has made."""
        self._close()
        self._watch = watch(model, every=self.every, tell=self.tell, rules=self.rules, start=state.global_step)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """After backward and clipping, before the weights change."""
        if self._watch is not None:
            self._watch.before_update(scaled=bool(args.fp16))

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """After an update and all its micro-batches."""
        vitals = self._watch.step() if self._watch is not None else None
        if vitals is not None and self.record is not None:
            self.record(vitals)

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Leaves the model as it was found."""
        self._close()

    def _close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._watch = None

    def __getattr__(self, name: str) -> Callable[..., None]:
        """All other events, of this version of the Trainer or the next, mean nothing here."""
        if name.startswith("on_"):
            return _nothing
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")


def _nothing(*args: Any, **others: Any) -> None:
    pass
