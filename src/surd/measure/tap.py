"""The tap: sees every call of torch in a forward and notes the places where scales can be read; it changes nothing."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from surd.measure.calls import Candidate, Fused, LookUp, Operand, Product, Projection, Size, Softmax, rms
from surd.measure.graph import Origins, Place, comes_from, place_of, walk_back
from surd.measure.inputs import tensors
from surd.measure.kernel import fits, kernel_scale
from surd.measure.naming import Names, Where
from surd.measure.products import CONVOLUTIONS, PRODUCTS, contracted, factors
from surd.measure.sites import Role

NORMS = ("layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm", "normalize")
SOFTMAXES = ("softmax", "_softmax", "special_softmax")
LOOK_UPS = ("embedding", "index_select", "__getitem__")
ADDITIONS = ("add", "add_", "__add__", "__iadd__", "__radd__")
FUSED = "scaled_dot_product_attention"
MULTI_HEAD = "multi_head_attention_forward"


class Tap(TorchFunctionMode):
    """Notes what a forward does; all arithmetic on the graph comes afterwards."""

    def __init__(self, model: nn.Module, given: list[Tensor], *, values: bool = False, suspend_no_grad: bool = True):
        """`given` are the token ids among the inputs; `values` keeps numbers for comparing positions."""
        super().__init__()
        self.model, self.names, self.given, self.values = model, Names(model), given, values
        self.suspend_no_grad = suspend_no_grad
        self.origins = Origins()
        self.lookups: list[LookUp] = []
        self.projections: dict[Node, Projection] = {}
        self.products: dict[Node, Product] = {}
        self.attention: list[Softmax | Fused] = []
        self.weights: dict[Node, Place] = {}
        self.norms: dict[Node, Place] = {}
        self.outputs: dict[Node, Place] = {}
        self.sizes: list[Size] = []
        self.opaque: list[tuple[Where, str]] = []
        self.inputs: dict[Node, str] = {}
        self._inside = False

    @property
    def beginnings(self) -> dict[Node, Place]:
        """From where gains are measured: projections, norms, looked-up rows and inputs."""
        projections = {node: projection.place for node, projection in self.projections.items()}
        return {**projections, **self.norms, **self.origins.places}

    @property
    def content(self) -> frozenset[Node]:
        """What differs from row to row: looked-up tokens, and inputs that are numbers."""
        return frozenset(lookup.place.node for lookup in self.lookups if lookup.token) | self.inputs.keys()

    def admit(self, name: str, x: Tensor) -> None:
        """Declares an input of the model that is numbers."""
        place = place_of(x)
        assert place is not None, "an input is admitted with a gradient"
        self.origins.add(place)
        self.inputs[place.node] = name

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Open for the forward of the model; nothing stays behind."""
        with ExitStack() as stack:
            for module in self.model.modules():
                if not isinstance(module, torch.jit.ScriptModule):
                    entering = module.register_forward_pre_hook(self._enter, with_kwargs=True)
                    leaving = module.register_forward_hook(self._leave)
                    stack.callback(entering.remove)
                    stack.callback(leaving.remove)
            original = vars(torch.autograd.Function)["apply"]

            def apply(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
                return self._custom(cls, lambda *a, **k: original.__func__(cls, *a, **k), args, kwargs)

            stack.enter_context(_swapped(torch.autograd.Function, apply=classmethod(apply)))
            if self.suspend_no_grad:
                inert = {"__enter__": lambda mode: None, "__exit__": lambda mode, *error: None}
                stack.enter_context(_swapped(torch.inference_mode, **inert))
            stack.enter_context(self)
            yield

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._inside:
            return func(*args, **kwargs)
        if func is torch._C._set_grad_enabled and self.suspend_no_grad:
            return None  # `torch.no_grad` in a forward would cut the graph
        name = getattr(func, "__name__", "").split(".")[0]  # torch.export adds the overload: "bmm.default"
        if name == MULTI_HEAD:
            # It is one call to a tap. Told that nobody listens, it goes on to its inner calls, where we do.
            with _swapped(F, has_torch_function=lambda arguments: False), self:
                return func(*args, **kwargs)
        if _is_custom(func):
            return self._custom(str(func), func, args, kwargs)
        if name == FUSED:
            self._fused(*args, **kwargs)  # before the call, which may change its arguments
        out = func(*args, **kwargs)
        if isinstance(out, Tensor) and out.is_floating_point():
            self._note(name, out, args, kwargs)
        return out

    def _note(self, name: str, out: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name in PRODUCTS or name in CONVOLUTIONS:
            self._product(name, out, args, kwargs)
        elif name in SOFTMAXES:
            self._softmax(out, *args, **kwargs)
        elif name in LOOK_UPS:
            self._look_up(name, out, [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)])
        elif name.removeprefix("native_") in NORMS:
            self._norm(out, next(tensors((args, kwargs))))
        elif name in ADDITIONS:
            self._addition(out, [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)])
        elif name == FUSED:
            self.sizes.append(Size(where=self.names.here(), role=Role.MIX, rms=rms(out)))

    def _fused(
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
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        self._close(query, key)
        self._append_fused("sdpa", query, key, value, scale, attn_mask)

    def _append_fused(
        self, backend: str, query: Tensor, key: Tensor, value: Tensor, scale: float | None, mask: Tensor | None
    ) -> None:
        self.attention.append(
            Fused(
                where=self.names.here(),
                backend=backend,
                query=self._operand(query),
                key=self._operand(key),
                value=self._operand(value),
                scale=scale,
                mask=mask,
            )
        )

    def _product(self, name: str, out: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        sides, place = factors(name, args, kwargs), place_of(out)
        if place is None or sides is None:
            return
        left, right = sides
        self._close(left, right)
        live = self._is_live(left), self._is_live(right)
        if all(live):
            mixes = any(self._is_weight(side) for side in sides)
            self.products[place.node] = Product(
                where=self.names.here(),
                place=place,
                left=self._operand(left),
                right=self._operand(right),
                d_k=contracted(name, args, left, right),
                alpha=float(kwargs.get("alpha", 1)),
                mixes=mixes,
            )
            if mixes:
                self.sizes.append(Size(where=self.names.here(), role=Role.MIX, rms=rms(out)))
            return
        layer = name == "linear" or name in CONVOLUTIONS
        both = left.requires_grad and right.requires_grad
        # A constant matrix, such as a Fourier transform, is part of the way; two weights make a weight.
        if not layer and (not both if any(live) else both or not (left.requires_grad or right.requires_grad)):
            return
        turned = not layer and (live[1] if any(live) else left.requires_grad)
        read, weight = (right, left) if turned else (left, right)
        self._projection(place, read, weight)
        if not any(live):
            self.origins.add(place)  # a projected table of relative positions is an activation from here on

    def _projection(self, place: Place, read: Tensor, weight: Tensor | None) -> None:
        where, operand = self.names.here(), self._operand(read)
        self.projections[place.node] = Projection(where=where, weight=weight, read=operand, place=place)

    def _softmax(self, out: Tensor, input: Tensor, dim: int | None = None, *_: Any, **__: Any) -> None:
        axis = (-1 if dim is None else dim) % out.dim()
        where, place = self.names.here(), place_of(input)
        self.attention.append(Softmax(where=where, place=place, values=input.detach(), axis=axis))
        if (after := place_of(out)) is not None:
            self.weights[after.node] = after

    def _look_up(self, name: str, out: Tensor, operands: list[Tensor]) -> None:
        ids = [x for x in operands if x.dtype in (torch.int32, torch.int64)]
        tables = [x for x in operands if x.is_floating_point() and x.dim() == 2 and not self._is_live(x)]
        if not (len(ids) == len(tables) == 1 == len(operands) - 1):
            return
        (ids,), (table,) = ids, tables
        # Rows of a constant are no embedding: they may be the cosines of a rotation.
        if out.shape != (*ids.shape, table.shape[1]) or (name != "embedding" and not table.requires_grad):
            return
        place = place_of(out.requires_grad_() if not out.requires_grad else out)
        assert place is not None, "it was made to require a gradient"
        self.origins.add(place)
        token = _tells_tokens(ids, self.given)
        where = self.names.here()
        self.lookups.append(LookUp(where=where, table=table, ids=ids, token=token, place=place, rms=rms(out)))

    def _norm(self, out: Tensor, read: Tensor) -> None:
        place = place_of(out)
        if place is not None and place.node not in self.norms:
            self._offer(read)
            self.norms[place.node] = place
            self.sizes.append(Size(where=self.names.here(), role=Role.NORM, rms=rms(out)))

    def _addition(self, out: Tensor, sides: list[Tensor]) -> None:
        """A residual connection is a sum of something with a function of itself."""
        if len(sides) != 2 or sides[0].shape != sides[1].shape or sides[0].dim() < 2:
            return
        nodes = [(x.grad_fn, x) for x in sides if x.grad_fn is not None and self._is_live(x)]
        if len(nodes) == 2 and nodes[0][0] is not nodes[1][0]:
            (older, _), (newer, branch) = sorted(nodes, key=lambda pair: pair[0]._sequence_nr())
            if comes_from(newer, older):
                where = self.names.here()
                self.sizes.append(Size(where=where, role=Role.BRANCH, rms=rms(branch)))
                self.sizes.append(Size(where=where, role=Role.STREAM, rms=rms(out)))

    def _custom(
        self, function: str | type, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A function of somebody's own. Nothing inside it stands in the graph, but it can be asked."""
        if function is CheckpointFunction:
            return args[0](*args[2:])  # without its no_grad, the graph is whole
        if self._inside:
            return run(*args, **kwargs)
        with self._closed():
            out = run(*args, **kwargs)
            operands = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point()]
            if isinstance(out, Tensor) and len(operands) == 1 and _same(out, operands[0]):
                # It only changes gradients. A scale is what the forward does, so the identity gets the identity's.
                return operands[0].view_as(operands[0])
            result = next(tensors(out), None)
            if result is None or not result.is_floating_point() or not any(map(self._is_live, operands)):
                return out
            name = function if isinstance(function, str) else function.__qualname__
            if len(operands) >= 3 and all(map(self._is_live, operands[:3])) and fits(*operands[:3]):
                self._ask(name, run, args, kwargs, operands[:3])
            elif not result.requires_grad and result is out and isinstance(function, str):
                # A quantised layer has no gradient: the graph begins anew behind it.
                self._restart(name, result, operands[0])
            elif (place := place_of(result)) is not None:
                weights = [x for x in operands if x.requires_grad and x.dim() == 2 and not self._is_live(x)]
                if "norm" in name.lower():
                    self._norm(result, operands[0])
                elif weights:
                    self._close(operands[0])
                    self._projection(place, operands[0], weights[0])
        return out

    def _ask(
        self,
        name: str,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        operands: list[Tensor],
    ) -> None:
        """An attention kernel, called again with other queries and values."""

        def kernel(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            swap = dict(zip(map(id, operands), (query, key, value), strict=True))
            changed = [swap.get(id(x), x) for x in args]
            return next(tensors(run(*changed, **{word: swap.get(id(x), x) for word, x in kwargs.items()})))

        query, key, value = (x.detach() for x in operands)
        self._close(*operands[:2])
        self._append_fused(name, *operands, kernel_scale(kernel, query, key, value), None)

    def _restart(self, name: str, out: Tensor, read: Tensor) -> None:
        place = place_of(out.requires_grad_())
        assert place is not None, "it was made to require a gradient"
        self._close(read)
        self._projection(place, read, None)
        self.origins.add(place)
        self.opaque.append((self.names.here(), name))

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._inside and any(lookup.open for lookup in self.lookups):
            with self._closed():
                for x in tensors((args, kwargs)):
                    self._offer(x)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        if self._inside:
            return
        with self._closed():
            for x in tensors(out):
                place = place_of(x)
                if place is not None and self.origins.of(place.node):
                    self.outputs[place.node] = place
                    if "norm" in type(module).__name__.lower() and args and isinstance(args[0], Tensor):
                        self._norm(x, args[0])

    def _is_live(self, x: Tensor) -> bool:
        """Whether it comes from the input, rather than from weights alone."""
        return bool(self.origins.of(x.grad_fn))

    def _is_weight(self, x: Tensor) -> bool:
        """Whether it is what a softmax returned, give or take dropout and reshaping."""
        if x.grad_fn is None or not self.weights:
            return False
        met, _ = walk_back([x.grad_fn], {**self.weights, **self.beginnings})
        return any(node in self.weights for node in met)

    @contextmanager
    def _closed(self) -> Iterator[None]:
        """What is called inside belongs to the tap, or to a function that is not in the graph."""
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    def _close(self, *read: Tensor) -> None:
        """A product reads the rows: here, at the latest, they have entered the model."""
        for x in read:
            for lookup in self._offer(x):
                lookup.open = False

    def _offer(self, x: Tensor) -> list[LookUp]:
        """Notes a tensor as perhaps what enters the model; the look-ups that are behind it and still open."""
        behind = self.origins.of(x.grad_fn)
        found = [lookup for lookup in self.lookups if lookup.open and lookup.place.node in behind]
        for lookup in found:
            place = place_of(x)
            if place is not None and x.shape.numel() == lookup.place.shape.numel():
                candidate = Candidate(where=self.names.here(), place=place, operand=self._operand(x))
                lookup.candidates.setdefault(place.node, candidate)
        return found

    def _operand(self, x: Tensor) -> Operand:
        value = x.detach().clone() if self.values else None
        return Operand(place=place_of(x), rms=rms(x), shape=x.shape, value=value)


def _is_custom(function: Any) -> bool:
    """An operator that is not torch's own."""
    if not isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket | torch._ops.HigherOrderOperator):
        return False
    return not str(function).startswith(("aten.", "prims."))


def _tells_tokens(ids: Tensor, given: list[Tensor]) -> bool:
    """Whether ids are tokens rather than positions or segments, which are the same in every row."""
    if ids.dim() > 1 and ids.shape[0] > 1 and ids.shape[-1] > 1:
        return bool((ids != ids[:1]).any()) and bool((ids != ids[..., :1]).any())
    return any(ids.numel() == other.numel() and torch.equal(ids.flatten(), other.flatten()) for other in given)


def _same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and first.dtype == second.dtype and torch.equal(first, second)


@contextmanager
def _swapped(owner: Any, **replacements: Any) -> Iterator[None]:
    """Attributes replaced for a while, in a class or a module."""
    before = {name: vars(owner)[name] for name in replacements}
    try:
        for name, replacement in replacements.items():
            setattr(owner, name, replacement)
        yield
    finally:
        for name, original in before.items():
            setattr(owner, name, original)
