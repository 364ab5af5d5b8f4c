"""Parts: one choice of a family as a frozen dataclass, and the reading of nested settings with every fault named."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import reduce
from operator import or_
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from cattrs import AttributeValidationNote, BaseValidationError, Converter, ForbiddenExtraKeysError
from cattrs.gen import make_dict_structure_fn

from surd.errors import Faults, SurdError, unknown

Settings = TypeVar("Settings")
Hook = Callable[[Any, Any], Any]


@dataclass(frozen=True, kw_only=True)
class Part:
    """Base of the members of every family; `class InverseRoot(Part, kind="inverse_root")` names a member for recipes.

    Each member is decorated `@dataclass(frozen=True, kw_only=True)`, never with `slots=True`: that makes a second
    class, and the family would hold the wrong one.
    """

    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str | None = None, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if kind is not None:
            cls.kind = kind


def members(family: Any) -> dict[str, type[Part]]:
    """The members of a family by kind: of a union of parts, of a single part, or of a base class with subclasses."""
    if _is_union(family):
        return {kind: part for choice in get_args(family) for kind, part in members(choice).items()}
    if not (isinstance(family, type) and issubclass(family, Part)):
        return {}
    own = {family.kind: family} if "kind" in vars(family) else {}
    return own | {kind: part for child in family.__subclasses__() for kind, part in members(child).items()}


def structure(cls: type[Settings], mapping: Mapping[str, Any], path: str = "") -> Settings:
    """`cls` built from plain values; all faults are raised together as `Faults`, each behind its dotted path.

    A class may refuse combinations in `__post_init__` by a `SurdError` or `ValueError`; a line that starts with one of
    its own field names (`heads: …`) is told under that field's path.
    """
    try:
        return _CONVERTER.structure(mapping, cls)
    except (SurdError, ValueError, BaseValidationError) as error:
        faults = _faults(error, cls, path)
        raise Faults(f"{where}: {text}" if where else text for where, text in faults) from None


def unstructure(value: Any) -> Any:
    """The plain values (dictionaries, lists, texts, numbers) from which `structure` builds an equal object."""
    if is_dataclass(value) and not isinstance(value, type):
        kind = {"kind": value.kind} if isinstance(value, Part) else {}
        return kind | {field.name: unstructure(getattr(value, field.name)) for field in fields(value) if field.init}
    if isinstance(value, Mapping):
        return {key: unstructure(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [unstructure(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, UnionType)


def _is_part(annotation: Any) -> bool:
    """Whether an annotation is a family: a part, or a union of nothing but parts."""
    choices = get_args(annotation) if _is_union(annotation) else (annotation,)
    return all(isinstance(choice, type) and issubclass(choice, Part) for choice in choices)


def _is_sequence(annotation: Any) -> bool:
    return get_origin(annotation) in (tuple, list)


def _is_closed(annotation: Any) -> bool:
    """Whether an annotation lists its values: a `Literal` or an enumeration."""
    return get_origin(annotation) is Literal or (isinstance(annotation, type) and issubclass(annotation, Enum))


def _found(value: Any) -> str:
    """A value nearly as the user wrote it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "a table"
    return f'"{value}"' if isinstance(value, str) else str(value)


def expected(annotation: Any) -> str:
    """What a setting of this type accepts, in words."""
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
    if annotation in words:
        return words[annotation]
    if annotation in (None, NoneType):
        return "nothing"
    if _is_union(annotation):
        choices = [choice for choice in get_args(annotation) if choice is not int or float not in get_args(annotation)]
        return " or ".join(map(expected, choices))
    if _is_closed(annotation):
        return "one of " + ", ".join(f'"{choice}"' for choice in _values(annotation))
    return "a list" if _is_sequence(annotation) else "a table"


def _values(annotation: Any) -> list[Any]:
    """The plain values that a closed choice accepts."""
    return list(get_args(annotation)) if get_origin(annotation) is Literal else [item.value for item in annotation]


def _read_plain(value: Any, annotation: Any) -> Any:
    """Reads a plain value without changing its meaning: 8 is also a real number, but "8" is text and true no number."""
    if _is_closed(annotation):  # cattrs takes an enumeration of texts for a kind of text
        return _read_closed(value, annotation)
    accepted = {float: (float, int), Path: (Path, str)}.get(annotation, annotation)
    if not isinstance(value, accepted) or (isinstance(value, bool) and annotation is not bool):
        raise SurdError(f"expected {expected(annotation)}, found {_found(value)}")
    try:
        return annotation(value)
    except OverflowError:
        raise SurdError(f"expected {expected(annotation)}, found one that is too large") from None


def _read_closed(value: Any, annotation: Any) -> Any:
    """Reads one of a closed list of values."""
    for choice in [value.value] if isinstance(value, Enum) else [value]:
        if any(choice == known and type(choice) is type(known) for known in _values(annotation)):
            return choice if get_origin(annotation) is Literal else annotation(choice)
    if isinstance(value, str):
        raise SurdError(unknown("value", value, map(str, _values(annotation))))
    raise SurdError(f"expected {expected(annotation)}, found {_found(value)}")


