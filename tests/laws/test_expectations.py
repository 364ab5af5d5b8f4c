"""What the parts of a model predict of each site, forwards and backwards, against what hooks observe there."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
import torch
from laws.members import variants
from laws.observed import LENGTHS, observed
from laws.test_start import architecture, vocabulary

from surd.measure.signal import Expectation
from surd.models.architecture import Architecture
from surd.models.language import Language
from surd.models.seq2seq import Seq2Seq
from surd.nn.norm import NormOrder
from surd.nn.tying import Tying
from surd.recipe import shipped

DRAWS, WIDE_DRAWS = 15, 9
"""The middle of draws scatters less in a wide model, where a draw takes longer."""
SHAPE = {"d_model": 128, "heads": 4, "d_k": 32, "d_ff": 256, "encoder_layers": 2, "decoder_layers": 2}
WIDEST = 256
"""d_model beyond which a few draws would take minutes; the prediction is better the wider a model is."""


def medians(build: Callable[[], Seq2Seq | Language]) -> dict[str, tuple[float, float | None]]:
    """Observed over expected at each site, forwards and backwards, in the middle of several draws."""
    model = build()
    expected, draws = told(model), []
    for seed in range(WIDE_DRAWS if model.architecture.d_model >= WIDEST else DRAWS):
        torch.manual_seed(seed)
        draws.append(observed(build().eval(), 6, seed))
    found = {}
    for name, first in draws[0].items():
        forward = median(draw[name].forward for draw in draws) / expected[name].forward
        backward = None
        if first.backward is not None and expected[name].backward is not None:
            backward = median(draw[name].backward or 0.0 for draw in draws) / expected[name].backward
        found[name] = forward, backward
    return found


def told(model: Seq2Seq | Language) -> dict[str, Expectation]:
    return model.expect(*[length + 1 for length in LENGTHS[-len(model.vocabularies) :]])


def assert_close(found: dict[str, tuple[float, float | None]]) -> None:
    off = {name: ratios for name, ratios in found.items() if any(ratio and abs(ratio - 1) > 0.15 for ratio in ratios)}
    assert not off


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", ["default", "untied", *variants()])
def test_every_member_is_predicted(name: str) -> None:
    changes = {"default": {}, "untied": {"tying": Tying.NONE}, **variants()}[name]
    settings = Architecture(**{**SHAPE, **changes})
    assert_close(medians(lambda: Seq2Seq(settings, 1000, 1000)))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("twin", [False, True], ids=["as shipped", "pre-norm tied twin"])
@pytest.mark.parametrize(("name", "path"), sorted(shipped().items()), ids=sorted(shipped()))
def test_every_recipe_is_predicted(name: str, path: Path, twin: bool) -> None:
    recipe = tomllib.loads(path.read_text())
    changes = {"norm_order": "pre", "tying": "output" if recipe.get("task") == "language" else "all"} if twin else {}
    if recipe["model"]["d_model"] > WIDEST:
        changes |= {"d_model": WIDEST, "d_ff": 2 * WIDEST, "heads": 4, "d_k": 64}
    settings, size = architecture(recipe, **changes), min(2000, vocabulary(name, recipe))
    language = recipe.get("task") == "language"
    assert_close(medians(lambda: Language(settings, size) if language else Seq2Seq(settings, size, size)))


def expectations(device: str, **changes: object) -> dict[str, Expectation]:
    with torch.device(device):
        model = Seq2Seq(Architecture(**{**SHAPE, **changes}), 500, 500)
    return told(model)


@pytest.mark.parametrize("name", ["default", *variants()])
def test_it_follows_from_the_parts_alone_and_from_each_of_them(name: str) -> None:
    changes = variants().get(name, {})
    on_meta = expectations("meta", **changes)
    assert on_meta == expectations("cpu", **changes)
    # A factor that starts at 1 and one on the gradient of a weight change no site.
    if name not in ("default", "scale=learned") and not name.startswith("input_gradient"):
        assert on_meta != expectations("meta")


@pytest.mark.parametrize(
    "change",
    [{"d_model": 256}, {"d_k": 64}, {"d_ff": 512}, {"tying": Tying.NONE}, {"norm_order": NormOrder.PRE}, {"heads": 8}],
    ids=str,
)
def test_shape_matters(change: dict[str, object]) -> None:
    assert expectations("meta", **change) != expectations("meta")


def test_exact_sites_hold_for_any_draw() -> None:
    settings = Architecture(**SHAPE)
    torch.manual_seed(3)
    model = Seq2Seq(settings, 1000, 1000).eval()
    expected, seen = told(model), observed(model, 6, 0)
    exact = {name for name, told in expected.items() if told.exact} & seen.keys()
    assert {"source:embed", "target:embed", "encoder.layers.1.feedforward_residual.norm:norm"} <= exact
    for name in exact:
        assert seen[name].forward == pytest.approx(expected[name].forward, rel=0.05)
