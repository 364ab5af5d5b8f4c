"""Between the last hidden state and the logits: factors, caps, biases; each in two styles of writing."""

from math import sqrt
from types import SimpleNamespace

import pytest
import torch
import transformers
from audit.asked import asked, found, silent
from audit.languages import VOCABULARY, WIDTH, Flat, Modules
from torch import nn

from surd.api import check
from surd.audit.declared import Declared, Stated
from surd.audit.finding import Severity
from surd.audit.specimen import language_model

TOKENS = (torch.randint(4, VOCABULARY, (6, 13), generator=torch.Generator().manual_seed(2)),)
SIZES = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 300,
}
GEMMA = {**SIZES, "head_dim": 12, "num_key_value_heads": 2, "query_pre_attn_scalar": 12}


@pytest.fixture(autouse=True)
def seeded() -> None:
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)


class Multiplied(Modules):
    def logits(self, hidden):
        return self.head(hidden * self.factor)


class MultipliedFlat(Flat):
    def readout(self, h):
        return super().readout(h) * self.factor


def with_factor(kind: type[nn.Module], factor: float, std: float | None = None) -> nn.Module:
    model = kind()
    model.factor = factor
    if std is not None:
        nn.init.normal_(model.head.weight if isinstance(model, Modules) else model.H, std=std)
    return model


MULTIPLIED = [Multiplied, MultipliedFlat]


@pytest.mark.parametrize("kind", MULTIPLIED)
def test_a_factor_that_nobody_declares(kind) -> None:
    finding = found(with_factor(kind, sqrt(WIDTH)), "logit-scale", inputs=TOKENS)
    assert finding.severity is Severity.FAULT
    assert finding.measured == pytest.approx(sqrt(WIDTH), rel=0.001)
    assert "√d_model" in finding.message
    whole = asked(with_factor(kind, sqrt(WIDTH)), inputs=TOKENS)
    assert [one.rule for one in whole.failing] == ["logit-scale"], str(whole)
    assert "initial-loss" in {one.rule for one in whole.failing[0].consequences}


@pytest.mark.parametrize("kind", MULTIPLIED)
@pytest.mark.parametrize("real", [1.0, 1 / 6])
def test_a_declared_factor(kind, real) -> None:
    """Granite's, and whoever serves it without."""
    declared = Declared(head=Stated(1 / 6, "config.logits_scaling"))
    if real == 1:
        finding = found(with_factor(kind, real), "logit-scale", inputs=TOKENS, declared=declared)
        assert finding.severity is Severity.FAULT
        assert (finding.measured, finding.expected) == (pytest.approx(1.0), pytest.approx(1 / 6))
        return
    report = silent(with_factor(kind, real), "logit-scale", inputs=TOKENS, declared=declared)
    assert [one.severity for one in report.findings] == [Severity.DECLARED]


@pytest.mark.parametrize("kind", MULTIPLIED)
def test_only_the_pair_counts(kind) -> None:
    """1/√d_model beside a table of unit entries: jadore801120/attention-is-all-you-need-pytorch#138."""
    report = silent(with_factor(kind, WIDTH**-0.5, std=1.0), "logit-scale", inputs=TOKENS)
    assert report.findings == ()


@pytest.mark.parametrize("kind", MULTIPLIED)
def test_a_factor_twice_is_a_note_where_nothing_comes_of_it(kind) -> None:
    report = silent(with_factor(kind, WIDTH**-0.5), "logit-scale", inputs=TOKENS)
    assert [one.severity for one in report.findings] == [Severity.NOTE]


def test_hugging_face_declares_its_factors() -> None:
    granite = transformers.GraniteForCausalLM(transformers.GraniteConfig(**SIZES, logits_scaling=6.0))
    report = check(granite, select=["logit-scale"])
    assert report.failing == ()
    assert [(one.severity, one.measured) for one in report.findings] == [(Severity.DECLARED, pytest.approx(1 / 6))]


