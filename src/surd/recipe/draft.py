"""A draft: the settings that somebody has asked for so far, each with where it comes from; the rest is still open."""

import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Self

from surd.data.corpus import FILES, DataSettings
from surd.data.tokenizer import Tokenizers
from surd.errors import Faults, SurdError, nearest
from surd.models.architecture import Architecture
from surd.nn.tying import Tying
from surd.part import members, structure, unstructure
from surd.recipe.contradictions import Contradiction, contradictions
from surd.recipe.describe import settings
from surd.recipe.document import parse
from surd.recipe.scope import about_text, outside
from surd.recipe.settings import Recipe
from surd.recipe.table import Table, get, leaves, merge, put, without

PATHS = FILES
"""Settings of `data` that name files."""
EITHER = (("training.steps", "training.minutes"),)
"""Settings of which a later voice replaces the other: `training.steps=300` puts a recipe's minutes aside."""
STAND_IN = Recipe(task="translation", data=DataSettings(source="pairs.tsv"))
"""Stands where a draft says nothing, while what it says is looked through for faults."""
TEXT_STAND_IN = Recipe(
    task="language",
    data=DataSettings(text="text.txt"),
    tokenizer=Tokenizers(joint=False),
    model=Architecture(tying=Tying.OUTPUT),
)
"""The same for a language model; what it says of sources is what all recipes of language models say."""
WORD = re.compile(r"(?P<path>[A-Za-z_][\w-]*(\.[\w-]+)*)\s*=(?P<value>.*)", re.DOTALL)
"""A setting given on the command line: `a.b=value`."""


@dataclass(frozen=True)
class Draft:
    """Plain values as a recipe file holds them, with a reason, and the whole-line comments above, by dotted path."""

    values: Table = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    comments: dict[str, tuple[str, ...]] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    """What could not even be read as a value; told together with all other faults by `check`."""
    limits: frozenset[str] = frozenset()
    """Settings whose value is the most that is wanted, and may come out smaller where the data do not give it."""

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """The draft in a recipe file; a value's comment is its reason, and paths in it are relative to the file."""
        document = parse(path)
        folder, origin = os.path.dirname(path), f"given in {os.path.basename(path)}"
        values, data = document.values, document.values.get("data")
        if isinstance(data, dict):
            data |= {key: _beside(folder, data[key]) for key in PATHS if isinstance(data.get(key), str)}
        values = _spelt_out(values)
        told = document.reasons
        reasons = {path: told.get(path) or told.get(path.removesuffix(".kind")) or origin for path in leaves(values)}
        return cls(values, reasons, document.comments)

    def given(self, path: str) -> bool:
        """Whether somebody asked for this setting, or for something beneath it."""
        return any(name == path or name.startswith(f"{path}.") for name in self.reasons)

    def with_values(self, values: Mapping[str, Any], origin: str) -> Self:
        """The draft with more values laid over it, all for one reason; paths may be dotted, None says nothing."""
        upper: Table = {}
        for path, value in values.items():
            if value is not None:
                put(upper, path, value)
        upper = _spelt_out(upper)
        return self.under(Draft(upper, {path: origin for path in leaves(upper)}))

    def with_words(self, words: Sequence[str], origin: str = "given on the command line") -> Self:
        """The draft with words of the form `a.b=value` laid over it; a value is TOML, or else plain text."""
        upper: Table = {}
        faults = list(self.faults)
        for word in words:
            try:
                path, value = read_word(word)
                put(upper, path, _spelt_out(value, path) if isinstance(value, dict) else _spelt(value, path))
            except SurdError as error:
                faults.append(str(error))
        reasons = {path: self._in_place(path, upper, origin) for path in leaves(upper)}
        return replace(self.under(Draft(upper, reasons)), faults=tuple(faults))

    def without(self, path: str) -> Self:
        """The draft without a setting and all beneath it."""
        values = without(self.values, path)
        kept = set(leaves(values))
        return replace(self, values=values, reasons={name: why for name, why in self.reasons.items() if name in kept})

    def _in_place(self, path: str, upper: Table, origin: str) -> str:
        """The reason of a value that may replace another, whose comment is kept with it."""
        before = get(self.values, path)
        if before is None or before == get(upper, path):
            return origin
        # A table that a single value takes the place of has its reasons beneath it.
        reason = f" ({self.reasons[path]})" if path in self.reasons else ""
        return f"{origin}, in place of {_plain(before)}{reason}" if reason else f"{origin}, in place of a table"

    def under(self, upper: "Draft") -> Self:
        """This draft with another laid over it: where both speak, the other one's word and reason count."""
        lower = self.values
        for pair in EITHER:
            for path, other in (pair, pair[::-1]):
                same_voice = upper.reasons.get(path) == self.reasons.get(other)
                if upper.given(path) and not upper.given(other) and not same_voice:
                    lower = without(lower, other)
        values = merge(lower, upper.values)
        known = self.reasons | upper.reasons
        reasons = {path: known[path] for path in leaves(values)}
        return replace(
            self,
            values=values,
            reasons=reasons,
            comments=self.comments | upper.comments,
            faults=self.faults + upper.faults,
            limits=(self.limits - upper.reasons.keys()) | upper.limits,
        )

    def check(self) -> None:
        """Refuses what is wrong in itself, whatever the data will say: all faults together."""
        _, told = built(self.values, _stand_in(self.values), lambda found: all(map(self.given, found.settings)))
        if lines := [*self.faults, *told]:
            raise Faults(lines)


