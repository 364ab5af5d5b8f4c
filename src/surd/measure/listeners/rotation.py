"""Rotation: the angles of position tables, as the forward computes or keeps them, beside the same angles in fp32."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from surd.measure.calling.fields import field
from surd.measure.trace.naming import Names, display_path

HALF = (torch.bfloat16, torch.float16)
FEWEST = 4
"""Angles of fewer frequencies, or positions, are no table."""
LONGEST = 4096
"""Positions for which angles that a forward computes are judged, where no configuration says how long texts get."""
LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_seq_length", "block_size", "max_length")
ROUNDING = 2**-6
"""Most that bfloat16 changes an angle by, of itself: half a step of a position, of a frequency and of the product."""
STRAIGHT = 1e-3
"""Relative deviation below which a table's frequencies are those of the rounded type: chance hits it once in four."""


@dataclass(frozen=True, kw_only=True)
class Angles:
    """One table, and how far its angles are off."""

    site: str
    error: float
    """The largest difference from the angle in fp32, over all positions, in rad."""
    positions: int
    cause: str
    """Empty where nothing is rounded."""


def angles(module: nn.Module, hearing: "Rotations") -> list[Angles]:
    """Of every cos and sin that a forward computed from positions, and of every table of them that the module keeps."""
    longest = _longest(module)
    found = [_computed(site, x, longest) for site, x in hearing.found.items()]
    return [*found, *_kept(module)]


class Rotations(TorchFunctionMode):
    """Notes what cos, sin and polar are computed of."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._names = Names(module)
        self.found: dict[str, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "").split(".")[0]
        out = func(*args, **(kwargs or {}))
        if name in ("cos", "sin", "polar") and args and isinstance(args[-1], Tensor):
            x = args[-1].detach()
            while x.dim() > 2:
                x = x[0] if x.shape[0] <= x.shape[1] or x.dim() > 3 else x[:, 0]
            x = _once(x)
            if x.dim() == 2 and min(x.shape) >= FEWEST and _grows(x):
                self.found.setdefault(f"{self._names.here().path}:angle", x.clone())
        return out


def _once(x: Tensor) -> Tensor:
    """Without the second copy of each frequency, behind the first ones or beside them."""
    half = x.shape[-1] // 2
    if x.dim() == 2 and half and x.shape[-1] % 2 == 0:
        if torch.equal(x[:, :half], x[:, half:]):
            return x[:, :half]
        if torch.equal(x[:, ::2], x[:, 1::2]):
            return x[:, ::2]
    return x


def _grows(x: Float[Tensor, "positions frequencies"]) -> bool:
    """Whether it is positions times frequencies: zero at first, and growing."""
    x = x.double()
    return float(x[0].abs().max()) == 0 and bool((x[1] > 0).all()) and bool((x[-1] >= x[1]).all())


def _computed(site: str, x: Tensor, longest: int) -> Angles:
    """Angles that a forward has computed, at the few positions that it was given, taken on to the longest text."""
    frequencies = x[1].double()
    kind = next((dtype for dtype in HALF if _all_of(frequencies, dtype)), None)
    # Widened afterwards or not: where all angles are numbers of a shorter type, the products were rounded to it.
    product = next((dtype for dtype in HALF if x.dtype is dtype or _all_of(x[1:].double().flatten(), dtype)), None)
    if product is not None:
        exact = reference(frequencies)
        places = torch.arange(longest).to(product)[:, None]
        rounded = (places * exact.to(product)).double()
        cause = f"positions and frequencies are multiplied in {_name(product)}"
        return Angles(site=site, error=_largest(rounded, exact, longest), positions=longest, cause=cause)
    if kind is None:
        return Angles(site=site, error=0.0, positions=longest, cause="")
    exact = reference(frequencies)
    rounded = torch.arange(longest)[:, None].double() * frequencies
    cause = f"the frequencies were rounded to {_name(kind)}"
    return Angles(site=site, error=_largest(rounded, exact, longest), positions=longest, cause=cause)


def _kept(module: nn.Module) -> Iterator[Angles]:
    """Tables of cosines and sines among a module's tensors, in halves, interleaved, complex, or one each."""
    for path, part in module.named_modules():
        tensors = {**part._buffers, **{key: x for key, x in vars(part).items() if isinstance(x, Tensor)}}
        cosines = {key: x for key, x in tensors.items() if x is not None}
        for key, table in cosines.items():
            for sine, cosine in _pairs(table, [x for x in cosines.values() if x is not table]):
                yield _table(f"{display_path(path)}.{key}".removeprefix("."), sine, cosine)
                break


