"""The watch as a callback of Lightning: `Trainer(callbacks=[WatchCallback()])`.

It has the shape of a Lightning Callback without being one, so nothing of lightning is imported. The order of its
events in an update is on_train_batch_start, on_before_optimizer_step (after backward, before the gradient is clipped
and the weights change), on_train_batch_end.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from surd.measure.alarms import RULES, Rule
from surd.measure.vitals import Alarm, Vitals
from surd.measure.watch import Watch, log


class WatchCallback:
    """Watches a LightningModule. Its losses and weights are the same with and without.

    Lightning calls `training_step`, which calls the module itself or one of its children: those are heard. Under
    16-bit mixed precision gradients are not judged: infinite ones are skipped there.
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
        self._updated = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begins with the module and its children, and with the number of updates that a resumed run has made."""
        self._close()
        self._watch = Watch(
            pl_module,
            every=self.every,
            tell=self.tell,
            rules=self.rules,
            start=trainer.global_step,
            called=(pl_module, *pl_module.children()),
        )

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """After backward; the gradient's norm is that before clipping."""
        if self._watch is not None:
            self._watch.before_update(scaled=str(getattr(trainer, "precision", "")).startswith("16"))
            self._updated = True

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After a batch; with accumulated gradients, only some of them end an update."""
        if self._watch is None or not self._updated:
            return
        self._updated = False
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        vitals = self._watch.step(loss)
        if vitals is not None and self.record is not None:
            self.record(vitals)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Leaves the module as it was found."""
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The same when training is cut short."""
        self._close()

    @property
    def state_key(self) -> str:
        """By what Lightning tells callbacks apart in its checkpoints."""
        return type(self).__qualname__

    def state_dict(self) -> dict[str, Any]:
        """Nothing of the watch belongs into a checkpoint."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing was saved."""

    def _close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._watch = None

    def __getattr__(self, name: str) -> Callable[..., None]:
        """All other events mean nothing here."""
        if name.startswith("on_") or name in ("setup", "teardown"):
            return _nothing
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")


def _nothing(*args: Any, **others: Any) -> None:
    pass
