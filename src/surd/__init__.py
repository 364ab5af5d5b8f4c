"""surd trains a Transformer on your own text, uses it, and checks any; the public functions are served lazily."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from surd.errors import SurdError

if TYPE_CHECKING:
    from surd.api import Recipe, check, ledger, load, train
    from surd.measure.softmax.statistics import attention_statistics as statistics
    from surd.measure.watch import watch

    __version__: str

__all__ = ["Recipe", "SurdError", "__version__", "check", "ledger", "load", "statistics", "train", "watch"]

_LAZY = {
    "Recipe": ("surd.api", "Recipe"),
    "check": ("surd.api", "check"),
    "ledger": ("surd.api", "ledger"),
    "load": ("surd.api", "load"),
    "statistics": ("surd.measure.softmax.statistics", "attention_statistics"),
    "train": ("surd.api", "train"),
    "watch": ("surd.measure.watch", "watch"),
}


def __getattr__(name: str) -> Any:
    """Imports what is asked for and nothing else: `import surd` brings no torch, so help pages take no seconds."""
    if name == "__version__":
        from importlib.metadata import version

        return version("surd")
    if name in _LAZY:
        module, attribute = _LAZY[name]
        return getattr(import_module(module), attribute)
    raise AttributeError(f'module "surd" has no attribute "{name}"')


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
