"""Two matrices that should be one, or one that should be two: in memory, in files, declared or not."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from audit.asked import asked, found, silent
from safetensors.torch import load_file, save_file
from torch import nn

from surd.api import check
from surd.audit.declared import Declared, Stated
from surd.audit.file_weights import FileWeights
from surd.audit.finding import Finding, Severity
from surd.audit.judge import Report, judge
from surd.audit.specimen import VOCABULARY, WIDTH, LanguageModel, language_model
from surd.audit.subject import Subject

RULE = "weight-tying"
TIED = Declared(tied=Stated(True, "config.tied"))
UNTIED = Declared(tied=Stated(False, "config.tied"))
SIZES: dict[str, Any] = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
SEQ2SEQ: dict[str, Any] = {
    "vocab_size": 96, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 32,
}  # fmt: skip
T5: dict[str, Any] = {"vocab_size": 96, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.logging.set_verbosity_error()


class Flat(nn.Module):
    """Raw parameters, a softmax of products written out, and logits from the table turned."""

    def __init__(self, tied: bool = True, width: int = 32, rows: int = 96) -> None:
        super().__init__()
        self.E = nn.Parameter(0.02 * torch.randn(rows, width))
        self.P = nn.Parameter(0.01 * torch.randn(32, width))
        self.U = self.E if tied else nn.Parameter(0.02 * torch.randn(rows, width))
        self.W = nn.Parameter(width**-0.5 * torch.randn(4, width, width))
        self.bias = nn.Parameter(torch.zeros(rows))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.E[ids] + self.P[: ids.shape[1]]
        h = F.layer_norm(x, x.shape[-1:])
        q, k, v, o = (h @ w for w in self.W)
        hidden = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        s = torch.einsum("bqd,bkd->bqk", q, k) * x.shape[-1] ** -0.5
        x = x + s.masked_fill(hidden, float("-inf")).softmax(-1) @ v + 0 * o
        return F.layer_norm(x, x.shape[-1:]) @ self.U.T + self.bias


class Translator(nn.Module):
    """torch's own Transformer between two tables and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(96, 32), nn.Embedding(96, 32)
        self.body = nn.Transformer(32, 4, 1, 1, 64, batch_first=True)
        self.head = nn.Linear(32, 96, bias=False)
        for table in (self.source, self.target):
            nn.init.normal_(table.weight, std=32**-0.5)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        scale = 32**0.5
        return self.head(self.body(self.source(source) * scale, self.target(target) * scale, tgt_mask=mask))


def flat(tied: bool = True) -> Flat:
    torch.manual_seed(0)
    return Flat(tied)


def translator() -> Translator:
    torch.manual_seed(0)
    return Translator()


def gpt2(**changed: Any) -> Any:
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**(SIZES | changed)))


def loaded_by_assignment(model: nn.Module) -> nn.Module:
    """Each name with its own tensor: so does a move to another device that copies."""
    model.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()}, assign=True)
    return model


def learnt(*tables: torch.Tensor) -> None:
    """What training leaves: a few large directions, the same in all that are given."""
    drawn = torch.Generator().manual_seed(5)
    rows, width = tables[0].shape
    with torch.no_grad():
        moved = torch.randn(rows, 3, generator=drawn) @ torch.randn(3, width, generator=drawn)
        for table in tables:
            table += moved * table.std()


def trained(model: nn.Module) -> nn.Module:
    """All matrices but those that are one row short."""
    for parameter in dict.fromkeys(model.parameters()):
        if parameter.dim() == 2 and min(parameter.shape) > 1:
            learnt(parameter)
    return model


def told(report: Report) -> Finding:
    assert len(report.failing) == 1, str(report)
    assert report.failing[0].rule == RULE
    return report.failing[0]


# --- Cut in memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [flat, language_model])
def test_a_tie_that_loading_by_assignment_cuts(make: Any) -> None:
    silent(make(), RULE)
    model = loaded_by_assignment(make())
    one = found(model, RULE)
    assert one.severity is Severity.WARNING and one.measured is False and one.expected is True
    assert one.site in ("U", "head.weight")
    assert found(model, RULE, declared=TIED).severity is Severity.FAULT


def test_a_released_model_says_which_are_one() -> None:
    one = told(check(loaded_by_assignment(gpt2()), select=[RULE]))
    assert one.severity is Severity.FAULT and one.site == "lm_head.weight" and "_tied_weights_keys" in one.source
    assert check(gpt2(), select=[RULE]).clean


