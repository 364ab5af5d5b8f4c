"""Every setting of a recipe, of every member of every family, changes something that can be seen.

The settings are found by walking the recipe. One that is not in the tables of `shown` fails, so that none can be added
without somebody saying where it shows: in the weights after a few updates, in what is read, in how it is cut, in when
the training looks and ends, or in what is written.
"""

from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints

import pytest
from recipe.bench import Bench
from recipe.shown import ALONE, FAMILIES, LOOKS, PARTS, SETTINGS, SIDES, Shown

from surd.part import members
from surd.recipe import Recipe
from surd.recipe.describe import family_of


def walk(cls: type, path: str = "") -> Iterator[tuple[str, str]]:
    """All settings beneath a dataclass as (path, kind): of a family itself the kind is "*", of a member's own setting
    it is that of the member, and of every other setting it is empty."""
    hints = get_type_hints(cls)
    for field in fields(cls):
        here, annotation = f"{path}.{field.name}" if path else field.name, hints[field.name]
        if family := family_of(annotation):
            yield here, "*"
            for kind, part in family.items():
                for inner, deeper in walk(part, here):
                    assert not deeper, "a family within a part: say in this test how it is to be walked"
                    yield inner, kind
        elif is_dataclass(annotation):
            yield from walk(annotation, here)
        else:
            yield here, ""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))


def annotation(path: str) -> Any:
    """The type of the setting at a dotted path outside of parts."""
    found: Any = Recipe
    for name in path.split("."):
        found = get_type_hints(found)[name]
    return found


def test_no_setting_is_forgotten_and_none_is_listed_that_does_not_exist() -> None:
    found = list(walk(Recipe))
    assert {path for path, kind in found if not kind} == SETTINGS.keys()
    assert {(path, kind) for path, kind in found if kind not in ("", "*")} == PARTS.keys()
    assert {path for path, kind in found if kind == "*"} == FAMILIES.keys()
    assert all(len(members(annotation(path))) == 1 for path in ALONE)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("path", SETTINGS)
def test_a_setting_shows(bench: Bench, path: str) -> None:
    shown = SETTINGS[path]
    before = () if shown.before is None else (f"{path}={shown.before}",)
    differ(bench, shown, before, (f"{path}={shown.value}",))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("path", "kind"), PARTS)
def test_a_setting_of_a_part_shows(bench: Bench, path: str, kind: str) -> None:
    shown = PARTS[path, kind]
    family, _, name = path.rpartition(".")
    before = "" if shown.before is None else f", {name}={shown.before}"
    differ(
        bench,
        shown,
        (f"{family}={{kind='{kind}'{before}}}",),
        (f"{family}={{kind='{kind}', {name}={shown.value}}}",),
    )


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("path", sorted(FAMILIES.keys() - ALONE.keys()))
def test_each_member_of_a_family_makes_something_else(bench: Bench, path: str) -> None:
    family, found = FAMILIES[path], {}
    for kind, part in members(annotation(path)).items() or family_of(annotation(path)).items():
        given = f", {family.given}" if family.given.partition("=")[0] in {field.name for field in fields(part)} else ""
        found[kind] = family.by(bench, (*family.beside, f"{path}={{kind='{kind}'{given}}}"))
    default = next(field for field in fields(owner(path)) if field.name == path.rpartition(".")[2])
    if default.default is None and default.default_factory is MISSING:
        found["none"] = family.by(bench, family.beside)
    same = [(one, other) for one in found for other in found if one < other and found[one] == found[other]]
    assert not same
    assert len(found) > 1


def owner(path: str) -> type:
    """The dataclass that has the setting at a dotted path."""
    above = path.rpartition(".")[0]
    return annotation(above) if above else Recipe


def differ(bench: Bench, shown: Shown, before: tuple[str, ...], after: tuple[str, ...]) -> None:
    """What is seen is one thing before and another after."""
    there = [
        tuple(word.replace("@", f"{bench.folder}/") for word in (*shown.beside, *words)) for words in (before, after)
    ]
    assert shown.by(bench, there[0]) != shown.by(bench, there[1])


@pytest.mark.usefixtures("compiled")
def test_what_is_seen_is_the_same_when_seen_again(bench: Bench) -> None:
    """Else any setting would show."""
    for see, words in {
        Bench.weights.__wrapped__: (),
        Bench.course: LOOKS,
        Bench.read: (),
        Bench.planned: (),
        Bench.fitting: (),
        Bench.windows: (),
        Bench.cut: SIDES,
        Bench.outputs: (),
        Bench.samples: (),
    }.items():
        assert see(bench, words) == see(bench, words), see
