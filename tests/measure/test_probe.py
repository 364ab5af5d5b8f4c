"""The probe names planted faults, keeps silent on right models however they are written, and leaves no trace."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
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
)
from torch import Tensor, nn

from surd.errors import SurdError
from surd.measure.probe import probe
from surd.measure.sites import Attention as Seen
from surd.models.seq2seq import Architecture, Seq2Seq
from surd.nn.ragged import Ragged

CLOSE = 1e-3
SCRIPTING = "ignore:.*torch.jit.* is deprecated:DeprecationWarning"


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
}


@pytest.mark.parametrize("name", PLAIN)
def test_right_constructions_read_one(name: str) -> None:
    module = PLAIN[name]()
    attention = only(Language(module))
    assert attention.relative == pytest.approx(1.0, rel=CLOSE), attention
    assert attention.cap == (pytest.approx(0.2) if name == "bent by a cap" else None)
    assert attention.softmax_over_keys == (name != "softmax over queries")


def test_behind_a_norm_the_factor_is_measured_from_the_norm() -> None:
    attention = only(Language(built.Normed()))
    assert attention.qk_norm and attention.relative == pytest.approx(1.0, rel=CLOSE)


@pytest.mark.parametrize("module", [built.Cosine(), Attention(built.functional_cosine)])
def test_cosine_attention_has_its_slope_for_factor(module: nn.Module) -> None:
    attention = only(Language(module))
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


# Embedding, positions, head, ties -----------------------------------------------------------------------------------


class InPlace(Language):
    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        x *= self.multiplier
        return self.head(x + self.attention(x))


class Dampened(Language):
    def forward(self, tokens: Tensor) -> Tensor:
        x = built.Dampened.apply(self.table(tokens)) * self.multiplier + torch.randn(tokens.shape[1], D_MODEL)
        return self.head(x + self.attention(x))


class Flat(Language):
    """Rows one after another, without a batch axis."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens.flatten()) * self.multiplier + 0.7
        x = x.view(*tokens.shape, -1)
        return self.head(x + self.attention(x))


@pytest.mark.parametrize("kind", [Language, InPlace, Dampened, Flat])
@pytest.mark.parametrize("multiplier", [1.0, D_MODEL**0.5])
def test_the_multiplier_of_the_rows(kind: type[Language], multiplier: float) -> None:
    (embedding,) = probe(kind(Attention(), multiplier)).embeddings
    assert embedding.multiplier == pytest.approx(multiplier, rel=CLOSE)
    assert (embedding.table, embedding.rows, embedding.width) == ("table.weight", VOCABULARY, D_MODEL)


def test_rows_that_are_mixed_before_they_enter_have_no_multiplier_and_it_is_said() -> None:
    model = Language(Attention())
    model.norm = nn.Sequential(nn.LayerNorm(D_MODEL), nn.Tanh())

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.inner = nn.Embedding(VOCABULARY, D_MODEL), nn.Linear(D_MODEL, VOCABULARY)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.table(tokens)
            return self.inner(x + 2 * x.roll(1, 1))

    trace = probe(Mixed())
    assert trace.embeddings[0].multiplier is None and trace.embeddings[0].r_squared < 0.9
    assert any(unseen.what == "table:token" for unseen in trace.unseen)


@pytest.mark.parametrize("kind", ["added", "rotary", "bias", "none"])
def test_kinds_of_positions(kind: str) -> None:
    class Added(Language):
        def __init__(self, attention: nn.Module):
            super().__init__(attention)
            self.place = nn.Embedding(20, D_MODEL)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.table(tokens) + self.place(torch.arange(tokens.shape[1]))
            return self.head(x + self.attention(x))

    models: dict[str, Callable[[], nn.Module]] = {
        "added": lambda: Added(Attention()),
        "rotary": lambda: Language(built.Rotary()),
        "bias": lambda: Language(built.Masked()),
        "none": lambda: Language(Attention(by_argument)),
    }
    assert probe(models[kind]()).positions == kind


class Ended(Language):
    """A head between two factors and a cap, tied or not to the table."""

    def __init__(self, tie: str = "none"):
        super().__init__(Attention())
        self.last = nn.LayerNorm(D_MODEL)
        if tie == "parameter":
            self.head.weight = self.table.weight
        elif tie == "storage":
            self.head.weight = nn.Parameter(self.table.weight.data)
        elif tie == "values":
            self.head.weight = nn.Parameter(self.table.weight.detach().clone())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.last(self.table(tokens) + self.attention(self.table(tokens)))
        logits = self.head(x * D_MODEL**-0.5) * 0.0625
        return 30.0 * torch.tanh(logits / 30.0)


