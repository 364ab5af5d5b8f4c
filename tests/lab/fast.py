"""Experiments with few and small samples: the same questions and verdicts in a fraction of the time."""

from dataclasses import replace
from functools import cache
from typing import Any

import jaxtyping

from surd.lab import experiment
from surd.lab.record import Record

FAST: dict[str, dict[str, Any]] = {
    "dot-product-growth": {"widths": (4, 64, 512), "pairs": 4_000},
    "embedding-and-position": {"widths": (64, 512), "lengths": (16, 128)},
    "head-width-or-model-width": {"widths": (128, 256, 512), "drawn": 12},
    "length": {"lengths": (16, 64, 1024), "logits": 200_000},
    "library-inits": {"widths": (128, 512, 4096)},
    "residual-depth": {"depths": (1, 4, 16)},
    "softmax-gradient": {"widths": (4, 16, 64, 256), "batches": 120},
    "softmax-saturation": {"spreads": (0.5, 1, 8), "lengths": (16, 64), "steps": 150},
    "tied-head": {"vocabulary": 4_000, "widths": (64, 512)},
    "who-ties": {"kinds": ("gpt2", "llama", "gemma", "bart", "t5", "qwen2", "opt")},
}
"""Other sizes by name; an experiment that is not named here runs as it is."""


@cache
def record(name: str) -> Record:
    """The record of an experiment with five seeds, measured once for all tests."""
    jaxtyping.config.update("jaxtyping_disable", True)  # checked functions cost time a call, and there are many
    try:
        return experiment.run(replace(experiment.named(name), **FAST.get(name, {})), experiment.LEAST_SEEDS)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
