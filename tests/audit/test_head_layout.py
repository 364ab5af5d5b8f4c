"""Heads cut, merged and mixed with the batch the wrong way, softmaxes sideways, and what only looks like it."""

import json
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers
from audit.asked import asked, found, silent
from measure import constructions
from measure.faults import D_K, D_MODEL, HEADS, HEALTHY, Attention, Language, by_product, merge, split
from torch import Tensor, nn

from surd.audit.finding import Severity
from surd.measure.calling.building import build_inputs

LENGTH = 13


@pytest.fixture(autouse=True)
def seeded() -> None:
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)


def viewed(x: Tensor) -> Tensor:
    """(rows, length, width) taken for (rows, heads, length, d_k)."""
    return x.reshape(x.shape[0], HEADS, x.shape[1], D_K)


class Parts(Attention):
    """Attention with every step given."""

    def __init__(self, cut=split, join=merge, cut_query=None, kernel=by_product):
        super().__init__()
        self.cut, self.join, self.cut_query, self.kernel = cut, join, cut_query or cut, kernel

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.cut_query(self.query(x)), self.cut(self.key(x)), self.cut(self.value(x))
        return self.output(self.join(self.kernel(query, key, value, HEALTHY)))


def fused(query: Tensor, key: Tensor, value: Tensor, factor: float) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, scale=factor)


KERNELS = pytest.mark.parametrize("kernel", [by_product, fused])


@KERNELS
def test_heads_cut_without_a_transpose(kernel):
    finding = found(Language(Parts(viewed, kernel=kernel)), "head-layout")
    assert finding.severity is Severity.FAULT and finding.site == "attention:score"
    # The last head holds the last 13 chunks, of which every token gives 4.
    assert finding.measured == 4 and finding.expected == LENGTH


@KERNELS
def test_the_same_wrong_view_both_ways(kernel):
    model = Language(Parts(viewed, lambda mix: mix.reshape(mix.shape[0], LENGTH, D_MODEL), kernel=kernel))
    assert found(model, "head-layout").measured == 4


@KERNELS
def test_heads_merged_without_a_transpose(kernel):
    model = Language(Parts(join=lambda mix: mix.reshape(mix.shape[0], LENGTH, D_MODEL), kernel=kernel))
    finding = found(model, "head-layout")
    assert finding.measured == HEADS and finding.expected == 1