def _pairs(table: Tensor, others: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Sines and cosines of the same angles in a table, or in it and another one."""
    x = table.detach().squeeze()
    if x.is_complex():
        x = torch.view_as_real(x)
    if x.dim() == 3 and x.shape[-1] == 2:
        candidates = [(x[..., 1], x[..., 0]), (x[..., 0], x[..., 1])]
    elif x.dim() == 2 and x.is_floating_point() and x.shape[1] % 2 == 0:
        half = x.shape[1] // 2
        candidates = [(x[:, :half], x[:, half:]), (x[:, half:], x[:, :half]), (x[:, ::2], x[:, 1::2])]
        candidates += [(x[:, :half], other.detach().squeeze()[:, :half]) for other in others if _alike(x, other)]
    else:
        return
    for sine, cosine in candidates:
        shown = min(sine.shape) >= FEWEST and bool((sine[0].abs() < 1e-6).all()) and bool((cosine[0] == 1).all())
        if shown and float((sine.double() ** 2 + cosine.double() ** 2 - 1).abs().max()) < 0.03:
            yield sine, cosine


def _alike(x: Tensor, other: Tensor) -> bool:
    return other.is_floating_point() and other.detach().squeeze().shape == x.shape


def _table(site: str, sine: Tensor, cosine: Tensor) -> Angles:
    """The angles of a kept table: how straight they grow, and whether by rounded frequencies."""
    wrapped = torch.atan2(sine.double(), cosine.double())
    count = len(wrapped)
    steps = torch.remainder(wrapped[1:] - wrapped[:-1] + torch.pi, 2 * torch.pi) - torch.pi
    slopes = steps.median(0).values if sine.dtype in HALF else wrapped[1]
    slow = slopes > 1e-3
    exact = reference(slopes.clamp(min=1e-9)) if sine.dtype not in HALF else None
    own = torch.arange(count)[:, None].double() * slopes
    bend = (torch.remainder(wrapped - own + torch.pi, 2 * torch.pi) - torch.pi)[:, slow]
    kind = next((dtype for dtype in HALF if _all_of(slopes, dtype)), None) if sine.dtype not in HALF else None
    if exact is None:
        # A stored cosine of 8 bits tells its own angle to 0.004; only what is worse than that was computed so.
        jumps = float(steps.abs().amin(0)[slow][:1].max()) if bool(slow.any()) else 1.0
        broken = jumps == 0.0 and float(slopes[0]) != 0
        error = float(torch.pi) if broken else 0.0
        cause = "neighbouring positions have one angle: positions were rounded" if broken else ""
        return Angles(site=site, error=error, positions=count, cause=cause)
    if kind is not None:
        cause = f"the frequencies were rounded to {_name(kind)}"
        return Angles(site=site, error=_largest(own, exact, count), positions=count, cause=cause)
    error = float(bend.abs().max()) if bend.numel() else 0.0
    # Where turns cannot hide it, rounding leaves an angle near its own; others belong to an axis of a grid.
    near = own[:, slow].abs() * ROUNDING
    rounded = error > 0.01 and bool((bend.abs() <= near + 0.01)[near < 1].all())
    cause = "angles do not grow evenly with the position: positions were rounded" if rounded else ""
    return Angles(site=site, error=error if rounded else 0.0, positions=count, cause=cause)


def reference(frequencies: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
    """The geometric sequence base^(-i/k) that rounded frequencies belong to, where they belong to one.

    Its base is one that people write: rounded to two digits. Su et al. 2021 (arXiv 2104.09864).
    """
    x = frequencies.double()
    steps = torch.arange(len(x), dtype=torch.float64) / len(x)
    base = float(torch.exp(-(steps[1:] * x[1:].log()).sum() / (steps[1:] ** 2).sum()))
    digits = 10 ** (int(log(max(base, 1.0), 10)) - 1)
    snapped = round(base / digits) * digits if digits >= 1 else base
    exact = float(snapped) ** -steps
    return exact if float((exact / x - 1).abs().max()) < 2**-7 else x


def _all_of(x: Tensor, dtype: torch.dtype) -> bool:
    """Whether all numbers are, to half a step of fp32, numbers of a shorter type; powers of two always are."""
    mantissa = torch.frexp(x).mantissa
    odd = (mantissa - 0.5).abs() > 1e-6
    if int(odd.sum()) < FEWEST - 1:
        return False
    step = x * torch.finfo(dtype).eps
    return bool(((x - x.to(dtype).double()).abs() < STRAIGHT * step)[odd].all())


def _largest(rounded: Tensor, exact: Tensor, positions: int) -> float:
    return float((rounded - torch.arange(positions)[:, None].double() * exact).abs().max())


def _longest(module: nn.Module) -> int:
    config = field(module, "config")
    lengths = [field(config, name) for name in LENGTHS]
    return next((length for length in lengths if isinstance(length, int) and length > 1), LONGEST)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
