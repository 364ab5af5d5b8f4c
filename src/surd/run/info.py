"""Info: what is in a run's folder, from what it was made, how good it is, and its four scales."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from surd.errors import SurdError
from surd.files import read_json
from surd.measure.ledger import ledger
from surd.metrics.score import Score
from surd.models.architecture import Architecture
from surd.part import unstructure
from surd.recipe import Recipe
from surd.run.checked import Checked, kept
from surd.run.folder import MODEL, Run

SCORES = "scores.json"
"""The final scores, beside the model."""


@dataclass(frozen=True, kw_only=True)
class Scales:
    """The four scales by name, each with its value."""

    attention: str
    embedding: str
    initialisation: str
    tying: str


@dataclass(frozen=True, kw_only=True)
class Info:
    """What there is to know of a run at a glance."""

    run: str
    task: str
    surd: str
    """What made it."""
    created: str
    data: tuple[str, ...]
    """Names of the files that it learnt from."""
    origin: Mapping[str, Any] | None
    """The runs whose weights it began with, or is the mean of; each with its own data, and origin."""
    updates: int | None
    """Of the model for use; none while there is none."""
    limit: int | None
    """Updates after which training ends at the latest."""
    finished: bool
    chosen: str | None
    """Which weights the model has."""
    scores: tuple[Score, ...]
    """On held-out text at the end of the training; none before it."""
    basis: str
    """What was scored, and how outputs were found."""
    parameters: int
    shared: int
    """Numbers that tying saves."""
    layers: str
    vocabularies: tuple[int, ...]
    tokenizers: tuple[str, ...]
    joint: bool
    """Whether source and target share their vocabulary."""
    scales: Scales
    sizes: str | None
    """The ledger in one line; none while there is no model."""
    check: Checked | None
    """What the check of its first weights said; none where it began without one."""


def info(path: Path | str) -> Info:
    """All of it, from the folder of a run; what is damaged is refused."""
    run = Run.open(path)
    recipe, about = run.recipe, run.about
    ready = (run.folder / MODEL).exists()
    model = run.load_model(precision="fp32") if ready else run.build_model()
    described = read_json(run.folder / MODEL) if ready else {}
    scores, basis = _scores(run)
    parameters, shared = model.parameter_counts()
    parts = [recipe.tokenizer.target] if recipe.data.text else [recipe.tokenizer.source, recipe.tokenizer.target]
    return Info(
        run=str(path),
        task=recipe.task,
        surd=str(about.get("surd", "")),
        created=str(about.get("created", "")),
        data=tuple(about.get("data", ())),
        origin=about.get("origin"),
        updates=described.get("step"),
        limit=recipe.training.steps,
        finished=ready and described.get("finished", True),
        chosen=described.get("weights_of"),
        scores=scores,
        basis=basis,
        parameters=parameters,
        shared=shared,
        layers=_layers(recipe),
        vocabularies=model.vocabularies,
        tokenizers=tuple(part.kind for part in parts),
        joint=recipe.data.text is None and recipe.tokenizer.joint,
        scales=scales(recipe.model),
        sizes=ledger(model).summary() if ready else None,
        check=kept(run),
    )


def scales(model: Architecture) -> Scales:
    """The four scales of an architecture, by name and value."""
    attention = f"{_named(model.scale)}: {model.scale(model.d_k):.4g} for a d_k of {model.d_k}"
    if model.score.kind != "dot":
        attention = f"{_named(model.scale)}: {model.score.kind} scores hold no product to scale"
    return Scales(
        attention=attention,
        embedding=f"{_named(model.multiplier)}: {model.multiplier(model.d_model):.4g} for a d_model of {model.d_model}",
        initialisation=_named(model.init),
        tying=model.tying.value,
    )


def _named(part: Any) -> str:
    """A part by its kind, with its settings where it has some."""
    plain = unstructure(part)
    settings = ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in plain.items()
        if name != "kind" and value is not None
    )
    return f"{plain['kind']} ({settings})" if settings else plain["kind"]


def _layers(recipe: Recipe) -> str:
    """The shape in words."""
    model = recipe.model
    encoder = "" if recipe.data.text else f"{model.encoder_layers} encoder and "
    return (
        f"{encoder}{model.decoder_layers} decoder layers, {model.norm_order.value}-norm, width {model.d_model}, "
        f"{model.heads} heads of {model.d_k}, feed-forward {model.d_ff}"
    )


def _scores(run: Run) -> tuple[tuple[Score, ...], str]:
    """The final scores and what they are of; none while training goes on."""
    path = run.folder / SCORES
    if not path.exists():
        return (), ""
    found = read_json(path)
    try:
        names = [field.name for field in fields(Score)]
        told: list[dict[str, Any]] = [
            {name: one[name] for name in names} | {"value": float(one["value"])} for one in found["scores"]
        ]
        return tuple(Score(**one) for one in told), str(found["basis"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise SurdError(f"{path}: damaged, not the scores of a run ({error!r})") from None


def origin_lines(origin: Mapping[str, Any] | None, indent: str = "") -> Sequence[str]:
    """Where weights come from, one line for each run, those of its own origin beneath it."""
    if not isinstance(origin, Mapping):
        return []
    lines = []
    for one in origin.get("runs", ()):
        data = ", ".join(map(str, one.get("data") or ())) or "unnamed data"
        how = {"from": "begun with", "average": "mean of"}.get(str(origin.get("how")), "of")
        lines.append(f"{indent}{how} {one.get('run')} after update {one.get('step')}, which learnt from {data}")
        lines += origin_lines(one.get("origin"), f"{indent}  ")
    return lines