def test_deepcopy_and_half_keep_a_tie() -> None:
    for make in (flat, language_model):
        silent(copy.deepcopy(make()), RULE)
        silent(make().bfloat16(), RULE)


def test_a_move_that_copies_every_name() -> None:
    """As to a device where each tensor is sent by itself."""
    model = gpt2()
    before = len(list(model.parameters()))
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    assert len(list(model.parameters())) == before + 1
    assert told(check(model, select=[RULE])).severity is Severity.FAULT


def test_the_head_has_old_numbers() -> None:
    """Only one of two tied names was loaded, in assign mode."""
    model = gpt2()
    new = {"transformer.wte.weight": model.transformer.wte.weight.detach() + 0.5}
    model.load_state_dict(new, strict=False, assign=True)
    one = told(check(model, select=[RULE]))
    assert one.severity is Severity.FAULT and "differences up to 0.5" in one.message


def test_halves_that_have_drifted_apart() -> None:
    """Two copies, two states of the optimiser, a few steps: nothing is declared, and they are still alike."""
    for make in (flat, language_model):
        model = loaded_by_assignment(make())
        drawn = torch.Generator().manual_seed(1)
        head = model.U if isinstance(model, Flat) else model.head.weight
        with torch.no_grad():
            head += 0.1 * head.std() * torch.randn(head.shape, generator=drawn)
        one = found(model, RULE)
        assert one.severity is Severity.WARNING and "cosine 0.99" in one.message


def test_two_copies_get_a_gradient_each() -> None:
    tied, cut = flat(), loaded_by_assignment(flat())
    ids = torch.arange(24).view(2, 12)
    for model in (tied, cut):
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    assert isinstance(cut, Flat) and cut.E.grad is not None and cut.U.grad is not None
    torch.testing.assert_close(tied.E.grad, cut.E.grad + cut.U.grad)
    assert not torch.allclose(tied.E.grad, cut.E.grad)
    found(cut, RULE)


@pytest.mark.parametrize("option", ["", "tie_weights"])
def test_one_memory_and_two_parameters_takes_two_steps(option: str) -> None:
    model = Asking(option, True, "dict") if option else language_model()
    model.head.weight = nn.Parameter(model.table.weight.data)
    one = found(model, RULE)
    assert one.severity is Severity.WARNING and one.measured == 2
    ids = torch.arange(24).view(2, 12)
    loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    before = model.table.weight.detach().clone()
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    loss.backward()
    optimiser.step()
    moved = (model.table.weight.detach() - before).abs().max()
    assert float(moved) == pytest.approx(2e-3, rel=0.01), "Adam's first step is its learning rate"
    model.head.weight.requires_grad_(False)
    silent(model, RULE)


class Turned(Flat):
    """Its head multiplies from the right: a matrix of width x rows."""

    def __init__(self, copied: bool, buffer: bool = False, seen: bool = False) -> None:
        super().__init__(tied=False)
        del self.U
        numbers = self.E.detach().T if seen else self.E.detach().T.clone() if copied else 0.02 * torch.randn(32, 96)
        if buffer:
            self.register_buffer("turned", numbers, persistent=False)
        else:
            self.turned = nn.Parameter(numbers)

    @property
    def U(self) -> torch.Tensor:
        return self.turned.T


@pytest.mark.parametrize("buffer", [False, True])
def test_a_turned_copy_is_a_copy(buffer: bool) -> None:
    torch.manual_seed(0)
    one = found(Turned(copied=True, buffer=buffer), RULE)
    assert one.severity is Severity.WARNING and one.site == "turned" and one.measured is False
    silent(Turned(copied=False), RULE)
    silent(Turned(copied=True, buffer=True, seen=True), RULE)


def test_weight_norm_on_one_side() -> None:
    model = gpt2()
    nn.utils.parametrizations.weight_norm(model.lm_head)
    one = told(check(model, select=[RULE]))
    assert one.severity is Severity.FAULT and one.measured is False


