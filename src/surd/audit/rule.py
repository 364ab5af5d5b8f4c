"""A rule: one fault of scale, looked for in evidence, with the page that explains it; found by the name of its file."""

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from surd.audit.finding import Finding, Skipped
from surd.errors import Faults, SurdError, unknown

if TYPE_CHECKING:
    from surd.audit.evidence import Evidence

FOLDER = Path(__file__).parent / "rules"


class Needs(StrEnum):
    """What a rule looks at."""

    STATIC = "static"
    """Weights and declarations alone: it also judges a file that is larger than memory."""
    PROBE = "probe"
    """Forwards and backwards of the module on a small batch."""
    COMPARISON = "comparison"
    """Two ways through the module that must lead to the same."""


class Models(StrEnum):
    """Which models a rule judges; of others it says that it was skipped."""

    UNTRAINED = "untrained"
    TRAINED = "trained"
    BOTH = "both"


Look = Callable[["Evidence"], Iterator[Finding | Skipped]]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The page of a rule, and how it looks. Its name is that of its file, with hyphens."""

    name: str
    what: str
    """The fault in one sentence."""
    why: str
    """Why the healthy range is what it is, with the derivation in a line."""
    when: str
    """When it matters, and when not."""
    example: str
    """Code that ends with a `model` (and perhaps `inputs`, `loss`, `declared`) whose one primary finding is this."""
    cure: str
    """The same code, mended: without any finding."""
    sources: tuple[str, ...]
    """Where the range comes from."""
    needs: Needs
    models: Models
    follows: tuple[str, ...]
    """Rules whose finding explains one of this, so that it is told as their consequence."""
    look: Look
    finite: bool = True
    """It judges numbers, which say nothing where a row that sees no key has made them all NaN."""


def names() -> list[str]:
    """The names of all rules: the files of their folder."""
    return [path.stem.replace("_", "-") for path in sorted(FOLDER.glob("[a-z]*.py"))]


def titles() -> Iterator[tuple[str, str]]:
    """Name and first line of each rule, read from its file without importing it."""
    for name in names():
        text = (FOLDER / f"{name.replace('-', '_')}.py").read_bytes()
        yield name, (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


def refuse_unknown(chosen: Sequence[str]) -> None:
    """All names that no rule has are told together."""
    known = names()
    if strange := [name for name in chosen if name not in known]:
        raise Faults(unknown("rule", name, known) for name in strange)


def refuse_none(select: Sequence[str], ignore: Sequence[str]) -> None:
    """Refuses a choice that leaves no rule: a report of nothing would look like that of a healthy model."""
    if not set(select or names()) - set(ignore):
        raise SurdError(f"check: every rule that may look is also ignored ({', '.join(ignore)}), so that none is left")


def named(name: str) -> Rule:
    """The rule of that name."""
    if name not in names():
        raise SurdError(unknown("rule", name, names()))
    rule = import_module(f"surd.audit.rules.{name.replace('-', '_')}").RULE
    assert isinstance(rule, Rule) and rule.name == name, "a rule's file bears its name"
    return rule
