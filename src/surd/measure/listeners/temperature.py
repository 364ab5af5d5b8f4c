"""Temperature: learned factors of similarities, as they are applied: behind an exponential, or without one."""

from dataclasses import dataclass
from math import exp
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from surd.measure.tensors import storage
from surd.measure.trace.naming import Names

MOST = 64
"""A temperature is one number, or one a head."""
TIMES = ("mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply")
BOUNDS = ("clamp", "clamp_", "clip", "minimum", "clamp_max", "clamp_max_")
USUAL = (1 / 0.07, 10.0, 20.0, 50.0, 100.0)
"""Temperatures that people begin with: Radford et al. 2021 take 1 / 0.07."""


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """A learned number that multiplies, by the name of its parameter."""

    name: str
    path: str
    value: float
    """What is multiplied by; of several heads the largest."""
    exponential: bool
    """Behind an exponential. If not, `meant` is what that would give."""

    @property
    def meant(self) -> float | None:
        """The usual temperature of which this is the logarithm; None where it is of none."""
        grown = exp(min(self.value, 50.0))
        return next((usual for usual in USUAL if abs(grown / usual - 1) < 1e-3), None)


class Temperatures(TorchFunctionMode):
    """Hears every one that a forward applies."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._names = Names(module)
        self._small = {storage(p): p for p in module.parameters() if p.numel() <= MOST and storage(p) is not None}
        self._grown: dict[int, tuple[Tensor, str]] = {}
        """Results of an exponential, alive as long as the forward is heard, and the parameter they come from."""
        self.found: dict[tuple[str, bool], Temperature] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").split(".")[0]
        known = [(x, self._small.get(storage(x))) for x in args if isinstance(x, Tensor) and x.numel() <= MOST]
        out = func(*args, **kwargs)
        if name == "exp" and known and known[0][1] is not None and isinstance(out, Tensor):
            self._grow(out, self._names.parameter(known[0][1], ""))
        elif name in BOUNDS and args and id(args[0]) in self._grown and isinstance(out, Tensor):
            before = self._grown[id(args[0])][1]
            self._grow(out, before)
        elif name in TIMES and len(args) == 2:
            other = max((x.numel() for x in args if isinstance(x, Tensor)), default=0)
            for x, parameter in known:
                if parameter is not None and _one_a_head(parameter) and other > x.numel() == parameter.numel():
                    self._add(self._names.parameter(parameter, ""), float(x.detach().float().max()), exponential=False)
        return out

    def _grow(self, out: Tensor, name: str) -> None:
        self._grown[id(out)] = (out, name)
        self._add(name, float(out.detach().float().max()), exponential=True)

    def _add(self, name: str, value: float, exponential: bool) -> None:
        path = self._names.here().path
        found = Temperature(name=name, path=path, value=value, exponential=exponential)
        self.found[name, exponential] = found


def _one_a_head(parameter: Tensor) -> bool:
    """Whether it is one number; or one for all scores of each head, at the start, where all are still alike."""
    if parameter.numel() == 1:
        return True
    alike = bool((parameter.detach() == parameter.detach().flatten()[0]).all())
    return parameter.dim() > 2 and parameter.shape[-2:].numel() == 1 and alike
