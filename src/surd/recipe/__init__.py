"""Recipes: the tree of settings of one training; derived from the data, read, written, changed and refused."""

from surd.recipe.derive import choose_task, derive, with_steps
from surd.recipe.draft import Draft
from surd.recipe.explain import Row, explain
from surd.recipe.file import VOCABULARY_SIZES, find, override, read, shipped, suggested, write
from surd.recipe.settings import Recipe, Training

__all__ = [
    "VOCABULARY_SIZES",
    "Draft",
    "Recipe",
    "Row",
    "Training",
    "choose_task",
    "derive",
    "explain",
    "find",
    "override",
    "read",
    "shipped",
    "suggested",
    "with_steps",
    "write",
]