def test_the_head_is_read_on_both_sides() -> None:
    head = probe(Ended()).head
    assert head is not None
    assert head.input_gain == pytest.approx(D_MODEL**-0.5, rel=CLOSE)
    assert head.output_gain == pytest.approx(0.0625, rel=CLOSE)
    assert head.cap == pytest.approx(30.0, rel=CLOSE)
    assert head.multiplier == pytest.approx(0.0625 * D_MODEL**-0.5, rel=CLOSE)
    assert (head.site.name, head.weight) == ("head:logits", "head.weight")


@pytest.mark.parametrize(
    ("tie", "facts"),
    [
        ("none", (False, False, False)),
        ("values", (False, False, True)),
        ("storage", (False, True, True)),
        ("parameter", (True, True, True)),
    ],
)
def test_three_facts_about_a_tie(tie: str, facts: tuple[bool, bool, bool]) -> None:
    (found,) = probe(Ended(tie)).ties
    assert (found.same_parameter, found.same_storage, found.equal_values) == facts


def test_sizes_are_read_at_every_role() -> None:
    model = Language(Attention(), multiplier=3.0)
    tokens = torch.randint(VOCABULARY, (6, 13))
    sizes = {reading.site.name: reading.rms for reading in probe(model, tokens).readings}
    rows = model.table(tokens)
    heads = [built.split(project(model.norm(3 * rows))) for project in (model.attention.query, model.attention.key)]
    mixed = model.attention(model.norm(3 * rows))
    expected = {
        "table:token": rows,
        "table:embed": 3 * rows,
        "attention:query": heads[0],
        "attention:key": heads[1],
        "attention:value": model.attention.value(model.norm(3 * rows)),
        "attention:score": heads[0] @ heads[1].mT * HEALTHY,
        "norm:norm": model.norm(3 * rows),
        ":branch": mixed,
        ":stream": 3 * rows + mixed,
        "head:hidden": 3 * rows + mixed,
        "head:logits": model(tokens),
    }
    assert expected.keys() | {"attention:mix"} == sizes.keys()
    for name, x in expected.items():
        assert sizes[name] == pytest.approx(float(x.square().mean().sqrt()), rel=1e-5), name


# Flow ---------------------------------------------------------------------------------------------------------------


def test_causal_models_see_earlier_tokens_alone() -> None:
    (flow,) = probe(Language(built.Masked())).flows
    assert flow.own and (flow.sees_earlier, flow.sees_itself, flow.sees_later) == (True, True, False)
    assert not flow.sees_other_rows


def test_models_without_a_mask_see_later_ones() -> None:
    (flow,) = probe(Language(Attention())).flows
    assert flow.sees_later and not flow.sees_other_rows


def test_a_batch_axis_in_the_wrong_place_leaks() -> None:
    layer = nn.TransformerEncoderLayer(D_MODEL, HEADS, 64, batch_first=False)
    (flow,) = probe(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)).flows
    assert flow.sees_other_rows and not flow.sees_earlier


# What cannot be seen is said ----------------------------------------------------------------------------------------


def reasons(model: nn.Module) -> str:
    trace = probe(model)
    assert not trace.attention
    return " ".join(unseen.reason for unseen in trace.unseen)


def test_a_softmax_by_hand_is_found_and_not_judged() -> None:
    found = reasons(Language(built.ByHand()))
    assert "no softmax that torch knows" in found and "constructions.py:" in found


def test_recurrence_mixes_without_attention() -> None:
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.inner = nn.Embedding(VOCABULARY, D_MODEL), nn.GRU(D_MODEL, D_MODEL, batch_first=True)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.inner(self.table(tokens))[0]

    assert "positions mix" in reasons(Recurrent())


def test_a_position_wise_model_does_not_mix() -> None:
    assert "do not mix" in reasons(Language(nn.Linear(D_MODEL, D_MODEL)))


def test_additive_scores_are_no_product() -> None:
    class Additive(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.score = (nn.Linear(D_MODEL, size) for size in (D_MODEL, D_MODEL, 1))

        def forward(self, x: Tensor) -> Tensor:
            scores = self.score(torch.tanh(self.query(x)[:, :, None] + self.key(x)[:, None])).squeeze(-1)
            return F.softmax(scores, -1) @ x

    assert "no product of activations" in reasons(Language(Additive()))


def test_hybrid_stacks_are_counted() -> None:
    class Block(nn.Module):
        def __init__(self, attends: bool):
            super().__init__()
            self.inner = Attention() if attends else nn.Linear(D_MODEL, D_MODEL)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.inner(x)

    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block(attends) for attends in (True, False, True))

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            return x

    trace = probe(Language(Stack()))
    assert any("2 of 3 blocks" in unseen.reason for unseen in trace.unseen)


@pytest.mark.filterwarnings(SCRIPTING)
def test_scripted_modules_are_named() -> None:
    attention = torch.jit.script(nn.Linear(D_MODEL, D_MODEL))
    trace = probe(Language(attention))
    assert any(unseen.what == "attention" and "scripted" in unseen.reason for unseen in trace.unseen)


