"""The number of parameters that is reported is not the number of different numbers in memory."""

import inspect
import re
from collections.abc import Callable, Iterator
from math import isclose, isfinite
from typing import Any, TypeGuard

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped
from surd.audit.rule import Models, Needs, Rule
from surd.measure.calling.restore import preserved

NAME = "parameter-count"
METHODS = ("num_parameters", "num_params", "get_num_params", "count_parameters", "count_params", "n_params",
    "parameter_count", "get_num_parameters", "total_params", "number_of_parameters", "total_parameters", "param_count",
    "n_parameters", "parameters_count", "num_total_params")  # fmt: skip
"""What people call a number of parameters, or a method that counts them."""
UNITS = (10**6, 10**9, 10**3)
FEWEST_DIGITS = 3
SOURCE = "each place in memory counts once"


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    sizes, repeats = _sizes(evidence)
    unique, named = sum(sizes), sum(sizes) + sum(repeats)
    reported = {by: _whole_number(answer, unique, sizes, repeats) for by, answer in _reported(evidence)}
    if evidence.declared.parameters is not None:
        reported[evidence.declared.parameters.by] = evidence.declared.parameters.value
    if not reported:
        yield Skipped(reason="nothing says how many parameters there should be")
        return
    said = evidence.declared.parameters
    for by, count in reported.items():
        why = _why(count - unique, sizes, repeats)
        if count == unique or (not why and (said is None or by != said.by)):
            continue  # a method may well leave tables or frozen parts out
        yield Finding(
            severity=Severity.FAULT if why or evidence.subject.module is not None else Severity.NOTE,
            site=by,
            quantity="different numbers",
            measured=count,
            expected=unique,
            source=SOURCE,
            message=f"{by} says {count:,} parameters; there are {unique:,} different numbers under names that hold "
            f"{named:,}" + (f": {why}" if why else f", {count - unique:+,} apart"),
            mend="sum p.numel() over model.parameters(), which gives each parameter once, and neither add nor subtract "
            "a shared matrix",
        )


def _sizes(evidence: Evidence) -> tuple[list[int], list[int]]:
    """Of each place in memory, and of each further name of one."""
    weights = evidence.weights
    seen: dict[tuple[int, ...], list[str]] = {}
    sizes, repeats = [], []
    for name in weights.names():
        shape = weights.shape(name)
        alike = seen.setdefault(tuple(sorted(shape)), [])
        if any(weights.same(name, one) for one in alike):
            repeats.append(shape.numel())
        else:
            sizes.append(shape.numel())
            alike.append(name)
    return sizes, repeats


def _reported(evidence: Evidence) -> Iterator[tuple[str, int | float]]:
    """What the module holds as a number, and, where it may be run, what its own methods without arguments answer."""
    if evidence.subject.module is None:
        return
    module = evidence.module
    for name in METHODS:
        found = vars(module).get(name, getattr(type(module), name, None))
        if _is_count(found):
            yield name, found
        elif callable(found) or isinstance(found, property):
            with preserved(module):
                try:
                    answer = getattr(module, name)
                    options = _whole(answer) if callable(answer) else {}
                    answer = answer(**options) if callable(answer) else answer
                except (Exception, SystemExit):
                    continue
            about = inspect.getdoc(found if callable(found) else found.fget) or ""
            if _is_count(answer) and (options or "embedding" not in about):  # else it says what it leaves out
                yield f"{name}{'' if isinstance(found, property) else '()'}", answer


def _is_count(value: object) -> TypeGuard[int | float]:
    """A whole number, or one of millions with enough digits to tell counts apart."""
    if isinstance(value, float):
        return isfinite(value) and value > 0 and len(f"{value:.12g}".replace(".", "").strip("0")) >= FEWEST_DIGITS
    return isinstance(value, int) and not isinstance(value, bool)


def _whole_number(told: float, unique: int, sizes: list[int], repeats: list[int]) -> int:
    """The count that was told in millions: the right one, or a known wrong one, where one of them rounds to it."""
    if isinstance(told, int):
        return told
    shared = sorted({sum(repeats), *repeats} - {0})
    wrong = [unique + sign * size for size in shared for sign in (1, -1, -2)]
    digits = len(f"{told:.12g}".partition(".")[2])
    near = (
        count
        for count in (unique, *(count for count in wrong if _why(count - unique, sizes, repeats)))
        for unit in UNITS
        if isclose(round(count / unit, digits), told, rel_tol=1e-9)
    )
    return next(near, unique)


def _whole(method: Callable[..., Any]) -> dict[str, bool]:
    """An option that leaves tables out is switched off: `non_embedding=False`."""
    try:
        options = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):
        return {}
    chosen = {}
    for option in options:
        if "embed" in option.name and isinstance(option.default, bool):
            chosen[option.name] = not re.search(r"non|no_|exclude|without|skip", option.name)
    return chosen


def _why(difference: int, sizes: list[int], repeats: list[int]) -> str:
    """What the difference is, when it is a shared matrix."""
    shared = {sum(repeats), *repeats} - {0}
    if difference in shared:
        return "what has two names is counted twice"
    # One other part of that size may well have been left out on purpose: positions, as many as there are tokens.
    if -difference in shared and sizes.count(-difference) < 2:
        return "what has two names is subtracted, though it was counted once"
    return "what has two names is subtracted twice" if difference in {-2 * size for size in shared} else ""


RULE = Rule(
    name=NAME,
    what="A count of parameters takes a shared matrix twice, or leaves it out.",
    why="A tied matrix of V·d numbers has two names and one place in memory: N, and neither N + V·d nor N − V·d.",
    when="Wherever a budget, a scaling law or a paper rests on the number. Methods that leave out tables or frozen "
    "parts by design are not told. Without --static the model's own methods of such names (num_parameters, num_params, "
    "count_parameters and the like) are called without arguments: the model stays as it was, and what they raise is "
    "passed over.",
    example="""
from surd.audit.specimen import LanguageModel, language_model


class Counted(LanguageModel):
    def num_params(self):
        return sum(p.numel() for _, p in self.named_parameters(remove_duplicate=False))


model = language_model()
model.__class__ = Counted
""",
    cure="""
from surd.audit.specimen import LanguageModel, language_model


class Counted(LanguageModel):
    def num_params(self):
        return sum(p.numel() for p in self.parameters())


model = language_model()
model.__class__ = Counted
""",
    sources=(
        "Press & Wolf 2017 (arXiv 1608.05859), table of sizes",
        "pytorch/torchtitan#3225, bigscience-workshop/Megatron-DeepSpeed#99",
    ),
    needs=Needs.STATIC,
    models=Models.BOTH,
    follows=("weight-tying",),
    look=look,
)
