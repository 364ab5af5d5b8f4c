"""The watch as a callback of Lightning: `Trainer(callbacks=[WatchCallback()])`.

It has the shape of a Lightning Callback without being one, so nothing of lightning is imported. The order of its
events in an update is on_train_batch_start, on_before_optimizer_step (after backward, before the gradient is clipped
and the weights change), on_train_batch_end.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from surd.interchange.callback import Callback


class WatchCallback(Callback):
    """Watches a LightningModule. Its losses and weights are the same with and without.

    Lightning calls `training_step`, which calls the module itself or one of its children: those are heard. Under
    16-bit mixed precision gradients are not judged: infinite ones are skipped there.
    """

    others: ClassVar[tuple[str, ...]] = ("setup", "teardown")
    _pending = False
    """Gradients were ready in this batch: with accumulated ones, only some batches end an update."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begins with the module and its children, and with the number of updates that a resumed run has made."""
        self._begin(pl_module, trainer.global_step, (pl_module, *pl_module.children()))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """After backward; the gradient's norm is that before clipping."""
        if self._watch is not None:
            self._watch.before_update(scaled=str(getattr(trainer, "precision", "")).startswith("16"))
            self._pending = True

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After a batch, of which some end an update."""
        if self._pending:
            self._pending = False
            self._updated(outputs.get("loss") if isinstance(outputs, Mapping) else outputs)

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
