"""Writes the tables of docs/training.md from what the code and the recipes say of themselves: `make docs`."""

from collections.abc import Iterator
from itertools import groupby, takewhile
from pathlib import Path

from surd import Recipe
from surd.part import expected, members
from surd.recipe import shipped
from surd.recipe.describe import Setting, first_sentence, settings

PAGE = Path(__file__).parent / "training.md"


def main() -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def page(text: str) -> str:
    """The page with its tables as the code has them now."""
    for name, lines in (("recipes", recipe_table()), ("settings", setting_tables())):
        end = f"<!-- end of {name} -->"
        before, begin, rest = text.partition(f"<!-- {name}: written by make docs -->\n")
        text = "\n".join([before + begin.rstrip(), *lines, end]) + rest.partition(end)[2]
    return text


def recipe_table() -> Iterator[str]:
    """Every recipe that comes with surd, and what it is for: its file's first sentence."""
    yield from ("| recipe | |", "|---|---|")
    for name, path in shipped().items():
        head = takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
        yield f"| `{name}` | {first_sentence(' '.join(line[1:].strip() for line in head))} |"


def setting_tables() -> Iterator[str]:
    """One table for the recipe's own settings, then one for each part of it."""
    for head, group in groupby(settings(Recipe), lambda setting: setting.path.rpartition(".")[0].split(".")[0]):
        yield f"\n### `{head}`\n" if head else ""
        yield from ("| setting | accepts | meaning |", "|---|---|---|")
        yield from map(row, group)


def row(setting: Setting) -> str:
    """A setting, what may be written, and what it means; a kind means whatever the parts of its family say."""
    accepts, meaning = expected(setting.annotation), setting.meaning
    if setting.path.endswith(".kind"):
        parts = members(setting.annotation).items()
        accepts = "one of " + ", ".join(f'"{kind}"' for kind, _ in parts)
        meaning = "; ".join(f"`{kind}`: {first_sentence(part.__doc__ or '').rstrip('.')}" for kind, part in parts)
    cells = (f"`{setting.path}`", accepts, " ".join(meaning.split()))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    main()
