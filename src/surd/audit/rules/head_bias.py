"""The bias of the head is added twice, or not at all."""

from collections.abc import Iterator

import torch
from torch import nn

from surd.audit.evidence import Evidence
from surd.audit.finding import Finding, Severity, Unobserved
from surd.audit.rule import Models, Needs, Rule
from surd.audit.thresholds import threshold
from surd.measure.listeners.twice import are_probabilities
from surd.measure.trials.derivative import added_factors, beside_output

NAME = "head-bias"


def look(evidence: Evidence) -> Iterator[Finding]:
    try:
        head = evidence.head
    except Unobserved:
        if not (layers := _classifiers(evidence)):
            raise
        yield from _of_classes(evidence, layers)
        return
    biases = _biases(evidence)
    if not biases:
        raise Unobserved("the head has no bias")
    if head.cap is not None or are_probabilities(evidence.logits):
        raise Unobserved("the logits pass a function behind the head, so that nothing is only added to them")
    healthy = threshold(NAME, "derivative")
    owners = _owners(evidence.module, head.weight)
    factors = added_factors(evidence.module, evidence.inputs, biases)
    if not any(factor or name.rpartition(".")[0] in owners for name, factor in factors.items()):
        raise Unobserved("nothing of the length of the vocabulary is added behind the head")
    for name, factor in factors.items():
        # A factor on the logits may stand before the bias, or behind it.
        expected = min((1.0, head.output_gain), key=lambda one: abs(factor - one))
        if healthy.holds(factor / expected):
            continue
        owned = name.rpartition(".")[0] in owners
        if factor == 0 and not owned:
            continue  # as long as the vocabulary by chance, and of no concern to the head
        told = "is not added to the logits" if factor == 0 else f"reaches the logits {factor / expected:.3g} times"
        yield Finding(
            severity=Severity.FAULT,
            site=name,
            quantity="derivative of the logits with respect to their bias",
            measured=factor,
            expected=expected,
            source="definition: logits = head · hidden + bias",
            message=f"{name} {told}",
            mend="add the bias once: in the head, or behind it"
            if factor
            else "add the bias to the logits, or remove it",
            file=head.site.file,
            line=head.site.line,
        )


def _classifiers(evidence: Evidence) -> list[str]:
    """Layers that make as many numbers as the model returns, which nothing else in it has."""
    numbers = [x for x in evidence.outputs if x.is_floating_point() and x.dim() > 1]
    classes = numbers[0].shape[-1] if numbers else 0
    parameters = [x for x in evidence.module.parameters() if classes in x.shape]
    return [
        path
        for path, layer in evidence.module.named_modules()
        if isinstance(layer, nn.Linear)
        and layer.out_features == classes
        and isinstance(layer.bias, nn.Parameter)
        and all(any(x is own for own in (layer.weight, layer.bias)) for x in parameters)
        and layer.weight.dtype in (torch.float32, torch.float64)
    ]


def _of_classes(evidence: Evidence, layers: list[str]) -> Iterator[Finding]:
    """What is done to all that the layer returns is done to its bias too, once."""
    for path in layers:
        factors = beside_output(evidence.module, evidence.inputs, path)
        if factors is None or not factors[1]:
            raise Unobserved("the last layer was not called as a module")
        ratio = factors[0] / factors[1]
        if not threshold(NAME, "derivative").holds(ratio):
            yield Finding(
                severity=Severity.FAULT,
                site=f"{path}.bias",
                quantity="derivative of the logits with respect to their bias",
                measured=ratio,
                expected=1.0,
                source="definition: logits = head · hidden + bias",
                message=f"{path}.bias reaches the logits {ratio:.3g} times",
                mend="add the bias once: in the head, or behind it",
            )


def _biases(evidence: Evidence) -> list[str]:
    """Parameters with one number for each logit: a bias of the head, or as long by chance."""
    classes = evidence.logits.shape[-1]
    return [
        name
        for name, parameter in evidence.module.named_parameters()
        if parameter.dim() == 1 and parameter.numel() == classes and parameter.dtype in (torch.float32, torch.float64)
    ]


def _owners(module: nn.Module, weight: str) -> set[str]:
    """The modules that hold the head, under each of its names, and those that hold these."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    names = [name for name, parameter in parameters.items() if parameter is parameters.get(weight)]
    holders = {name.rpartition(".")[0] for name in (weight, *names)}
    return holders | {holder.rpartition(".")[0] for holder in holders}


RULE = Rule(
    name=NAME,
    what="A bias of the logits is added twice or not at all.",
    why="Logits are head · hidden + bias, so their derivative with respect to the bias is 1. Twice, and every class is "
    "shifted by its bias once more, with twice the gradient; never, and a trained bias is lost.",
    when="A bias that is zero shows nothing until it is trained. It happens where two modules come to own one "
    "bias, and "
    "where a second implementation knows only the matrix of a tied head.",
    example="""
from torch import nn

from surd.audit.specimen import LanguageModel, language_model


class Twice(LanguageModel):
    def logits(self, hidden):
        return self.head(hidden) + self.head.bias


model = language_model()
model.head.bias = nn.Parameter(model.head.weight.new_zeros(model.head.out_features))
model.__class__ = Twice
""",
    cure="""
from torch import nn

from surd.audit.specimen import LanguageModel, language_model


class Once(LanguageModel):
    def logits(self, hidden):
        return self.head(hidden)


model = language_model()
model.head.bias = nn.Parameter(model.head.weight.new_zeros(model.head.out_features))
model.__class__ = Once
""",
    sources=(
        "huggingface/transformers#2957: an output bias that was added twice",
        "vllm-project/vllm#46835: the bias of a tied head ignored",
    ),
    needs=Needs.PROBE,
    models=Models.BOTH,
    follows=("double-softmax", "empty-rows", "weight-tying"),
    look=look,
)
