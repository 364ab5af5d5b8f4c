"""What settings there are: every dotted path of a tree, with the text that stands beneath it in the code."""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise
from textwrap import dedent
from typing import Any, get_args, get_type_hints

from surd.part import Part, members


@dataclass(frozen=True)
class Setting:
    """One setting: where it stands, its type, and what it means."""

    path: str
    annotation: Any
    owner: type
    """The dataclass that has it as a field."""

    @property
    def meaning(self) -> str:
        """The docstring beneath the setting; for a `kind`, one sentence for each kind there is."""
        if family := family_of(self.annotation):
            return "; ".join(f"{kind}: {first_sentence(part.__doc__ or '')}" for kind, part in family.items())
        return meanings(self.owner).get(self.path.rpartition(".")[2], "")


@cache
def settings(cls: type, path: str = "") -> tuple[Setting, ...]:
    """All settings beneath a dataclass; of a family, those of every member (and `kind`, which chooses one)."""
    return tuple(_walk(cls, path))


@cache
def meanings(cls: type) -> dict[str, str]:
    """The attribute docstrings of a class and of those it inherits from: the text beneath each field."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        for statement in ast.parse(dedent(inspect.getsource(base))).body:
            for pair in pairwise(statement.body if isinstance(statement, ast.ClassDef) else []):
                match pair:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        found[name] = inspect.cleandoc(text)
    return found


def meaning_of(cls: type, path: str) -> str:
    """What the setting at a dotted path means, in a sentence; of a kind, what each kind there is means is longer."""
    found = next((setting.meaning for setting in settings(cls) if setting.path == path), "")
    return first_sentence(found)


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, on one line."""
    line = " ".join(text.split("\n\n")[0].split())
    end = re.search(r"(?<!\bal)\. ", line)  # not that of "Vaswani et al. 2017"
    return line[: end.start() + 1] if end else line


def _walk(cls: type, path: str) -> Iterator[Setting]:
    hints = get_type_hints(cls)
    for field in fields(cls):
        here, annotation = f"{path}.{field.name}" if path else field.name, hints[field.name]
        if family := family_of(annotation):
            yield Setting(f"{here}.kind", annotation, cls)
            known = {setting.path: setting for part in family.values() for setting in settings(part, here)}
            yield from known.values()
        elif is_dataclass(annotation):
            yield from settings(annotation, here)
        else:
            yield Setting(here, annotation, cls)


def family_of(annotation: Any) -> dict[str, type[Part]]:
    """The members by kind, when a setting chooses a part; empty when it does not."""
    if isinstance(annotation, type) and is_dataclass(annotation) and not issubclass(annotation, Part):
        return {}
    choices = [choice for choice in get_args(annotation) if choice is not type(None)] or [annotation]
    return {kind: part for choice in choices for kind, part in members(choice).items()}
