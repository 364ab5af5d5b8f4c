"""Attention statistics: the definitions in float64, the laws of a softmax row, and tiles that must not matter."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from surd.errors import SurdError
from surd.measure.softmax.flat_rows import FlatHeads, flat_sums, sum_flat
from surd.measure.softmax.rows import Space, Sums, empty_raw, float_sums, merge, read, sum_block
from surd.measure.softmax.statistics import NAMES, AttentionStatistics, attention_statistics, summarise

BATCH, HEADS, QUERIES, KEYS, D_K = 2, 4, 37, 150, 16


def inputs(
    std: float, key_heads: int = HEADS, dtype: torch.dtype = torch.float32, queries: int = QUERIES, keys: int = KEYS
) -> tuple[Tensor, Tensor]:
    """Queries and keys whose logits, times 1/√d_k, have about this standard deviation."""
    query = torch.randn(BATCH, HEADS, queries, D_K, dtype=dtype) * std
    return query, torch.randn(BATCH, key_heads, keys, D_K, dtype=dtype)


def random_mask(seed: int = 0) -> Tensor:
    """About half of the keys, in some rows one, in some none."""
    draw = torch.Generator().manual_seed(seed)
    visible = torch.rand(BATCH, HEADS, QUERIES, KEYS, generator=draw) < 0.5
    visible[:, :, 3] = False
    visible[:, :, 5] = False
    visible[:, :, 5, 140] = True
    visible[0, 1] = False
    return visible


def direct_logits(query: Tensor, key: Tensor, cap: float | None = None) -> Tensor:
    shared = key.double().repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    logits = query.double() @ shared.transpose(-1, -2) / query.shape[-1] ** 0.5
    return logits if cap is None else torch.tanh(logits / cap) * cap


def direct(logits: Tensor, visible: Tensor | None = None) -> dict[str, Tensor]:
    """The definitions, from whole rows in float64; 1 − p of the top key is the sum of the others, for digits' sake."""
    visible = torch.ones_like(logits, dtype=torch.bool) if visible is None else visible.expand_as(logits)
    keys = visible.sum(-1).double()
    logits = logits.double()
    z = logits.masked_fill(~visible, float("-inf"))
    p, order = z.softmax(-1).sort(descending=True, stable=True)
    top, others = p[..., 0], p[..., 1:]
    rest = others.sum(-1)
    against = torch.cat([rest[..., None], 1 - others], -1)  # 1 − p
    squares = (others**2).sum(-1)
    off_diagonal = 2 * top**2 * squares + squares**2 - (others**4).sum(-1)
    offset = torch.where(p > 0, z.gather(-1, order) - z.amax(-1, keepdim=True), 0.0)
    spread = offset - (p * offset).sum(-1, keepdim=True)
    mean = torch.where(visible, logits, 0.0).sum(-1) / keys
    log_sum_exp = z.logsumexp(-1)
    values = {
        "keys": keys,
        "max": z.amax(-1),
        "log_sum_exp": log_sum_exp,
        "mean": mean,
        "variance": torch.where(visible, logits - mean[..., None], 0.0).square().sum(-1) / keys,
        "first": (z[..., 0] - log_sum_exp).exp(),
        "top": top,
        "entropy": torch.special.entr(others).sum(-1) - top * torch.log1p(-rest),
        "square_sum": (p**2).sum(-1),
        "cube_sum": (p**3).sum(-1),
        "score_variance": (p * spread**2).sum(-1),
        "trace": (p * against).sum(-1),
        "jacobian_norm": (((p * against) ** 2).sum(-1) + off_diagonal).sqrt(),
    }
    return {"keys": keys} | {name: values[name].masked_fill(keys == 0, float("nan")) for name in NAMES[1:]}


