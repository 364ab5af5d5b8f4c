"""Each part against its own law: the sizes that its equation gives forwards and backwards, at the start."""

import math

import pytest
import torch
from laws.members import example
from torch import Tensor, nn

from surd.measure.moments import Bend, Moments, Rectifier, Smooth, linear, normal_mean
from surd.nn.embedding import Multiplier
from surd.nn.feedforward import FeedForward, FeedForwardLayer, GatedLayer, Widths
from surd.nn.init import Init, matrices
from surd.nn.linear import Linear
from surd.nn.norm import Norm
from surd.nn.position import LearnedPosition, Sinusoidal
from surd.nn.scale import Learned, LogLength, Scale
from surd.nn.score import Additive
from surd.part import Part, members

D_MODEL, D_K, KEYS, ROWS = 256, 64, 48, 3000


def rms(x: Tensor) -> float:
    return x.detach().double().square().mean().sqrt().item()


def gains(function: nn.Module, x: Tensor) -> Moments:
    """Both gains as they are measured, for an independent unit gradient at the output."""
    x = x.detach().requires_grad_()
    y = function(x)
    (gradient,) = torch.autograd.grad(y, x, torch.randn_like(y))
    return Moments(rms(y) / rms(x), rms(gradient))


def each(family: object) -> list:
    return [pytest.param(example(part, ""), id=kind) for kind, part in members(family).items()]


def agree(found: Moments, law: Moments, tolerance: float) -> None:
    assert found.forward == pytest.approx(law.forward, rel=tolerance)
    assert found.backward == pytest.approx(law.backward, rel=tolerance)


@pytest.mark.parametrize("scale", each(Scale))
def test_scales(scale: Part) -> None:
    query, key = torch.randn(ROWS, 1, 1, D_K, requires_grad=True), torch.randn(ROWS, 1, KEYS, D_K)
    ready = query
    if isinstance(scale, Learned | LogLength):
        ready = scale.build(1)(query, torch.full((1, 1, 1, 1), float(KEYS)))
    scores = scale(D_K) * (ready @ key.transpose(-1, -2))
    (gradient,) = torch.autograd.grad(scores, query, torch.randn_like(scores))
    agree(Moments(rms(scores), rms(gradient)), scale.law(D_K, KEYS), 0.02)


def test_additive_scores_do_not_grow_with_the_width() -> None:
    for d_k in (16, 64, 256):
        layer = Additive().build(50, d_k)
        nn.init.normal_(layer.weight, 0, d_k**-0.5)
        query, key = torch.randn(4, 50, 12, d_k), torch.randn(4, 50, 12, d_k)
        assert rms(layer(query, key)) == pytest.approx(Additive().law(d_k), rel=0.05)


@pytest.mark.parametrize("multiplier", each(Multiplier))
def test_multipliers(multiplier: Part) -> None:
    x = torch.randn(ROWS, D_MODEL)
    agree(gains(lambda rows: rows * multiplier(D_MODEL), x), multiplier.law(D_MODEL), 0.01)


@pytest.mark.parametrize("size", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("norm", each(Norm))
def test_norms(norm: Part, size: float) -> None:
    agree(gains(norm.build(D_MODEL), size * torch.randn(ROWS, D_MODEL)), norm.law(D_MODEL, size), 0.01)


@pytest.mark.parametrize("size", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("feedforward", each(FeedForward))
def test_feed_forwards(feedforward: Part, size: float) -> None:
    d_ff, inner, outer = 512, 0.06, 0.05
    layer = feedforward.build(D_MODEL, d_ff)
    assert isinstance(layer, FeedForwardLayer | GatedLayer)
    for module, std in ((layer.inner, inner), (layer.outer, outer)):
        nn.init.normal_(module.weight, 0, std)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    law = feedforward.law(Widths(d_model=D_MODEL, d_ff=d_ff, inner=inner, outer=outer), size)
    agree(gains(layer, size * torch.randn(ROWS, D_MODEL)), law, 0.03)


@pytest.mark.parametrize("init", each(Init))
def test_every_weight_is_spread_as_its_init_says(init: Part) -> None:
    from nn.test_init import built

    model = built(init=init)
    for weight, matrix in matrices(model):
        real = weight[1:] if matrix.role == "table" else weight
        if matrix.role == "softmax":  # one matrix with the tables
            continue
        assert rms(real) == pytest.approx(init.spread(matrix).std, rel=5 / math.sqrt(2 * real.numel())), matrix
    biases = [module.bias for module in model.modules() if isinstance(module, Linear) and module.bias is not None]
    assert any(rms(bias) > 0 for bias in biases) == (init.kind == "torch")


def test_positions_have_the_size_they_say() -> None:
    signal = Sinusoidal()(50, D_MODEL, torch.float64, torch.device("cpu"))
    assert rms(signal) == pytest.approx(Sinusoidal.rms, rel=1e-12)
    table = LearnedPosition(length=50, std=0.3).build(D_MODEL)
    nn.init.normal_(table.table, 0, table.std)
    assert rms(table.table) == pytest.approx(0.3, rel=0.03)


def test_a_matrix() -> None:
    layer = nn.Linear(D_MODEL, 100, bias=False)
    nn.init.normal_(layer.weight, 0, 0.07)
    agree(gains(layer, torch.randn(ROWS, D_MODEL)), linear(D_MODEL, 100, 0.07), 0.02)


def test_the_quadrature_gives_closed_forms() -> None:
    assert normal_mean(lambda z: z**4, 2.0) == pytest.approx(48, rel=1e-12)
    assert normal_mean(torch.cos, 1.5) == pytest.approx(math.exp(-1.125), rel=1e-12)
    assert Smooth(lambda z: 3 * z).law(0.2) == Moments(pytest.approx(3), pytest.approx(3))
    # The kink of max(0, z) is the one thing that a quadrature meets slowly, hence the closed form.
    agree(Smooth(torch.relu).law(1.0), Rectifier().law(1.0), 5e-3)


@pytest.mark.parametrize("bend", [Rectifier(), Smooth(torch.nn.functional.gelu), Smooth(torch.tanh)])
@pytest.mark.parametrize("correlation", [-1.0, -0.4, 0.0, 0.7, 1.0])
def test_what_two_bent_normals_share(bend: Bend, correlation: float) -> None:
    std, function = 1.3, torch.relu if isinstance(bend, Rectifier) else bend.function
    first = std * torch.randn(400_000, dtype=torch.float64)
    second = correlation * first + std * math.sqrt(1 - correlation**2) * torch.randn(400_000, dtype=torch.float64)
    products = std**2 * torch.tensor([[1, correlation], [correlation, 1]], dtype=torch.float64)
    values, slopes = [], []
    for z in (first, second):
        z.requires_grad_()
        values.append(function(z))
        slopes.append(torch.autograd.grad(values[-1].sum(), z)[0])
    for (one, other), found in ((values, bend.values(products)), (slopes, bend.slopes(products))):
        assert found[0].tolist() == pytest.approx([(one * one).mean().item(), (one * other).mean().item()], abs=0.02)
