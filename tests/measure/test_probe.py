"""The probe names planted faults, and keeps silent on right attentions however they are written and wrapped."""

from collections.abc import Callable

import pytest
import torch
from measure import constructions as built
from measure.faults import (
    D_K,
    D_MODEL,
    FAULTS,
    HEADS,
    HEALTHY,
    VOCABULARY,
    WRITINGS,
    Attention,
    Language,
    by_argument,
    by_product,
    by_query_and_default,
    merge,
    split,
)
from torch import Tensor, nn

from surd.measure.probe import probe
from surd.measure.sites import Attention as Seen

CLOSE = 1e-3


def only(model: nn.Module, inputs: object = None) -> Seen:
    """The one attention that the probe finds."""
    (attention,) = probe(model, inputs).attention
    return attention


# Faults -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("writing", WRITINGS)
def test_a_planted_fault_is_measured(writing: str, fault: str) -> None:
    attention = only(Language(Attention(WRITINGS[writing], FAULTS[fault])))
    assert attention.factor == pytest.approx(FAULTS[fault], rel=CLOSE)
    assert (attention.name, attention.d_k, attention.heads) == ("attention:score", D_K, HEADS)


@pytest.mark.parametrize("writing", WRITINGS)
def test_the_right_scale_reads_one(writing: str) -> None:
    attention = only(Language(Attention(WRITINGS[writing])))
    assert attention.relative == pytest.approx(1.0, rel=CLOSE)
    assert attention.reason is None and not attention.qk_norm and not attention.cross


def test_a_scaled_query_before_the_default_scale_is_the_scale_twice() -> None:
    attention = only(Language(Attention(by_query_and_default)))
    assert attention.slope == pytest.approx(HEALTHY)  # the kernel's argument alone looks right
    assert attention.factor == pytest.approx(1 / D_K, rel=CLOSE)


def test_any_other_factor_is_measured_too() -> None:
    assert only(Language(Attention(by_product, 0.3))).factor == pytest.approx(0.3, rel=CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    assert only(Language(Attention(by_argument)).to(dtype)).relative == pytest.approx(1.0, rel=1e-2)


# Right models that look wrong ---------------------------------------------------------------------------------------

PLAIN: dict[str, Callable[[], nn.Module]] = {
    "low-rank adapter": built.Adapted,
    "latent keys": built.Latent,
    "rotary": built.Rotary,
    "shared keys, packed": built.Shared,
    "query scaled in place": built.ScaledInPlace,
    "sink, maximum subtracted": built.Sink,
    "bent by a cap": built.Capped,
    "causal with bias": built.Masked,
    "no_grad inside": built.WithoutGradient,
    "checkpoint": lambda: built.Checkpointed(reentrant=False),
    "reentrant checkpoint": lambda: built.Checkpointed(reentrant=True),
    "kernel, no second derivative": built.Opaque,
    "softmax over queries": built.Sideways,
    "flex attention": built.Flexible,
    "exp over sum": built.ByHand,
    "exp times reciprocal, in place": lambda: built.ByHand(built.reciprocal_in_place),
    "exp masked by a product": lambda: built.ByHand(built.masked_afterwards),
    "powers of two": lambda: built.ByHand(built.of_base_two),
    "exp of a difference from logsumexp": lambda: built.ByHand(built.from_logsumexp),
    "exp of log_softmax": lambda: built.ByHand(built.from_log_softmax),
}


@pytest.mark.parametrize("name", PLAIN)
def test_right_constructions_read_one(name: str) -> None:
    module = PLAIN[name]()
    attention = only(Language(module))
    assert attention.relative == pytest.approx(1.0, rel=CLOSE), attention
    assert attention.cap == (pytest.approx(0.2) if name == "bent by a cap" else None)
    assert attention.softmax_over_keys == (name != "softmax over queries")


def test_the_factor_of_flex_attention_is_measured() -> None:
    assert only(Language(built.Flexible(scale=1.0))).factor == pytest.approx(1.0, rel=CLOSE)
    assert only(Language(built.Flexible(twice=True))).factor == pytest.approx(1 / D_K, rel=CLOSE)


def test_behind_a_norm_the_factor_is_measured_from_the_norm() -> None:
    attention = only(Language(built.Normed()))
    assert attention.qk_norm and attention.relative == pytest.approx(1.0, rel=CLOSE)


@pytest.mark.parametrize("build", [built.Cosine, lambda: Attention(built.functional_cosine)])
def test_cosine_attention_has_its_slope_for_factor(build: Callable[[], nn.Module]) -> None:
    attention = only(Language(build()))
    assert attention.qk_norm and attention.factor == pytest.approx(10.0, rel=CLOSE)


def test_summed_terms_are_reported_one_by_one() -> None:
    attention = only(Language(built.Disentangled()))
    assert attention.terms == pytest.approx([(2 * D_K) ** -0.5] * 2, rel=CLOSE)


def test_one_key_is_not_judged() -> None:
    tokens = torch.arange(6)[:, None]
    attention = only(Language(Attention()), tokens)
    assert attention.factor is None and "two keys" in (attention.reason or "")


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_torchs_own_layers_are_opened(weights: bool, training: bool) -> None:
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x, x, x, need_weights=weights)[0]

    attention = only(Language(Own()).train(training))
    assert attention.name == "attention.inner:score"
    assert attention.backend == ("softmax" if weights else "sdpa")
    assert (attention.relative, attention.heads) == (pytest.approx(1.0, rel=CLOSE), HEADS)