def worst(
    ours: AttentionStatistics, expected: dict[str, Tensor], std: float, rounding: float = 0.0
) -> dict[str, float]:
    """Largest error of each statistic: relative above 1e-30; of means that may be 0, in units of the std.

    `rounding`: error of the logits, relative to the largest. The variance of the scores feels it beyond any factor:
    where two logits nearly tie, their difference is what is left of two rounded numbers.
    """
    errors = {}
    for name in NAMES:
        found, wanted = getattr(ours, name).double(), expected[name]
        assert torch.equal(found.isnan(), wanted.isnan()), name
        found, wanted = found.nan_to_num(), wanted.nan_to_num()
        floor = std if name in ("max", "log_sum_exp", "mean") else 1e-30
        error = (found - wanted).abs()
        if name == "score_variance":
            error -= 2 * wanted.sqrt() * rounding * expected["max"].nan_to_num().abs()
        errors[name] = (error / wanted.abs().clamp(min=floor)).max().item()
    return errors


def equal(ours: AttentionStatistics, other: AttentionStatistics, tolerance: float, leave: tuple[str, ...] = ()) -> None:
    for name in NAMES:
        if name not in leave:
            found, wanted = getattr(ours, name), getattr(other, name)
            torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True, msg=name)


def of_logits(logits: Tensor, **settings) -> AttentionStatistics:
    """Statistics of any logits: those of zero queries and keys, plus a mask that adds them."""
    query, key = (logits.new_zeros(*logits.shape[:2], length, 1) for length in logits.shape[2:])
    return attention_statistics(query, key, mask=logits, **settings)


@pytest.mark.parametrize("std", [0.1, 1.0, 8.0, 30.0, 100.0])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_fp32_equals_the_definitions_in_float64(std: float, masked: bool, key_heads: int) -> None:
    query, key = inputs(std, key_heads)
    visible = random_mask() if masked else None
    ours = attention_statistics(query, key, mask=visible, block=(16, 64))
    assert ours.entropy.dtype == torch.float32 and ours.keys.dtype == torch.int64
    errors = worst(ours, direct(direct_logits(query, key), visible), std, rounding=5e-7)
    assert max(errors.values()) <= 5e-4, errors


@pytest.mark.parametrize("std", [0.1, 1.0, 8.0, 30.0, 100.0])
def test_of_given_logits_fp32_loses_next_to_nothing(std: float) -> None:
    logits = torch.randn(2, 3, 100, 1000) * std
    visible = torch.rand(logits.shape) < torch.rand(2, 3, 100, 1)
    errors = worst(of_logits(logits.masked_fill(~visible, float("-inf"))), direct(logits, visible), std)
    assert errors.pop("jacobian_norm") <= 5e-4  # in units of 1e-30, below which squares of weights vanish in fp32
    assert max(errors.values()) <= 1e-5, errors


@pytest.mark.parametrize("cap", [None, 5.0])
@pytest.mark.parametrize("std", [0.1, 8.0, 100.0])
def test_float64_equals_the_definitions_closely(std: float, cap: float | None) -> None:
    query, key = inputs(std, 2, torch.float64)
    visible = random_mask()
    ours = attention_statistics(query, key, mask=visible, cap=cap, block=(20, 50))
    assert ours.entropy.dtype == torch.float64
    errors = worst(ours, direct(direct_logits(query, key, cap), visible), std)
    assert max(errors.values()) <= 1e-9, errors


@pytest.mark.parametrize("cap", [2.0, 50.0])
def test_soft_cap_in_fp32(cap: float) -> None:
    query, key = inputs(30.0, 2)
    visible = random_mask()
    ours = attention_statistics(query, key, mask=visible, cap=cap)
    errors = worst(ours, direct(direct_logits(query, key, cap), visible), 1.0, rounding=5e-7)
    assert max(errors.values()) <= 5e-4, errors
    assert ours.max.nan_to_num().max() <= cap


def test_the_scale_is_a_factor() -> None:
    query, key = inputs(1.0, dtype=torch.float64)
    equal(attention_statistics(query, key, scale=0.7), attention_statistics(query * 0.7, key, scale=1.0), 1e-12)
    equal(attention_statistics(query, key), attention_statistics(query, key, scale=D_K**-0.5), 0)
    assert attention_statistics(query, key, scale=0.0).variance.max() == 0


