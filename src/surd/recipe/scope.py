"""Scope: settings that mean nothing to a task, each with the reason; whoever names one is told so."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from surd.recipe.table import Table, get, leaves, without
from surd.tasks import text_tasks

_PAIRS_ONLY = "a language model learns from running text, which is named by data.text (--text)"
_TEXT_ONLY = "means something to language models alone, which learn from running text (--text)"

OUTSIDE_TEXT = {
    "data.source": _PAIRS_ONLY,
    "data.target": _PAIRS_ONLY,
    "data.dev_source": f"{_PAIRS_ONLY}; held-out text by data.dev_text (--dev)",
    "data.dev_target": f"{_PAIRS_ONLY}; held-out text by data.dev_text (--dev)",
    "data.columns": "running text has no columns",
    "data.max_length": "running text is cut into windows of data.context, none of it is too long",
    "data.max_ratio": "running text has no sides to compare",
    "tokenizer.joint": "a language model has one tokenizer, tokenizer.target",
    "tokenizer.source": "a language model has one tokenizer, tokenizer.target",
    "model.encoder_layers": "a language model has no encoder; its layers are model.decoder_layers",
    "decode": "a language model samples, it does not search: see sample",
}
"""Settings, or tables of them, that only tasks with pairs have."""
OUTSIDE_PAIRS = {
    "data.text": "running text is for language models (task = language); pairs are named by data.source",
    "data.dev_text": _TEXT_ONLY,
    "data.document": _TEXT_ONLY,
    "data.context": _TEXT_ONLY,
    "sample": _TEXT_ONLY,
}
"""Settings, or tables of them, that only language models have."""


def about_text(values: Mapping[str, Any]) -> bool:
    """Whether a table of settings is of a language model: by its task, or else by what it learns from."""
    task = get(values, "task")
    return get(values, "data.text") is not None if task is None else task in _text_tasks()


def outside(values: Mapping[str, Any]) -> dict[str, str]:
    """The settings in a table that mean nothing to its task, with the reasons."""
    reasons = OUTSIDE_TEXT if about_text(values) else OUTSIDE_PAIRS
    found = {}
    for path in leaves(values):
        beneath = next((prefix for prefix in reasons if path == prefix or path.startswith(f"{prefix}.")), None)
        if beneath is not None and get(values, path) is not None:
            found[path] = reasons[beneath]
    return found


def inside(values: Table, base: Mapping[str, Any]) -> Table:
    """The table without settings that mean nothing and have their value in `base`; one with another value stays."""
    for path in outside(values):
        if get(values, path) == get(base, path):
            values = without(values, path)
    return _without_empty(values)


def _without_empty(values: Table) -> Table:
    kept = {key: _without_empty(value) if isinstance(value, dict) else value for key, value in values.items()}
    return {key: value for key, value in kept.items() if value != {}}


@cache
def _text_tasks() -> frozenset[str]:
    return frozenset(task.name for task in text_tasks())
