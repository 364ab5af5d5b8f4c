"""Comparisons: what differs in scale between two models, or between two states of one, is found where it is."""

import math
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn

from surd.api import check
from surd.audit.finding import Finding, Severity
from surd.audit.judge import Report
from surd.audit.states import MORE
from surd.errors import SurdError

WIDTH, HEADS, DEPTH, VOCABULARY = 64, 4, 2, 500


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.logging.set_verbosity_error()


def original(seed: int = 0, **settings: object) -> transformers.GPT2LMHeadModel:
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=WIDTH, n_layer=DEPTH, n_head=HEADS, **settings
    )
    return transformers.GPT2LMHeadModel(config).eval()


class Block(nn.Module):
    """GPT-2's, written by hand; the epsilon and the factor are what a port may get wrong."""

    def __init__(self, factor: float, epsilon: float) -> None:
        super().__init__()
        self.factor = factor
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, epsilon), nn.LayerNorm(WIDTH, epsilon)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.inner, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (part(h).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * self.factor
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(hidden, -1e9).softmax(-1) @ v
        x = x + self.o(mixed.transpose(1, 2).flatten(-2))
        return x + self.outer(F.gelu(self.inner(self.norm2(x)), approximate="tanh"))


class Port(nn.Module):
    def __init__(
        self,
        factor: float = (WIDTH // HEADS) ** -0.5,
        multiplier: float = 1.0,
        head: float = 1.0,
        epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        self.multiplier, self.factor = multiplier, head
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList(Block(factor, epsilon) for _ in range(DEPTH))
        self.last = nn.LayerNorm(WIDTH, epsilon)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) * self.multiplier + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.last(x), self.tokens.weight) * self.factor


def ported(model: transformers.GPT2LMHeadModel, **settings: float) -> Port:
    """The original's weights in the port, whose packed and turned matrices are taken apart."""
    port, body = Port(**settings), model.transformer
    port.tokens.weight, port.places.weight = body.wte.weight, body.wpe.weight
    with torch.no_grad():
        port.last.load_state_dict(body.ln_f.state_dict())
        for mine, theirs in zip(port.blocks, body.h, strict=True):
            mine.norm1.load_state_dict(theirs.ln_1.state_dict())
            mine.norm2.load_state_dict(theirs.ln_2.state_dict())
            packed = zip(theirs.attn.c_attn.weight.chunk(3, 1), theirs.attn.c_attn.bias.chunk(3), strict=True)
            for layer, (weight, bias) in zip((mine.q, mine.k, mine.v), packed, strict=True):
                layer.weight.copy_(weight.T)
                layer.bias.copy_(bias)
            pairs = (theirs.attn.c_proj, mine.o), (theirs.mlp.c_fc, mine.inner), (theirs.mlp.c_proj, mine.outer)
            for layer, target in pairs:
                target.weight.copy_(layer.weight.T)
                target.bias.copy_(layer.bias)
    return port.eval()


def only(report: Report, rule: str) -> Finding:
    """The one finding that counts, of that rule."""
    assert [one.rule for one in report.failing] == [rule], str(report)
    return report.failing[0]


def test_a_right_port_has_no_finding() -> None:
    model = original()
    report = check(ported(model), against=model)
    assert report.findings == (), str(report)
    assert {"attention-scale", "embedding-scale", "logit-scale", "weight-tying"} <= set(report.passed)
    assert any("first output differs by" in note for note in report.notes)


def test_a_port_without_the_factor_of_attention_is_found_at_every_layer() -> None:
    model = original()
    found = only(check(ported(model, factor=1.0), against=model), "attention-scale")
    assert found.measured == pytest.approx(1.0, rel=0.01) and found.expected == pytest.approx(0.25, rel=0.01)
    assert found.severity is Severity.FAULT and len(found.sites) == DEPTH
    assert {"attention-logit-max"} <= {one.rule for one in found.consequences}


@pytest.mark.parametrize(
    ("settings", "rule", "measured"),
    [({"multiplier": 8.0}, "embedding-scale", 8.0), ({"head": 0.125}, "logit-scale", 0.125)],
)
def test_a_port_with_another_factor_is_found(settings: dict[str, float], rule: str, measured: float) -> None:
    model = original()
    found = only(check(ported(model, **settings), against=model), rule)
    assert found.measured == pytest.approx(measured, rel=0.01) and found.expected == pytest.approx(1.0, rel=0.01)


def test_a_port_with_another_epsilon_is_found_in_every_norm() -> None:
    model = original()
    found = only(check(ported(model, epsilon=1e-6), against=model), "norm-epsilon")
    assert (found.measured, found.expected) == (1e-6, 1e-5) and len(found.sites) == 2 * DEPTH + 1


def test_a_port_that_keeps_the_factor_in_its_weights_is_no_fault() -> None:
    model = original()
    port = ported(model, factor=1.0)
    with torch.no_grad():
        for block in port.blocks:
            block.q.weight *= 0.25
            block.q.bias *= 0.25
    report = check(port, against=model)
    assert "attention-scale" not in {one.rule for one in report.failing}, str(report)
    assert [one.severity for one in report.findings if one.rule == "attention-scale"] == [Severity.NOTE]


class Biased(Port):
    """With a bias of the head, and a way of its own to spoil what is no scale."""

    def __init__(self, spoil: str = "") -> None:
        super().__init__()
        self.spoil = spoil
        self.bias = nn.Parameter(torch.linspace(-1, 1, VOCABULARY).sin())

    def forward(self, ids: Tensor) -> Tensor:
        logits = super().forward(ids)
        if self.spoil == "noise":
            return logits + torch.randn_like(logits) + self.bias
        if self.spoil == "order":
            return (logits + self.bias).flip(-1)
        if self.spoil == "normalised":
            return (logits + self.bias).log_softmax(-1)
        return logits if self.spoil == "bias" else logits + self.bias


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [("", ""), ("bias", "head-bias"), ("order", "logit-scale"), ("noise", "logit-scale"), ("normalised", "")],
)
def test_outputs_that_differ_though_no_scale_does_are_told(spoil: str, rule: str) -> None:
    torch.manual_seed(0)
    right, port = Biased().eval(), Biased(spoil).eval()
    port.load_state_dict(right.state_dict())
    report = check(port, (torch.randint(VOCABULARY, (2, 12)),), against=right)
    told = [one for one in report.failing if one.quantity.startswith("difference of the")]
    assert [one.rule for one in told] == ([rule] if rule else []), str(report)
    if spoil in ("", "bias", "order"):
        assert report.failing == tuple(told), str(report)
    if spoil == "bias":
        assert told[0].site == "bias" and "added there and not here" in told[0].message