BLOCKS = [(1, 150), (37, 1), (5, 7), (16, 64), (1000, 1000)]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("causal", [False, True])
def test_the_size_of_a_tile_changes_nothing(block: tuple[int, int], causal: bool) -> None:
    for std in (1.0, 30.0):
        query, key = inputs(std, 2, torch.float64)
        whole = attention_statistics(query, key, mask=random_mask(), causal=causal, block=(QUERIES, KEYS))
        equal(attention_statistics(query, key, mask=random_mask(), causal=causal, block=block), whole, 1e-11)


def test_many_panels_and_odd_tiles_are_put_back_where_they_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key = inputs(3.0, 2, torch.float64)
    whole = attention_statistics(query, key, causal=True)
    monkeypatch.setattr("surd.measure.softmax.statistics.WAITING", 60)
    for room in (1, 2**10, 2**12, 2**15):
        monkeypatch.setattr("surd.measure.softmax.logits.CPU_TILE", room)
        equal(attention_statistics(query, key, causal=True), whole, 1e-11)
        equal(attention_statistics(query, key, causal=True, block=(10, 40)), whole, 1e-11)


@pytest.mark.parametrize("queries", [KEYS, QUERIES, 1])
def test_causal_is_a_triangle_that_ends_at_the_last_key(queries: int) -> None:
    query, key = inputs(2.0, 2, torch.float64, queries=queries)
    triangle = torch.ones(queries, KEYS, dtype=torch.bool).tril(KEYS - queries)
    ours = attention_statistics(query, key, causal=True, block=(16, 32))
    assert ours.keys[0, 0].tolist() == list(range(KEYS - queries + 1, KEYS + 1))
    equal(ours, attention_statistics(query, key, mask=triangle), 1e-11)
    padding = torch.arange(KEYS) < torch.tensor([90, 150])[:, None, None, None]
    both = attention_statistics(query, key, causal=True, mask=padding, block=(16, 32))
    equal(both, attention_statistics(query, key, mask=padding & triangle), 1e-11)


@pytest.mark.parametrize(
    "shape",
    [(KEYS,), (QUERIES, KEYS), (BATCH, 1, 1, KEYS), (1, HEADS, QUERIES, 1), (BATCH, 1, QUERIES, KEYS), (1, 1, 1, 1)],
)
def test_masks_broadcast_and_both_kinds_agree(shape: tuple[int, ...]) -> None:
    query, key = inputs(2.0, 2, torch.float64)
    visible = torch.rand(shape) < 0.6
    full = attention_statistics(query, key, mask=visible.expand(BATCH, HEADS, QUERIES, KEYS).contiguous())
    equal(attention_statistics(query, key, mask=visible, block=(8, 40)), full, 1e-11)
    added = torch.zeros(shape).masked_fill(~visible, float("-inf"))
    equal(attention_statistics(query, key, mask=added, block=(8, 40)), full, 1e-11)


def test_what_a_mask_adds_counts_as_a_logit() -> None:
    query, key = inputs(1.0, 2, torch.float64)
    bias = torch.randn(1, HEADS, QUERIES, KEYS, dtype=torch.float64)
    ours = attention_statistics(query, key, mask=bias, cap=3.0)
    errors = worst(ours, direct(direct_logits(query, key, 3.0) + bias), 1.0)
    assert max(errors.values()) <= 1e-9, errors


def test_a_hidden_key_does_not_matter_whatever_it_is() -> None:
    query, key = inputs(1.0)
    visible = torch.ones(KEYS, dtype=torch.bool)
    visible[[0, 70]] = False
    before = attention_statistics(query, key, mask=visible)
    key[:, :, 0], key[:, :, 70] = float("nan"), float("inf")
    equal(attention_statistics(query, key, mask=visible), before, 0)
    assert before.first.max() == 0