def test_quantised_on_one_side() -> None:
    """The head is packed into whole numbers; the flag still says that it is the table."""
    model = gpt2()

    class Packed(nn.Module):
        def __init__(self, weight: torch.Tensor) -> None:
            super().__init__()
            scale = weight.abs().amax(1, keepdim=True) / 127
            self.register_buffer("scale", scale)
            self.register_buffer("codes", (weight / scale).round().to(torch.int8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x, self.codes.to(x.dtype) * self.scale)

    model.lm_head = Packed(model.lm_head.weight.detach())
    one = told(check(model, select=[RULE]))
    assert one.severity is Severity.FAULT and one.site == "lm_head.weight" and "Packed" in one.message


def test_a_table_that_was_resized_alone() -> None:
    model = language_model()
    old = model.table.weight.detach()
    model.table = nn.Embedding.from_pretrained(torch.cat([old, 0.02 * torch.randn(3, WIDTH)]), freeze=False)
    one = found(model, RULE)
    assert one.measured == VOCABULARY and one.expected == VOCABULARY + 3
    assert found(model, RULE, declared=TIED).severity is Severity.FAULT


def test_a_bias_that_kept_its_length() -> None:
    grown = flat()
    grown.E = grown.U = nn.Parameter(torch.cat([grown.E.detach(), 0.02 * torch.randn(3, 32)]))
    layer = language_model()
    layer.head.bias = nn.Parameter(torch.zeros(VOCABULARY))
    layer.table.weight = layer.head.weight = nn.Parameter(0.02 * torch.randn(VOCABULARY + 3, WIDTH))
    bert = transformers.BertForMaskedLM(transformers.BertConfig(
        vocab_size=96, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64))  # fmt: skip
    bert.resize_token_embeddings(99)
    silent(bert, RULE)
    bert.cls.predictions.bias = nn.Parameter(torch.zeros(96))
    bert.cls.predictions.decoder.bias = bert.cls.predictions.bias
    for model, rows in ((layer, VOCABULARY), (grown, 96), (bert, 96)):
        one = asked(model, RULE, inputs=torch.arange(20, 40).view(2, 10)).failing[0]
        assert one.severity is Severity.FAULT and (one.measured, one.expected) == (rows, rows + 3), one


# --- Asked for and not had ------------------------------------------------------------------------------------------


class Asking(LanguageModel):
    """Says in an option that it is tied."""

    def __init__(self, option: str, value: bool, inner: str = "") -> None:
        super().__init__()
        holder = {option: value}
        if inner == "namespace":
            self.args = type("Args", (), holder)()
        elif inner:
            self.config = holder
        else:
            setattr(self, option, value)


@pytest.mark.parametrize("inner", ["", "namespace", "dict"])
@pytest.mark.parametrize("option", ["tie_weights", "share_decoder_embeddings"])
def test_an_option_that_is_ignored(option: str, inner: str) -> None:
    torch.manual_seed(0)
    model = Asking(option, True, inner)
    model.load_state_dict(language_model().state_dict())
    assert check(model, select=[RULE]).clean
    model.head.weight = nn.Parameter(0.02 * torch.randn(VOCABULARY, WIDTH))
    one = told(check(model, select=[RULE]))
    assert one.severity is Severity.FAULT and one.measured is False and option in one.source


@pytest.mark.parametrize("option", ["share_embeddings", "share_all_embeddings"])
def test_one_table_was_asked_for_and_two_came(option: str) -> None:
    for value, one_table in ((True, True), (False, False), (True, False)):
        torch.manual_seed(0)
        model = translator()
        model.opt = type("Options", (), {option: value})()
        model.head.weight = model.target.weight
        if one_table:
            model.source = model.target
        report = check(model, (torch.arange(20).view(2, 10), torch.arange(16).view(2, 8)), select=[RULE])
        if value and not one_table:
            one = told(report)
            assert one.severity is Severity.FAULT and option in one.source
        else:
            assert report.clean, str(report)


def test_untied_was_asked_for_and_tied_came() -> None:
    model = gpt2(tie_word_embeddings=False)
    assert check(model, select=[RULE]).clean
    model.lm_head.weight = model.transformer.wte.weight
    one = told(check(model, select=[RULE]))
    assert one.severity is Severity.FAULT and one.measured is True and one.expected is False
    before = float(model.transformer.wte.weight.detach().mean())
    with torch.no_grad():
        model.lm_head.weight += 1
    assert float(model.transformer.wte.weight.detach().mean()) == pytest.approx(before + 1, abs=1e-4)
    own = Asking("tie_word_embeddings", False, "dict")
    assert told(check(own, select=[RULE])).measured is True


def test_a_class_that_never_ties_although_its_configuration_says_so() -> None:
    model = gpt2()
    model.lm_head = nn.Linear(32, 96, bias=False)
    one = told(check(model, select=[RULE]))
    assert one.severity is Severity.FAULT and one.site == "lm_head.weight"


# --- Encoder and decoder --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_one_of_three_names_is_drawn_anew(side: str) -> None:
    torch.manual_seed(0)
    model = transformers.MBartForConditionalGeneration(transformers.MBartConfig(**SEQ2SEQ))
    assert check(model, select=[RULE]).clean
    tower = getattr(model.model, side)
    tower.embed_tokens.weight = nn.Parameter(torch.randn(96, 32) * 0.02)
    one = told(check(model, select=[RULE]))
    assert one.severity is Severity.FAULT and one.site == f"model.{side}.embed_tokens.weight"


def test_a_name_that_was_given_the_wrong_one_of_two() -> None:
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**T5))
    model.lm_head.weight = nn.Parameter(model.shared.weight.detach() / 119)
    model.encoder.embed_tokens.weight = model.lm_head.weight
    report = check(model, select=[RULE])
    assert {one.severity for one in report.failing} == {Severity.FAULT}
    assert "encoder.embed_tokens.weight" in {site for one in report.failing for site in one.sites}


