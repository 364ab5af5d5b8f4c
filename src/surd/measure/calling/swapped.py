"""Swapped: attributes of a class or a module that are something else for a while."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

FLEX = "torch.nn.attention.flex_attention"


@contextmanager
def swapped(owner: Any, **replacements: Any) -> Generator[None]:
    """Attributes replaced for a while, in a class or a module."""
    before = {name: vars(owner)[name] for name in replacements}
    try:
        for name, replacement in replacements.items():
            setattr(owner, name, replacement)
        yield
    finally:
        for name, original in before.items():
            setattr(owner, name, original)


@contextmanager
def flex_written_out() -> Generator[None]:
    """Flex attention by torch's own definition: the kernel has no gradient on a processor, and hides its scores."""
    module = sys.modules.get(FLEX)
    if module is None:
        yield
        return
    from torch._higher_order_ops.flex_attention import math_attention

    dense = {
        "flex_attention_hop": math_attention,
        "_validate_device": lambda query, key, value: None,  # refuses what wants a gradient
        "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True,  # called as it is, not compiled
    }
    with swapped(module, **{name: value for name, value in dense.items() if name in vars(module)}):
        yield
