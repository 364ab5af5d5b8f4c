"""Tables: nested plain values under dotted paths, and how two of them become one."""

from collections.abc import Iterator, Mapping
from typing import Any

from surd.errors import SurdError

Table = dict[str, Any]


def leaves(values: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The dotted paths of all values that are no tables."""
    for key, value in values.items():
        here = f"{path}.{key}" if path else key
        if isinstance(value, Mapping):
            yield from leaves(value, here)
        else:
            yield here


def get(values: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path, or None."""
    found: Any = values
    for key in path.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def put(values: Table, path: str, value: Any) -> None:
    """Sets the value at a dotted path; refused where a setting on the way is no table."""
    *heads, last = path.split(".")
    for head in heads:
        values = values.setdefault(head, {})
        if not isinstance(values, dict):
            raise SurdError(f"{path}: {head} is given as a value and as a table")
    values.update(merge(values, {last: value}))


def without(values: Table, path: str) -> Table:
    """A copy that lacks a dotted path."""
    head, _, rest = path.partition(".")
    if head not in values:
        return values
    kept = {key: value for key, value in values.items() if key != head or rest}
    if rest and isinstance(values[head], dict):
        kept[head] = without(values[head], rest)
    return kept


def merge(lower: Table, upper: Table) -> Table:
    """Two tables as one, the upper one's values before the lower one's.

    A table of another `kind` replaces the lower one whole: what sets one member of a family means nothing to another.
    """
    merged = dict(lower)
    for key, value in upper.items():
        below = lower.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            other = "kind" in value and "kind" in below and value["kind"] != below["kind"]
            merged[key] = value if other else merge(below, value)
        else:
            merged[key] = value
    return merged
