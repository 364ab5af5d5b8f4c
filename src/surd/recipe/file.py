"""A recipe as a file: read whole, written with a reason beside each value, changed by words, shipped with surd."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from surd.errors import Faults, SurdError, nearest
from surd.files import write_atomic
from surd.part import unstructure
from surd.recipe.describe import first_sentence, settings
from surd.recipe.document import Document, one_line, parse, render
from surd.recipe.draft import PATHS, Draft, built, stands_for
from surd.recipe.scope import about_text, inside
from surd.recipe.settings import Recipe
from surd.recipe.table import get

VOCABULARY_SIZES = ("tokenizer.source.size", "tokenizer.target.size")


def read(path: str | os.PathLike[str]) -> Recipe:
    """The recipe in a file that names its task and its data; a setting that it does not name has its default."""
    return settled(Draft.read(path), str(path))


def settled(draft: Draft, name: str = "the recipe") -> Recipe:
    """The recipe of a draft that leaves nothing open; all faults are told together."""
    data = "data.text" if about_text(draft.values) else "data.source"
    missing = [path for path in ("task", data) if get(draft.values, path) is None]
    recipe, found = built(draft.values)
    lines = [*draft.faults, *found, *(f"{path}: missing in {name}" for path in missing)]
    if lines or recipe is None:
        raise Faults(lines)
    return recipe


def override(recipe: Recipe, words: Sequence[str]) -> Recipe:
    """The recipe with settings changed by words of the form `a.b=value`."""
    return settled(Draft().with_values(values(recipe), "").with_words(words))


def values(recipe: Recipe) -> dict[str, Any]:
    """A recipe as plain values; settings that are none are left out, as TOML has no word for it.

    So are those that mean nothing to its task, but for values that somebody must have given: they will be refused.
    """
    plain = unstructure(recipe)
    return inside(_present(plain), stands_for(plain))


def write(
    recipe: Recipe,
    path: str | os.PathLike[str],
    reasons: Mapping[str, str] | None = None,
    comments: Mapping[str, tuple[str, ...]] | None = None,
) -> None:
    """Writes the recipe, each value with its reason behind it, or else with what the setting means.

    `comments` are whole lines to put above settings (`Draft.comments` has those of a file the recipe was made from).
    A recipe file that is already there keeps its comments, and its reasons for the values that stay the same.
    """
    path = Path(path)
    here = _with_whole_paths(values(recipe))
    before = parse(path) if path.exists() else Document({}, {}, {})
    kept = {name: reason for name, reason in before.reasons.items() if get(before.values, name) == get(here, name)}
    told = _meanings() | kept | {name: reason for name, reason in (reasons or {}).items() if one_line(reason)}
    write_atomic(path, render(here, told, before.comments | dict(comments or {})).encode())


def shipped() -> dict[str, Path]:
    """The recipes that come with surd, by name."""
    folder = Path(str(files("surd") / "recipes"))
    return {file.stem: file for file in sorted(folder.glob("*.toml"))}


def find(name: str | os.PathLike[str]) -> Path:
    """The recipe file of that path, or the shipped recipe of that name."""
    if os.path.exists(name):
        return Path(name)
    known = shipped()
    if str(name) in known:
        return known[str(name)]
    guess = nearest(str(name), known)
    meant = f' Did you mean "{guess}"?' if guess else ""
    raise SurdError(f"{name}: there is no such recipe file.{meant} Recipes that come with surd: {', '.join(known)}.")


def suggested(name: str | os.PathLike[str]) -> Draft:
    """The draft in a recipe file, or in the shipped recipe of that name, whose vocabularies fit themselves to the data.

    Who writes a size into a file of his own means it; a shipped recipe cannot know the text that it meets.
    """
    path = find(name)
    draft = Draft.read(path)
    return replace(draft, limits=frozenset(VOCABULARY_SIZES)) if path in shipped().values() else draft


def _present(table: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _present(value) if isinstance(value, dict) else value for key, value in table.items() if value is not None
    }


def _with_whole_paths(table: dict[str, Any]) -> dict[str, Any]:
    """The values with files named from the root, so that the recipe can lie in any folder."""
    data = {
        key: os.path.abspath(value) if key in PATHS and value != "-" else value for key, value in table["data"].items()
    }
    return table | {"data": data}


def _meanings() -> dict[str, str]:
    """What each setting means, in a sentence: the comment of a value that has no other reason."""
    return {
        setting.path: first_sentence(setting.meaning)
        for setting in settings(Recipe)
        if setting.meaning and not setting.path.endswith(".kind")
    }
