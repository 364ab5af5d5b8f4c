"""Naming: which module of the model is at work right now, in which file and line."""

import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor, nn

TORCH = str(Path(torch.__file__).parent)
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Parts of a path that wrappers add; nobody selects a site by them."""
PREFIXES = ("base_model.model.", "module.")
"""What adapters and distributed training put before every path."""


@dataclass(frozen=True, kw_only=True)
class Where:
    """A line of somebody's forward."""

    path: str
    """The innermost module at work, "" for the model itself."""
    file: str
    line: int


def display_path(path: str) -> str:
    """The path of a module without what wrappers put into it."""
    kept = ".".join(part for part in path.split(".") if part not in WRAPPERS)
    for prefix in PREFIXES:
        kept = kept.removeprefix(prefix)
    return "" if f"{kept}." in PREFIXES else kept


class Names:
    """The paths of a model's modules and parameters."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = {id(module): display_path(path) for path, module in model.named_modules()}
        self._parameters: dict[int, list[str]] = {}
        for path, parameter in model.named_parameters(remove_duplicate=False):
            self._parameters.setdefault(id(parameter), []).append(display_path(path))

    def of(self, module: nn.Module) -> str:
        """The path of a module."""
        return self._modules[id(module)]

    def parameter(self, tensor: object, path: str) -> str:
        """The name of a parameter, or of what a view shows: of several the one beneath `path`; else `path` itself."""
        base = tensor._base if isinstance(tensor, Tensor) else None
        names = self._parameters.get(id(tensor)) or self._parameters.get(id(base)) or [path]
        return next((name for name in names if name.startswith(f"{path}.")), names[0])

    def here(self) -> Where:
        """The innermost function on the stack whose first argument is a module of the model, whatever it calls it.

        The line is the one outside of torch: that of a `Linear` is where somebody calls it.
        """
        frame: FrameType | None = sys._getframe(1)
        found: str | None = None
        while frame is not None:
            code = frame.f_code
            if code.co_argcount:
                path = self._modules.get(id(frame.f_locals.get(code.co_varnames[0])))
                found = path if found is None else found
                if path is not None and not code.co_filename.startswith(TORCH):
                    return Where(path=found or "", file=code.co_filename, line=frame.f_lineno)
            frame = frame.f_back
        return Where(path=found or "", file="", line=0)
