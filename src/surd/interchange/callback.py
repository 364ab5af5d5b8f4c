"""What the callbacks for trainers of others share: the settings of a watch, and its life within one training."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from torch import nn

from surd.measure.watch import Watch, log
from surd.measure.watching.alarms import RULES, Rule
from surd.measure.watching.vitals import Alarm, Vitals


class Callback:
    """Begins a watch, tells its vitals, and takes it off; a subclass knows the names and the order of the events."""

    others: ClassVar[tuple[str, ...]] = ()
    """Names of events that do not begin with `on_`."""

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

    def _begin(self, model: nn.Module, start: int, called: Sequence[nn.Module] = ()) -> None:
        self._close()
        self._watch = Watch(model, every=self.every, tell=self.tell, rules=self.rules, start=start, called=called)

    def _updated(self, loss: Any = None) -> None:
        vitals = self._watch.step(loss) if self._watch is not None else None
        if vitals is not None and self.record is not None:
            self.record(vitals)

    def _close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._watch = None

    def __getattr__(self, name: str) -> Callable[..., None]:
        """All other events, of this version of a trainer or the next, mean nothing here."""
        if name.startswith("on_") or name in self.others:
            return _nothing
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")


def _nothing(*args: Any, **others: Any) -> None:
    pass
