"""The culprit: the first place of a forward where numbers that were finite became infinite or none."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from surd.measure.calling.inputs import tensors
from surd.measure.calling.restore import preserved
from surd.measure.probe import unwrapped
from surd.measure.trace.naming import Names, display_path
from surd.measure.trace.tap import MULTI_HEAD, opened

MASKING = ("masked_fill", "masked_fill_", "where", "full", "full_like", "fill_", "new_full", "triu", "tril")
"""Calls that may write -inf on purpose."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a module by somebody's loop: what it takes to make it again.

    The arguments are not copied, only kept until the update is done; beside them, the state of the random generators.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    random: Tensor
    device_random: Tensor | None

    @classmethod
    def of(cls, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "Call":
        """Of a call that is about to be made."""
        device_random = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
        return cls(module=module, args=args, kwargs=kwargs, random=torch.get_rng_state(), device_random=device_random)

    def again(self, model: nn.Module, listening: Callable[[], Any]) -> None:
        """Runs the same forward, uncompiled and on this process alone, with the same dropout.

        The model is left as it was. `listening` returns a context that is open for the forward.
        """
        training = [(module, module.training) for module in model.modules()]
        with preserved(model):
            for module, flag in training:
                if not isinstance(module, torch.jit.ScriptModule):
                    module.training = flag
            torch.set_rng_state(self.random)
            if self.device_random is not None:
                torch.cuda.set_rng_state(self.device_random)
            with listening():
                unwrapped(self.module)(*self.args, **self.kwargs)


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """Where it began."""

    site: str
    advice: str
    in_backward: bool = False
    """The forward was finite when it was run again."""


IN_LOSS = Culprit(
    site="loss",
    advice="All outputs of the model are finite, so the loss function made it: look for log(0), 0/0 or an empty batch.",
)


class _Found(Exception):
    """Ends a forward whose culprit is known."""


class _Finder(TorchFunctionMode):
    """Looks at the result of every call, and remembers in which order the modules were at work."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.names = Names(model)
        self.order: dict[str, int] = {}
        self.culprit: Culprit | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").split(".")[0]
        if name == MULTI_HEAD:
            with opened(), self:
                return func(*args, **kwargs)
        read = [] if name in ("isfinite", "isnan") else [x for x in tensors((args, kwargs)) if x.is_floating_point()]
        infinite = [x for x in read if bool(x.detach().isinf().any() | x.detach().isnan().any())]
        masked = all(_only_masked(x) for x in infinite)
        out = func(*args, **kwargs)
        made = [x for x in tensors(out) if x.is_floating_point() and x.numel()] if read else []
        if made:
            where = self.names.here()
            self.order.setdefault(where.path, len(self.order))
            wrong = [x for x in made if not bool(x.detach().isfinite().all())]
            hiding = all(_only_masked(x) for x in wrong) and (bool(infinite) or name in MASKING)
            if wrong and masked and not hiding:
                self.culprit = Culprit(
                    site=f"{where.path}:{name} ({where.file}:{where.line})",
                    advice=f"{_largest(read)} Look at what reaches this line, or compute it in fp32.",
                )
                raise _Found
        return out


def find_culprit(model: nn.Module, calls: list[Call], loss_is_finite: bool) -> Culprit:
    """Runs the calls of one update again on the weights that are there, until one of them makes no number."""
    for path, parameter in model.named_parameters():
        if not _finite(parameter):
            return Culprit(
                site=display_path(path),
                advice="The weights themselves are not finite: an earlier update wrote them. "
                "Go back to the last checkpoint and lower the learning rate.",
            )
    order: dict[str, int] = {}
    for call in calls:
        if not all(map(_finite, tensors((call.args, call.kwargs)))):
            return Culprit(site="input", advice="The batch holds numbers that are not finite: clean the data.")
        finder = _Finder(model)
        try:
            call.again(model, lambda finder=finder: _entered(finder))
        except _Found:
            assert finder.culprit is not None, "it is set before it is raised"
            return finder.culprit
        except Exception as error:
            return Culprit(site="unknown", advice=f"The batch could not be run again: {type(error).__name__}: {error}.")
        order |= {path: place for path, place in finder.order.items() if path not in order}
    if not calls:
        return Culprit(
            site="unknown",
            advice="No call of the model was heard in this step: give the watch the object that the loop calls.",
        )
    if not loss_is_finite:
        return IN_LOSS
    return _in_backward(model, order)


def _in_backward(model: nn.Module, order: dict[str, int]) -> Culprit:
    """The gradient runs from the last module to the first: the last one with a bad gradient met it first."""
    bad = [display_path(path) for path, p in model.named_parameters() if p.grad is not None and not _finite(p.grad)]
    if not bad:
        return Culprit(site="unknown", advice="Neither forward nor gradients show it any more.", in_backward=True)
    latest = max((name.rpartition(".")[0] for name in bad), key=lambda path: order.get(path, -1))
    return Culprit(
        site=f"{latest}:gradient",
        advice="The forward is finite, and so are the gradients of all modules behind this one: clip the gradient, or "
        "look here for a root, a division or a norm of something that is zero.",
        in_backward=True,
    )


@contextmanager
def _entered(finder: _Finder) -> Generator[None]:
    with finder:
        yield


def _finite(x: Tensor) -> bool:
    local = getattr(x, "_local_tensor", x).detach()
    return not local.is_floating_point() or local.is_meta or bool(local.isfinite().all())


def _only_masked(x: Tensor) -> bool:
    """Whether all that is not finite in it is -inf."""
    x = x.detach()
    return not bool((x.isnan() | (x == float("inf"))).any())


def _largest(read: list[Tensor]) -> str:
    sizes = [float(x.detach().masked_fill(~x.detach().isfinite(), 0.0).abs().amax()) for x in read if x.numel()]
    return f"It read finite numbers, the largest {max(sizes):.3g}, and made others." if sizes else ""