def test_torchs_encoder_is_seen_in_eval_mode_where_its_fast_path_would_hide_it() -> None:
    layer = nn.TransformerEncoderLayer(D_MODEL, HEADS, 64, batch_first=True)
    trace = probe(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval())
    assert [a.name for a in trace.attention] == ["layers.0.self_attn:score", "layers.1.self_attn:score"]
    assert [a.relative for a in trace.attention] == pytest.approx([1.0, 1.0], rel=CLOSE)


def test_torchs_whole_transformer_is_seen_in_eval_mode() -> None:
    model = nn.Transformer(D_MODEL, HEADS, 1, 1, 64, batch_first=True).eval()
    source, target = torch.randn(6, 13, D_MODEL), torch.randn(6, 11, D_MODEL)
    trace = probe(model, (source, target))
    assert [(a.name, a.relative) for a in trace.attention] == [
        ("encoder.layers.0.self_attn:score", pytest.approx(1.0, rel=CLOSE)),
        ("decoder.layers.0.self_attn:score", pytest.approx(1.0, rel=CLOSE)),
        ("decoder.layers.0.multihead_attn:cross score", pytest.approx(1.0, rel=CLOSE)),
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_exported_programs_are_seen_by_the_names_of_their_operators() -> None:
    tokens = torch.randint(VOCABULARY, (6, 13))
    exported = torch.export.export(Language(Attention(by_argument)), (tokens,)).module()
    trace = probe(exported, tokens)
    assert [a.relative for a in trace.attention] == pytest.approx([1.0], rel=CLOSE)
    assert [e.multiplier for e in trace.embeddings] == pytest.approx([1.0], rel=CLOSE)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantised_layers_have_no_gradient_and_gains_begin_behind_them() -> None:
    model = torch.ao.quantization.quantize_dynamic(Language(Attention(by_argument)).eval(), {nn.Linear})
    trace = probe(model, torch.randint(VOCABULARY, (6, 13)))
    assert [a.relative for a in trace.attention] == pytest.approx([1.0], rel=CLOSE)
    assert any("has no gradient" in unseen.reason for unseen in trace.unseen)


def test_attention_to_another_sequence_is_called_cross() -> None:
    trace = probe(built.Cross(VOCABULARY))
    assert [a.name for a in trace.attention] == ["own:score", "attention:cross score"]
    assert [(e.table, e.multiplier) for e in trace.embeddings] == [
        ("target.weight", pytest.approx(1.0)),
        ("source.weight", pytest.approx(1.0)),
    ]


def test_frozen_and_wrapped_models_are_seen() -> None:
    model = Language(Attention(by_argument)).requires_grad_(False)
    attention = only(nn.DataParallel(model))
    assert attention.name == "attention:score" and attention.relative == pytest.approx(1.0, rel=CLOSE)
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_compiled_models_are_seen() -> None:
    model = Language(Attention())
    assert only(torch.compile(model, backend="eager")).name == "attention:score"
    model.compile(backend="eager")
    assert only(model).relative == pytest.approx(1.0, rel=CLOSE)


# Names --------------------------------------------------------------------------------------------------------------


def test_a_shared_block_is_numbered_and_blocks_without_a_frame_are_named_by_their_projections() -> None:
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Attention()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(self.inner(x))

    class Loose(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleDict({name: Attention() for name in ("first", "second")})

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks.values():
                heads = (built.split(project(x)) for project in (block.query, block.key, block.value))
                x = x + block.output(built.attend(*heads))
            return x

    assert [a.name for a in probe(Language(Twice())).attention] == ["attention.inner:score", "attention.inner:score#2"]
    names = [a.name for a in probe(Language(Loose())).attention]
    assert names == ["attention.blocks.first:score", "attention.blocks.second:score"]


def test_tokens_are_built_for_tables_that_are_bare_parameters() -> None:
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ParameterDict({name: torch.randn(D_MODEL, D_MODEL) * 0.02 for name in "qkv"})
            self.places, self.table = (nn.Parameter(torch.randn(rows, D_MODEL) * 0.02) for rows in (9, 300))

        def forward(self, ids: Tensor) -> Tensor:
            x = self.table[ids] + self.places[: ids.shape[1]]
            query, key, value = (split(x @ self.parts[name]) for name in "qkv")
            return merge((query @ key.mT * HEALTHY).softmax(-1) @ value) @ self.table.T

    assert only(Bare()).relative == pytest.approx(1.0, rel=CLOSE)


def test_a_wrapper_that_hands_on_whatever_it_gets_takes_what_its_module_takes() -> None:
    class Wrapper(nn.Module):
        def __init__(self, inner: nn.Module):
            super().__init__()
            self.inner = inner

        def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
            return self.inner(*args, **kwargs)

    attention = only(Wrapper(Wrapper(Language(Attention()))))
    assert attention.name == "inner.inner.attention:score"
