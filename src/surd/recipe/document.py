"""Recipe files: TOML text to values with their comments, and back; a comment behind a value is the reason for it."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unicodedata import category

import tomlkit
from tomlkit.container import Container
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Comment, Null, Table, Whitespace

from surd.errors import SurdError, nearest

HEAD, FOOT = "", "."
"""Where whole-line comments stand that belong to no setting: at the top of the file and at its end."""
UNWRITABLE = ("Cc", "Cs", "Zl", "Zp")
"""Categories of characters that no comment holds: control characters, halves of characters, ends of lines."""
LARGEST_FILE = 2**20
"""Bytes of a recipe file, beyond which it is something else."""
WIDEST = 36
"""Characters within which values are padded, so that the comments behind them stand in one column."""


@dataclass(frozen=True)
class Document:
    """What a recipe file says."""

    values: dict[str, Any]
    reasons: dict[str, str]
    """The comment behind a value or a table's name, by dotted path."""
    comments: dict[str, tuple[str, ...]]
    """The whole-line comments above a setting or a table, by dotted path."""


def parse(path: str | os.PathLike[str]) -> Document:
    """Reads a recipe file; what is not TOML is refused with its line."""
    try:
        text = _content(path).decode("utf-8-sig")
        document = tomlkit.parse(text)
        values = document.unwrap()
    except FileNotFoundError:
        raise SurdError(f"{path}: there is no such recipe{_meant(Path(path))}") from None
    except OSError as error:
        raise SurdError(f"{path}: cannot be read as a recipe: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise SurdError(f"{path}, line {line}: not UTF-8") from None
    except TOMLKitError as error:
        raise SurdError(f"{path}: not a recipe, since it is not TOML: {error}") from None
    reasons: dict[str, str] = {}
    comments: dict[str, tuple[str, ...]] = {}
    waiting: list[str] = []
    for where, comment in _comments(document):
        if where is None:
            waiting.append(comment)
            continue
        if waiting:
            comments[where] = comments.get(where, ()) + tuple(waiting)
            waiting = []
        if comment:
            reasons[where] = comment
    return Document(values, reasons, comments | ({FOOT: tuple(waiting)} if waiting else {}))


def _content(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a recipe file, of which nobody can say beforehand that it is one, and has an end."""
    with Path(path).open("rb") as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise SurdError(f"{path}: not a recipe, it has more than {LARGEST_FILE:,} bytes")
    return content


def render(
    values: Mapping[str, Any], reasons: Mapping[str, str], comments: Mapping[str, tuple[str, ...]] | None = None
) -> str:
    """The text of a recipe file, one setting a line in the order of `values`, from which `parse` reads the same."""
    comments = dict(comments or {})
    body = list(_table(values, "", reasons, comments))
    head = [*(f"# {line.strip()}".rstrip() for line in comments.pop(HEAD, ())), ""] if HEAD in comments else []
    # Comments whose setting is no longer there are kept too: a person wrote them.
    foot = [f"# {line.strip()}".rstrip() for lines in comments.values() for line in lines]
    return "\n".join([*head, *body, *([""] if foot else []), *foot]) + "\n"


def _comments(container: Container, path: str = "") -> Iterator[tuple[str | None, str]]:
    """All comments in the order of the text: (None, text) for a whole line, (path, text) behind a setting."""
    begun, waits = bool(path), False
    for key, item in container.body:
        if isinstance(item, Comment):
            yield None, _text(item.trivia.comment)
            waits = True
        elif isinstance(item, Whitespace):
            if waits and not begun:
                yield HEAD, ""
            begun = begun or waits
        elif key is not None and not isinstance(item, Null):
            begun = True
            here = f"{path}.{key.key}" if path else key.key
            if not (isinstance(item, Table) and item.is_super_table()):
                yield here, _text(item.trivia.comment)
            if isinstance(item, Table):
                yield from _comments(item.value, here)


def _table(
    values: Mapping[str, Any], path: str, reasons: Mapping[str, str], comments: dict[str, tuple[str, ...]]
) -> Iterator[str]:
    """The lines of a table: its own settings, then the tables within it."""
    items = {f"{path}.{key}" if path else key: (key, plain(value)) for key, value in values.items()}
    single = {
        here: f"{key} = {tomlkit.item(value).as_string()}"
        for here, (key, value) in items.items()
        if not isinstance(value, Mapping)
    }
    width = max((len(text) for text in single.values() if len(text) <= WIDEST), default=0)
    for here, text in single.items():
        yield from _above(here, comments)
        reason = one_line(reasons.get(here) or reasons.get(f"{here}.kind") or "")
        yield f"{text.ljust(width)}  # {reason}" if reason else text
    for here, (_, value) in items.items():
        if isinstance(value, Mapping):
            yield ""
            yield from _above(here, comments)
            if here in reasons or any(not isinstance(plain(one), Mapping) for one in value.values()):
                yield f"[{here}]  # {one_line(reasons[here])}" if here in reasons else f"[{here}]"
            yield from _table(value, here, reasons, comments)


def plain(value: Any) -> Any:
    """A part that has no settings as the bare name of its kind, everything else as it is."""
    return value["kind"] if isinstance(value, Mapping) and list(value) == ["kind"] else value


def _above(path: str, comments: dict[str, tuple[str, ...]]) -> Iterator[str]:
    for line in (*comments.pop(path, ()), *comments.pop(f"{path}.kind", ())):
        yield f"# {line.strip()}".rstrip()


def one_line(text: str) -> str:
    """Text as a comment can hold it: on one line, without control characters."""
    return " ".join("".join(" " if category(letter) in UNWRITABLE else letter for letter in text).split())


def _text(comment: str) -> str:
    """The words of a comment as it stands in a file, without the sign in front."""
    return comment.removeprefix("#").strip()


def _meant(path: Path) -> str:
    """The file of that folder whose name is most like the one asked for."""
    folder = path.parent
    guess = nearest(path.name, [file.name for file in folder.glob("*.toml")]) if folder.is_dir() else None
    return f"; did you mean {folder / guess}?" if guess else ""
