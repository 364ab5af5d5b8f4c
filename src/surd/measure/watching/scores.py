"""Scores: which softmaxes of a forward attend, what they read, and what of that a mask or bias only added."""

from typing import Any

import torch
from torch import Tensor

from surd.measure.sites import Role, Site, Unseen, numbered
from surd.measure.softmax.sampled import Reading, read_logits, read_products
from surd.measure.tensors import storage
from surd.measure.trace.naming import Names, Where
from surd.measure.trace.products import factors
from surd.measure.watching.vitals import AttentionVitals

LARGEST = 2**24
"""Entries of a mask that is brought into the shape of the scores."""

Found = tuple[Where, int | None, Reading]
"""Where, how many heads (None where they cannot be told from the batch), and what was read."""


class Scores:
    """Told of calls while a forward runs; an attention is read at once, and nothing of it kept."""

    def __init__(self, names: Names, weights: set[int | None]) -> None:
        """`weights` are the memories of the parameters: a product with one of them attends to nothing."""
        self.names, self.weights = names, weights
        self.heads: int | None = None
        """Told by torch's own multi-head attention, inside of which heads and batch are one axis."""
        self.found: list[Found] = []
        self.unseen: list[Unseen] = []
        # Of the attention that is being computed: rows and lengths of its products; what was added to its scores; a
        # softmax that a product with values has yet to confirm.
        self._products: set[tuple[int, int]] = set()
        self._constants: dict[tuple[int | None, int], list[Tensor]] = {}
        self._pending: tuple[tuple[int, int], Found] | None = None

    def fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        """The parameters are those of torch's function."""
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        if query.dim() not in (3, 4):
            self.not_seen(f"attention with {query.dim() - 2} axes of sentences and heads")
            return
        (query, units), (key, _) = self._grid(query), self._grid(key)
        self.note(None if units else query.shape[1], read_products(query, key, scale, attn_mask, is_causal))

    def softmax(self, input: Tensor, dim: int | None = None, *_: Any, **__: Any) -> None:
        """Over anything of three axes or more; a product before it, or behind, tells whether it attends."""
        if input.dim() < 3:
            return
        axis = (-1 if dim is None else dim) % input.dim()
        grid, units = self._grid(input.detach().movedim(axis, -1))
        constant = self._constant(input, axis) if not units or input.dim() == 3 else None
        heads = None if units or axis != input.dim() - 1 else grid.shape[1]
        reading = read_logits(grid, constant, units)
        shape = (input.numel() // max(1, input.shape[axis]), input.shape[axis])
        if any(_same(shape, product) for product in self._products):
            self.note(heads, reading)
        elif input.dim() > 3:  # with fewer axes it may well choose experts
            self._pending = shape, (self.names.here(), heads, reading)

    def product(self, name: str, out: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Of queries and keys, perhaps; or of weights and values, which confirms a softmax."""
        sides = factors(name, args, kwargs)
        if sides is None or not self.active(*sides):
            return
        if self._pending is not None and any(_same(self._pending[0], _rows(x)) for x in sides):
            self._add(self._pending[1])
            return
        self._products.add(_rows(out))
        if name.startswith("baddbmm") and kwargs.get("beta", 1) == 1 and torch.is_grad_enabled():
            bias = args[0] if args else kwargs["input"]
            if not bias.requires_grad:
                self._constants[_key(out)] = [bias.expand(out.shape)]

    def added(self, out: Tensor, scores: Tensor, constant: Tensor) -> None:
        """Something that no weight can change was added to what may be scores."""
        if out.dim() > 2 and scores.numel() == out.numel():
            self._constants[_key(out)] = [*self._constants.get(_key(scores), []), constant.expand(out.shape)]

    def carried(self, out: Tensor, constants: list[Tensor]) -> None:
        """What may be scores was only converted, or masked."""
        self._constants[_key(out)] = constants

    def constants(self, scores: object) -> list[Tensor]:
        """What has been added so far."""
        return self._constants.get(_key(scores), []) if self._constants and isinstance(scores, Tensor) else []

    def active(self, *operands: Tensor) -> bool:
        """Whether none of them is a weight."""
        return not any(storage(x) in self.weights for x in operands)

    def note(self, heads: int | None, reading: Reading) -> None:
        """An attention at the place that is at work now."""
        self._add((self.names.here(), heads, reading))

    def not_seen(self, reason: str) -> None:
        """An attention that could not be read."""
        self.unseen.append(Unseen(what=f"{self.names.here().path}:{Role.SCORE}", reason=reason))

    def finish(self) -> None:
        """The forward is over. Says so when nothing attended."""
        if self._pending is not None and not self.found:
            where = self._pending[1][0]
            reason = f"a softmax ({where.file}:{where.line}) whose queries and keys could not be told"
            self.unseen.append(Unseen(what=f"{where.path}:{Role.SCORE}", reason=reason))
        elif not self.found and not self.unseen:
            reason = "the forward called no softmax of a product of activations"
            self.unseen.append(Unseen(what="attention", reason=reason))
        self._forget()

    def vitals(self) -> tuple[AttentionVitals, ...]:
        """Every attention, in the order of the calls."""
        sites = [Site(path=where.path, role=Role.SCORE, file=where.file, line=where.line) for where, _, _ in self.found]
        return tuple(
            AttentionVitals(
                site=site,
                heads=heads,
                rows=reading.rows,
                largest=float(reading.largest),
                std=tuple(reading.std.tolist()),
                entropy=tuple(reading.entropy.tolist()),
                dead=tuple(reading.dead.tolist()),
            )
            for site, (_, heads, reading) in zip(numbered(sites), self.found, strict=True)
        )

    def _add(self, found: Found) -> None:
        self.found.append(found)
        self._forget()

    def _forget(self) -> None:
        self._products.clear()
        self._constants.clear()
        self._pending = None

    def _constant(self, input: Tensor, axis: int) -> Tensor | None:
        """The sum of the constants in a softmax's input, in its shape."""
        total: Tensor | None = None
        for constant in self.constants(input):
            if constant.shape != input.shape:
                if constant.numel() > LARGEST:
                    return None  # joining the axes of a broadcast makes a full matrix of it
                constant = constant.reshape(input.shape)
            total = constant if total is None else total + constant
        return None if total is None else self._grid(total.movedim(axis, -1))[0]

    def _grid(self, x: Tensor) -> tuple[Tensor, bool]:
        """As (batch, heads, length, ·), and whether batch and heads could not be told apart and are all heads."""
        if x.dim() == 4:
            return x, False
        if x.dim() == 3 and self.heads and x.shape[0] % self.heads == 0:
            return x.unflatten(0, (-1, self.heads)), False
        return (x if x.dim() == 3 else x.flatten(0, -3))[None], True


def _rows(x: Tensor) -> tuple[int, int]:
    """Rows and their length."""
    return x.numel() // max(1, x.shape[-1]), x.shape[-1]


def _same(softmax: tuple[int, int], product: tuple[int, int]) -> bool:
    """Whether a softmax may be over a product; a learned sink is one more column."""
    return softmax[0] == product[0] and softmax[1] - product[1] in (0, 1)


def _key(x: Tensor) -> tuple[int | None, int]:
    return storage(x), x.numel()
