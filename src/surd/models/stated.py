"""What a model of ours states of its scales: its architecture, so that a check holds it to what was asked for."""

from surd.audit.declared import Declared, Stated
from surd.models.architecture import Architecture
from surd.models.language import Language
from surd.models.model import Model
from surd.nn.norm import LayerNorm, RMSNorm
from surd.nn.scale import Learned, LogLength
from surd.nn.tying import Tying


def declared(model: Model) -> Declared:
    """Every choice of the architecture that is a scale, named as the recipe names it."""
    a = model.architecture
    tied = a.tying is not Tying.NONE
    moving = isinstance(a.scale, Learned | LogLength)
    by = "recipe: model.scale"
    return Declared(
        family="surd",
        attention=None if moving else Stated((a.scale(a.d_k),), by),
        qk_norm=Stated(a.query_key_norm is not None, "recipe: model.query_key_norm"),
        score_cap=None if a.cap is None else Stated(a.cap, "recipe: model.cap"),
        embedding=Stated(a.multiplier(a.d_model), "recipe: model.multiplier"),
        head=Stated(1.0, "the model's code"),
        residual=Stated(1.0, "the model's code"),
        tied=Stated(tied, "recipe: model.tying"),
        ties=Stated(_ties(model), "recipe: model.tying") if tied else None,
        epsilon=_epsilon(a),
        vocabulary=Stated(model.vocabularies[0], "the tokenizer") if len(set(model.vocabularies)) == 1 else None,
        causal=Stated(True, "the model's code"),
        parameters=Stated(model.parameter_counts()[0], "what `surd info` counts"),
        head_bias=Stated(a.output_bias, "recipe: model.output_bias"),
        released={
            "init-std": "recipe: model.init",
            **({"attention-scale": f"{by} is {type(a.scale).__name__}, whose factor moves"} if moving else {}),
        },
    )


def _epsilon(architecture: Architecture) -> Stated[float] | None:
    """That of all norms, where they have one."""
    norms = [one for one in (architecture.norm, architecture.query_key_norm) if isinstance(one, LayerNorm | RMSNorm)]
    found = {one.epsilon for one in norms}
    return Stated(found.pop(), "recipe: model.norm") if len(found) == 1 else None


def _ties(model: Model) -> tuple[tuple[str, str], ...]:
    """Names that are declared to be one."""
    if isinstance(model, Language):
        return (("text.table", "projection.weight"),)
    pairs = (("target.table", "projection.weight"),)
    return (("source.table", "target.table"), *pairs) if model.architecture.tying is Tying.ALL else pairs
