"""An untrained model starts near ln V, or the check says how far above, and why."""

from math import log, sqrt

import pytest
import torch
import transformers
from audit.asked import asked, found, silent
from audit.languages import VOCABULARY, WIDTH, Flat, Modules
from torch import nn

from surd.api import check
from surd.audit.evidence import Evidence
from surd.audit.finding import Severity
from surd.audit.rules.initial_loss import own_logit
from surd.audit.specimen import encoder, language_model
from surd.audit.subject import of_module

RULE = "initial-loss"
TOKENS = (torch.randint(4, VOCABULARY, (6, 13), generator=torch.Generator().manual_seed(2)),)


@pytest.fixture(autouse=True)
def seeded() -> None:
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)


def excess(std: float, classes: int = VOCABULARY) -> float:
    """Mean −ln softmax over logits drawn from N(0, s²), above ln V."""
    logits = std * torch.randn(4000, classes, generator=torch.Generator().manual_seed(1))
    return float((logits.logsumexp(-1) - logits.mean(-1)).mean()) - log(classes)


def flat(std: float) -> nn.Module:
    return Flat(std=std / sqrt(WIDTH))


def modules(std: float) -> nn.Module:
    model = Modules()
    nn.init.normal_(model.head.weight, std=std / sqrt(WIDTH))
    return model


STYLES = [flat, modules]


@pytest.mark.parametrize("style", STYLES)
def test_s_squared_over_two(style) -> None:
    finding = found(style(1.5), RULE, inputs=TOKENS)
    assert finding.severity is Severity.WARNING
    assert finding.measured == pytest.approx(1.5**2 / 2, rel=0.05)
    finding = found(style(2.0), RULE, inputs=TOKENS)
    assert finding.measured == pytest.approx(excess(2.0), rel=0.05)


@pytest.mark.parametrize("style", STYLES)
def test_a_head_of_unit_entries(style) -> None:
    """PyTorch's default of a table, given to a head: logits of standard deviation √d_model."""
    finding = found(style(sqrt(WIDTH)), RULE, inputs=TOKENS)
    assert finding.severity is Severity.FAULT
    assert finding.measured == pytest.approx(excess(sqrt(WIDTH)), rel=0.05)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("std", [0.16, 1.0])
def test_a_head_of_usual_size_is_silent(style, std) -> None:
    silent(style(std), RULE, inputs=TOKENS)


def test_a_tied_table_of_unit_entries_copies_its_input() -> None:
    model = Modules(tied=True)
    nn.init.normal_(model.table.weight)
    finding = found(model, RULE)
    assert finding.severity is Severity.FAULT
    assert isinstance(finding.measured, float) and finding.measured > 2 * excess(sqrt(WIDTH)) - log(VOCABULARY)


@pytest.mark.parametrize("std", [0.6, 4.0])
def test_a_tied_table_larger_than_it_should_be(std) -> None:
    """lmsdss/LayerNorm-Scaling#6 left 0.6, microsoft/mup#55 a deviation that grows with the width."""
    model = Modules(tied=True)
    nn.init.normal_(model.table.weight, std=std)
    finding = found(model, RULE)
    assert finding.severity is Severity.FAULT
    with torch.no_grad():
        logits = model(*TOKENS)
    assert float(logits.std(-1).mean()) == pytest.approx(std * sqrt(WIDTH), rel=0.2)


def test_tied_and_pre_norm_by_the_papers_recipe_is_warned_of_from_some_width_on() -> None:
    """The own token's logit grows like √d_model, though every scale is right."""
    for width, vocabulary, failing in ((32, 500, 0), (256, 100, 1)):
        model = Modules(width, tied=True, vocabulary=vocabulary)
        nn.init.normal_(model.table.weight, std=width**-0.5)
        model.table.register_forward_hook(lambda module, read, rows, width=width: rows * sqrt(width))
        report = asked(model, RULE)
        assert len(report.failing) == failing, str(report)
        assert all(one.severity is Severity.WARNING for one in report.failing)


@pytest.mark.parametrize("model", [language_model, encoder])
def test_specimens_are_silent(model) -> None:
    if model is encoder:
        model = lambda: nn.Sequential(encoder(), nn.Linear(64, 500))  # noqa: E731
    silent(model(), RULE)


