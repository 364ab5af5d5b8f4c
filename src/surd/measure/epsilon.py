"""Epsilon: the small constant that each norm of a forward really adds to a variance, in torch's norms and in others."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from surd.measure.naming import Names, Where

WHOLE = {"layer_norm": 4, "rms_norm": 3, "group_norm": 4, "native_layer_norm": 4}
"""torch's norms, and where their epsilon stands among the arguments."""
PLUS = ("add", "add_", "__add__", "__radd__", "__iadd__")
ROOTS = ("rsqrt", "rsqrt_", "sqrt", "sqrt_")
POWERS = ("pow", "__pow__", "pow_")
LARGEST = 0.1
"""An epsilon beyond this is no epsilon."""


@dataclass(frozen=True, kw_only=True)
class Epsilon:
    """Of one norm, where it runs."""

    where: Where
    value: float


class Epsilons(TorchFunctionMode):
    """Hears every norm of a forward, in its order."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._names = Names(module)
        self._raised: dict[int, tuple[Tensor, float]] = {}
        """Sums with a small constant, alive as long as the forward is heard: a root of one makes a norm."""
        self.found: list[Epsilon] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").split(".")[0]
        if name in WHOLE:
            value = kwargs.get("eps", args[WHOLE[name]] if len(args) > WHOLE[name] else 1e-5)
            if isinstance(value, float):
                self.found.append(Epsilon(where=self._names.here(), value=value))
            return func(*args, **kwargs)
        out = func(*args, **kwargs)
        if name in PLUS and isinstance(out, Tensor) and (value := _small(args)) is not None:
            self._raised[id(out)] = out, value
        elif (name in ROOTS or name in POWERS) and args and id(args[0]) in self._raised:
            self.found.append(Epsilon(where=self._names.here(), value=self._raised[id(args[0])][1]))
        return out


def _small(args: Any) -> float | None:
    """The constant of a sum of a tensor and a small number above zero."""
    numbers = [x for x in args[:2] if isinstance(x, float)]
    return numbers[0] if len(numbers) == 1 and 0 < numbers[0] <= LARGEST else None