def test_other_numbers_give_other_outputs() -> None:
    model = original()
    port = ported(model)
    with torch.no_grad():
        port.tokens.weight = nn.Parameter(port.tokens.weight[torch.randperm(VOCABULARY)])
    report = check(port, against=model)
    assert not any(one.quantity.startswith("difference of the") for one in report.failing), str(report)


def test_a_matrix_that_was_not_ported_is_found_by_its_name() -> None:
    model = original()
    port = ported(model)
    with torch.no_grad():
        port.blocks[1].outer.weight *= 1.3
    found = only(check(port, against=model), "init-std")
    assert found.sites == ("blocks.1.outer.weight",)
    assert found.measured / found.expected == pytest.approx(1.3, rel=0.01)


def test_checkpoints_of_one_training_differ_in_sizes_alone() -> None:
    before, after = original(), original()
    with torch.no_grad():
        for name, parameter in after.named_parameters():
            parameter *= 3 if "c_attn.weight" in name else 1.02
    report = check(after, against=before, trained=True)
    assert report.clean, str(report)
    told = {one.rule: one for one in report.findings}
    assert told["init-std"].severity is Severity.NOTE
    assert told["init-std"].measured / told["init-std"].expected == pytest.approx(3, rel=0.05)


def test_equal_checkpoints_on_disk_are_equal_and_others_are_told(tmp_path: Path) -> None:
    for name, model in (("first", original()), ("second", original()), ("third", original(activation_function="relu"))):
        model.save_pretrained(tmp_path / name)
    assert check(tmp_path / "first", against=tmp_path / "second").findings == ()
    model = original()
    model.config.scale_attn_weights = False
    model.save_pretrained(tmp_path / "unscaled")
    found = only(check(tmp_path / "unscaled", against=str(tmp_path / "first")), "attention-scale")
    assert found.measured == pytest.approx(1.0, rel=0.01) and found.source == str(tmp_path / "first")


def test_files_of_weights_are_compared_by_their_numbers(tmp_path: Path) -> None:
    weights = {f"layers.{n}.weight": torch.randn(32, 32) * 0.02 for n in range(8)}
    save_file(weights, tmp_path / "a.safetensors")
    save_file(weights | {"layers.3.weight": weights["layers.3.weight"] * 2}, tmp_path / "b.safetensors")
    found = only(check(tmp_path / "b.safetensors", against=tmp_path / "a.safetensors", static=True), "init-std")
    assert found.site == "layers.3.weight"
    assert found.measured / found.expected == pytest.approx(2, rel=0.01)


# One model in two states.