def test_a_second_implementation_drops_the_factor() -> None:
    """vllm-project/vllm#52158: the text of greedy decoding stays, its probabilities do not."""
    granite = transformers.GraniteForCausalLM(transformers.GraniteConfig(**SIZES, logits_scaling=6.0))
    forward = granite.forward

    class Engine(type(granite)):
        def forward(self, input_ids=None, attention_mask=None, **_):
            return self.lm_head(self.model(input_ids=input_ids, attention_mask=attention_mask)[0])

    assert forward is not None
    granite.__class__ = Engine
    (finding,) = check(granite, select=["logit-scale"]).failing
    assert finding.measured == pytest.approx(1.0)
    assert finding.expected == pytest.approx(1 / 6)


def test_large_logits_of_a_trained_model() -> None:
    model = with_factor(Multiplied, 1.0, std=8.0)
    finding = found(model, "logit-scale", inputs=TOKENS, trained=True)
    assert finding.severity is Severity.WARNING
    with torch.no_grad():
        assert finding.measured == pytest.approx(float(model(*TOKENS).abs().max()), rel=1e-4)


class Capped(Modules):
    cap = 30.0

    def logits(self, hidden):
        return self.cap * torch.tanh(self.head(hidden) / self.cap)


class CappedFlat(Flat):
    cap = 30.0

    def readout(self, h):
        return (super().readout(h) / self.cap).tanh().mul(self.cap)


CAP = Declared(logit_cap=Stated(30.0, "config.final_logit_softcapping"))


@pytest.mark.parametrize(("plain", "capped"), [(Modules, Capped), (Flat, CappedFlat)])
def test_a_declared_cap_of_logits(plain, capped) -> None:
    assert silent(capped(), "soft-cap", inputs=TOKENS, declared=CAP).findings == ()
    finding = found(plain(), "soft-cap", inputs=TOKENS, declared=CAP)
    assert (finding.severity, finding.measured, finding.expected) == (Severity.FAULT, 0.0, 30.0)
    other = capped()
    other.cap = 50.0
    assert found(other, "soft-cap", inputs=TOKENS, declared=CAP).measured == pytest.approx(50.0, rel=0.01)


def test_a_cap_of_scores_that_a_kernel_ignores() -> None:
    """sgl-project/sglang#33915, vllm-project/vllm-metal#665."""
    config = transformers.Gemma2Config(**GEMMA, attn_implementation="eager")
    assert check(transformers.Gemma2ForCausalLM(config), select=["soft-cap"]).failing == ()
    without = transformers.Gemma2ForCausalLM(config)
    for layer in without.model.layers:
        layer.self_attn.attn_logit_softcapping = None
    (finding,) = check(without, select=["soft-cap"]).failing
    assert (finding.measured, finding.expected, len(finding.sites)) == (0.0, 50.0, 2)


def test_no_cap_is_declared() -> None:
    report = asked(language_model(), "soft-cap")
    assert report.passed == () and len(report.skipped) == 1


class TwiceFlat(Flat):
    def readout(self, h):
        return super().readout(h) + self.b


class NeverFlat(Flat):
    def readout(self, h):
        return h @ self.H + 0 * self.b.sum()


class Twice(Modules):
    def logits(self, hidden):
        return self.head(hidden) + self.head.bias


class Never(Modules):
    def logits(self, hidden):
        return hidden @ self.head.weight.T


@pytest.mark.parametrize(
    ("model", "factor"), [(lambda: Twice(bias=True), 2), (TwiceFlat, 2), (lambda: Never(bias=True), 0), (NeverFlat, 0)]
)
def test_a_bias_that_is_added_twice_or_never(model, factor) -> None:
    finding = found(model(), "head-bias", inputs=TOKENS)
    assert finding.severity is Severity.FAULT
    assert finding.measured == pytest.approx(factor, abs=1e-4)


