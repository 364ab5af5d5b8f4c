"""Norms: what each norm of a forward really computes, by one call of torch or written out, and the gain behind it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode

from surd.measure.listeners.divided import Division, divided
from surd.measure.trace.naming import Names, Where, display_path

WHOLE = ("layer_norm", "native_layer_norm", "rms_norm", "group_norm", "normalize")
"""torch's norms in one call."""
REDUCTIONS = (
    "mean",
    "sum",
    "var",
    "std",
    "var_mean",
    "std_mean",
    "norm",
    "vector_norm",
    "linalg_vector_norm",
    "einsum",
)
ROOTED = ("std", "std_mean", "norm", "vector_norm", "linalg_vector_norm")
ROOTS = ("sqrt", "sqrt_", "rsqrt", "rsqrt_")
POWERS = ("pow", "pow_", "__pow__", "float_power")
PLUS = ("add", "add_", "__add__", "__radd__", "__iadd__")
FLOORS = ("clamp", "clamp_", "clamp_min", "clamp_min_", "maximum", "max")
TIMES = ("mul", "mul_", "multiply", "__mul__", "__rmul__", "__imul__", "addcmul")
OVER = ("div", "div_", "divide", "true_divide", "__truediv__", "__rtruediv__", "__itruediv__")
CARRIED = ("to", "type", "type_as", "float", "half", "bfloat16", "contiguous", "dropout", "clone", "cast")
"""Calls that leave the numbers behind a norm as they are."""
SHOWN = (*CARRIED, "view", "reshape", "__getitem__", "unsqueeze", "squeeze", "select", "__get__", "expand", "detach")
"""Calls that show a part of a weight as it is stored."""
LARGEST = 0.1
"""An epsilon beyond this is no epsilon."""
MOST = 2**17
"""Entries of what is made of weights, to be kept."""
EQUAL = 1e-2
"""How far the entries of a gain may differ from weight + constant: weights in half precision are rounded."""


@dataclass(kw_only=True, eq=False)
class Norm:
    """One norm, where it runs; over rows, the vectors that it normalises."""

    where: Where
    width: int
    """Entries of a row."""
    centred: bool
    """It takes the mean out."""
    epsilon: float
    """Added to the variance (or the mean square), 0 where nothing is."""
    dtype: torch.dtype
    """In which it is added."""
    outside: bool
    """It is added to the root instead."""
    floor: bool
    """It is no summand but the least that the divisor may be."""
    correction: float
    """Square of what it divides by, without epsilon, over the mean square of a row: d / (d - 1) where n - 1 counts."""
    variance: float
    """Mean square of what is divided, the median over rows."""
    size: float
    """rms of a row once divided, the median over rows; 1 but for epsilon and correction."""
    safe: bool
    """A row of zeros stays finite."""
    factor: float = 1.0
    """By what rows of length 1 are multiplied as a whole: √width makes their rms 1."""
    gain: Tensor | None = None
    """By what every entry of a row is multiplied."""
    weight: str = ""
    """The parameter that the gain is made of."""
    offset: float | None = None
    """Gain minus that parameter; None where the gain is no sum of it and a constant."""
    times: int = 0
    """How often that gain multiplies."""
    joins: bool = False
    """It is added to something of its own shape: it is the end of a branch."""
    idle: tuple[str, ...] = ()
    """Gains that its module has and the forward never touches."""

    @property
    def unit(self) -> bool:
        """Rows have rms 1, and not length 1 or another one."""
        return 0.5 < self.correction / self.factor**2 < 1.5

    @property
    def unbiased(self) -> bool:
        """The sum of squares is divided by n - 1."""
        besides = abs(self.correction * (self.width - 1) / self.width - 1)
        return abs(self.correction - 1) > 0.2 / self.width and besides < 0.2 / self.width


@dataclass(frozen=True, kw_only=True)
class _Statistic:
    """A number for each row."""

    tensor: Tensor
    rooted: bool
    epsilon: float = 0.0
    outside: bool = False
    floor: bool = False
    dtype: torch.dtype


