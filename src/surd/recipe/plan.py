"""A plan: values on their way to a recipe, in three layers, each value with its reason."""

from dataclasses import fields
from typing import Any

from surd.data.corpus import DataSettings
from surd.errors import Faults
from surd.part import members
from surd.recipe.draft import Draft, built
from surd.recipe.settings import Recipe
from surd.recipe.table import get


class Plan:
    """The values settled so far: the shipped recipe at the bottom, then what the data say, what was asked on top."""

    def __init__(self, asked: Draft, size: Draft) -> None:
        self.asked, self.size, self.derived = asked, size, size
        self.all = size.under(asked)

    def __getitem__(self, path: str) -> Any:
        return get(self.all.values, path)

    def why(self, path: str) -> str:
        """The reason of a value as it stands."""
        return self.all.reasons[path]

    def open(self, path: str) -> bool:
        """Whether nobody asked for a value of this setting."""
        return not self.asked.given(path)

    def put(self, path: str, value: Any, reason: str) -> None:
        """Derives a value, which counts unless somebody asked for another."""
        self.derived = self.derived.with_values({path: value}, reason)
        self.all = self.derived.under(self.asked)

    def drop(self, path: str) -> None:
        """Takes back a derived value that means nothing here."""
        self.derived = self.derived.without(path)
        self.all = self.derived.under(self.asked)

    def choose(self, family: Any, path: str) -> set[str]:
        """Settles the member of a family and returns the names of its settings; those of another are dropped."""
        kind, reason = self[f"{path}.kind"], self.why(f"{path}.kind")
        names = {field.name for field in fields(members(family)[kind])}
        for name in get(self.derived.values, path) or {}:
            if name not in names:
                self.drop(f"{path}.{name}")
        self.put(f"{path}.kind", kind, reason)
        return names

    def recipe(self, data: DataSettings) -> tuple[Recipe, dict[str, str]]:
        """The recipe of all that was settled, for the data that were surveyed."""
        recipe, lines = built(self.all.values | {"data": data})
        if lines or recipe is None:
            raise Faults(lines)
        return recipe, dict(self.all.reasons)