# Nothing stays behind -----------------------------------------------------------------------------------------------


class Mutable(Language):
    """Does to itself what forwards do: counts, caches, replaces a buffer, draws random numbers."""

    def __init__(self, fails: bool):
        super().__init__(Attention())
        self.fails, self.calls, self.last = fails, 0, None
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("grown", torch.zeros(1))
        self.frozen = nn.Dropout(0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls += 1
        self.seen += 1
        self.grown = torch.zeros(2)
        self.last = self.frozen(self.table(tokens)) + torch.randn(())
        if self.fails:
            raise ValueError("on purpose")
        return super().forward(tokens)


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_restored(fails: bool) -> None:
    model = Mutable(fails).train()
    model.frozen.eval()
    model.table.weight.requires_grad_(False)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    model.register_forward_hook(lambda module, args, out: None)
    state, gradient, buffers = copy.deepcopy(model.state_dict()), model.head.weight.grad, dict(model.named_buffers())
    random, hooks = torch.get_rng_state(), [dict(module._forward_hooks) for module in model.modules()]
    tokens = torch.randint(VOCABULARY, (6, 13))
    before = tokens.clone(), torch.get_rng_state()
    if fails:
        with pytest.raises(SurdError, match="on purpose"):
            probe(model, tokens)
    else:
        assert probe(model, tokens).attention
    assert torch.equal(tokens, before[0]) and torch.equal(torch.get_rng_state(), before[1])
    assert not torch.equal(random, before[1])
    after = model.state_dict()
    assert after.keys() == state.keys() and all(torch.equal(after[name], state[name]) for name in state)
    assert all(buffer is buffers[name] for name, buffer in model.named_buffers())
    assert (model.calls, model.last) == (0, None)
    assert model.training and model.head.training and not model.frozen.training
    assert not model.table.weight.requires_grad and model.head.weight.requires_grad
    assert model.head.weight.grad is gradient and torch.equal(gradient, torch.ones_like(gradient))
    assert all(parameter.grad is None for name, parameter in model.named_parameters() if name != "head.weight")
    assert [dict(module._forward_hooks) for module in model.modules()] == hooks
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert torch.autograd.Function.apply.__func__.__module__ == "torch.autograd.function"
    with torch.no_grad():
        assert not torch.is_grad_enabled()


def test_weights_that_a_forward_rewrites_are_put_back() -> None:
    class Rescaled(Language):
        def forward(self, tokens: Tensor) -> Tensor:
            with torch.no_grad():
                self.head.weight.div_(2)
                self.table.weight.data *= 3
            return super().forward(tokens)

    model = Rescaled(Attention())
    before = copy.deepcopy(model.state_dict())
    assert probe(model).attention[0].judged
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@pytest.mark.parametrize("module", [Attention(), Attention(by_argument), built.Rotary()])
def test_the_tap_changes_no_output(module: nn.Module) -> None:
    seen: list[Tensor] = []
    model = Language(module).eval()
    tokens = torch.randint(VOCABULARY, (6, 13))
    handle = model.head.register_forward_hook(lambda module, args, out: seen.append(out.detach().clone()))
    probe(model, tokens)
    handle.remove()
    assert torch.equal(seen[0], model(tokens))


def test_it_works_inside_no_grad_and_twice() -> None:
    model = Language(Attention())
    with torch.no_grad():
        first, second = probe(model), probe(model)
    assert first == second and first.attention[0].judged


# Inputs -------------------------------------------------------------------------------------------------------------


def test_inputs_that_cannot_be_guessed_are_refused_with_the_signature() -> None:
    class Many(nn.Module):
        def forward(self, first: Tensor, second: Tensor, third: Tensor) -> Tensor:
            return first + second + third

    with pytest.raises(SurdError, match=r"first, second, third.*Pass `inputs`"):
        probe(Many())


def test_a_forward_that_raises_is_reported_with_what_it_was_given() -> None:
    with pytest.raises(SurdError, match=r"IndexError.*input 1 \(6, 2\)"):
        probe(Language(Attention()), torch.full((6, 2), VOCABULARY))


# Our own model ------------------------------------------------------------------------------------------------------


def test_our_own_model_is_as_it_should_be() -> None:
    model = Seq2Seq(Architecture(d_model=32, heads=4, d_k=8, d_ff=64, encoder_layers=1, decoder_layers=1), 50, 50)
    draw = torch.Generator().manual_seed(1)
    source, target = (Ragged(torch.randint(4, 50, (30,), generator=draw), (10, 10, 10)) for _ in range(2))
    trace = probe(model, (source, target))
    assert [a.relative for a in trace.attention] == pytest.approx([1.0] * 3, rel=CLOSE)
    assert [a.cross for a in trace.attention] == [False, False, True]
    assert [e.multiplier for e in trace.embeddings] == pytest.approx([32**0.5] * 2, rel=CLOSE)
