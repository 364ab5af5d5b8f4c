"""Weights: the named tensors that static rules read, of a live module, or of a file that is larger than memory."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from hashlib import sha256

import torch
from torch import Tensor, nn

from surd.measure.tensors import storage
from surd.measure.trace.naming import display_path

AT_ONCE = 2**22
"""Numbers that are looked at together."""
TOP = 4096
"""Rows that stand for all of them."""


class Weights(ABC):
    """Tensors by name, each brought into memory only while it is looked at."""

    @abstractmethod
    def names(self) -> list[str]:
        """All names, also those of one tensor that has two."""

    @abstractmethod
    def shape(self, name: str) -> torch.Size:
        """Known without reading the numbers."""

    @abstractmethod
    def dtype(self, name: str) -> torch.dtype:
        """As stored."""

    @abstractmethod
    def tensor(self, name: str) -> Tensor:
        """Its numbers."""

    @property
    @abstractmethod
    def module(self) -> nn.Module | None:
        """The live module that holds them; None for a file."""

    @property
    def in_memory(self) -> bool:
        """Whether a layer holds them, and what is one tensor can be told from what is two."""
        return False

    def same(self, first: str, second: str) -> bool:
        """Whether two names are of the same numbers in memory."""
        return first == second

    def one_parameter(self, first: str, second: str) -> bool:
        """Whether they are one object too, whose gradients are summed."""
        return first == second

    def learns(self, name: str) -> bool:
        """Whether it wants a gradient."""
        return True

    def padding(self, name: str) -> int | None:
        """The row that the layer of a table keeps from learning."""
        return None

    def layers(self) -> dict[str, str]:
        """The class of each layer, by its path."""
        return {}

    def rows(self, name: str, begin: int, end: int) -> Tensor:
        """Some entries along the first axis."""
        return self.tensor(name)[begin:end]

    def top(self, name: str) -> Tensor:
        """Its first rows, where there are very many."""
        shape = self.shape(name)
        rows = min(TOP, 2 * AT_ONCE // max(1, shape[1:].numel())) if len(shape) else 0
        return self.rows(name, 0, max(1, rows)) if rows and rows < shape[0] else self.tensor(name)

    def blocks(self, name: str) -> Iterator[Tensor]:
        """All entries, some rows at a time; matrices of one width are cut at the same rows."""
        shape = self.shape(name)
        step = max(1, AT_ONCE // max(1, shape[1:].numel()))
        if len(shape) == 0 or shape[0] <= step:
            yield self.tensor(name)
            return
        for begin in range(0, shape[0], step):
            yield self.rows(name, begin, begin + step)

    def structure(self) -> str:
        """A checksum of names and shapes."""
        text = "\n".join(f"{name} {tuple(self.shape(name))}" for name in sorted(self.names()))
        return sha256(text.encode()).hexdigest()[:16]

    def matrices(self) -> Iterator[tuple[str, torch.Size]]:
        """Names and shapes of the floating tensors with two axes."""
        for name in self.names():
            if len(self.shape(name)) == 2 and self.dtype(name).is_floating_point:
                yield name, self.shape(name)


class ModuleWeights(Weights):
    """Parameters of a module, under all their names."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._held = {
            display_path(name): parameter for name, parameter in module.named_parameters(remove_duplicate=False)
        }

    def names(self) -> list[str]:
        return list(self._held)

    def shape(self, name: str) -> torch.Size:
        return self._held[name].shape

    def dtype(self, name: str) -> torch.dtype:
        return self._held[name].dtype

    def tensor(self, name: str) -> Tensor:
        held = self._held[name].detach()
        return held if held.layout is torch.strided else held.to_dense()

    @property
    def in_memory(self) -> bool:
        return True

    def same(self, first: str, second: str) -> bool:
        return is_one(self._held[first], self._held[second])

    def one_parameter(self, first: str, second: str) -> bool:
        return self._held[first] is self._held[second]

    def learns(self, name: str) -> bool:
        return self._held[name].requires_grad

    def padding(self, name: str) -> int | None:
        for layer in self._module.modules():
            row, own = getattr(layer, "padding_idx", None), getattr(layer, "weight", None)
            if isinstance(row, int) and isinstance(own, Tensor) and own.dim() == 2 and is_one(own, self._held[name]):
                return row if 0 <= row < len(own) else None
        return None

    def layers(self) -> dict[str, str]:
        return {display_path(path): type(layer).__name__ for path, layer in self._module.named_modules()}

    @property
    def module(self) -> nn.Module | None:
        return self._module


class StillWeights(ModuleWeights):
    """A module's parameters, and nothing that could be run."""

    @property
    def module(self) -> None:
        return None


def is_one(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same numbers in memory: pointer, offset, shape and stride; one may be turned."""
    if one is other:
        return True
    where = [(storage(x), x.storage_offset(), sorted(zip(x.shape, x.stride(), strict=True))) for x in (one, other)]
    return where[0][0] is not None and where[0] == where[1]
