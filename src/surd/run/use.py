"""Use: a run's model in memory, as what its task makes of it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from surd.decode.ensemble import Ensemble
from surd.errors import SurdError
from surd.models.language import Language
from surd.models.seq2seq import Seq2Seq
from surd.run.folder import Run
from surd.run.translator import Translator
from surd.run.writer import Writer

if TYPE_CHECKING:
    import torch


def opened(
    run: Run, device: "torch.device | None" = None, precision: Literal["auto", "bf16", "fp32"] = "auto"
) -> Translator | Writer:
    """A translator for what was trained on pairs, a writer for what was trained on running text."""
    model = run.load_model(device, precision)
    if isinstance(model, Language):
        return Writer(run=run, model=model)
    assert isinstance(model, Seq2Seq), "there are two sorts of model"
    return Translator(run=run, model=model)


def opened_together(
    runs: Sequence[Run], device: "torch.device | None" = None, precision: Literal["auto", "bf16", "fp32"] = "auto"
) -> Translator:
    """A translator whose models write as one, see `surd.decode.ensemble`; the first run gives the settings."""
    first, *others = runs
    for run in runs:
        run.refuse_unless("translate")
    if different := [str(run.folder) for run in others if run.about["files"] != first.about["files"]]:
        raise SurdError(
            f"an ensemble has one vocabulary, and that of {', '.join(different)} is not that of {first.folder}: "
            "train its runs on the same data with other seeds, or one from the other"
        )
    models = [run.load_model(device, precision) for run in runs]
    members = [model for model in models if isinstance(model, Seq2Seq)]
    assert len(members) == len(runs), "a task with pairs has such a model"
    return Translator(run=first, model=Ensemble(members) if others else members[0], others=tuple(others))


def translator(run: Run, *others: Run) -> Translator:
    """What `surd translate` uses, with several runs an ensemble; a language model is refused."""
    return opened_together([run, *others])


def writer(run: Run) -> Writer:
    """What `surd generate` uses; a run of a task with pairs is refused."""
    run.refuse_unless("generate")
    found = opened(run)
    assert isinstance(found, Writer), "its task has just been looked at"
    return found