def test_a_bias_that_is_added_once() -> None:
    for model in (Modules(bias=True), Flat()):
        silent(model, "head-bias", inputs=TOKENS)


def test_a_factor_before_the_bias_does_not_multiply_it() -> None:
    class Behind(Multiplied):
        def logits(self, hidden):
            return self.head(hidden) * self.factor + self.bias

    model = Behind()
    model.factor, model.bias = 0.5, nn.Parameter(torch.zeros(VOCABULARY))
    silent(model, "head-bias", inputs=TOKENS)


def test_berts_bias_is_linked_and_added_once() -> None:
    """huggingface/transformers#2957: with the decoder's own bias beside it, it was added twice."""
    sizes = {**SIZES, "max_position_embeddings": 32}
    bert = transformers.BertForMaskedLM(transformers.BertConfig(**sizes))
    assert check(bert, select=["head-bias"]).failing == ()
    predictions = bert.cls.predictions

    def again(module, read, out):
        return out + predictions.bias

    predictions.register_forward_hook(again)
    (finding,) = check(bert, select=["head-bias"]).failing
    assert finding.measured == pytest.approx(2.0, abs=1e-4)


def test_a_model_without_a_bias_is_skipped() -> None:
    report = asked(Modules(), "head-bias", inputs=TOKENS)
    assert report.passed == () and len(report.skipped) == 1


class Round(Modules):
    """47 rows of zeros fill the head up to a round number; all real logits are about −3."""

    def __init__(self, rows: int, bias: float) -> None:
        super().__init__(vocabulary=rows, bias=True)
        with torch.no_grad():
            self.head.weight[-47:] = 0
            self.head.bias[:-47], self.head.bias[-47:] = bias, 0.0


def test_rows_beyond_the_tokenizer() -> None:
    """mirage-project/mirage#751: ids that do not exist win wherever all real logits are negative."""
    declared = Declared(vocabulary=Stated(465, "tokenizer.json"))
    model = Round(512, -3.0)
    finding = found(model, "vocab-rows", inputs=(TOKENS[0] % 465,), declared=declared)
    assert finding.severity is Severity.WARNING
    with torch.no_grad():
        mass = float(model(TOKENS[0] % 465).softmax(-1)[..., 465:].sum(-1).mean())
    assert finding.measured == pytest.approx(mass, rel=0.05)


class Together(nn.Module):
    """One matrix for tokens and positions, as it was first published, and the head is all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY + 32, WIDTH)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.mix = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.norm, self.last = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, tokens):
        x = self.embed(tokens) + self.embed(VOCABULARY + torch.arange(tokens.shape[1]))
        y = self.norm(x)
        return self.last(x + self.mix(y, y, y, need_weights=False)[0]) @ self.embed.weight.T


def test_rows_of_positions_in_the_tied_matrix() -> None:
    """huggingface/pytorch-openai-transformer-lm#47: the softmax gives probability to positions."""
    declared = Declared(vocabulary=Stated(VOCABULARY, "tokenizer.json"))
    finding = found(Together(), "vocab-rows", inputs=TOKENS, declared=declared)
    assert finding.measured == pytest.approx(32 / (VOCABULARY + 32), rel=0.2)


def test_a_head_that_goes_on_with_zeros_where_the_table_ends() -> None:
    model = Modules()
    rows = VOCABULARY + 48
    model.head = nn.Linear(WIDTH, rows, bias=False)
    nn.init.normal_(model.head.weight, std=0.02)
    report = check(model, TOKENS, select=["vocab-rows"])
    assert report.failing == (), "rows that are drawn may be of tokens that are never read"
    with torch.no_grad():
        model.head.weight[VOCABULARY:] = 0
    (finding,) = check(model, TOKENS, select=["vocab-rows"]).failing
    assert (finding.severity, finding.site) == (Severity.WARNING, "head.weight")
    assert finding.measured == pytest.approx(48 / rows, rel=0.1)


