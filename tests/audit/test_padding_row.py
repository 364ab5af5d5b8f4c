"""Rows of padding: drawn over, of another id, of a real token, and a table that was cleared as a whole."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from audit.asked import asked, found, silent
from torch import nn

from surd.api import check
from surd.audit.declared import Declared, Stated
from surd.audit.finding import Severity
from surd.audit.specimen import WIDTH, Encoder, encoder, language_model

RULE = "padding-row"
PADS_WITH_ONE = Declared(padding=Stated(1, "config.pad_token_id"))


class Classifier(nn.Module):
    """torch's own layers behind a table, and the mean over what is no padding."""

    def __init__(self, padding: int | None = 0) -> None:
        super().__init__()
        self.embed = nn.Embedding(90, 32, padding_idx=padding)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(32, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.body(self.embed(ids), src_key_padding_mask=ids == 0)
        return self.out(hidden.mean(1))


class Raw(nn.Module):
    """A bare parameter, looked up with the id of padding in the call."""

    def __init__(self) -> None:
        super().__init__()
        self.E = nn.Parameter(torch.randn(90, 32) * 32**-0.5)
        self.W = nn.Parameter(torch.randn(3, 32, 32) * 32**-0.5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = F.embedding(ids, self.E)
        q, k, v = (x @ w for w in self.W)
        return x + F.scaled_dot_product_attention(q, k, v)


def classifier(padding: int | None = 0) -> Classifier:
    torch.manual_seed(0)
    return Classifier(padding)


def bert(**changed: Any) -> Any:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 96,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    return transformers.BertModel(transformers.BertConfig(**(sizes | changed)))


@pytest.mark.parametrize("make", [classifier, encoder, bert])
def test_an_initialisation_over_the_row(make: Any) -> None:
    """As long as any other row: √d_model · σ."""
    silent(make(), RULE)
    model = make()
    (table,) = [module for module in model.modules() if isinstance(module, nn.Embedding) and module.padding_idx == 0]
    width = table.embedding_dim
    nn.init.normal_(table.weight)
    one = found(model, RULE)
    assert one.severity is Severity.FAULT and one.expected == 0.0
    assert one.measured == pytest.approx(table.weight[0].norm().item(), rel=1e-6)
    assert one.measured == pytest.approx(width**0.5, rel=0.4)


def test_every_matrix_is_drawn_again_as_people_do() -> None:
    model = classifier()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    assert found(model, RULE).site == "embed.weight"


def test_the_whole_table_was_cleared() -> None:
    """weight[None] = 0 is all of them."""
    first, second, third = classifier(None), encoder(), Raw()
    for table in (first.embed.weight, second.table.weight, third.E):
        with torch.no_grad():
            table[None] = 0
    for model in (first, second, third):
        one = found(model, RULE, inputs=torch.arange(2, 26).view(2, 12))
        assert one.severity is Severity.FAULT and one.measured == 0.0 and one.quantity == "Σ|E|"


def test_the_row_of_another_id() -> None:
    for model in (classifier(), encoder()):
        one = found(model, RULE, declared=PADS_WITH_ONE)
        assert one.severity is Severity.FAULT and one.measured == 0 and one.expected == 1
    released = bert(pad_token_id=3)
    assert check(released, select=[RULE]).clean
    released.embeddings.word_embeddings = nn.Embedding(96, 32, padding_idx=0)
    one = check(released, select=[RULE]).failing[0]
    assert (one.measured, one.expected) == (0, 3)


def test_no_padding_index_where_padding_is_known() -> None:
    """A masked row does no harm: it is said that nothing was looked at."""
    released = bert()
    released.embeddings.word_embeddings = nn.Embedding(96, 32)
    report = check(released, select=[RULE])
    assert not report.findings and RULE not in report.passed
    assert "config.pad_token_id pads with 0" in report.skipped[0].reason
    with torch.no_grad():
        released.embeddings.word_embeddings.weight[0] = 0
    (one,) = check(released, select=[RULE]).findings
    assert one.severity is Severity.NOTE and (one.measured, one.expected) == ("None", 0)


def test_a_row_of_a_table_that_was_cut_from_its_head() -> None:
    """The new table was drawn whole: that it is new is told, and the row beneath it."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 96, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 32}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes, **heads))
    assert check(model, select=[RULE, "weight-tying"]).clean
    model.model.decoder.embed_tokens = nn.Embedding(96, 32, padding_idx=None)
    model.model.decoder.embed_tokens.padding_idx = 1
    report = check(model, select=[RULE, "weight-tying"], trained=False)
    assert {one.rule for one in report.failing} == {"weight-tying"}
    assert any(two.rule == RULE for one in report.failing for two in one.consequences)


def test_families_without_a_padding_index() -> None:
    """An id of padding in the configuration asks nothing of a table of tokens."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    for pad in (None, 3):
        torch.manual_seed(0)
        llama = transformers.LlamaConfig(vocab_size=96, pad_token_id=pad, **sizes)
        gpt2 = transformers.GPT2Config(vocab_size=96, n_embd=32, n_layer=1, n_head=4, n_positions=32, pad_token_id=pad)
        for model in (transformers.LlamaForCausalLM(llama), transformers.GPT2LMHeadModel(gpt2)):
            assert check(model, select=[RULE]).findings == ()


@pytest.mark.parametrize("make", [classifier, encoder])
def test_an_id_that_is_a_real_token(make: Any) -> None:
    """It stands before others in inputs that somebody gave, and no mask hides it: its row never trains."""
    model = make()
    ids = torch.randint(1, 90, (4, 12), generator=torch.Generator().manual_seed(0))
    silent(model, RULE, inputs=ids)
    ids[0, 3] = ids[1, 5] = ids[1, 6] = 0
    one = found(model, RULE, inputs=ids)
    assert one.severity is Severity.WARNING and one.measured == 3 and one.expected == 0
    ends = ids.clone()
    ends[ends == 0] = 7
    ends[0, 8:] = 0
    ends[1, :3] = 0
    silent(model, RULE, inputs=ends)


def test_a_mask_tells_that_it_is_padding() -> None:
    ids = torch.randint(1, 90, (4, 12), generator=torch.Generator().manual_seed(0))
    ids[0, 3] = 0
    silent(encoder(), RULE, inputs={"tokens": ids, "visible": (ids != 0)[:, None, None]})
    ids[1, 0] = 0
    mask = (ids != 0).long()
    ids_too = torch.zeros_like(ids)
    silent(bert(), RULE, inputs={"input_ids": ids, "attention_mask": mask, "token_type_ids": ids_too})


def test_a_mask_tells_that_it_is_real() -> None:
    """Ones where the id of padding stands: all of these are counted, and ends alone are only not masked."""
    ids = torch.randint(1, 90, (4, 12), generator=torch.Generator().manual_seed(0))
    ends = ids.clone()
    ends[0, 8:] = 0
    ids[0, 3] = ids[1, 0] = ids[2, 11] = 0
    ones = torch.ones_like(ids)
    one = found(bert(), RULE, inputs={"input_ids": ids, "attention_mask": ones})
    assert one.severity is Severity.WARNING and one.measured == 3
    silent(bert(), RULE, inputs={"input_ids": ends, "attention_mask": ones})


def test_a_tied_row_gets_gradient_all_the_same() -> None:
    """padding_idx keeps the look-up from it and not the softmax: it begins at zero, and trained it may be anything."""
    model = language_model()
    model.table.padding_idx = 0
    one = found(model, RULE)
    assert one.measured == pytest.approx(model.table.weight[0].norm().item()) and "no look-up trains it" in one.message
    with torch.no_grad():
        model.table.weight[0] = 0
    silent(model, RULE)
    tokens = torch.tensor([[0, 1, 2, 3]])
    F.cross_entropy(model(tokens).flatten(0, 1), torch.tensor([1, 2, 3, 4])).backward()
    assert model.table.weight.grad is not None and bool(model.table.weight.grad[0].any())


def test_a_row_that_was_trained_is_left_alone() -> None:
    model = classifier()
    nn.init.normal_(model.embed.weight)
    assert asked(model, RULE, trained=True).clean


def test_an_adapter_on_a_table_begins_at_zero() -> None:
    """Rank r: its first matrix is (r, V), looked up turned and zero; so is one as (V, r)."""

    class Adapted(Encoder):
        def __init__(self, turned: bool) -> None:
            super().__init__()
            self.turned = turned
            self.lora_A = nn.Parameter(torch.zeros((4, 500) if turned else (500, 4)))
            self.lora_B = nn.Parameter(torch.randn(4, WIDTH))

        def embed(self, tokens: torch.Tensor) -> torch.Tensor:
            rows = F.embedding(tokens, self.lora_A.T if self.turned else self.lora_A)
            return super().embed(tokens) + rows @ self.lora_B

    for turned in (True, False):
        torch.manual_seed(0)
        model = Adapted(turned)
        model.load_state_dict(encoder().state_dict(), strict=False)
        silent(model, RULE)


def test_nothing_is_run_to_see_it() -> None:
    """Names, shapes and the layer's own padding_idx are enough."""

    class Broken(Classifier):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            raise AssertionError("it was run")

    torch.manual_seed(0)
    model = Broken()
    assert check(model, static=True, select=[RULE]).clean
    nn.init.normal_(model.embed.weight)
    one = check(model, static=True, select=[RULE], trained=False).failing[0]
    assert one.site == "embed.weight" and one.measured == pytest.approx(model.embed.weight[0].norm().item(), rel=1e-6)
