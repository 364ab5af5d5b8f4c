"""What `import surd` offers: `load` a run, `train` one, and of any model a `ledger` of its scales, or a `check`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from surd.decode.ensemble import Ensemble
from surd.errors import SurdError
from surd.measure.calling.inputs import Inputs
from surd.measure.ledger import Ledger
from surd.measure.ledger import ledger as weigh
from surd.recipe import Draft, Recipe, suggested, with_files
from surd.recipe.file import values
from surd.run.folder import Run
from surd.run.translator import Translator
from surd.run.use import opened, opened_together
from surd.run.writer import Writer
from surd.training.events import Event, Interrupted
from surd.training.extend import extended
from surd.training.interrupt import stop_on_signal
from surd.training.loop import train as go_on
from surd.training.start import plan, train_new

if TYPE_CHECKING:
    import torch
    from torch import nn

    from surd.audit.judge import Report
    from surd.audit.subject import Subject

__all__ = ["Ledger", "Recipe", "Translator", "Writer", "check", "ledger", "load", "train"]

GIVEN = "given in Python"


def load(
    path: Path | str | Sequence[Path | str],
    *,
    device: "torch.device | None" = None,
    precision: Literal["auto", "bf16", "fp32"] = "auto",
) -> Translator | Writer:
    """The trained run in the folder `path`, ready to use: `load("en-de").translate(["A dog runs."])`.

    What was trained on pairs is a `Translator`, what was trained on running text a `Writer`. `device` is the best one
    when none is given; `precision` is the number format of the activations, `auto` being the faster of fp32 and bf16
    there. Several folders in a list make one `Translator` of an ensemble, whose models write together. A folder that
    is no run, is damaged or was written by a newer surd raises `SurdError`.
    """
    if not isinstance(path, Path | str):
        if not path:
            raise SurdError("load: expected the folder of a run, or several, found an empty list")
        return opened_together([Run.open(one) for one in path], device, precision)
    return opened(Run.open(path), device, precision)


def ledger(
    model: "nn.Module | Translator | Writer | Path | str",
    inputs: Inputs | None = None,
    loss: "Callable[[Any], torch.Tensor] | None" = None,
) -> Ledger:
    """The sizes at every site of a model, forwards and backwards, beside what its parts predict of its start.

    `model` is any module, which is left exactly as it was, what `surd.load` returns, or the folder of a run. Printed it
    is a table, and in a notebook shows as one. A model of surd is measured on random tokens, another one on `inputs`
    (the arguments of one call; else they are made from its signature), with the gradients of `loss`, a function of what
    it returns, by default the cross-entropy with random labels.
    """
    if isinstance(model, Path | str):
        model = load(model, precision="fp32")
    subject = model.model if isinstance(model, Translator | Writer) else model
    if isinstance(subject, Ensemble):
        raise SurdError("ledger: an ensemble has several models, and a ledger is of one: load one of its runs")
    return weigh(subject, inputs, loss)


def check(
    model: "nn.Module | Translator | Writer | Path | str",
    example: Inputs | None = None,
    loss: "Callable[[Any], torch.Tensor] | None" = None,
    *,
    against: "nn.Module | Translator | Writer | Path | str | None" = None,
    select: Sequence[str] | str = (),
    ignore: Sequence[str] | str = (),
    static: bool = False,
    batch: Path | str | None = None,
    trained: bool | None = None,
) -> "Report":
    """Whether the scales of a model are right: what was found, what could not be looked at, and what was looked at.

    `model` is any module, which is left exactly as it was, a Keras model, what `surd.load` returns, or a path: a run, a
    folder of Hugging Face, a .keras or .safetensors file, or `package.module:factory`. It runs on `example` (a tensor,
    a tuple, or a dict of named arguments) or on the tensors of the .safetensors file `batch`, else on inputs made from
    its signature and configuration; `loss` makes a number of what it returns. `select` and `ignore` are names of rules,
    one or several; `static` reads weights and configuration alone; `trained` says what is else told from the weights.
    With `against`, another model or one of the words eager, padded, saved and resized, it is told in what their scales
    differ instead.
    """
    from surd.audit.rule import refuse_none, refuse_unknown
    from surd.interchange.batch import read_batch
    from surd.interchange.checking import judged
    from surd.interchange.subject import subject

    select, ignore = ((one,) if isinstance(one, str) else tuple(one) for one in (select, ignore))
    refuse_unknown((*select, *ignore))
    refuse_none(select, ignore)
    if loss is not None and not callable(loss):
        raise SurdError(
            f"check: expected a loss to be a function of what the model returns; found a {type(loss).__name__}"
        )
    if trained is not None and not isinstance(trained, bool):
        raise SurdError(f"check: trained is True or False, or left out; found {trained!r}")
    if batch is not None:
        if example is not None:
            raise SurdError("check: example and batch are both given, and both say what the model is called with")
        if static:
            raise SurdError("check: a batch is what the model is called with, and static calls nothing: leave one out")
        example = read_batch(Path(batch))

    def opened(which: Any) -> "Subject":
        return subject(which, example, loss, trained=trained, static=static)

    if against is None:
        return judged(lambda: opened(model), select, ignore, static)
    from surd.interchange.against import judged_against

    return judged_against(lambda: opened(model), against, lambda: opened(against), select, ignore, static)


def train(
    source: Path | str | Recipe | None = None,
    target: Path | str | None = None,
    *,
    text: Path | str | None = None,
    out: Path | str | None = None,
    dev: Sequence[Path | str] = (),
    task: str | None = None,
    columns: str | None = None,
    recipe: Recipe | Path | str | None = None,
    minutes: float | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    from_run: Path | str | None = None,
    resume: Path | str | None = None,
    tell: Callable[[Event], object] | None = None,
) -> Translator | Writer:
    """Trains as `surd train` does, and returns the trained model.

    `source` and `target` are two aligned files of text; `source` alone is a file of pairs (TSV, JSON lines), a recipe
    file (NAME.toml) or a `Recipe` that names its data; `text` in their place is a file of running text, for a language
    model. The new folder `out` receives the run. `dev` is held-out text, a list of one file or two; `recipe` a
    `Recipe`, a file or the name of a shipped one; `minutes` a time budget; `settings` changes single settings, as in
    `{"model.dropout": 0.2}`; `tell` is called with each event of `surd.training.events`, several a second. With
    `from_run`, training begins with the weights of that run, whose vocabulary and architecture stand. With `resume`, a
    run is gone on with instead, and of the rest only `settings` and `tell` are allowed. Ctrl-C writes a checkpoint
    before it is raised.
    Mistakes in data or settings raise `SurdError` before anything is written.
    """
    told = tell or (lambda event: None)
    if resume is not None:
        new = {
            "source": source,
            "target": target,
            "text": text,
            "out": out,
            "dev": dev,
            "task": task,
            "columns": columns,
        }
        new |= {"recipe": recipe, "minutes": minutes, "seed": seed, "from_run": from_run}
        if wrong := [name for name, value in new.items() if value not in (None, ())]:
            raise SurdError(f"train: resume goes on with a run as it was begun: it does not go with {', '.join(wrong)}")
        folder = Path(resume)
        words = [f"{path}={value}" for path, value in (settings or {}).items()]
        run = extended(Run.open(folder), words)
        begun = partial(go_on, run)
    else:
        if out is None:
            raise SurdError("train: out is missing: name the folder to make for the run")
        folder = Path(out)
        given = {"task": task, "data.columns": columns, "training.minutes": minutes, "seed": seed, **(settings or {})}
        origin = None if from_run is None else Run.open(from_run)
        draft = _drafted(source, target, text, dev, recipe).with_values(given, GIVEN)
        begun = partial(train_new, plan(draft, origin), folder)
    with stop_on_signal() as stop:
        for event in begun(stop=stop):
            told(event)
            if isinstance(event, Interrupted):
                raise KeyboardInterrupt(f"stopped after update {event.step:,}; go on with resume={str(event.run)!r}")
    return load(folder)


def _drafted(
    source: Path | str | Recipe | None,
    target: Path | str | None,
    text: Path | str | None,
    dev: Sequence[Path | str],
    recipe: Any,
) -> Draft:
    """What recipe and files ask for together; files take the place of the recipe's."""
    if isinstance(source, Recipe) or str(source).endswith(".toml"):
        if recipe is not None:
            raise SurdError("train: two recipes are given, one as source and one as recipe")
        recipe, source = source, None
    if isinstance(dev, str | Path) or len(dev) > 2:
        raise SurdError("train: dev is a list of one or two files")
    if text is not None and (source is not None or target is not None):
        raise SurdError("train: text is for a language model, source and target are for pairs: give one or the other")
    if isinstance(recipe, Recipe):
        draft = Draft().with_values(values(recipe), GIVEN)
    else:
        draft = Draft() if recipe is None else suggested(recipe)
    files = [None if file is None else str(file) for file in (text, source, target)]
    draft = with_files(draft, files[0], [file for file in files[1:] if file], [str(file) for file in dev], GIVEN)
    if not (draft.given("data.source") or draft.given("data.text")):
        raise SurdError("train: there is nothing to train on: give source and target, one file of pairs, or text")
    return draft