class Flat(nn.Module):
    """All in one forward, with raw parameters; queries are viewed as (rows · heads, length, d_k)."""

    def __init__(self, cut: bool):
        super().__init__()
        self.cut = cut
        self.table = nn.Parameter(torch.randn(97, D_MODEL) * 0.02)
        self.packed = nn.Parameter(torch.randn(D_MODEL, 3 * D_MODEL) * D_MODEL**-0.5)
        self.output = nn.Parameter(torch.randn(D_MODEL, D_MODEL) * D_MODEL**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.layer_norm(self.table[tokens], (D_MODEL,))
        parts = (x @ self.packed).chunk(3, -1)
        q, k, v = (split(y).flatten(0, 1) if self.cut else y.reshape(-1, LENGTH, D_K) for y in parts)
        mix = torch.bmm(F.softmax(torch.bmm(q, k.mT) * HEALTHY, -1), v)
        mix = merge(mix.unflatten(0, (-1, HEADS))) if self.cut else mix.reshape(x.shape)
        return (x + mix @ self.output) @ self.table.T


def test_a_flat_view():
    tokens = torch.randint(97, (6, LENGTH))
    assert found(Flat(cut=False), "head-layout", inputs=(tokens,)).measured == 4
    silent(Flat(cut=True), "head-layout", inputs=(tokens,))


class Joined(nn.Module):
    """Raw parameters; values are mixed and projected in one einsum of three."""

    def __init__(self, axis: int):
        super().__init__()
        self.axis, self.table = axis, nn.Parameter(torch.randn(97, D_MODEL))
        shapes = [(D_MODEL, HEADS, D_K)] * 3 + [(HEADS, D_K, D_MODEL)]
        self.q, self.k, self.v, self.o = (nn.Parameter(torch.randn(shape) * D_MODEL**-0.5) for shape in shapes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table[tokens]
        q, k, v = (torch.einsum("nti,ihd->nhtd", x, weight) for weight in (self.q, self.k, self.v))
        weights = torch.softmax(torch.einsum("nhad,nhbd->nhab", q, k) * HEALTHY, self.axis)
        return x + torch.einsum("nhab,nhbd,hdo->nao", weights, v, self.o)


@pytest.mark.parametrize("axis", [0, 2])
def test_a_softmax_beside_an_einsum_of_three(axis):
    tokens = torch.randint(97, (6, LENGTH))
    finding = found(Joined(axis), "softmax-axis", inputs=(tokens,))
    assert finding.measured > 0.1
    silent(Joined(3), "softmax-axis", inputs=(tokens,))
    silent(Joined(3), "head-layout", inputs=(tokens,))


def test_a_softmax_over_the_batch_explains_that_samples_meet():
    report = asked(Joined(0), "softmax-axis", "batch-isolation", inputs=(torch.randint(97, (6, LENGTH)),))
    assert [one.rule for one in report.failing] == ["softmax-axis"]
    assert [one.rule for one in report.failing[0].consequences] == ["batch-isolation"]


def test_queries_alone():
    assert found(Language(Parts(cut_query=viewed)), "head-layout").measured > 1


def test_heads_in_another_order_are_right():
    order = torch.arange(D_MODEL).view(HEADS, D_K).T.flatten()

    def cut(x: Tensor) -> Tensor:
        return x.unflatten(-1, (D_K, HEADS)).permute(0, 3, 1, 2)

    silent(Language(Parts(cut, lambda mix: mix.permute(0, 2, 3, 1).flatten(2)[..., order])), "head-layout")


HEALTHY_ONES = [
    constructions.Latent,
    constructions.Shared,
    constructions.Rotary,
    constructions.Sink,
    constructions.Masked,
    constructions.Disentangled,
    constructions.Opaque,
]


@pytest.mark.parametrize("healthy", HEALTHY_ONES)
@pytest.mark.parametrize("rule", ["head-layout", "softmax-axis", "batch-isolation"])
def test_unusual_but_right(healthy, rule):
    silent(Language(healthy()), rule)


class Swapped(Attention):
    """Heads stand before the batch, and are merged as if they stood behind it."""

    def forward(self, x: Tensor) -> Tensor:
        heads = [project(x).unflatten(-1, (HEADS, D_K)).permute(2, 0, 1, 3) for project in (self.query, self.key)]
        value = self.value(x).unflatten(-1, (HEADS, D_K)).permute(2, 0, 1, 3)
        mix = by_product(*heads, value, HEALTHY)
        return self.output(merge(mix.reshape(x.shape[0], HEADS, *mix.shape[2:])))


class Torch(nn.Module):
    def __init__(self, batch_first: bool):
        super().__init__()
        self.places = nn.Parameter(torch.randn(LENGTH, D_MODEL))
        self.attention = nn.MultiheadAttention(D_MODEL, HEADS, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.places
        return self.attention(x, x, x)[0]


@pytest.mark.parametrize("attention", [Swapped, lambda: Torch(False)])
def test_samples_that_mix(attention):
    finding = found(Language(attention()), "batch-isolation")
    assert finding.severity is Severity.FAULT and finding.site == "table.weight"
    assert 0.01 < finding.measured < 1 and finding.expected == 0
    silent(Language(attention()), "head-layout")


def test_torch_with_the_batch_first():
    silent(Language(Torch(True)), "batch-isolation")


def stack() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(D_MODEL, HEADS, 64), 2, enable_nested_tensor=False)


class Tutorial(nn.Module):
    """Positions on the first axis, as torch's own tutorial has them."""

    def __init__(self):
        super().__init__()
        self.table, self.places = nn.Embedding(97, D_MODEL), nn.Parameter(torch.randn(64, 1, D_MODEL))
        self.encoder = stack()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.encoder(self.table(tokens) + self.places[: len(tokens)])


def test_time_on_the_first_axis_by_design():
    silent(Tutorial(), "batch-isolation")
    silent(stack(), "batch-isolation")


class Axis(Attention):
    def __init__(self, axis: int):
        super().__init__()
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(project(x)) for project in (self.query, self.key, self.value))
        return self.output(merge(F.softmax(q @ k.mT * HEALTHY, self.axis) @ v))


class AxisByEinsum(Axis):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (project(x).unflatten(-1, (HEADS, D_K)) for project in (self.query, self.key, self.value))
        weights = torch.einsum("bqhd,bkhd->bhqk", q, k).mul(HEALTHY).softmax(self.axis)
        return self.output(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2))


@pytest.mark.parametrize("attention", [Axis, AxisByEinsum])
def test_over_the_queries(attention):
    model = Language(attention(-2))
    finding = found(model, "softmax-axis")
    layer, seen = model.attention, []
    with torch.no_grad():
        hook = layer.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
        model(build_inputs(model)["tokens"])
        hook.remove()
        weights = F.softmax(split(layer.query(seen[0])) @ split(layer.key(seen[0])).mT * HEALTHY, -2)
    assert finding.quantity.startswith("standard deviation")
    assert finding.measured == pytest.approx(float(weights.sum(-1).std()), rel=0.05)
    silent(Language(attention(-1)), "softmax-axis")