@dataclass(frozen=True, kw_only=True)
class _Weight:
    tensor: Tensor
    raw: Tensor
    """As stored, before anything was added to it."""
    name: str


@dataclass(frozen=True, kw_only=True)
class _Behind:
    """A tensor that is the output of a norm, perhaps times its gain."""

    tensor: Tensor
    norm: Norm
    open: bool = True
    """A gain may still follow."""


class Norms(TorchFunctionMode):
    """Hears every norm of a forward, in its order; changes nothing."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._names = Names(module)
        held = {**dict(module.named_buffers()), **dict(module.named_parameters())}
        self._weights = {id(x): _Weight(tensor=x, raw=x, name=display_path(name)) for name, x in held.items()}
        self._owned: dict[str, list[tuple[str, Tensor]]] = {}
        for path, part in module.named_modules():
            own: list[tuple[str, Tensor]] = [
                (name, x) for name, x in part.named_parameters(prefix=path, recurse=False) if x.dim() == 1
            ]
            self._owned.setdefault(display_path(path), own)
        self._statistics: dict[int, _Statistic] = {}
        self._behind: dict[int, _Behind] = {}
        self._scaled: dict[int, tuple[Tensor, Tensor, _Weight]] = {}
        """Products of a tensor and a vector of weights: some multiply by the gain before they divide."""
        self._touched: set[int] = set()
        self.found: list[Norm] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").split(".")[0]
        operands = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        self._touched.update(map(id, operands))
        for x in (*args, *kwargs.values()):
            if isinstance(x, list | tuple):
                self._touched.update(map(id, x))
        read = [self._behind.get(id(x)) for x in operands]  # asked now: the call may write to one of them
        statistics = [self._statistics.get(id(x)) for x in operands]
        out = func(*args, **kwargs)
        made = out[0] if name in ("var_mean", "std_mean", "native_layer_norm") else out
        if not isinstance(made, Tensor) or not made.is_floating_point() or is_functorch_wrapped_tensor(made):
            return out
        if name in WHOLE and operands:
            self._whole(name, made, func, args, kwargs)
        elif any(statistics) and self._of_statistic(name, made, operands, statistics, args, kwargs):
            pass
        elif operands and all(id(x) in self._weights for x in operands):
            self._of_weight(name, made, operands)
        elif name in REDUCTIONS and operands and made.numel() < operands[0].numel() and made.numel() > 1:
            self._statistics[id(made)] = _Statistic(tensor=made, rooted=name in ROOTED, dtype=made.dtype)
        elif any(read):
            self._of_norm(name, made, operands, args, next(one for one in read if one is not None))
        elif name in TIMES and len(operands) == 2:
            for x, other in (operands, operands[::-1]):
                weight = self._weights.get(id(other))
                if weight is not None and other.numel() == x.shape[-1:].numel():
                    self._scaled[id(made)] = (made, x, weight)
        return out

    def finished(self) -> list[Norm]:
        """All that was found, once the forward is over."""
        for norm in self.found:
            if norm.gain is None:
                own: list[tuple[str, Tensor]] = [
                    (name, x) for name, x in self._owned.get(norm.where.path, ()) if x.numel() == norm.width
                ]
                idle = [name for name, x in own if id(x) not in self._touched]
                norm.idle = tuple(map(display_path, idle)) if len(idle) == len(own) else ()
        return self.found

    def _whole(self, name: str, out: Tensor, func: Any, args: Any, kwargs: Any) -> None:
        x = args[0] if args else kwargs["input"]
        given = dict(zip(_PARAMETERS[name], args, strict=False)) | kwargs
        division = _division(name, x, out, given)
        if division is None:
            return
        safe = True
        if name != "normalize" and not float(torch.tensor(division.epsilon, dtype=x.dtype)):
            rest = args[1:]
            with torch.no_grad():
                zero = func(torch.zeros_like(x), *rest, **{key: y for key, y in kwargs.items() if key != "input"})
            safe = bool((zero[0] if isinstance(zero, tuple) else zero).isfinite().all())
        weight = given.get("weight")
        norm = self._add(division, dtype=torch.float32 if safe else x.dtype, safe=safe)
        behind = _Behind(tensor=out, norm=norm)
        if isinstance(weight, Tensor):
            behind = self._multiplied(behind, out, weight)
        self._behind[id(out)] = behind

    def _add(self, division: Division, *, dtype: torch.dtype, safe: bool) -> Norm:
        norm = Norm(where=self._names.here(), dtype=dtype, safe=safe, **division.facts)
        self.found.append(norm)
        return norm

    def _of_statistic(
        self, name: str, out: Tensor, operands: list[Tensor], statistics: list[Any], args: Any, kwargs: Any
    ) -> bool:
        """A statistic of a statistic, or something divided by one; False where it is neither."""
        one = min((x for x in statistics if x is not None), key=lambda x: x.tensor.numel())
        others = [x for x in operands if x is not one.tensor]
        large = [x for x in others if x.numel() > one.tensor.numel()]
        if large and one.rooted and (name in TIMES or name in OVER) and len(operands) == 2:
            z = large[0]
            if out.shape != z.shape or id(z) in self._weights:
                return False
            scaled = self._scaled.get(id(z))
            whole = out
            if out is z:  # written over: what was there is made again
                z = out / one.tensor if name in TIMES else out * one.tensor
            if scaled is not None:  # the gain came first: what is divided is the rest
                gain = scaled[2].tensor.detach().double()
                z, whole = scaled[1], out.detach().double() / torch.where(gain == 0, 1.0, gain)
            division = divided(z, one.tensor, whole, one.epsilon, one.outside, one.floor)
            if division is not None:
                small = float(torch.tensor(one.epsilon, dtype=one.dtype))
                behind = _Behind(tensor=out, norm=self._add(division, dtype=one.dtype, safe=small > 0))
                self._behind[id(out)] = behind if scaled is None else self._multiplied(behind, out, scaled[2].tensor)
            return True
        strange = any(
            known is None and x.numel() > 1 and id(x) not in self._weights
            for x, known in zip(operands, statistics, strict=True)
        )
        if out.numel() != one.tensor.numel() or strange:
            return False  # a sum over experts, say, on its way back into the stream
        self._statistics[id(out)] = _further(one, name, out, others, args, kwargs)
        return True

    def _of_weight(self, name: str, out: Tensor, operands: list[Tensor]) -> None:
        if out.numel() > MOST and out._base is None:
            return  # a whole matrix in another type: no gain, and nothing to keep in memory
        known = [self._weights[id(x)] for x in operands]
        first = next((one for one in known if one.tensor.numel() == out.numel()), known[0])
        stored = name in SHOWN and len(operands) == 1
        self._weights[id(out)] = _Weight(tensor=out, raw=out if stored else first.raw, name=first.name)

    def _of_norm(self, name: str, out: Tensor, operands: list[Tensor], args: Any, behind: _Behind) -> None:
        others = [x for x in operands if x is not behind.tensor]
        weights = [x for x in others if id(x) in self._weights]
        single = others[0] if len(others) == 1 and others[0].numel() == 1 else None
        if name in CARRIED or (name in (*PLUS, *TIMES, *OVER) and (not others or single is not None)):
            numbers = [x for x in args[:2] if isinstance(x, int | float)] + ([] if single is None else [float(single)])
            if (name in TIMES or name in OVER) and len(numbers) == 1 and numbers[0] and not behind.norm.unit:
                behind.norm.factor *= 1 / numbers[0] if name in OVER else numbers[0]
            self._behind[id(out)] = _Behind(tensor=out, norm=behind.norm, open=behind.open)
        elif name in TIMES and weights and len(weights) == len(others):
            vector = weights[-1]
            if behind.open:
                self._behind[id(out)] = self._multiplied(behind, out, vector)
        elif name in PLUS and weights:
            self._behind[id(out)] = _Behind(tensor=out, norm=behind.norm, open=behind.open)
        elif name in PLUS and len(others) == 1 and others[0].numel() == out.numel():
            behind.norm.joins = True

    def _multiplied(self, behind: _Behind, out: Tensor, vector: Tensor) -> _Behind:
        """The first gain counts, and how often it does; another parameter behind it is no gain of the norm."""
        norm, known = behind.norm, self._weights.get(id(vector))
        name = known.name if known is not None else ""
        if norm.times and (not name or name != norm.weight):
            return _Behind(tensor=out, norm=norm, open=False)
        if norm.times:
            norm.times += 1
        elif vector.numel() == norm.width:
            norm.gain, norm.weight, norm.times = vector.detach().flatten().float(), name, 1
            norm.offset = None if known is None else _offset(norm.gain, known.raw)
        return _Behind(tensor=out, norm=norm)


_PARAMETERS = {
    "layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
    "native_layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
    "rms_norm": ("input", "normalized_shape", "weight", "eps"),
    "group_norm": ("input", "num_groups", "weight", "bias", "eps"),
    "normalize": ("input", "p", "dim", "eps"),
}


def _division(name: str, x: Tensor, out: Tensor, given: dict[str, Any]) -> Division | None:
    """What torch's own norms compute, by their definition."""
    if name == "normalize":
        axis = given.get("dim", 1)
        if not isinstance(axis, int) or x.dim() == 0:
            return None
        root = x.detach().norm(dim=axis, keepdim=True)
        return divided(x, root, out, float(given.get("eps", 1e-12)), outside=True, floor=True)
    if name == "group_norm":
        rows = x.detach().reshape(x.shape[0], given["num_groups"], -1)
    else:
        shape = given["normalized_shape"]
        rows = x.detach().flatten(-(1 if isinstance(shape, int) else len(shape)))
    epsilon = given.get("eps", 1e-5 if name != "rms_norm" else None)
    value = torch.finfo(x.dtype).eps if epsilon is None else float(epsilon)
    if rows.shape[-1] < 2 or not rows.numel():
        return None
    wide = rows.double()
    square = wide.square().mean(-1) if name == "rms_norm" else wide.var(-1, correction=0)
    width = x.shape[1] if name == "group_norm" else rows.shape[-1]
    return Division.of(square, value, width=width, centred=name != "rms_norm")


