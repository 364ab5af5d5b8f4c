"""Weights: the named tensors that static rules read, of a live module, or of a file that is larger than memory."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from hashlib import sha256

import torch
from torch import Tensor, nn

from surd.measure.naming import display_path


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
    def module(self) -> nn.Module | None:
        return self._module


class StillWeights(ModuleWeights):
    """A module's parameters as a file of them would be: each under its first name, and nothing that could be run."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        first: dict[int, str] = {}
        for name, parameter in self._held.items():
            first.setdefault(id(parameter), name)
        self._held = {name: self._held[name] for name in first.values()}

    @property
    def module(self) -> None:
        return None