def test_over_the_batch():
    """One row: every weight is 1, and a query's add up to the number of keys."""

    class Flattened(Attention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.query(x), self.key(x), self.value(x)
            return self.output(F.softmax(q @ k.mT * D_MODEL**-0.5, 0) @ v)

    finding = found(Language(Flattened()), "softmax-axis", inputs=(torch.randint(97, (1, LENGTH)),))
    assert finding.measured == pytest.approx(LENGTH) and finding.expected == 1


def test_scores_that_stand_the_other_way_round():
    class Turned(Attention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (split(project(x)) for project in (self.query, self.key, self.value))
            return self.output(merge(F.softmax(k @ q.mT * HEALTHY, -2).mT @ v))

    silent(Language(Turned()), "softmax-axis")
    silent(Language(Turned()), "head-layout")


def test_written_out():
    class Sums(constructions.ByHand):
        def forward(self, x: Tensor) -> Tensor:
            exps = (split(self.query(x)) @ split(self.key(x)).mT * HEALTHY).exp()
            return self.output(merge(exps / exps.sum(-2, keepdim=True) @ split(self.value(x))))

    assert found(Language(Sums()), "softmax-axis").measured > 0.1
    silent(Language(constructions.ByHand()), "softmax-axis")


def test_queries_keys_and_values_that_are_one_tensor_are_not_judged():
    class Plain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.softmax(x @ x.mT * D_MODEL**-0.5, -1) @ x

    report = silent(Language(Plain()), "head-layout")
    assert "one tensor" in report.skipped[0].reason


def test_parts_of_one_packed_projection_are_judged():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.packed, self.out = nn.Linear(D_MODEL, 3 * D_MODEL), nn.Linear(D_MODEL, D_MODEL)

        def forward(self, x: Tensor) -> Tensor:
            parts = self.packed(x).unflatten(-1, (3, HEADS, D_K)).permute(2, 0, 3, 1, 4)
            query, key, value = parts.unbind(0)
            return self.out(merge(F.scaled_dot_product_attention(query, key, value)))

    assert silent(Language(Packed()), "head-layout").skipped == ()


class Implied(Attention):
    """A softmax that is not told its axis: of (rows, heads, queries, keys) torch takes heads, of three the first."""

    def __init__(self, joined: bool):
        super().__init__()
        self.joined = joined

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (split(project(x)) for project in (self.query, self.key, self.value))
        scores = query @ key.mT * HEALTHY
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            weights = F.softmax(scores.flatten(0, 1)).view_as(scores) if self.joined else F.softmax(scores)
        return self.output(merge(weights @ value))


@pytest.mark.parametrize("joined", [False, True])
def test_a_softmax_that_is_not_told_its_axis(joined):
    assert found(Language(Implied(joined)), "softmax-axis").quantity.startswith("mean")


class CutBehind(Attention):
    """Weights of the future are set to zero behind the softmax; or, made to add up again, that is all right."""

    def __init__(self, again: bool):
        super().__init__()
        self.again = again

    def forward(self, x: Tensor) -> Tensor:
        weights = (split(self.query(x)) @ split(self.key(x)).mT * HEALTHY).softmax(-1)
        weights = weights * torch.ones(x.shape[1], x.shape[1]).tril()
        if self.again:
            weights = weights / weights.sum(-1, keepdim=True)
        return self.output(merge(weights @ split(self.value(x))))


def test_weights_set_to_zero_behind_the_softmax():
    finding = found(Language(CutBehind(again=False)), "softmax-axis")
    # Nearly uniform weights 1/n, of which query t keeps t: (n + 1) / 2n of all.
    assert finding.measured == pytest.approx((LENGTH + 1) / (2 * LENGTH), rel=0.05)
    assert "behind the softmax" in finding.message
    silent(Language(CutBehind(again=True)), "softmax-axis")


@pytest.mark.parametrize("name", ["swin", "longformer", "gpt_bigcode", "xlnet", "levit"])
def test_windows_shared_keys_and_relative_terms(name):
    entry = json.loads((Path(__file__).parents[1] / "measure/architectures.json").read_text())[name]
    config = transformers.AutoConfig.for_model(name, **entry["config"])
    model = getattr(transformers, entry["model"])(config)
    for rule in ("head-layout", "softmax-axis", "batch-isolation"):
        silent(model, rule)


def test_pairs_of_positions_are_no_positions() -> None:
    """Graphormer's bias: distances between the nodes of each sample are looked up, and no sample reads another's."""

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.distances = nn.Embedding(97, 32), nn.Embedding(6, 4)
            self.packed, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

        def forward(self, nodes, distance):
            x = self.table(nodes)
            q, k, v = self.packed(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
            bias = self.distances(distance).permute(0, 3, 1, 2)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            return x + self.out(mixed.transpose(1, 2).flatten(2))

    inputs = (torch.randint(97, (6, 13)), torch.randint(6, (6, 13, 13)))
    silent(Graph(), "batch-isolation", inputs=inputs)
