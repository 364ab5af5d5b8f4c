"""The watch as a callback of Hugging Face's Trainer: `Trainer(..., callbacks=[WatchCallback()])`.

It has the shape of a TrainerCallback without being one, so nothing of transformers is imported.
"""

from typing import Any

from surd.interchange.callback import Callback


class WatchCallback(Callback):
    """Watches what the Trainer trains. Its losses and weights are the same with and without.

    The loss is that of the model's own output; where the Trainer computes another one, as it does for label smoothing,
    the vitals tell none and a loss that is not finite is known by its gradient. Under `fp16` gradients are not
    judged: the Trainer skips the infinite ones itself. A model that the Trainer compiles (`torch_compile`) is not
    heard, which the vitals say.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any, **others: Any) -> None:
        """Begins with the model as it is trained, and with the number of updates that a resumed run has made."""
        self._begin(model, state.global_step)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """After backward and clipping, before the weights change."""
        if self._watch is not None:
            self._watch.before_update(scaled=bool(args.fp16))

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """After an update and all its micro-batches."""
        self._updated()

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Leaves the model as it was found."""
        self._close()