def built(
    values: Table, stand_in: Table | None = None, tell: Callable[[Contradiction], bool] = lambda found: True
) -> tuple[Recipe | None, list[str]]:
    """The recipe in a table of settings, and its faults: unknown names, wrong types, contradictions to be told.

    What cannot be read is told and replaced by the value in `stand_in`, or else by the default, so that contradictions
    among the rest are found in the same visit.
    """
    base = stand_in or stands_for(values)
    meaningless = outside(values)
    lines = [f"{path}: {reason}" for path, reason in meaningless.items()]
    for path in meaningless:
        values = without(values, path)
    rest: Table = merge(base, values)
    while True:
        try:
            recipe = structure(Recipe, rest)
            break
        except Faults as error:
            refused = {line.partition(": ")[0] for line in lines}  # what was taken out is not missing
            found = [_with_leaf(line) for line in error.lines]
            lines += [line for line in found if line not in lines and line.removesuffix(": missing") not in refused]
            paths = [line.partition(": ")[0].removesuffix(".kind") for line in error.lines]
            before, rest = rest, _restored(rest, base, paths)
            if rest == before:  # the fault lies between settings: all of their table goes
                rest = _restored(rest, base, [path.rpartition(".")[0] for path in paths])
            if rest == before:
                return None, lines
    return recipe, lines + [found.message for found in contradictions(recipe) if tell(found)]


def with_files(draft: Draft, text: str | None, pairs: Sequence[str], held_out: Sequence[str], origin: str) -> Draft:
    """The draft with files in the place of all that it names, also where they are fewer.

    `pairs` and `held_out` are one file or two. Held-out files of pairs go with pairs, one of running text with text.
    """
    if text is not None or pairs:
        for name in ("source", "target", "text"):
            draft = draft.without(f"data.{name}")
    draft = draft.with_values({"data.text": text, **_sides(("source", "target"), pairs)}, origin)
    if held_out:
        for name in ("dev_source", "dev_target", "dev_text"):
            draft = draft.without(f"data.{name}")
        names = ("dev_text",) if about_text(draft.values) else ("dev_source", "dev_target")
        if len(held_out) > len(names):
            told = ", ".join(held_out)
            raise SurdError(f"held-out text of a language model is one file, found {len(held_out)}: {told}")
        draft = draft.with_values(_sides(names, held_out), origin)
    return draft


def _sides(names: Sequence[str], files: Sequence[str]) -> dict[str, str]:
    return {f"data.{name}": file for name, file in zip(names, files, strict=False)}


def stands_for(values: Mapping[str, Any]) -> Table:
    """Plain values for what a table of settings does not say."""
    return unstructure(TEXT_STAND_IN if about_text(values) else STAND_IN)


def read_word(word: str) -> tuple[str, Any]:
    """The path and the value of `a.b=value`."""
    found = WORD.fullmatch(word)
    if not found:
        raise SurdError(f'expected a setting as a.b=value, found "{word}"')
    text = found["value"].strip()
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        if text[:1] in ('"', "'", "[", "{"):
            raise SurdError(f"{found['path']}: {text} is no value: {error}") from None
        value = _number(text)
    return found["path"], value if isinstance(value, bool | int | float | str | list | dict) else text


def _stand_in(values: Table) -> Table:
    """Values for what a draft leaves open, which go with what it says as far as anything does."""
    base = merge(stands_for(values), {"tokenizer": {"joint": False}})
    for path, family in _families().items():
        told = get(values, path)
        if isinstance(told, dict) and "kind" not in told:
            fitting = [
                kind for kind, part in members(family).items() if told.keys() <= {one.name for one in fields(part)}
            ]
            standing = get(base, path)  # none where the family is optional and the recipe has none
            if fitting and (standing is None or standing["kind"] not in fitting):
                put(base, path, {"kind": fitting[0]})
    if get(values, "tokenizer.joint") is True:
        sides = [get(values, f"tokenizer.{side}") for side in ("source", "target")]
        for side, told, other in (("source", *sides), ("target", *sides[::-1])):
            if told is None and isinstance(other, dict):
                put(base, f"tokenizer.{side}", other)
    return base


@cache
def _families() -> dict[str, Any]:
    """The settings that choose a part, each with its family."""
    return {s.path.removesuffix(".kind"): s.annotation for s in settings(Recipe) if s.path.endswith(".kind")}


def _spelt_out(values: Table, path: str = "") -> Table:
    """The values with the bare name of a kind written as a table, so that a part always looks the same."""
    spelt: Table = {}
    for key, value in values.items():
        here = f"{path}.{key}" if path else key
        if isinstance(value, dict):
            spelt[key] = _spelt_out(value, here)
        else:
            spelt[key] = _spelt(value, here)
    return spelt


def _spelt(value: Any, path: str) -> Any:
    """A bare name as a table, where it chooses a part."""
    return {"kind": value} if isinstance(value, str) and path in _families() else value


def _number(text: str) -> float | str:
    """A number as people write it and TOML does not (`.5`, `3.`); any other text as it is."""
    try:
        return float(text)
    except ValueError:
        return text


def _beside(folder: str, name: str) -> str:
    return name if name == "-" else os.path.join(folder, name)


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _restored(values: Table, base: Table, paths: Sequence[str]) -> Table:
    """The values with those of `base` at some paths."""
    for path in paths:
        values = without(values, path)
    return merge(base, values)


def _with_leaf(line: str) -> str:
    """A fault about an unknown name, with the path of the setting that bears that name elsewhere in the tree."""
    path, _, message = line.partition(": ")
    if not message.startswith("unknown setting"):
        return line
    known = {setting.path.rpartition(".")[2]: setting.path for setting in settings(Recipe)}
    leaf = nearest(path.rpartition(".")[2], known)
    elsewhere = leaf and known[leaf].rpartition(".")[0] != path.rpartition(".")[0]
    return f"{line} Elsewhere there is {known[leaf]}." if elsewhere else line