def gpt2(**changed) -> nn.Module:
    sizes = {"n_embd": 48, "n_layer": 2, "n_head": 4, "vocab_size": 300, "n_positions": 32}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **changed))


def test_hugging_face() -> None:
    silent(gpt2(), RULE)
    assert found(gpt2(initializer_range=1.0), RULE).severity is Severity.FAULT


def test_a_tied_t5_divides_before_its_head() -> None:
    """Its table has unit entries: the input's own token stands out, and all else is as it should be."""
    sizes = {"vocab_size": 500, "d_model": 512, "d_kv": 64, "d_ff": 64, "num_layers": 1, "num_heads": 8}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes))
    report = check(model, select=[RULE])
    assert [one.severity for one in report.findings] == [Severity.DECLARED], str(report)
    assert "scale_decoder_outputs" in report.findings[0].message


IGNORED = -100


def labelled(tokens: torch.Tensor, ignored: int = IGNORED) -> torch.Tensor:
    """Targets as a trainer hands them on: one later, and nothing at padding."""
    labels = torch.cat([tokens[:, 1:], tokens[:, :1]], 1)
    labels[1::2, 9:] = ignored
    return labels


def test_labels_are_not_the_tokens() -> None:
    """The usual batch of a training holds both, and labels that are no token."""
    batch = {"input_ids": TOKENS[0] % 300, "attention_mask": torch.ones_like(TOKENS[0])}
    batch["labels"] = labelled(batch["input_ids"])
    assert silent(gpt2(), RULE, inputs=batch).findings == ()
    model = gpt2(initializer_range=0.2)
    own = own_logit(Evidence(of_module(model, batch)))
    plain = own_logit(Evidence(of_module(model, {"input_ids": batch["input_ids"]})))
    assert own is not None and own == pytest.approx(plain)


class Trained(Modules):
    """Returns its loss beside its logits, where it is given targets."""

    def forward(self, tokens, targets=None):
        logits = self.logits(self.hidden(tokens))
        if targets is None:
            return logits
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def test_targets_as_the_second_argument() -> None:
    model = Trained(tied=True)
    assert silent(model, RULE, inputs=(TOKENS[0], labelled(TOKENS[0], -1))).findings == ()


@pytest.mark.parametrize("tied", [True, False])
def test_a_tie_through_one_bare_matrix(tied) -> None:
    """The same excess is much for a head of its own, and little for the input's own token of a tied one."""
    model = Flat(tied=tied, std=1.3 * WIDTH**-0.5)
    if tied:
        nn.init.normal_(model.E, std=1.3 * WIDTH**-0.5)
    ties = [one for one in Evidence(of_module(model, TOKENS)).trace.ties if one.same_storage]
    assert bool(ties) is tied
    report = asked(model, RULE, inputs=TOKENS)
    assert [one.high for one in report.failing] == ([] if tied else [0.7]), str(report)


def test_an_untied_t5_whose_head_has_unit_entries() -> None:
    """As it was reported of 111 at d_model 768: huggingface/transformers#26441."""
    sizes = {"vocab_size": 400, "d_model": 64, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes))
    model.config.tie_word_embeddings = model.config.scale_decoder_outputs = False
    model.lm_head = nn.Linear(64, 400, bias=False)
    nn.init.normal_(model.lm_head.weight)
    finding = found(model, RULE)
    assert finding.severity is Severity.FAULT
    assert finding.measured == pytest.approx(excess(8.0, 400), rel=0.05)


def test_trained_models_are_skipped() -> None:
    report = asked(modules(sqrt(WIDTH)), RULE, trained=True)
    assert report.findings == () and [one.rule for one in report.skipped] == [RULE]


def test_a_loss_that_is_a_sum_says_nothing_of_the_start() -> None:
    """160,000 at the start are about 15,000 targets: google-research/t5x#1093."""
    tokens = torch.randint(4, VOCABULARY, (6, 13))

    def summed(logits):
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="sum")

    silent(modules(1.0), RULE, inputs=(tokens,), loss=summed)
