"""Recipe files of rubbish: settings with values of other types, far too large, unknown, twice, or no TOML at all."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz import rubbish
from hypothesis import strategies as st

from surd.recipe import Draft, Recipe, file, read, write
from surd.recipe.describe import settings
from surd.recipe.file import override


def above(path: str) -> list[str]:
    """A dotted path with all tables that it lies in."""
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


PATHS = sorted({path for one in settings(Recipe) for path in above(one.path)})
UNKNOWN = ("model.depth", "models", "data.source.kind", "training.optimizer.beta3", '"x\\u0000"', "a.b.c.d.e", '""')
SOUND = (
    ("task", '"translation"'),
    ("data.source", '"pairs.tsv"'),
    ("training.steps", "10"),
    ("training.schedule.warmup", "2"),
)
FILES = {"data.source", "data.target", "data.text", "data.dev_source", "data.dev_target"}
"""Names of files are written so that they are found from any folder."""
ODD_TEXTS = (
    b"\xff\xfe",
    b"\x00",
    b"= 1",
    b"[model",
    b"[[model]]\n[model]",
    b"[model]\nd_model = 8\n[model]\nheads = 2",
    b"a = " + b"[" * 5000,
    b"a = " + b"{b=" * 5000,
    b"a" + b".b" * 3000 + b" = 1",
    b"seed = " + b"9" * 5000,
    b"seed = 1979-05-27T07:32:00Z",
    b"seed = 0xdead_beef",
    b"seed = 1e400",
    b'task = "\\ud800"',
    b'task = """\n' + b"x" * 100_000,
    b"model = 3",
    b"model.d_model = 8\nmodel = 3",
    b"[data]\nsource = 1\n[[data.source]]",
    b"# \x1b[31m",
    b"[model] # because\n# of this",
    b"\xef\xbb\xbftask = 'translation'\r\n",
    b"a = 1\rb = 2",
)


def as_toml(value: Any) -> str:
    """A value as TOML spells it, without asking whether it may stand there."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {as_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    if isinstance(value, int):
        return hex(value) if value > 10**100 else str(value)  # Python does not spell out numbers of thousands of digits
    return json.dumps(value) if isinstance(value, str) else '"none"' if value is None else repr(value)


@dataclass(frozen=True)
class RecipeFile:
    """The bytes of a recipe file and words beside it; where they are sound, writing and reading gives the same."""

    content: bytes
    words: tuple[str, ...]

    def lay(self, folder: Path) -> Callable[[], object]:
        path = folder / "recipe.toml"
        path.write_bytes(self.content)
        return lambda: self._act(path, folder / "again.toml")

    def _act(self, path: Path, again: Path) -> None:
        Draft.read(path).with_words(list(self.words)).check()
        recipe = override(read(path), self.words)
        write(recipe, again)
        back, taken = file.values(override(read(again), [])), file.values(recipe)
        changed = {name for name in taken if back[name] != taken[name]}
        assert changed <= FILES, "a recipe that is taken comes back as it was"


def _line(path: str, value: Any) -> bytes:
    return f"{path} = {as_toml(value)}".encode("utf-8", "surrogatepass")


def _word(path: str, value: Any) -> str:
    return f"{path}={as_toml(value)}"


paths = st.one_of(*[st.sampled_from(PATHS)] * 6, st.sampled_from(UNKNOWN))
values = st.one_of(*[st.sampled_from(rubbish.VALUES)] * 4, st.integers(), st.floats(), st.text(max_size=20))
lines = st.one_of(*[st.builds(_line, paths, values)] * 5, st.sampled_from(ODD_TEXTS), st.binary(max_size=30))
words = st.one_of(st.builds(_word, paths, values), st.text(max_size=20).map(lambda text: f"seed={text}"))


@st.composite
def cases(draw: st.DrawFn) -> RecipeFile:
    told = [f"{path} = {value}".encode() for path, value in SOUND if draw(st.integers(0, 19))]
    told += draw(st.lists(lines, max_size=draw(st.sampled_from((1, 1, 3)))))
    content = draw(st.sampled_from((b"\n", b"\n", b"\r\n"))).join(told)
    return RecipeFile(content, tuple(draw(st.lists(words, max_size=draw(st.sampled_from((0, 0, 2)))))))
