"""What the listener reads during a training's own forward is what a direct computation gives."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import transformers
from measure.faults import D_K, HEADS, HEALTHY, VOCABULARY, WRITINGS, Attention, Language, split
from measure.learner import Learner, batches, loss_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from surd.measure.watching.listen import Listener
from surd.measure.watching.vitals import AttentionVitals
from surd.models.seq2seq import Architecture, Seq2Seq
from surd.nn.norm import NormOrder
from surd.nn.ragged import Ragged

TOKENS = torch.randint(VOCABULARY, (3, 24), generator=torch.Generator().manual_seed(3))


def heard(model: nn.Module, *inputs: object) -> Listener:
    listener = Listener(model)
    with listener.installed():
        model(*inputs)
    return listener


def direct(scores: Tensor, hidden: Tensor | None = None) -> dict[str, Tensor]:
    """Means a head, from whole matrices in float64; rows that see fewer than eight keys do not count."""
    scores = scores.double()
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    seen = scores.isfinite()
    p = scores.softmax(-1)
    keys = seen.sum(-1)
    entropy = -torch.where(p > 0, p * p.log(), 0.0).sum(-1) / keys.log()
    square, cube = (p**2).sum(-1), (p**3).sum(-1)
    norm = (square - 2 * cube + square**2).clamp(min=0).sqrt()
    shown = scores.masked_fill(~seen, 0.0)
    mean = shown.sum(-1) / keys
    std = ((shown - mean[..., None]).square().masked_fill(~seen, 0.0).sum(-1) / keys).sqrt()
    rows = keys >= 8

    def over(values: Tensor) -> Tensor:
        return values.masked_fill(~rows, 0.0).sum((0, 2)) / rows.sum((0, 2))

    return {"entropy": over(entropy), "std": over(std), "dead": over((norm < 0.01).double())}


def check(found: AttentionVitals, scores: Tensor, hidden: Tensor | None = None) -> None:
    expected = direct(scores, hidden)
    assert found.entropy == pytest.approx(expected["entropy"].tolist(), abs=1e-5)
    assert found.std == pytest.approx(expected["std"].tolist(), rel=1e-4)
    assert found.dead == pytest.approx(expected["dead"].tolist(), abs=1e-6)


@torch.no_grad()
def scores_of(model: Language, factor: float, tokens: Tensor = TOKENS) -> Tensor:
    attention = model.attention
    x = model.norm(model.table(tokens) * model.multiplier)
    return split(attention.query(x)) @ split(attention.key(x)).mT * factor


# Attention, in every way it is written ------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [HEALTHY, 12.0], ids=["healthy", "sharp"])
@pytest.mark.parametrize("writing", WRITINGS)
def test_rows_are_read_exactly(writing: str, factor: float) -> None:
    model = Language(Attention(WRITINGS[writing], factor))
    (found,) = heard(model, TOKENS).attention
    scores = scores_of(model, factor)
    check(found if found.heads else told_apart(found), scores)
    assert found.site.name == "attention:score"
    assert found.largest == pytest.approx(float(scores.amax(-1).abs().amax()), rel=1e-5)


def told_apart(found: AttentionVitals) -> AttentionVitals:
    """Batch and heads stood on one axis: the means over sentences, for the comparison."""
    assert len(found.entropy) == len(TOKENS) * HEADS

    def by_head(values: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(torch.tensor(values).view(len(TOKENS), HEADS).mean(0).tolist())

    return AttentionVitals(
        site=found.site,
        heads=HEADS,
        rows=found.rows,
        largest=found.largest,
        std=by_head(found.std),
        entropy=by_head(found.entropy),
        dead=by_head(found.dead),
    )


@pytest.mark.parametrize("kind", ["causal", "bool", "float", "low"])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "eager"])
def test_masks_hide_keys(fused: bool, kind: str) -> None:
    hidden = torch.ones(24, 24, dtype=torch.bool).triu(1)
    fill = -1e4 if kind == "low" else float("-inf")
    added = torch.zeros(24, 24).masked_fill(hidden, fill)

    def mixing(query: Tensor, key: Tensor, value: Tensor, factor: float) -> Tensor:
        if fused:
            given = {"is_causal": True} if kind == "causal" else {"attn_mask": ~hidden if kind == "bool" else added}
            return F.scaled_dot_product_attention(query, key, value, scale=factor, **given)
        scores = query @ key.mT * factor
        scores = scores.masked_fill(hidden, fill) if kind in ("causal", "bool") else scores + added
        return F.softmax(scores, -1) @ value

    model = Language(Attention(mixing, 3.0))
    (found,) = heard(model, TOKENS).attention
    check(found, scores_of(model, 3.0), hidden)
    assert found.largest < 100


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "eager"])
def test_a_constant_bias_is_no_large_logit(fused: bool) -> None:
    """A slope over the distance (Press et al. 2022) may be hundreds high: it is not what training moves."""
    slope = torch.arange(24.0) * torch.tensor([40.0, 20.0, 10.0, 5.0])[:, None, None]

    def mixing(query: Tensor, key: Tensor, value: Tensor, factor: float) -> Tensor:
        if fused:
            return F.scaled_dot_product_attention(query, key, value, attn_mask=slope[None], scale=factor)
        return (query @ key.mT * factor + slope).masked_fill(torch.zeros(24, 24, dtype=torch.bool), -1.0).softmax(
            -1
        ) @ value

    model = Language(Attention(mixing))
    (found,) = heard(model, TOKENS).attention
    scores = scores_of(model, HEALTHY)
    assert found.largest == pytest.approx(float(scores.amax(-1).abs().amax()), rel=1e-3)
    check(found, scores + slope)


def test_a_learned_bias_is_part_of_the_logits() -> None:
    bias = nn.Parameter(torch.full((4, 24, 24), 70.0))

    def mixing(query: Tensor, key: Tensor, value: Tensor, factor: float) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias[None], scale=factor)

    (found,) = heard(Language(Attention(mixing)), TOKENS).attention
    assert found.largest > 69


def test_rows_of_padding_are_left_out() -> None:
    """A padding query sees the real keys, but nothing trains its row."""
    shown = torch.ones(3, 1, 1, 24, dtype=torch.bool)
    shown[1, ..., 12:] = False

    def mixing(query: Tensor, key: Tensor, value: Tensor, factor: float) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=shown, scale=factor)

    (found,) = heard(Language(Attention(mixing)), TOKENS).attention
    assert found.rows == HEADS * (24 + 12 + 24)


def test_a_learned_sink_is_one_more_key() -> None:
    sink = nn.Parameter(torch.zeros(1, HEADS, 1, 1))

    def mixing(query: Tensor, key: Tensor, value: Tensor, factor: float) -> Tensor:
        scores = torch.cat([query @ key.mT * factor, sink.expand(3, -1, 24, -1)], -1)
        return scores.softmax(-1)[..., :-1] @ value

    model = Language(Attention(mixing))
    (found,) = heard(model, TOKENS).attention
    check(found, torch.cat([scores_of(model, HEALTHY), torch.zeros(3, HEADS, 24, 1)], -1))


def test_additive_scores_are_known_by_the_values_that_are_mixed() -> None:
    vector = nn.Parameter(torch.randn(D_K))

    def mixing(query: Tensor, key: Tensor, value: Tensor, factor: float) -> Tensor:
        scores = (query[..., :, None, :] + key[..., None, :, :]).tanh() @ vector
        return F.dropout(scores.softmax(-1), 0.1) @ value

    (found,) = heard(Language(Attention(mixing)), TOKENS).attention
    assert found.heads == HEADS and 0 < found.entropy[0] < 1


def test_shared_key_heads() -> None:
    def mixing(query: Tensor, key: Tensor, value: Tensor, factor: float) -> Tensor:
        return F.scaled_dot_product_attention(query, key[:, ::2], value[:, ::2], scale=factor, enable_gqa=True)

    model = Language(Attention(mixing, 2.0))
    (found,) = heard(model, TOKENS).attention
    x = model.norm(model.table(TOKENS))
    keys = split(model.attention.key(x))[:, [0, 0, 2, 2]]
    check(found, split(model.attention.query(x)) @ keys.mT * 2.0)


@pytest.mark.parametrize("weights", [True, False])
def test_torchs_own_multi_head_attention(weights: bool) -> None:
    class Mha(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.MultiheadAttention(48, HEADS, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x, x, x, need_weights=weights)[0]

    model, x = Mha(), torch.randn(3, 24, 48)
    (found,) = heard(model, x).attention
    query, key, _ = F.linear(x, model.inner.in_proj_weight, model.inner.in_proj_bias).chunk(3, -1)
    assert found.heads == HEADS
    check(found, split(query) @ split(key).mT * HEALTHY)


def test_only_some_rows_of_a_long_sequence_are_read() -> None:
    model, tokens = Language(Attention()), torch.randint(VOCABULARY, (9, 300))
    (found,) = heard(model, tokens).attention
    expected = direct(scores_of(model, HEALTHY, tokens))
    assert found.rows == 4 * 32 * HEADS
    assert found.entropy == pytest.approx(expected["entropy"].tolist(), abs=0.003)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_attention_is_heard_once(reentrant: bool) -> None:
    class Kept(Attention):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(super().forward, x, use_reentrant=reentrant)

    model = Language(Kept(factor=2.0))
    listener = Listener(model)
    with listener.installed():
        out = model(TOKENS)
    out.sum().backward()
    (found,) = listener.attention
    check(found, scores_of(model, 2.0))


# Kernels that cannot be looked into ---------------------------------------------------------------------------------


class Kernel(torch.autograd.Function):
    """Computes attention without a call that says so."""

    @staticmethod
    def forward(
        ctx, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, factor: float, causal: bool, hot: bool
    ):
        scores = query @ key.mT * factor
        scores = scores if mask is None else scores + mask
        if causal:
            scores = scores + torch.full(scores.shape[-2:], float("-inf")).triu(1)
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        weights = weights / weights.sum(-1, keepdim=True)
        return (weights**2 if hot else weights) @ value

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return (gradient,) * 3 + (None,) * 4


@pytest.mark.parametrize("axes", ["heads first", "length first"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_a_kernel_is_explained_by_its_result(axes: str, causal: bool, masked: bool) -> None:
    mask = torch.zeros(3, 1, 1, 24)
    mask[1, ..., 20:] = float("-inf")

    class Turned(Kernel):
        @staticmethod
        def forward(ctx, query: Tensor, key: Tensor, value: Tensor, *rest: object):
            turned = (x.transpose(1, 2) for x in (query, key, value))
            return Kernel.forward(ctx, *turned, *rest).transpose(1, 2)

    def mixing(query: Tensor, key: Tensor, value: Tensor, factor: float) -> Tensor:
        given = (mask if masked else None, factor, causal, False)
        if axes == "heads first":
            return Kernel.apply(query, key, value, *given)
        return Turned.apply(*(x.transpose(1, 2) for x in (query, key, value)), *given).transpose(1, 2)

    model = Language(Attention(mixing, 1.5))
    listener = heard(model, TOKENS)
    (found,) = listener.attention
    hidden = torch.ones(24, 24, dtype=torch.bool).triu(1) if causal else torch.zeros(24, 24, dtype=torch.bool)
    if masked and not causal:  # padding as queries does not count
        assert found.rows == HEADS * (24 + 20 + 24)
    elif not masked:
        check(found, scores_of(model, 1.5), hidden)
    assert not listener.unseen


def test_a_kernel_that_does_something_else_is_unseen() -> None:
    def mixing(query: Tensor, key: Tensor, value: Tensor, factor: float) -> Tensor:
        return Kernel.apply(query, key, value, None, factor, False, True)

    listener = heard(Language(Attention(mixing)), TOKENS)
    assert not listener.attention
    assert "Kernel does not compute" in listener.unseen[0].reason


def test_no_attention_is_said() -> None:
    listener = heard(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), torch.randn(3, 4))
    assert not listener.attention and not listener.stream
    assert [unseen.what for unseen in listener.unseen] == ["attention"]


def test_a_softmax_over_the_vocabulary_is_no_attention() -> None:
    class Spoken(Language):
        def forward(self, tokens: Tensor) -> Tensor:
            return (self.norm(self.table(tokens)) @ self.head.weight.T).softmax(-1)

    assert not heard(Spoken(nn.Identity()), TOKENS).attention


# The residual stream ------------------------------------------------------------------------------------------------


def test_the_stream_is_read_after_each_addition() -> None:
    model, seen = Learner(layers=3), []
    tokens = next(batches(1))
    begin = (model.table(tokens) + model.position.weight[:32]).detach()
    for layer in model.layers:
        layer.register_forward_hook(lambda module, args, out: seen.append(out.detach()))
    stream = heard(model, tokens).stream

    def typical(x: Tensor) -> float:
        return float(x.flatten(0, 1)[::2].square().mean(-1).sqrt().median())

    assert [one.site.name for one in stream] == [f"layers.{n}:stream{c}" for n in range(3) for c in ("", "#2")]
    assert [one.rms for one in stream[1::2]] == pytest.approx([typical(x) for x in seen], rel=1e-5)
    assert [one.start for one in stream] == pytest.approx([typical(begin)] * 6, rel=1e-5)
    assert stream[-1].growth == pytest.approx(typical(seen[-1]) / typical(begin), rel=1e-5)


def test_a_norm_begins_the_stream_anew() -> None:
    layer = nn.TransformerEncoderLayer(48, HEADS, 64, dropout=0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    stream = heard(nn.Sequential(nn.Linear(48, 48), encoder), torch.randn(3, 24, 48)).stream
    assert len(stream) == 6
    assert all(1 < one.growth < 1.6 for one in stream)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("order", NormOrder)
def test_our_own_model_is_heard_whole(order: NormOrder, dtype: torch.dtype) -> None:
    """Fused kernels, dropped additions and ragged batches included."""
    small = {"d_model": 48, "heads": HEADS, "d_k": D_K, "d_ff": 64, "encoder_layers": 2, "decoder_layers": 2}
    model = Seq2Seq(Architecture(**small, norm_order=order), 50, 50)
    model.compute_dtype = dtype
    source = Ragged.from_lists([list(range(4, 20)), list(range(4, 14))])
    target = Ragged.from_lists([list(range(4, 16)), list(range(4, 22))])
    listener = heard(model.train(), source, target)
    assert len(listener.attention) == 2 + 2 * 2
    assert len(listener.stream) == 2 * 2 + 3 * 2
    assert all(one.heads == HEADS and min(one.entropy) > 0.8 for one in listener.attention)
    assert not listener.unseen
    assert max(one.growth for one in listener.stream) < 4


# Nothing changes ----------------------------------------------------------------------------------------------------


def build_gpt2() -> nn.Module:
    config = transformers.GPT2Config(vocab_size=97, n_embd=48, n_layer=2, n_head=4, n_positions=64)
    return transformers.GPT2LMHeadModel(config)


@pytest.mark.parametrize(
    "build",
    [build_gpt2, lambda: Learner(dropout=0.2), lambda: Learner(dropout=0.2, fused=True)],
    ids=["gpt2", "eager", "fused"],
)
def test_a_forward_is_the_same_to_the_bit(build: Callable[[], nn.Module]) -> None:
    model, tokens = build().train(), torch.randint(16, (3, 24))
    results = []
    for listening in (False, True):
        torch.manual_seed(5)
        if listening:
            with Listener(model).installed():
                out = model(tokens)
        else:
            out = model(tokens)
        logits = out if isinstance(out, Tensor) else out.logits
        model.zero_grad()
        logits.square().mean().backward()
        results.append((logits.detach(), torch.rand(3), [p.grad.clone() for p in model.parameters()]))
    (logits, draw, gradients), (again, redraw, regradients) = results
    assert torch.equal(logits, again) and torch.equal(draw, redraw)
    assert all(map(torch.equal, gradients, regradients))


def test_nothing_stays_behind() -> None:
    apply, has = vars(torch.autograd.Function)["apply"], F.has_torch_function
    model = Learner()
    with pytest.raises(RuntimeError, match="mine"), Listener(model).installed():
        loss_of(model, next(batches(1)))
        raise RuntimeError("mine")
    assert vars(torch.autograd.Function)["apply"] is apply and F.has_torch_function is has
    assert not torch.overrides._get_current_function_mode_stack()
