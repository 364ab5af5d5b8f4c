"""Public names: served, served again after everything else was imported, and hidden by no subpackage."""

import importlib
import pkgutil
from pathlib import Path

import pytest

import surd

PUBLIC = [name for name in surd.__all__ if name != "__version__"]


def test_no_subpackage_bears_the_name_of_a_public_function() -> None:
    modules = {module.name for module in pkgutil.iter_modules(surd.__path__)}
    assert modules.isdisjoint(surd.__all__)


def test_public_names_are_the_same_after_importing_every_module() -> None:
    before = {name: getattr(surd, name) for name in surd.__all__}
    for module in pkgutil.walk_packages(surd.__path__, "surd."):
        if module.name != "surd.__main__":
            importlib.import_module(module.name)
    assert {name: getattr(surd, name) for name in surd.__all__} == before


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_listed_and_documented(name: str) -> None:
    assert name in dir(surd)
    assert getattr(surd, name).__doc__


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match='"surd" has no attribute "trian"'):
        surd.trian  # noqa: B018


def test_every_module_says_its_one_idea_in_its_first_line() -> None:
    for path in Path(surd.__path__[0]).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if text.strip():
            assert text.startswith('"""'), path
