"""Use: a run's model in memory, as what its task makes of it."""

from typing import TYPE_CHECKING, Literal

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


def translator(run: Run) -> Translator:
    """What `surd translate` uses; a language model is refused."""
    run.refuse_unless("translate")
    found = opened(run)
    assert isinstance(found, Translator), "its task has just been looked at"
    return found


def writer(run: Run) -> Writer:
    """What `surd generate` uses; a run of a task with pairs is refused."""
    run.refuse_unless("generate")
    found = opened(run)
    assert isinstance(found, Writer), "its task has just been looked at"
    return found
