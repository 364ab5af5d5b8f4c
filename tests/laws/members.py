"""Every member of every family of the model, found by looking at its settings: a new one is tested unasked."""

from dataclasses import MISSING, fields
from typing import Any, get_type_hints

from surd.models.seq2seq import Architecture
from surd.part import Part, members

EXAMPLES = {float: 0.3, int: 6}
"""Values for settings of a part that have no default."""
SMALL = {("position", "learned"): {"length": 40}, ("scale", "log_length"): {"length": 6}}
"""Settings that only matter at the sizes of a test."""
OTHERS = {
    "key_value_heads": [1, 2],
    "cap": [2.0],
    "input_gradient": [0.5],
}
"""Settings that are numbers, and change what the model computes."""


def variants() -> dict[str, dict[str, Any]]:
    """Settings of `Architecture` for each member that is not the default, by a name to call the test."""
    found = {}
    hints, default = get_type_hints(Architecture), Architecture()
    for field in fields(Architecture):
        for kind, part in members(hints[field.name]).items():
            if getattr(getattr(default, field.name), "kind", None) != kind:
                found[f"{field.name}={kind}"] = {field.name: example(part, field.name)}
    found |= {f"{name}={value}": {name: value} for name, values in OTHERS.items() for value in values}
    return found


def example(part: type[Part], setting: str) -> Part:
    """A member with values for what it cannot do without."""
    needed = {
        field.name: EXAMPLES[field.type]
        for field in fields(part)
        if field.default is MISSING and field.default_factory is MISSING
    }
    return part(**needed, **SMALL.get((setting, part.kind), {}))
