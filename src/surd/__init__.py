"""surd trains a Transformer on your own text in one command, and uses it; the public functions are served lazily."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from surd.errors import SurdError

if TYPE_CHECKING:
    from surd.api import Recipe, load, train

    __version__: str

__all__ = ["Recipe", "SurdError", "__version__", "load", "train"]

_LAZY = {"Recipe": "surd.api", "load": "surd.api", "train": "surd.api"}


def __getattr__(name: str) -> Any:
    """Imports what is asked for and nothing else: `import surd` brings no torch, so help pages take no seconds."""
    if name == "__version__":
        from importlib.metadata import version

        return version("surd")
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f'module "surd" has no attribute "{name}"')


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