def _table_hook(annotation: Any, converter: Converter) -> Hook:
    """Reads a dataclass that is no part from a table; a key that does not exist is a fault."""
    build = make_dict_structure_fn(annotation, converter, _cattrs_forbid_extra_keys=True)

    def read(value: Any, _: Any) -> Any:
        if isinstance(value, annotation):
            return value
        if not isinstance(value, Mapping):
            raise SurdError(f"expected a table, found {_found(value)}")
        return build(dict(value), annotation)

    return read


def _part_hook(annotation: Any, converter: Converter) -> Hook:
    """Reads the member of a family that `kind` names; the bare name of a kind stands for that member's defaults."""

    def read(value: Any, _: Any) -> Any:
        family = members(annotation)
        if isinstance(value, tuple(family.values())):
            return value
        table = {"kind": value} if isinstance(value, str) else value
        if not isinstance(table, Mapping):
            raise SurdError(f"expected a table or the name of a kind, found {_found(value)}")
        kind = table.get("kind", next(iter(family)) if len(family) == 1 else None)
        if kind not in family:
            message = f"missing. There is: {', '.join(family)}." if kind is None else unknown("kind", str(kind), family)
            raise _Located([("kind", message)])
        settings = {key: item for key, item in table.items() if key != "kind"}
        try:
            build = make_dict_structure_fn(family[kind], converter, _cattrs_forbid_extra_keys=True)
            return build(settings, family[kind])
        except (SurdError, ValueError, BaseValidationError) as error:
            raise _Located(_faults(error, family[kind])) from None

    return read


def _union_hook(annotation: Any, converter: Converter) -> Hook:
    """Reads a union of plain types, of parts, or of either with None: first the exact type, then what fits."""
    choices = [choice for choice in get_args(annotation) if choice is not NoneType]
    optional = len(choices) < len(get_args(annotation))
    parts = [choice for choice in choices if _is_part(choice)]
    others = [choice for choice in choices if choice not in parts]
    if parts:
        others.insert(0, reduce(or_, parts))

    def read(value: Any, _: Any) -> Any:
        if value is None and optional:
            return None
        if len(others) == 1:
            return converter.structure(value, others[0])
        for choice in sorted(others, key=lambda choice: type(value) is not choice):
            try:
                return converter.structure(value, choice)
            except (SurdError, ValueError, BaseValidationError):
                continue
        raise SurdError(f"expected {expected(annotation)}, found {_found(value)}")

    return read


def _sequence_hook(annotation: Any, converter: Converter) -> Hook:
    """Reads a list, or a tuple of one repeated type (`tuple[int, ...]`) or of as many types as items."""
    kind, types = get_origin(annotation), [item for item in get_args(annotation) if item is not Ellipsis]
    repeated = kind is list or Ellipsis in get_args(annotation)

    def read(value: Any, _: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise SurdError(f"expected a list, found {_found(value)}")
        if not repeated and len(value) != len(types):
            raise SurdError(f"expected a list of {len(types)}, found {len(value)}")
        items, faults = [], []
        for index, item in enumerate(value):
            wanted = types[0] if repeated else types[index]
            try:
                items.append(converter.structure(item, wanted))
            except (SurdError, ValueError, BaseValidationError) as error:
                faults.extend(_faults(error, wanted, f"[{index}]"))
        if faults:
            raise _Located(faults)
        return kind(items)

    return read


class _Located(SurdError):
    """Faults whose paths are known, as pairs of path and text: what the hooks of tables and lists raise."""

    def __init__(self, faults: Iterable[tuple[str, str]]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(f"{path}: {text}" for path, text in self.faults))


def _faults(error: BaseException, cls: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The faults in what a hook for `cls` raised, each with its path from the top."""
    if isinstance(error, _Located):
        yield from ((_join(path, inner), text) for inner, text in error.faults)
    elif isinstance(error, BaseValidationError):
        for inner in error.exceptions:
            notes = [note for note in getattr(inner, "__notes__", ()) if isinstance(note, AttributeValidationNote)]
            if isinstance(inner, ForbiddenExtraKeysError):
                known = [field.name for field in fields(inner.cl) if field.init]
                yield from ((_join(path, key), unknown("setting", key, known)) for key in sorted(inner.extra_fields))
            elif not notes:
                yield from _faults(inner, cls, path)
            elif isinstance(inner, KeyError):
                yield _join(path, notes[0].name), "missing"
            else:
                yield from _faults(inner, notes[0].type, _join(path, notes[0].name))
    else:
        names = {field.name for field in fields(cls)} if is_dataclass(cls) else set()
        for line in error.lines if isinstance(error, Faults) else [str(error)]:
            head, colon, text = line.partition(": ")
            own = colon and head.split(".")[0] in names
            yield (_join(path, head), text) if own else (path, line)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name and not name.startswith("[") else path + name


def _converter() -> Converter:
    """One converter for all settings; hooks that were registered last are asked first."""
    converter = Converter()
    for plain in (int, float, bool, str, Path):
        converter.register_structure_hook(plain, _read_plain)
    converter.register_structure_hook_func(_is_closed, _read_closed)
    converter.register_structure_hook_factory(is_dataclass, _table_hook)
    converter.register_structure_hook_factory(_is_sequence, _sequence_hook)
    converter.register_structure_hook_factory(_is_union, _union_hook)
    converter.register_structure_hook_factory(_is_part, _part_hook)
    return converter


_CONVERTER = _converter()