def broken_backend(kind: str):
    """Attention of Hugging Face's library whose fused path has a factor of its own in one layer."""
    usual = transformers.AttentionInterface._global_mapping[kind]

    def attend(module, query, key, value, mask, scaling=None, **settings):
        wrong = (scaling or query.shape[-1] ** -0.5) * (4 if module.layer_idx == 1 else 1)
        return usual(module, query, key, value, mask, scaling=wrong, **settings)

    return attend


def test_a_fused_path_with_another_factor_is_found_in_its_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, "sdpa", broken_backend("sdpa"))
    model = original(attn_implementation="sdpa")
    found = only(check(model, against="eager"), "attention-scale")
    assert found.measured == pytest.approx(1.0, rel=0.01) and found.expected == pytest.approx(0.25, rel=0.01)
    assert found.sites == ("transformer.h.1.attn:score",)


def test_a_check_alone_finds_the_other_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = transformers.models.gpt2.modeling_gpt2.eager_attention_forward

    def attend(module, query, key, value, mask, **settings):
        wrong = 0.5 if module.layer_idx == 1 else 1.0
        return usual(module, query * wrong, key, value, mask, **settings)

    monkeypatch.setattr(transformers.models.gpt2.modeling_gpt2, "eager_attention_forward", attend)
    model = original(attn_implementation="sdpa")
    found = only(check(model), "attention-scale")
    assert "eager" in found.quantity and found.sites == ("transformer.h.1.attn:score",)
    assert (found.measured, found.expected) == (pytest.approx(0.125, rel=0.01), pytest.approx(0.25, rel=0.01))


def test_eager_and_fused_of_a_right_model_agree() -> None:
    model = original(attn_implementation="sdpa")
    before = model.config._attn_implementation
    assert check(model, against="eager").findings == ()
    assert model.config._attn_implementation == before


class Switched(nn.Module):
    """A hand-written layer with a flag, as in x-transformers: only the written-out path knows its scale."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.flash, self.scale = True, scale
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def written(self, q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT * self.scale).softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v) if self.flash else self.written(q, k) @ v
        return x + self.out(mixed.transpose(1, 2).flatten(-2))


def test_a_flag_that_drops_a_scale_is_found() -> None:
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), Switched(1 / 16), nn.LayerNorm(WIDTH))
    ids = torch.randint(VOCABULARY, (4, 12))
    found = only(check(model, (ids,), against="eager"), "attention-scale")
    assert (found.measured, found.expected) == (pytest.approx(0.25, rel=0.01), pytest.approx(1 / 16, rel=0.01))
    assert model[1].flash is True


def test_padding_that_is_seen_is_found_and_hidden_padding_is_not() -> None:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=HEADS, intermediate_size=128
    )
    right = transformers.BertModel(config).eval()
    assert check(right, against="padded").clean

    class Deaf(transformers.BertModel):
        def forward(self, input_ids=None, attention_mask=None, **settings):
            return super().forward(input_ids=input_ids, attention_mask=torch.ones_like(input_ids), **settings)

    found = only(check(Deaf(config).eval(), against="padded"), "mask-leak")
    assert found.measured > 1e-3


def test_a_tie_that_saving_loses_is_found_and_a_whole_model_is_not() -> None:
    assert check(original(), against="saved").findings == ()


class Scaled(nn.Embedding):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * math.sqrt(WIDTH)


def test_a_table_that_resizing_replaces_by_a_plain_one_is_found() -> None:
    model = original()
    assert check(model, against="resized").clean
    table = Scaled(VOCABULARY, WIDTH)
    table.weight = model.transformer.wte.weight
    model.transformer.wte = table

    def resize(self: transformers.GPT2LMHeadModel, rows: int, **settings: object) -> None:
        self.transformer.wte = nn.Embedding(rows, WIDTH)  # as huggingface/transformers#32242 did
        with torch.no_grad():
            self.transformer.wte.weight[:VOCABULARY] = self.lm_head.weight
        self.lm_head.weight = self.transformer.wte.weight

    model.resize_token_embeddings = resize.__get__(model)
    before = deepcopy(model.state_dict())
    lost, drawn = check(model, against="resized").failing
    assert (lost.rule, lost.measured, lost.expected) == ("embedding-scale", pytest.approx(1.0), pytest.approx(8.0))
    old, new = VOCABULARY * 0.02**2, MORE * 1.0**2
    std = math.sqrt((old + new) / (VOCABULARY + MORE))
    assert (drawn.rule, drawn.site) == ("init-std", "transformer.wte.weight")
    assert drawn.measured == pytest.approx(std, rel=0.1), "new rows are N(0, 1)"
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


class Resizing(Port):
    """Somebody's own model, which can be resized and does not say by name where its table is."""

    def __init__(self, retie: bool, raises: bool = False) -> None:
        super().__init__()
        self.retie, self.raises = retie, raises
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        nn.init.normal_(self.tokens.weight, std=WIDTH**-0.5)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))

    def resize_token_embeddings(self, rows: int) -> None:
        if self.raises:
            raise KeyError("rows")
        old = self.tokens.weight.detach()
        self.tokens, self.head = nn.Embedding(rows, WIDTH), nn.Linear(WIDTH, rows, bias=False)
        nn.init.normal_(self.tokens.weight, std=WIDTH**-0.5)
        with torch.no_grad():
            self.tokens.weight[:VOCABULARY] = old
            self.head.weight.copy_(self.tokens.weight)
        if self.retie:
            self.head.weight = self.tokens.weight


