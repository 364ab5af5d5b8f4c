"""The number of parameters that is reported is not the number of different numbers in memory."""

from collections.abc import Iterator

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Skipped
from surd.audit.parts import is_one
from surd.audit.rule import Models, Needs, Rule

NAME = "parameter-count"
METHODS = ("num_parameters", "num_params", "get_num_params", "count_parameters", "count_params", "n_params",
    "parameter_count", "get_num_parameters", "total_params", "number_of_parameters")  # fmt: skip
"""What people call a method that counts."""
SOURCE = "each place in memory counts once"


def look(evidence: Evidence) -> Iterator[Finding | Skipped]:
    named, unique = _counts(evidence)
    shared = named - unique
    reported = dict(_reported(evidence))
    if evidence.declared.parameters is not None:
        reported[evidence.declared.parameters.by] = evidence.declared.parameters.value
    if not reported:
        yield Skipped(reason="nothing says how many parameters there should be")
        return
    said = evidence.declared.parameters
    for by, count in reported.items():
        why = _why(count, unique, shared)
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


def _counts(evidence: Evidence) -> tuple[int, int]:
    """Over all names, and over all places in memory."""
    weights = evidence.weights
    named = unique = 0
    seen: dict[tuple[int, ...], list[str]] = {}
    for name in weights.names():
        shape = weights.shape(name)
        named += shape.numel()
        alike = seen.setdefault(tuple(shape), [])
        if weights.module is None or not any(is_one(weights.tensor(name), weights.tensor(one)) for one in alike):
            unique += shape.numel()
            alike.append(name)
    return named, unique


def _reported(evidence: Evidence) -> Iterator[tuple[str, int]]:
    """What the module's own methods answer."""
    module = evidence.subject.module
    for name in METHODS:
        method = getattr(module, name, None)
        if callable(method):
            try:
                answer = method()
            except Exception:
                continue
            if isinstance(answer, int) and not isinstance(answer, bool):
                yield f"{name}()", answer


def _why(count: int, unique: int, shared: int) -> str:
    """What the difference is, when it is a shared matrix."""
    if not shared:
        return ""
    names = {
        unique + shared: "what has two names is counted twice",
        unique - shared: "what has two names is subtracted, though it was counted once",
        unique - 2 * shared: "what has two names is subtracted twice",
    }
    return names.get(count, "")


RULE = Rule(
    name=NAME,
    what="A count of parameters takes a shared matrix twice, or leaves it out.",
    why="A tied matrix of V·d numbers has two names and one place in memory: N, and neither N + V·d nor N − V·d.",
    when="Wherever a budget, a scaling law or a paper rests on the number. Methods that leave out tables or frozen "
    "parts by design are not told.",
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