@pytest.mark.parametrize("holder", ["config", ""])
def test_a_vocabulary_that_the_model_itself_states(holder: str) -> None:
    """Filled up to a round number, a few rows take little before training; positions in the matrix take much."""
    model = Together()
    for owner in (model, filled := Modules()):
        said = VOCABULARY if owner is model else VOCABULARY - 4
        if holder:
            owner.config = SimpleNamespace(vocab_size=said)
        else:
            owner.vocab_size = said
    assert check(model, TOKENS, select=["vocab-rows"]).failing[0].severity is Severity.WARNING
    report = check(filled, TOKENS, select=["vocab-rows"])
    assert [one.severity for one in report.findings] == [Severity.NOTE], report


class Unread(Modules):
    """The head is a layer with a bias, and its matrix alone is read."""

    def __init__(self) -> None:
        super().__init__(tied=True, bias=True)

    def logits(self, hidden):
        return hidden @ self.table.weight.T


def test_a_bias_that_is_never_read_beside_a_tied_matrix() -> None:
    finding = found(Unread(), "head-bias", inputs=TOKENS)
    assert (finding.site, finding.measured, finding.expected) == ("head.bias", 0.0, 1.0)


def test_rows_of_zeros_at_the_end_say_that_they_belong_to_no_token() -> None:
    model = Modules()
    with torch.no_grad():
        model.head.weight[-47:] = 0
    finding = next(iter(check(model, TOKENS, select=["vocab-rows"]).findings))
    logits = model.eval()(TOKENS[0])
    assert finding.measured == pytest.approx(float(logits.detach().softmax(-1)[..., -47:].sum(-1).mean()), rel=0.05)
    assert finding.severity is Severity.WARNING
    assert check(Modules(), TOKENS, select=["vocab-rows"]).findings == ()


@pytest.mark.parametrize("options", [lambda **held: held, lambda **held: SimpleNamespace(**held)])
def test_options_of_a_configuration_of_any_make_are_declarations(options) -> None:
    model = Modules()
    model.config = options(vocab_size=VOCABULARY - 40, final_logit_softcapping=30.0)
    findings = {one.rule: one for one in check(model, TOKENS, select=["vocab-rows", "soft-cap"]).failing}
    assert findings.keys() == {"vocab-rows", "soft-cap"}
    assert findings["soft-cap"].expected == 30.0 and findings["vocab-rows"].measured > 1e-4
    model.config = options(vocab_size=VOCABULARY)
    assert check(model, TOKENS, select=["vocab-rows", "soft-cap"]).clean


class Images(nn.Module):
    """A classifier of patches, the mean over them before its last layer."""

    def __init__(self, added: float, factor: float = 1.0, calls: int = 1) -> None:
        super().__init__()
        self.added, self.factor, self.calls = added, factor, calls
        self.patch = nn.Linear(27, 16)
        self.body = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True, norm_first=True)
        self.classes = nn.Linear(16, 7)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        hidden = self.body(self.patch(patches))
        logits = sum(self.classes(hidden[:, number]) for number in range(self.calls))
        return self.factor * (logits + self.added * self.classes.bias)


@pytest.mark.parametrize(("options", "ratio"), [((1.0,), 2.0), ((1.0, 0.5), 2.0), ((-1.0,), 0.0)])
def test_the_bias_of_a_classifier_without_a_table(options, ratio) -> None:
    finding = found(Images(*options), "head-bias", inputs=(torch.randn(3, 9, 27),))
    assert finding.severity is Severity.FAULT and finding.site == "classes.bias"
    assert finding.measured == pytest.approx(ratio, abs=1e-5) and finding.expected == 1.0


@pytest.mark.parametrize("options", [(0.0,), (0.0, 0.2), (0.0, 1.0, 3)])
def test_a_factor_or_several_calls_of_a_classifier_are_those_of_its_bias_too(options) -> None:
    silent(Images(*options), "head-bias", inputs=(torch.randn(3, 9, 27),))