def test_a_model_that_does_not_name_its_table_can_be_resized_too() -> None:
    torch.manual_seed(0)
    ids = (torch.randint(VOCABULARY, (2, 12)),)
    assert check(Resizing(retie=True).eval(), ids, against="resized").clean
    cut = only(check(Resizing(retie=False).eval(), ids, against="resized"), "weight-tying")
    assert cut.expected is True and [one.rule for one in cut.consequences] == ["parameter-count"]
    with pytest.raises(SurdError, match=rf"resize_token_embeddings\({VOCABULARY + MORE}\) raised KeyError"):
        check(Resizing(retie=True, raises=True).eval(), ids, against="resized")


def test_what_cannot_be_compared_is_refused_in_words() -> None:
    plain = nn.Sequential(nn.Embedding(50, 16), nn.TransformerEncoderLayer(16, 2, 32, batch_first=True))
    for word, told in (("eager", "one way"), ("padded", "attention_mask"), ("saved", "anew"), ("resized", "resize")):
        with pytest.raises(SurdError, match=told):
            check(plain, (torch.randint(50, (2, 8)),), against=word)
    with pytest.raises(SurdError, match="no such file"):
        check(plain, against="nothing-here")


class Named(nn.Module):
    """Somebody's own model, whose mask is optional, and hides a little or all."""

    def __init__(self, fill: float) -> None:
        super().__init__()
        self.fill = fill
        self.tokens, self.qkv, self.head = nn.Embedding(50, 16), nn.Linear(16, 48), nn.Linear(16, 50)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        query, key, value = self.qkv(self.tokens(input_ids)).chunk(3, -1)
        hidden = torch.zeros_like(input_ids) if attention_mask is None else 1 - attention_mask
        scores = query @ key.mT / 4 + hidden[:, None, :] * self.fill
        return self.head(F.layer_norm(scores.softmax(-1) @ value, (16,)))


def test_a_mask_that_is_optional_is_given_where_a_batch_is_padded() -> None:
    torch.manual_seed(0)
    assert check(Named(-1e9), against="padded").clean
    leak = only(check(Named(-1.0), against="padded"), "mask-leak")
    assert leak.severity is Severity.FAULT and leak.measured > 1e-3


def test_a_constant_that_one_of_two_rounds_is_told() -> None:
    root = math.sqrt(112)
    rounded = float(torch.tensor(root, dtype=torch.bfloat16))
    model = original()
    mine, theirs = ported(model, multiplier=root), ported(model, multiplier=rounded)
    found = next(iter(check(mine, against=theirs).failing))
    assert (found.rule, found.severity) == ("constant-rounding", Severity.WARNING)
    assert found.measured / found.expected == pytest.approx(root / rounded, rel=1e-5)
    assert check(mine, against=ported(model, multiplier=root)).clean


def test_a_gain_of_which_one_is_taken_differs_in_convention() -> None:
    sizes = {"vocab_size": 300, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12}
    torch.manual_seed(0)
    gemma = transformers.GemmaForCausalLM(transformers.GemmaConfig(**sizes, **heads))
    port = deepcopy(gemma)
    plain = transformers.models.llama.modeling_llama.LlamaRMSNorm
    with torch.no_grad():
        for model in (gemma, port):
            torch.manual_seed(1)
            for name, module in list(model.named_modules()):
                if name.endswith("norm"):
                    module.weight.normal_(0.2, 0.3)
    for name, module in list(port.named_modules()):
        if name.endswith("norm"):
            norm = plain(48, eps=1e-6)
            norm.weight = module.weight
            port.set_submodule(name, norm)
    found = next(iter(check(port, against=gemma).failing))
    assert (found.rule, found.measured, found.expected) == ("norm-gain-convention", 0.0, 1.0)