def test_an_alias_that_no_loader_wrote() -> None:
    """A checkpoint without the names of two tables, and a flag that was read as: do not share."""
    model = trained(translator())
    silent(model, RULE, trained=None)
    nn.init.normal_(model.target.weight)
    one = found(model, RULE, trained=None)
    assert one.severity is Severity.FAULT and one.site == "target.weight" and float(one.measured) < 0.5


def test_a_head_that_no_loader_wrote() -> None:
    for make, path in ((translator, "head"), (lambda: flat(tied=False), "U")):
        model = trained(make())
        head = model.get_parameter(path if path == "U" else f"{path}.weight")
        learnt(head)
        silent(model, RULE, trained=True)
        nn.init.normal_(head, std=0.02)
        one = found(model, RULE, trained=True)
        assert one.severity is Severity.FAULT and one.expected == 1.0 and abs(float(one.measured)) < 0.3


def test_a_table_used_twice_comes_back_as_two() -> None:
    model = translator()
    model.target = model.source
    silent(model, RULE)
    model.target = copy.deepcopy(model.source)
    assert found(model, RULE).severity is Severity.WARNING


def test_towers_that_were_copied_whole_are_meant_to_be_two() -> None:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=96, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64)  # fmt: skip
    source = transformers.BertModel(config)
    target = transformers.BertLMHeadModel(transformers.BertConfig(
        **{**config.to_dict(), "is_decoder": True, "add_cross_attention": True}))  # fmt: skip
    target.bert.load_state_dict(source.state_dict(), strict=False)
    model = transformers.EncoderDecoderModel(encoder=source, decoder=target)
    model.config.decoder_start_token_id, model.config.pad_token_id = 1, 0
    assert not [one for one in check(model, select=[RULE]).failing if "embeddings" not in one.message]
    assert check(model, select=[RULE]).clean


def test_a_frozen_copy_is_a_teacher() -> None:
    model = translator()
    model.target = copy.deepcopy(model.source)
    model.target.weight.requires_grad_(False)
    silent(model, RULE)


# --- A head of zeros ------------------------------------------------------------------------------------------------


def test_a_head_of_zeros() -> None:
    """The outer class hides the call that ties."""
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**T5))
    model.lm_head.weight = nn.Parameter(torch.zeros(96, 32))
    assert told(check(model, select=[RULE])).severity is Severity.FAULT
    for make in (lambda: flat(tied=False), translator):
        own = make()
        nn.init.zeros_(own.U if isinstance(own, Flat) else own.head.weight)
        one = found(own, RULE)
        assert one.severity is Severity.WARNING and one.measured == 0.0
        assert found(own, RULE, trained=True).severity is Severity.FAULT


# --- Healthy, though it looks otherwise -----------------------------------------------------------------------------


def test_untied_by_choice() -> None:
    silent(flat(tied=False), RULE)
    silent(translator(), RULE)


def test_declared_untied_and_started_from_the_table() -> None:
    model = loaded_by_assignment(language_model())
    silent(model, RULE, declared=UNTIED)


def test_views_into_one_flat_buffer() -> None:
    """All tensors in one storage at offsets of their own, as some trainers leave them."""
    for model in (translator(), flat(tied=False)):
        parameters = list(model.parameters())
        whole = torch.cat([parameter.detach().flatten() for parameter in parameters])
        offset = 0
        for parameter in parameters:
            parameter.data = whole[offset : offset + parameter.numel()].view(parameter.shape)
            offset += parameter.numel()
        assert len({parameter.untyped_storage().data_ptr() for parameter in model.parameters()}) == 1
        silent(model, RULE)


