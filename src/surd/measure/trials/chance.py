"""Chance: what the random numbers of a forward are for: to choose positions, to sample, or to disturb."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from surd.errors import SurdError, raised
from surd.measure.calling.inputs import Inputs, arguments, replaced, tensors
from surd.measure.calling.restore import preserved

DRAWS = {"rand", "randn", "rand_like", "randn_like", "normal", "normal_", "uniform_", "exponential_", "poisson"}
CHOICES = {"randperm", "multinomial", "gumbel_softmax"}
CHOOSES = CHOICES | {"argsort", "sort", "topk", "argmax", "argmin", "kthvalue"}
"""They make an order or a choice of random numbers, which then moves what is computed and does not change it."""
COMPARES = {"lt", "gt", "le", "ge", "__lt__", "__gt__", "__le__", "__ge__"}
DROPS = COMPARES | {"bernoulli", "bernoulli_", "__bool__", "item", "floor", "floor_"}
"""They make yes or no of them: this or that is left out."""
SCALES = {"mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply"}
SUMS = {"add", "add_", "__add__", "__radd__", "__iadd__", "sub", "sub_", "__sub__", "__rsub__", "__isub__"}
DISTURBS = SUMS | {"where", "addcmul"}


def drawn_for(model: nn.Module, inputs: Inputs) -> bool:
    """Whether all that one forward in eval mode draws only chooses, or samples with a spread that it computes."""
    args, kwargs = arguments(replaced(inputs, lambda x: x.clone()))
    chance = Chance()
    with preserved(model), torch.enable_grad():
        try:
            with chance:
                model(*args, **kwargs)
        except Exception as error:
            raise SurdError(f"the forward raised {raised(error)}") from error
    return chance.meant and not chance.disturbed


class Chance(TorchFunctionMode):
    """Follows each random number until it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.meant = self.disturbed = False
        self._raw: dict[int, Tensor] = {}
        """Random numbers that were not used yet; held, so that no other tensor takes their place."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        given = list(tensors((args, kwargs)))
        raw = [x for x in given if id(x) in self._raw]
        result = func(*args, **kwargs)
        if name in CHOOSES and (raw or name in CHOICES):
            self.meant = True
        elif name in DROPS and (raw or name.startswith("bernoulli")):
            self.disturbed = True
        elif name in DRAWS:
            if name in ("normal", "poisson") and any(
                x.requires_grad for x in given
            ):  # normal(mean, spread): the distribution is computed
                self.meant = True
            else:
                self._hold(result)
        elif raw:
            # An output of the forward carries a graph; a constant and a random number do not.
            computed = any(x.requires_grad for x in given if id(x) not in self._raw)
            if name in SCALES and computed:
                self.meant = True
            elif name in DISTURBS:
                self.disturbed = True
            else:
                self._hold(result)
        return result

    def _hold(self, result: Any) -> None:
        self._raw |= {id(x): x for x in tensors(result) if x.is_floating_point()}
