"""Recipes: the tree of settings of one training; derived from the data, read, written, changed and refused."""

from surd.recipe.derive import choose_task, derive, with_steps
from surd.recipe.derive_text import derive_text
from surd.recipe.draft import Draft, with_files
from surd.recipe.explain import Row, explain
from surd.recipe.file import VOCABULARY_SIZES, find, override, read, shipped, suggested, write
from surd.recipe.scope import about_text
from surd.recipe.settings import Recipe, Training

__all__ = [
    "VOCABULARY_SIZES",
    "Draft",
    "Recipe",
    "Row",
    "Training",
    "about_text",
    "choose_task",
    "derive",
    "derive_text",
    "explain",
    "find",
    "override",
    "read",
    "shipped",
    "suggested",
    "with_files",
    "with_steps",
    "write",
]
