"""Own options: what somebody's own model states of itself in a configuration of any make, under the usual names."""

from dataclasses import replace
from types import SimpleNamespace

from torch import nn

from surd.audit.declared import NOTHING, Declared
from surd.interchange.asked_ties import asked_tables, asked_tie, options
from surd.interchange.stated import Part, number_stated, whole_stated


def declared_by_options(model: nn.Module) -> Declared:
    """Its ties, its vocabulary and padding, its caps and epsilon; nothing is called, and nothing computed."""
    said = replace(NOTHING, tied=asked_tie(model), shared=asked_tables(model))
    for where, held in options(model):
        named = {name: value for name, value in held.items() if isinstance(name, str)}
        part = Part(SimpleNamespace(**named), where or type(model).__name__)
        if not where:
            # Of its own attributes only this one has one meaning: a cap may be a layer, an epsilon an optimiser's.
            said = replace(said, vocabulary=whole_stated(part, "vocabulary"))
        else:
            said = replace(
                said,
                vocabulary=said.vocabulary or whole_stated(part, "vocabulary"),
                padding=said.padding or whole_stated(part, "padding"),
                score_cap=said.score_cap or number_stated(part, "score_cap"),
                logit_cap=said.logit_cap or number_stated(part, "logit_cap"),
                epsilon=said.epsilon or number_stated(part, "epsilon"),
            )
    return said
