"""A recipe as rows of a table: every setting with its value and the reason for it."""

from collections.abc import Mapping
from dataclasses import dataclass

from surd.recipe.describe import meaning_of
from surd.recipe.file import values
from surd.recipe.settings import Recipe
from surd.recipe.table import get, leaves


@dataclass(frozen=True)
class Row:
    """One setting of a recipe, to be shown."""

    setting: str
    """The dotted path: what `a.b=value` calls it."""
    value: str
    reason: str
    """Why it has this value; empty when it is the default."""
    meaning: str
    """What it does, in a sentence."""


def explain(recipe: Recipe, reasons: Mapping[str, str]) -> list[Row]:
    """All settings in the order of the recipe file; those without a reason of their own have their default."""
    plain = values(recipe)
    return [
        Row(path, _shown(get(plain, path)), reasons.get(path, ""), meaning_of(Recipe, path)) for path in leaves(plain)
    ]


def _shown(value: object) -> str:
    """A value as it would be written in a recipe, text without its quotes."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