def test_rows_without_a_visible_key() -> None:
    ours = attention_statistics(*inputs(1.0), mask=torch.zeros(QUERIES, 1, dtype=torch.bool))
    assert ours.keys.max() == 0
    for name in (*NAMES[1:], "effective_keys", "normalised_entropy", "normalised_trace"):
        assert getattr(ours, name).isnan().all(), name
    assert not ours.dead.any()
    assert attention_statistics(*inputs(1.0, keys=0)).keys.max() == 0


def test_logits_that_are_not_finite_are_not_hidden() -> None:
    query, key = inputs(1.0)
    query[0, 1, 2] = float("nan")
    ours = attention_statistics(query, key)
    assert ours.entropy.isnan().sum() == 1 and ours.keys.min() == KEYS
    summary = summarise(ours)
    assert (
        summary.mean["entropy"].isnan().tolist()
        == summary.median["trace"].isnan().tolist()
        == [False, True, False, False]
    )


def test_low_precision_inputs_are_computed_in_fp32() -> None:
    query, key = (x.bfloat16() for x in inputs(3.0, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = attention_statistics(query, key, causal=True)
    equal(ours, attention_statistics(query.float(), key.float(), causal=True), 1e-6)


def test_inputs_are_left_as_they_were_and_no_graph_is_made() -> None:
    query, key = (x.requires_grad_() for x in inputs(1.0, 2))
    mask = torch.randn(QUERIES, KEYS).masked_fill(torch.rand(QUERIES, KEYS) < 0.3, float("-inf"))
    kept = [x.detach().clone() for x in (query, key, mask)]
    ours = attention_statistics(query, key, mask=mask)
    assert all(torch.equal(x.detach(), y) for x, y in zip((query, key, mask), kept, strict=True))
    assert not any(getattr(ours, name).requires_grad for name in NAMES)


class LargestAllocation(TorchDispatchMode):
    """Remembers the largest tensor that any operation returned, by its storage."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor):
                self.bytes = max(self.bytes, tensor.untyped_storage().nbytes())
        return result


def test_no_tensor_of_all_pairs_is_made() -> None:
    length, heads = 4096, 1
    query, key = (torch.randn(1, heads, length, 8) for _ in range(2))
    with LargestAllocation() as largest:
        attention_statistics(query, key, causal=True)
    assert largest.bytes <= 4 * length**2 * heads / 10
    with LargestAllocation() as largest:
        torch.softmax(query @ key.transpose(-1, -2), -1)
    assert largest.bytes >= 4 * length**2 * heads  # so the first figure means something


@pytest.mark.parametrize("keys", [2, 3, 64, 1000])
def test_uniform_rows(keys: int) -> None:
    ours = of_logits(torch.full((1, 1, 3, keys), 2.5))
    expected = {
        "keys": keys,
        "max": 2.5,
        "log_sum_exp": 2.5 + torch.tensor(keys).log().item(),
        "mean": 2.5,
        "variance": 0.0,
        "first": 1 / keys,
        "top": 1 / keys,
        "entropy": torch.tensor(keys).log().item(),
        "square_sum": 1 / keys,
        "cube_sum": 1 / keys**2,
        "score_variance": 0.0,
        "trace": 1 - 1 / keys,
        "jacobian_norm": (keys - 1) ** 0.5 / keys,
        "effective_keys": keys,
        "normalised_entropy": 1.0,
        "normalised_trace": 1.0,
    }
    for name, value in expected.items():
        assert getattr(ours, name).tolist()[0][0] == pytest.approx([value] * 3, rel=1e-6), name


def test_two_equal_keys_have_the_largest_jacobian() -> None:
    logits = torch.full((1, 1, 1, 600), -90.0)
    logits[..., [17, 590]] = 10.0  # in different blocks
    assert of_logits(logits).jacobian_norm.item() == pytest.approx(0.5, rel=1e-6)
    assert of_logits(torch.randn(1, 1, 500, 40) * 5).jacobian_norm.max() <= 0.5


@pytest.mark.parametrize("gap", [5.0, 20.0, 40.0, 65.0])
def test_nearly_one_hot_rows_keep_their_digits(gap: float) -> None:
    """p of the runner-up is e^−gap, far below fp32's resolution of 1: all that is small follows from it."""
    logits = torch.full((1, 1, 1, 700), -300.0)
    logits[..., 600], logits[..., 20] = 0.0, -gap
    ours, p = of_logits(logits), 1 / (1 + torch.tensor(gap, dtype=torch.float64).exp().item())
    assert ours.trace.item() == pytest.approx(2 * p * (1 - p), rel=1e-5)
    assert ours.jacobian_norm.item() == pytest.approx(2 * p * (1 - p), rel=1e-5)
    assert ours.score_variance.item() == pytest.approx(gap**2 * p * (1 - p), rel=1e-5)
    binary = -p * torch.tensor(p).log().item() - (1 - p) * torch.tensor(-p, dtype=torch.float64).log1p().item()
    assert ours.entropy.item() == pytest.approx(binary, rel=1e-5)
    assert ours.dead.item() == (2 * p * (1 - p) < 0.01)


def test_one_visible_key() -> None:
    ours = of_logits(torch.full((1, 1, 1, 1), 4.0))
    zero = ("entropy", "trace", "jacobian_norm", "score_variance", "variance")
    assert all(getattr(ours, name).item() == 0 for name in zero)
    assert ours.top.item() == ours.square_sum.item() == ours.first.item() == 1
    assert ours.normalised_entropy.isnan().item() and ours.normalised_trace.isnan().item()


def test_the_order_of_keys_matters_to_the_first_alone() -> None:
    query, key = inputs(3.0, dtype=torch.float64)
    order, visible = torch.randperm(KEYS), random_mask()
    ours = attention_statistics(query, key, mask=visible, block=(10, 32))
    other = attention_statistics(query, key[:, :, order], mask=visible[..., order], block=(10, 32))
    equal(other, ours, 1e-11, leave=("first",))
    assert not torch.allclose(other.first, ours.first, equal_nan=True)


def test_a_constant_in_a_row_moves_the_logits_and_nothing_else() -> None:
    logits = torch.randn(1, 2, 20, 100, dtype=torch.float64) * 3
    constant = torch.randn(1, 2, 20, 1, dtype=torch.float64) * 50
    ours, moved = of_logits(logits), of_logits(logits + constant)
    equal(moved, ours, 1e-9, leave=("max", "mean", "log_sum_exp"))
    for name in ("max", "mean", "log_sum_exp"):
        torch.testing.assert_close(getattr(moved, name), getattr(ours, name) + constant[..., 0], rtol=0, atol=1e-11)


def sums_of(logits: Tensor) -> Sums:
    space, raw = Space(logits.numel(), logits), empty_raw(1, logits.shape[0], logits)
    sum_block(logits.clone()[None, None, None], None, space, raw[:, 0])
    return float_sums(raw)


def together(*parts: Sums) -> Sums:
    return merge(Sums(*(torch.stack([x.squeeze(0) for x in column]) for column in zip(*parts, strict=True))))


def test_blocks_merge_in_any_order_and_any_tree() -> None:
    logits = torch.randn(6, 90, dtype=torch.float64) * 6
    whole = read(together(sums_of(logits)))
    first, second, third = (sums_of(part) for part in logits.split(30, dim=1))
    nothing = float_sums(empty_raw(1, 6, logits))
    for tree in (
        together(first, second, third),
        together(third, nothing, first, second),
        together(together(first, second), third),
        together(first, together(nothing, third, second)),
    ):
        for name, values in read(tree).items():
            torch.testing.assert_close(values, whole[name], rtol=1e-12, atol=0, msg=name)


def test_blocks_that_tie_for_the_largest_logit() -> None:
    logits = torch.zeros(1, 12, dtype=torch.float64)
    logits[0, [2, 7, 11]] = 3.0
    merged = read(together(*(sums_of(part) for part in logits.split(4, dim=1))))
    for name, values in direct(logits).items():
        if name in merged:
            torch.testing.assert_close(merged[name], values, rtol=1e-12, atol=0, msg=name)


def in_few_passes(query: Tensor, key: Tensor, width: int) -> Sums | None:
    """Of one head, by `flat_rows`; None where it refuses."""
    rows, blocks = len(query), len(key) // width
    raw = empty_raw(blocks, rows, query)
    heads = FlatHeads.of(query[None, None], key[None], width)
    flat = sum_flat(heads, slice(0, rows), Space(rows * width, query), raw)
    return merge(flat_sums(raw, width)) if flat else None


@pytest.mark.parametrize("std", [0.0, 0.01, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("common", [0.0, 30.0], ids=["centred", "with a large common part"])
def test_flat_rows_are_summed_in_few_passes(std: float, common: float) -> None:
    query, key = torch.randn(200, D_K) * std, torch.randn(1024, D_K) / 4 + common
    few = in_few_passes(query, key, 256)
    assert few is not None
    ours, wanted = read(few), direct(query.double() @ key.double().T)
    for name, values in ours.items():
        of_logits = name in ("max", "mean", "log_sum_exp")  # may be near 0, and know the common part
        near = 1e-6 * std * (1 + D_K * common) if of_logits else 1e-12
        torch.testing.assert_close(
            values, wanted[name], rtol=3e-4, atol=near, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("kind", ["peaked", "nearly one-hot in one row", "two that tie far above", "huge", "no number"])
def test_what_few_passes_cannot_do_they_refuse(kind: str) -> None:
    query, key = torch.randn(50, D_K), torch.randn(512, D_K) / 4
    match kind:
        case "peaked":
            query *= 20
        case "nearly one-hot in one row":
            query[7] = key[100] * 10
        case "two that tie far above":  # flat enough, but what is left of the variance would be rounding
            key[:] = key[:, :1] * 0
            key[[3, 4], 0] = 20.0
            query[:, 0] = 1.0
        case "huge":
            query *= 1e20
        case "no number":
            query[3, 3] = float("nan")
    assert in_few_passes(query, key, 256) is None


def test_a_summary_leaves_out_rows_that_see_few_keys() -> None:
    query, key = inputs(2.0, 2, queries=KEYS)
    ours = attention_statistics(query, key, causal=True)
    summary = summarise(ours)
    assert summary.rows.tolist() == [BATCH * (KEYS - 7)] * HEADS
    for name in ("entropy", "effective_keys", "normalised_trace"):
        rows = getattr(ours, name)[:, :, 7:].transpose(0, 1).flatten(1)
        torch.testing.assert_close(summary.mean[name], rows.mean(1))
        torch.testing.assert_close(summary.median[name], rows.quantile(0.5, dim=1))
    torch.testing.assert_close(summary.mean["dead"], ours.dead[:, :, 7:].float().mean((0, 2)))
    assert summarise(ours, fewest_keys=KEYS + 1).median["trace"].isnan().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": torch.zeros(2, 4, 5, 3)}, r"query and key: expected .* found \(2, 4, 5, 8\) and \(2, 4, 5, 3\)"),
        ({"key": torch.zeros(2, 3, 5, 8)}, "heads: expected a multiple of the 3 key heads, found 4"),
        ({"key": torch.zeros(2, 4, 4, 8), "causal": True}, r"causal: expected at least as many keys as queries \(5\)"),
        ({"cap": 0.0}, "cap: expected a number above 0, found 0.0"),
        ({"mask": torch.ones(5, 4)}, r"mask: expected a shape that broadcasts to \(2, 4, 5, 5\), found \(5, 4\)"),
        ({"mask": torch.ones(5, 5, dtype=torch.int64)}, "mask: expected bool .* found torch.int64"),
        ({"block": (0, 4)}, r"block: expected two numbers of at least 1, found \(0, 4\)"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict, message: str) -> None:
    fitting = {"query": torch.zeros(2, 4, 5, 8), "key": torch.zeros(2, 4, 5, 8)}
    with pytest.raises(SurdError, match=message):
        attention_statistics(**(fitting | change))