def _further(one: _Statistic, name: str, out: Tensor, others: list[Tensor], args: Any, kwargs: Any) -> _Statistic:
    """A statistic behind one more call: with an epsilon, or a root."""
    epsilon, outside, floor, dtype, rooted = one.epsilon, one.outside, one.floor, one.dtype, one.rooted
    if (name in PLUS or name in FLOORS) and (value := _small(args, kwargs, others)) is not None:
        epsilon, outside, floor, dtype = value, rooted, name in FLOORS, out.dtype
    elif name in ROOTS or (name in POWERS and _exponent(args, kwargs) in (0.5, -0.5)):
        rooted = True
    return _Statistic(tensor=out, rooted=rooted, epsilon=epsilon, outside=outside, floor=floor, dtype=dtype)


def _small(args: Any, kwargs: Any, others: list[Tensor]) -> float | None:
    """A constant above zero among the arguments, a number or a tensor of one entry."""
    numbers = [x for x in (*args, *kwargs.values()) if isinstance(x, float)]
    numbers += [float(x) for x in others if x.numel() == 1]
    return numbers[0] if len(numbers) == 1 and 0 < numbers[0] <= LARGEST else None


def _exponent(args: Any, kwargs: Any) -> object:
    return kwargs.get("exponent", args[1] if len(args) > 1 else None)


def _offset(gain: Tensor, raw: Tensor) -> float | None:
    """The constant by which a gain is more than what is stored."""
    if raw.numel() != gain.numel():
        return None
    more = gain - raw.detach().flatten().float()
    largest = float(gain.abs().max()) or 1.0
    return round(float(more.mean()), 3) if float(more.max() - more.min()) <= EQUAL * largest else None