def test_a_turned_view_is_the_table() -> None:
    model = flat()

    class Turned(Flat):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            before, self.U = self.U, self.U.T
            try:
                return super().forward(ids)
            finally:
                self.U = before

    assert isinstance(model, Flat)
    turned = nn.Parameter(model.E.data.T)
    del model.U
    model.register_parameter("head", turned)
    model.__class__ = type("WithHead", (Flat,), {"U": property(lambda self: self.head.T)})
    one = found(model, RULE, declared=TIED)
    assert one.severity is Severity.WARNING and one.measured == 2, "one matrix, whose two parameters take two steps"


# --- Files ----------------------------------------------------------------------------------------------------------


def folder(path: Path, state: dict[str, torch.Tensor], **config: Any) -> Path:
    named = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **SIZES, **config}
    (path / "config.json").write_text(json.dumps(named))
    save_file({name: tensor.contiguous().clone() for name, tensor in state.items()}, path / "model.safetensors")
    return path


def test_a_file_with_one_copy_of_a_tied_model_is_right(tmp_path: Path) -> None:
    state = gpt2().state_dict()
    del state["lm_head.weight"]
    assert check(folder(tmp_path, state), static=True, select=[RULE]).findings == ()
    assert check(tmp_path, select=[RULE]).findings == ()


def test_a_file_with_both_copies_is_a_note(tmp_path: Path) -> None:
    path = folder(tmp_path, gpt2().state_dict())
    for static in (True, False):
        report = check(path, static=static, select=[RULE])
        assert [(one.severity, one.measured, one.expected) for one in report.findings] == [(Severity.NOTE, 2, 1)]


def test_a_file_whose_halves_differ(tmp_path: Path) -> None:
    """Trained apart, or merged from adapters that were: whoever loads it by its flag throws one half away."""
    state = gpt2().state_dict()
    state["lm_head.weight"] = state["lm_head.weight"] + 0.125
    one = told(check(folder(tmp_path, state), static=True, select=[RULE]))
    assert one.severity is Severity.FAULT and float(one.measured) == pytest.approx(0.125, rel=1e-3)
    assert check(folder(tmp_path, state, tie_word_embeddings=False), static=True, select=[RULE]).clean


def test_a_file_of_halves_with_more_rows(tmp_path: Path) -> None:
    state = gpt2(vocab_size=104).state_dict()
    state["lm_head.weight"] = state["lm_head.weight"].clone()
    state["lm_head.weight"][96:] += 1
    one = told(check(folder(tmp_path, state, vocab_size=104), static=True, select=[RULE]))
    assert float(one.measured) == pytest.approx(1.0, rel=1e-3)


def test_a_file_without_a_head_that_says_untied(tmp_path: Path) -> None:
    """A flag that is absent, or set in a nested configuration alone, leaves the head as it is drawn."""
    state = gpt2().state_dict()
    del state["lm_head.weight"]
    one = told(check(folder(tmp_path, state, tie_word_embeddings=False), static=True, select=[RULE]))
    assert one.severity is Severity.FAULT and one.measured == 0


def test_a_head_that_the_file_does_not_hold_is_drawn(tmp_path: Path) -> None:
    model = trained(gpt2())
    state = model.state_dict()
    del state["lm_head.weight"]
    report = check(folder(tmp_path, state, tie_word_embeddings=False), select=[RULE], trained=True)
    assert (told(report).severity, told(report).site) == (Severity.FAULT, "lm_head.weight")
    assert (told(report).measured, told(report).expected) == (1, 0)


def test_a_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    save_file({name: tensor.clone() for name, tensor in language_model().state_dict().items()}, path)
    subject = Subject(name="some", weights=FileWeights(path))
    assert [one.severity for one in judge(subject, [RULE], static=True).findings] == [Severity.NOTE]
    save_file({"a": torch.zeros(4, 4)}, path)
    report = judge(Subject(name="some", weights=FileWeights(path)), [RULE], static=True)
    assert not report.findings and report.skipped[0].site == "table and head"


def test_two_names_of_one_parameter_with_two_values_in_a_file(tmp_path: Path) -> None:
    """huggingface/transformers#48154: an alias of T5's table with other numbers."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 300, "d_model": 48, "d_kv": 12, "d_ff": 96, "num_layers": 2, "num_heads": 4}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes))
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    held = load_file(path)
    save_file({**held, "encoder.embed_tokens.weight": held["shared.weight"] / 119}, path, {"format": "pt"})
    finding = told(check(tmp_path, select=[RULE]))
    assert (finding.severity, finding.site) == (Severity.FAULT, "encoder.embed_tokens.weight")
    model.save_pretrained(tmp_path)
    assert check(tmp_path, select=[RULE]).clean
