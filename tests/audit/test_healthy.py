"""Sound models in the styles that people write have nothing against them, nor has what only looks like a fault."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from audit import healthy_decoders as decoders
from audit import healthy_encoders as encoders
from audit import traps
from torch import nn

from surd.api import check
from surd.audit.finding import Severity
from surd.audit.judge import Report

MODELS: dict[str, Callable[[], Any]] = {
    "nanoGPT": decoders.nano_gpt,
    "minGPT": decoders.mini_gpt,
    "x-transformers": decoders.XTransformer,
    "x-transformers, tied": lambda: decoders.XTransformer(tied=True),
    "x-transformers, cosines": lambda: decoders.XTransformer(qk_norm=True),
    "annotated": lambda: (encoders.AnnotatedTransformer(), encoders.pair()),
    "annotated, with its generator": lambda: (encoders.AnnotatedTransformer(ends=True), encoders.pair()),
    "a course's": encoders.CourseClassifier,
    "timm": encoders.VisionTransformer,
    "timm, spelt out": lambda: encoders.VisionTransformer(fused=False),
    "timm, with scales of layers": lambda: encoders.VisionTransformer(scale=1e-5),
    "timm, with a blank head": lambda: encoders.VisionTransformer(blank=True),
    "d^-1/4 twice": lambda: traps.Model(traps.FourthRoot),
    "the factor one level above": lambda: traps.Model(traps.AboveTheProduct),
    "the factor in the weights": lambda: traps.Model(traps.InTheWeights),
    "the factor in the norms": lambda: traps.Model(traps.NormalisedWithoutAFactor),
    "divided by the layer and back": lambda: traps.Model(traps.ByLayerNumber),
    "an adapter on the table": traps.adapted,
    "√d with the positions": lambda: traps.Paper("emb"),
    "1/√d on the logits": lambda: traps.Paper("prj"),
    "a new temperature": traps.Pairs,
    "a temperature at its bound": lambda: traps.Pairs(100.0),
    "one buffer": lambda: traps.in_one_buffer(traps.Model(traps.FourthRoot)),
    "one buffer, tied": lambda: traps.in_one_buffer(decoders.nano_gpt()),
}


def report(name: str) -> Report:
    torch.manual_seed(0)
    made = MODELS[name]()
    return check(*made) if isinstance(made, tuple) else check(made)


@pytest.mark.parametrize("name", MODELS)
def test_a_sound_model_has_nothing_against_it(name: str) -> None:
    found = report(name)
    assert found.clean, str(found)
    assert found.blind == "" and len(found.passed) > 15, str(found)
    assert "attention-scale" in found.passed or any(one.rule == "attention-scale" for one in found.findings), str(found)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")  # torch's, of its own constructor
@pytest.mark.parametrize("first", [True, False], ids=["batch first", "length first"])
@pytest.mark.parametrize("norm_first", [True, False], ids=["pre-norm", "post-norm"])
def test_torchs_transformer_has_nothing_against_it(first: bool, norm_first: bool) -> None:
    options = {"batch_first": first, "norm_first": norm_first, "dropout": 0.1}
    assert check(nn.Transformer(64, 4, 2, 2, 128, **options)).failing == ()
    for layer in (nn.TransformerEncoderLayer(64, 4, 128, **options), nn.TransformerDecoderLayer(64, 4, 128, **options)):
        assert check(layer).failing == ()


@pytest.mark.parametrize("first", [True, False], ids=["batch first", "length first"])
@pytest.mark.parametrize("final", [True, False], ids=["with a final norm", "without"])
@pytest.mark.parametrize("norm_first", [True, False], ids=["pre-norm", "post-norm"])
def test_torchs_stacks_have_only_their_clones_against_them(first: bool, norm_first: bool, final: bool) -> None:
    """`nn.TransformerEncoder` copies one layer; drawn anew, layer by layer, nothing is left."""
    options = {"batch_first": first, "norm_first": norm_first, "dropout": 0.1}
    norm = nn.LayerNorm(64) if final else None
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(64, 4, 128, **options), 2, norm, enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(64, 4, 128, **options), 2, norm)
    for stack in (encoder, decoder):
        assert [one.rule for one in check(stack).failing] == ["cloned-layers"]
        for parameter in stack.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        assert check(stack).failing == ()


def test_an_unbiased_norm_is_published_and_at_most_noted() -> None:
    """harvardnlp/annotated-transformer#119: √((d − 1) / d) is 0.996 at d = 128, and 0.999 at the paper's 512."""
    found = report("annotated")
    assert {one.severity for one in found.findings} == {Severity.NOTE}
    assert {one.rule for one in found.findings} == {"norm-epsilon"}
