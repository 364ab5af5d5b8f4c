"""Drawing: how large each matrix of a model was drawn, beside the schemes that are published and its own neighbours."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import nn

from surd.audit.evidence import Evidence
from surd.audit.finding import Unobserved
from surd.audit.parts import part_std, uses
from surd.measure.fans import SCHEMES, as_convolution, backward, glorot, published
from surd.measure.sites import Attention
from surd.measure.use import Part, Use

JUDGED = (Part.QUERY, Part.KEY, Part.VALUE, Part.OUT, Part.INNER, Part.OUTER)
SAME = 0.02
"""Relative difference of deviations that are one, beside what a sample of their size leaves open."""
SHARE = 0.6
"""Of the matrices, whatever their fans, from which one number is the scheme of the model."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """One part of a weight, as it was drawn."""

    use: Use
    shape: torch.Size
    """Of the whole weight."""
    std: float
    attention: Attention | None
    whole: tuple[int, int]
    """The fans of the whole weight, other parts in it included."""
    convolution: bool = False

    @property
    def gain(self) -> float:
        """σ · √fan_in: by what it multiplies the size of unit inputs."""
        return self.std * self.use.fan_in**0.5

    @property
    def tolerance(self) -> float:
        """Three standard errors of a deviation of that many normal numbers, and a little."""
        return SAME + 3 / (2 * self.use.fan_in * self.use.fan_out) ** 0.5

    def near(self, std: float) -> bool:
        """Whether it may have been drawn with this deviation."""
        return abs(self.std / std - 1) < self.tolerance

    @property
    def usual(self) -> bool:
        """Whether a published scheme gives it this deviation, with fans of its own."""
        axes = {size for axis, size in enumerate(self.shape) if axis != self.use.axis}
        counts = {self.use.fan_out, *axes, *([self.attention.d_k] if self.attention else [])}
        if any(self.near(std) for std in published(self.use.fan_in, counts)):
            return True
        # Both layers of a feed-forward over their outputs: what one loses the other wins.
        return self.use.part in (Part.INNER, Part.OUTER) and any(map(self.near, backward(self.use.fan_out)))

    @property
    def packed(self) -> bool:
        """Whether other parts lie in the same weight."""
        return self.use.axis is not None

    def wrong(self) -> tuple[str, float] | None:
        """The scheme, and the deviation it should have given, if the fans of an image's kernel explain this one."""
        if len(self.shape) < 3 or self.convolution:
            return None
        own = (self.use.fan_in, self.use.fan_out)
        for fans in as_convolution(self.shape):
            for name, scheme in SCHEMES.items():
                if self.near(scheme(*fans)):
                    return name, scheme(*own)
        return None

    def of_a_head(self) -> tuple[str, float] | None:
        """The same, if d_k stands where fan_in belongs."""
        d_k = self.attention.d_k if self.attention else self.use.fan_in
        if self.use.fan_in < 2 * d_k:
            return None
        for name, scheme in SCHEMES.items():
            if "out" not in name and self.near(scheme(d_k, 1)):
                return name, scheme(self.use.fan_in, 1)
        return None

    def of_all_parts(self) -> float | None:
        """The deviation that Glorot's rule gives a part by itself, if it was applied to all parts in one matrix."""
        if self.packed and self.near(glorot(*self.whole)):
            return glorot(self.use.fan_in, self.use.fan_out)
        return None


def drawn(evidence: Evidence) -> list[Drawn]:
    """The matrices of attention and feed-forwards, each part once; what starts at zero was set so."""
    weights, module = evidence.weights, evidence.subject.module
    known, found = set(weights.names()), []
    for use in dict.fromkeys(uses(evidence)):
        if use.part not in JUDGED or use.name not in known or not weights.dtype(use.name).is_floating_point:
            continue
        shape = weights.shape(use.name)
        numbers = shape.numel() if use.axis is None else shape.numel() // shape[use.axis] * len(use.places)
        if len(shape) < 2 or numbers != use.fan_in * use.fan_out or min(use.fan_in, use.fan_out) < 2:
            continue  # the gain of a normalised weight, a factor of one, a kernel of one channel
        std = part_std(weights, use)
        if std > 0:
            found.append(
                Drawn(
                    use=use,
                    shape=shape,
                    std=std,
                    attention=_attention(evidence, use),
                    whole=(use.fan_in, shape.numel() // use.fan_in),
                    convolution=module is not None and _is_convolution(module, use.path),
                )
            )
    return found


def _attention(evidence: Evidence, use: Use) -> Attention | None:
    try:
        return None if use.attention is None else evidence.trace.attention[use.attention]
    except (Unobserved, IndexError):
        return None


def _is_convolution(module: nn.Module, path: str) -> bool:
    """Its fans are those of an image's kernel."""
    try:
        return isinstance(module.get_submodule(path), nn.modules.conv._ConvNd)
    except AttributeError:
        return False


def common(matrices: Sequence[Drawn]) -> float | None:
    """The one deviation that most matrices have whatever their fans, where the model has such a one."""
    if len(matrices) < 3:
        return None
    middle = median(one.std for one in matrices)
    agreed = [one for one in matrices if one.near(middle)]
    many = len(agreed) >= SHARE * len(matrices)
    return middle if many and len({one.use.fan_in for one in agreed}) > 1 else None


def shared(one: Drawn, matrices: Sequence[Drawn]) -> bool:
    """Whether two matrices of other shapes have the same deviation: then no fans gave it."""
    alike = [x for x in matrices if sorted(x.shape) != sorted(one.shape) and abs(x.std / one.std - 1) < 2 * SAME]
    return len({x.use.name for x in alike}) > 1


def odd_ones(matrices: Sequence[Drawn]) -> Iterator[tuple[Drawn, float]]:
    """A matrix that differs from the same one of the other layers, with the deviation that those have."""
    groups: dict[tuple[object, ...], list[Drawn]] = {}
    for one in matrices:
        cross = one.attention.cross if one.attention else False
        place = re.sub(r"\d+", "*", one.use.name)  # an encoder is no layer of the decoder
        groups.setdefault((place, one.use.part, one.use.fan_in, one.use.fan_out, one.shape, cross), []).append(one)
    for group in groups.values():
        middle = median(one.std for one in group)
        others = [one for one in group if not one.near(middle)]
        if len(group) > 2 and len(others) * 4 <= max(len(group), 4):
            yield from ((one, middle) for one in others)
