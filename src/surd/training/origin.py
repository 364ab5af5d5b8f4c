"""Going on from a trained run with other data: what is kept of it, what is refused, and what is told of it."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from surd.data.survey import Survey
from surd.data.text import TextSurvey
from surd.errors import SurdError
from surd.files import read_bytes
from surd.nn.special import UNK
from surd.recipe import Draft, Recipe, about_text
from surd.recipe.file import values
from surd.recipe.table import Table, get, leaves
from surd.run import Run

KEPT = ("task", "tokenizer", "model")
"""Tables of a recipe that the weights of a run were found with, and mean nothing without."""
FREE = ("model.dropout", "model.attention_dropout", "model.input_gradient")
"""Settings among them that only training feels: the model that is left is the same function of its weights."""
USUAL = ("data.context", "data.document", "data.max_length", "decode", "sample")
"""Settings that are as in the run unless others are asked for."""
SAMPLE = 1000
"""Lines of a side that are looked at for pieces that a vocabulary does not know."""
NOTED, REFUSED = 0.01, 0.5
"""Shares of unknown pieces from which on they are worth a note, and from which on nothing could be learnt."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The weights that a training begins with, and what is told of the run that they are from."""

    run: Run
    weights: bytes
    record: Mapping[str, Any]

    @classmethod
    def open(cls, run: Run) -> "Source":
        """The model of a run as it is now: while that trains on, another one may take its place."""
        weights = read_bytes(run.weights())
        return cls(run=run, weights=weights, record=record(run, hashlib.sha256(weights).hexdigest()))


def record(run: Run, weights: str) -> dict[str, Any]:
    """What is told of a run in the folder of one that has its weights, whose checksum is `weights`."""
    about = run.about
    told = {name: about.get(name) for name in ("task", "created", "data")}
    found = {"run": run.folder.resolve().name, **told, "step": run.model_step(), "weights": weights}
    return found | ({"origin": about["origin"]} if "origin" in about else {})


def drafted_from(run: Run, asked: Draft) -> Draft:
    """What was asked for with vocabulary, shape and task of `run` under it; what would change those is refused."""
    asked.check()
    have, name = values(run.recipe), str(run.folder)
    lines = [
        f"{path} is {_shown(get(have, path))} there, found {_shown(get(asked.values, path))}"
        for path in leaves(asked.values)
        if path.startswith(KEPT) and path not in FREE and get(asked.values, path) != get(have, path)
    ]
    other = about_text(asked.values) != about_text(have)
    if other and not any(line.startswith("task ") for line in lines):
        reads = "running text" if about_text(have) else "pairs"
        lines.insert(0, f"task is {run.recipe.task} there, which learns from {reads}, found other data")
    if lines:
        raise SurdError(f"{name}: its task, vocabulary and architecture are kept: {'; '.join(lines)}")
    usual: Table = {path: get(have, path) for path in (*KEPT, *USUAL) if get(have, path) is not None}
    return Draft().with_values(usual, f"as in {name}").under(asked)


def kept(recipe: Recipe, run: Run) -> Recipe:
    """A derived recipe with all that the weights of `run` ask for, also what it leaves at none."""
    free = {path.removeprefix("model."): getattr(recipe.model, path.removeprefix("model.")) for path in FREE}
    return replace(recipe, tokenizer=run.recipe.tokenizer, model=replace(run.recipe.model, **free))


def differences(one: Run, other: Run) -> list[str]:
    """What of task, vocabulary and architecture two runs do not have in common, in words."""
    have, found = values(one.recipe), values(other.recipe)
    paths = dict.fromkeys(path for table in (have, found) for path in leaves(table) if path.startswith(KEPT))
    ignored = (*FREE, "model.init")
    lines = [
        f"{path} is {_shown(get(have, path))} and {_shown(get(found, path))}"
        for path in paths
        if not path.startswith(ignored) and get(have, path) != get(found, path)
    ]
    if not lines and one.about["files"] != other.about["files"]:
        lines.append("their vocabularies were learnt from different text")
    return lines


def strangers(run: Run, survey: Survey | TextSurvey) -> tuple[str, ...]:
    """What to say of data of which the vocabulary of `run` knows little; those of which it knows next to nothing are
    refused, as nobody meant them."""
    notes = []
    for side, lines in _sides(survey).items():
        ids = [token for row in getattr(run.tokenizers, side).encode_all(lines) for token in row]
        share = ids.count(UNK) / max(len(ids), 1)
        told = f"{share:.0%} of the {side} pieces of {survey.report.name} are unknown to the vocabulary of {run.folder}"
        if share >= REFUSED:
            kind = getattr(run.recipe.tokenizer, side).kind
            raise SurdError(
                f"{told} (tokenizer.{side} = {kind}, task {run.recipe.task}): this is another kind of text; "
                "train on it without --from"
            )
        if share >= NOTED:
            notes.append(f"note: {told}")
    return tuple(notes)


def _sides(survey: Survey | TextSurvey) -> dict[str, Sequence[str]]:
    if isinstance(survey, TextSurvey):
        return {"target": survey.sample[:SAMPLE]}
    sources, targets = zip(*survey.sample[:SAMPLE], strict=True)
    return {"source": sources, "target": targets}


def _shown(value: Any) -> str:
    """A value as it is written in a recipe, but for the quotes of text."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
