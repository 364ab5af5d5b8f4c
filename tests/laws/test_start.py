"""Right start: every shipped recipe, and its pre-norm tied twin, begins within 0.7 nats of even guessing."""

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from parity.small import pairs, windows

from surd.models.architecture import Architecture
from surd.models.language import Language
from surd.models.seq2seq import Seq2Seq
from surd.nn.norm import NormOrder
from surd.nn.position import LearnedPosition
from surd.nn.tying import Tying
from surd.part import structure
from surd.recipe import shipped

PHONES, LETTERS, PRINTED = 43, 33, 68
"""Sizes of the vocabularies that recipes leave to the data: English phones; letters; all that is printed. Small ones
are the hard case."""
TOKENS = 2000
MANY = 20_000_000
"""Above so many numbers one seed and a quarter of the tokens have to do here."""


def vocabulary(name: str, recipe: dict[str, Any]) -> int:
    size = recipe.get("tokenizer", {}).get("target", {}).get("size")
    return size or (PHONES if "pronunciation" in name else PRINTED if name == "characters" else LETTERS)


def architecture(recipe: dict[str, Any], **changes: Any) -> Architecture:
    """From the table [model]; three-way tying, the default for a joint vocabulary, where the recipe leaves it open."""
    model = {"tying": "all", **recipe["model"], **changes}
    model["d_k"] = model.get("d_k", model["d_model"] // model["heads"])
    return structure(Architecture, model)


@torch.no_grad()
def excess(settings: Architecture, size: int, tokens: int, seed: int) -> float:
    """Cross-entropy of a fresh model minus ln V, in nats a token, on random sentences of 4 to 16 tokens."""
    torch.manual_seed(seed)
    model = Seq2Seq(settings, size, size).eval()
    lengths = torch.randint(4, 17, (tokens // 10,)).tolist()
    lines = [[torch.randint(4, size, (length,)).tolist() for length in lengths] for _ in range(2)]
    sums = model.loss(*pairs(*lines))
    assert sums.tokens >= tokens
    return sums.nll.item() / sums.tokens - math.log(size)


@torch.no_grad()
def text_excess(settings: Architecture, size: int, context: int, tokens: int, seed: int) -> float:
    """The same of a language model, on windows of random tokens."""
    torch.manual_seed(seed)
    model = Language(settings, size).eval()
    texts = [torch.randint(4, size, (context - 1,)).tolist() for _ in range(-(-tokens // context))]
    sums = model.loss(*windows(texts))
    assert sums.tokens >= tokens
    return sums.nll.item() / sums.tokens - math.log(size)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("twin", [False, True], ids=["as shipped", "pre-norm tied twin"])
@pytest.mark.parametrize(("name", "path"), sorted(shipped().items()), ids=sorted(shipped()))
def test_a_recipe_starts_close_to_guessing(name: str, path: Path, twin: bool) -> None:
    recipe = tomllib.loads(path.read_text())
    if recipe.get("task") == "language":
        settings, size = architecture(recipe, **({"norm_order": "pre"} if twin else {})), vocabulary(name, recipe)
        context = recipe["data"]["context"]
        found = [text_excess(settings, size, context, TOKENS, seed) for seed in range(5)]
        assert abs(sum(found) / len(found)) < 0.7, found
        return
    settings = architecture(recipe, **({"norm_order": "pre", "tying": "all"} if twin else {}))
    size = vocabulary(name, recipe)
    many = settings.d_model * size > MANY / 2
    found = [excess(settings, size, TOKENS // 4 if many else TOKENS, seed) for seed in range(1 if many else 5)]
    assert abs(sum(found) / len(found)) < 0.7, found


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("d_model", "layers", "size"), [(64, 2, 43), (256, 3, 43), (512, 1, 2000)])
@torch.no_grad()
def test_a_tied_pre_norm_model_does_not_start_as_a_copier(d_model: int, layers: int, size: int) -> None:
    """The token just read is not what comes next: with plain gains of one, p(own token) is 0.5 to 0.99 here."""
    settings = Architecture(
        d_model=d_model, heads=d_model // 32, d_k=32, d_ff=2 * d_model, encoder_layers=layers, decoder_layers=layers,
        norm_order=NormOrder.PRE,
    )  # fmt: skip
    own = []
    for seed in range(3):
        torch.manual_seed(seed)
        model = Seq2Seq(settings, size, size).eval()
        source, target, _ = pairs(*[[torch.randint(4, size, (8,)).tolist() for _ in range(40)] for _ in range(2)])
        chances = model.logits(model(source, target)).softmax(1)
        own.append(chances.gather(1, target.tokens[:, None]).mean().item())
    assert sum(own) / len(own) < 0.2


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("tying", [Tying.OUTPUT, Tying.NONE])
@pytest.mark.parametrize("order", list(NormOrder))
@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rotary"])
def test_any_language_model_of_the_shipped_size_starts_close_to_guessing(
    order: NormOrder, tying: Tying, position: str
) -> None:
    recipe = tomllib.loads(shipped()["characters"].read_text())
    changes = {
        "norm_order": order,
        "tying": tying,
        "position": LearnedPosition() if position == "learned" else position,
    }
    settings = architecture(recipe, **changes)
    found = [text_excess(settings, PRINTED, 64, TOKENS, seed) for seed in range(3)]
    assert abs(sum(found) / len(found)) < 0.7, found
