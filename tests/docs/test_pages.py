"""The pages say what the program does: options, settings, links."""

import re
import runpy
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path

import pytest
import yaml

from surd.cli import commands, main

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted(path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
OPTIONS = {
    "train": ROOT / "docs" / "training.md",
    "average": ROOT / "docs" / "training.md",
    "info": ROOT / "docs" / "training.md",
    "translate": ROOT / "docs" / "use.md",
    "generate": ROOT / "docs" / "language.md",
    "lab": ROOT / "docs" / "lab" / "README.md",
    "score": ROOT / "docs" / "use.md",
    "check": ROOT / "docs" / "check.md",
}


def section(path: Path, name: str) -> str:
    """The part of a page in which the options of a command stand."""
    heads = re.split(r"^(?=##? )", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return next(text for text in heads if f"`surd {name} " in text and "| option |" in text)


@cache
def options(name: str) -> set[str]:
    """The options that `surd NAME --help` lists."""
    with redirect_stdout(StringIO()) as page:
        assert main([name, "--help"]) == 0
    return set(re.findall(r"^│ (?:\*  |   )? *(--[a-z-]+)", page.getvalue(), flags=re.MULTILINE)) - {"--help"}


def links(path: Path) -> Iterator[tuple[str, str]]:
    """Links of a page that lead to another place in this repository, as file and heading."""
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            file, _, heading = target.partition("#")
            yield file or path.name, heading


def slugs(path: Path) -> set[str]:
    """The names under which the headings of a page can be linked to."""
    heads = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_command_has_a_page() -> None:
    assert OPTIONS.keys() == {name for name, _ in commands()}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_page_lists_the_options_of_its_command_and_no_others(name: str) -> None:
    rows = [line for line in section(OPTIONS[name], name).splitlines() if line.startswith("| `--")]
    listed = {option for row in rows for option in re.findall(r"--[a-z-]+", row.split(" | ")[0])}
    assert listed == options(name)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_an_option_that_a_page_names_exists(path: Path) -> None:
    for line in re.findall(r"surd (\w+)([^`\n]*)", path.read_text(encoding="utf-8")):
        if line[0] in OPTIONS:
            assert set(re.findall(r"(?<=\s)--[a-z-]+", line[1])) <= options(line[0]) | {"--help"}, line


FOREIGN = {"--help", "--version"}
"""Options that are not of a single command."""


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_an_option_that_stands_by_itself_is_one_of_some_command(path: Path) -> None:
    known = FOREIGN.union(*map(options, OPTIONS))
    prose = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    named = {word for code in re.findall(r"`([^`\n]+)`", prose) for word in re.findall(r"(?<!\S)--[a-z][a-z-]*", code)}
    assert named <= known


def test_the_tables_of_settings_and_recipes_are_current() -> None:
    text = OPTIONS["train"].read_text(encoding="utf-8")
    assert runpy.run_path(str(ROOT / "docs" / "tables.py"))["page"](text) == text, "run: make docs"


def test_the_pages_of_the_rules_are_current() -> None:
    pages = runpy.run_path(str(ROOT / "docs" / "rules.py"))["pages"]()
    written = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "rules").glob("*.md")}
    assert written == pages, "run: make docs"


def test_the_examples_of_yaml_say_what_they_are_meant_to() -> None:
    text = OPTIONS["check"].read_text(encoding="utf-8")
    hook, action = (
        yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    )
    (only,) = hook["repos"][0]["hooks"]
    assert only["entry"].startswith("surd check ") and only["language"] == "system" and only["pass_filenames"] is False
    assert re.fullmatch(only["files"], "net.py")
    steps = action["jobs"]["check"]["steps"]
    assert any(step.get("run", "").endswith("--format github") for step in steps)
    assert all(step.keys() & {"uses", "run"} for step in steps)


def test_every_setting_says_what_it_means() -> None:
    empty = re.findall(
        r"^\| `([a-z0-9_.]+)` \|[^|]*\|\s*\|$", OPTIONS["train"].read_text(encoding="utf-8"), re.MULTILINE
    )
    assert empty == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for file, heading in links(path):
        target = path.parent / file
        assert target.exists(), file
        assert not heading or heading in slugs(target), f"{file}#{heading}"


def test_every_decision_is_in_the_list_under_its_own_title() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    for path in folder.glob("[0-9]*.md"):
        number, _, title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").partition(". ")
        assert f"{number}. [{title}]({path.name})" in index
