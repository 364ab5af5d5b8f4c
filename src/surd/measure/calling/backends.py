"""Backends: the other way in which a model can compute its attention, where it has one: fused, or written out."""

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from surd.measure.calling.fields import field

CONFIGURED = "_attn_implementation"
"""The field of Hugging Face's configurations, which layers read at every call."""
EAGER, FUSED = "eager", "sdpa"
SWITCHES = frozenset(
    {"flash", "use_flash", "use_flash_attn", "use_flash_attention", "flash_attn", "flash_attention", "fused"}
    | {"fused_attn", "use_fused_attn", "use_sdpa", "sdpa", "attn_flash", "use_fast_path", "memory_efficient"}
    | {"use_memory_efficient_attention", "use_xformers", "use_sdp", "fast_attention", "use_fused_attention"}
)
"""Attributes by which modules choose between a fused kernel and the sum written out, when they are yes or no."""


def has_other(module: nn.Module) -> bool:
    """Whether the module has a switch at all, and both sides of it are meant to be used."""
    return bool(_configurations(module)) or any(True for _ in _flags(module))


def backend(module: nn.Module) -> str:
    """What it uses now, as its configuration or its switches name it."""
    configured = [str(getattr(config, CONFIGURED)) for config in _configurations(module)]
    return configured[0] if configured else next((f"{name} {vars(part)[name]}" for part, name in _flags(module)), "")


@contextmanager
def switched(module: nn.Module, eager: bool | None = None) -> Generator[None]:
    """Inside, attention is computed the other way: every switch stands at its other side, or all at `eager`."""
    with ExitStack() as stack:
        for config in _configurations(module):
            before = getattr(config, CONFIGURED)
            other = eager if eager is not None else before != EAGER
            stack.callback(setattr, config, CONFIGURED, before)
            setattr(config, CONFIGURED, EAGER if other else FUSED)
        for holder, name in list(_flags(module)):
            before = vars(holder)[name]
            stack.callback(setattr, holder, name, before)
            setattr(holder, name, (not eager) if eager is not None else not before)
        yield


def _configurations(module: nn.Module) -> list[Any]:
    """Every configuration that a part of the model holds and that names a backend, each once."""
    held = {id(config): config for part in module.modules() if (config := vars(part).get("config")) is not None}
    known = (EAGER, FUSED) if getattr(module, "_supports_sdpa", False) else (FUSED,)
    return [config for config in held.values() if field(config, CONFIGURED) in known]


def _flags(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, bool) and name in SWITCHES:
                yield part, name
