"""Rubbish in: a result or one message out; nothing executed, nothing written elsewhere, no memory lost over it.

Five hundred inputs here, seeded; `benchmarks/run_fuzz.py` tries ten thousand.
"""

import tempfile
from pathlib import Path

import pytest
from fuzz import command_lines, corpora, folders, guard, recipes
from hypothesis import HealthCheck, given, settings

seeded = settings(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    max_examples=125,
)


@pytest.fixture(autouse=True, scope="module")
def memory() -> None:
    folders.model_run(0), folders.model_run(1)


def tried(case: guard.Case) -> str:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        return guard.outcome(case, Path(folder))


@seeded
@given(case=corpora.cases)
def test_corpora(case: corpora.Files) -> None:
    tried(case)


@seeded
@given(case=recipes.cases())
def test_recipes(case: recipes.RecipeFile) -> None:
    tried(case)


@seeded
@given(case=folders.cases)
def test_run_folders(case: folders.Folder) -> None:
    tried(case)


@seeded
@given(case=command_lines.cases)
def test_command_lines(case: command_lines.CommandLine) -> None:
    tried(case)
