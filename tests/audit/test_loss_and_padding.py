"""Losses: what padding counts, what a sum is, what smoothed targets weigh, and a softmax that is taken twice."""

from math import e, log

import pytest
import torch
import torch.nn.functional as F
import transformers
from audit.asked import asked, found, silent
from audit.languages import VOCABULARY, Flat, Modules
from torch import Tensor, nn

from surd.api import check
from surd.audit.finding import Severity
from surd.audit.judge import judge
from surd.audit.subject import of_module

PAD, ROWS, LENGTH = 0, 6, 13
SIZES = {"n_embd": 48, "n_layer": 1, "n_head": 4, "vocab_size": 300, "n_positions": 32}


def padded_tokens() -> Tensor:
    tokens = torch.randint(4, VOCABULARY, (ROWS, LENGTH), generator=torch.Generator().manual_seed(2))
    tokens[1::2, 9:] = PAD
    return tokens


TOKENS = padded_tokens()
REAL = int((TOKENS != PAD).sum())
TARGETS = TOKENS.flatten()


@pytest.fixture(autouse=True)
def seeded() -> None:
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)


def modules() -> nn.Module:
    model = Modules()
    model.table.padding_idx = PAD
    return model


def flat() -> nn.Module:
    model = Flat()
    model.places = nn.Embedding(2, 4, padding_idx=PAD)  # as good a place as any to say which id is padding
    return model


STYLES = [modules, flat]


def by_index(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), TARGETS, ignore_index=PAD)


def by_mask(logits: Tensor) -> Tensor:
    picked = logits.log_softmax(-1).gather(-1, TOKENS[..., None])[..., 0]
    real = (TOKENS != PAD).float()
    return -(picked * real).sum() / real.sum()


def one_ahead(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten(), ignore_index=PAD)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("loss", [by_index, by_mask, one_ahead])
def test_a_mean_over_real_targets_is_silent(style, loss) -> None:
    for rule in ("loss-padding-invariance", "label-smoothing-mass", "double-softmax"):
        assert silent(style(), rule, inputs=(TOKENS,), loss=loss).findings == ()


def counting(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), TARGETS)


def counting_by_hand(logits: Tensor) -> Tensor:
    return -logits.log_softmax(-1).gather(-1, TOKENS[..., None]).mean()


def ahead_at_padding(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten())


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("loss", [counting, counting_by_hand])
def test_padding_counts(style, loss) -> None:
    finding = found(style(), "loss-padding-invariance", inputs=(TOKENS,), loss=loss)
    assert finding.severity is Severity.FAULT
    assert finding.measured == pytest.approx(1 - REAL / TOKENS.numel(), rel=0.05)


def test_padding_counts_one_ahead() -> None:
    finding = found(modules(), "loss-padding-invariance", inputs=(TOKENS,), loss=ahead_at_padding)
    predicted_from_padding = 3 * 3  # of each padded row all but the first, which is predicted from a word
    assert finding.measured == pytest.approx(predicted_from_padding / (ROWS * (LENGTH - 1)), rel=0.05)


def summed(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), TARGETS, ignore_index=PAD, reduction="sum")


def summed_by_hand(logits: Tensor) -> Tensor:
    picked = logits.log_softmax(-1).gather(-1, TOKENS[..., None])[..., 0]
    return -picked.masked_fill(TOKENS == PAD, 0).sum()


@pytest.mark.parametrize("loss", [summed, summed_by_hand])
def test_a_sum_doubles_with_the_batch(loss) -> None:
    """huggingface/transformers#7546."""
    finding = found(modules(), "loss-padding-invariance", inputs=(TOKENS,), loss=loss)
    assert (finding.severity, finding.measured, finding.expected) == (Severity.WARNING, 2.0, 1.0)
    assert f"{REAL} targets" in finding.message


def over_all_positions(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), TARGETS, ignore_index=PAD, reduction="sum") / TARGETS.numel()


def masked_and_averaged(logits: Tensor) -> Tensor:
    each = F.cross_entropy(logits.flatten(0, 1), TARGETS, reduction="none")
    return (each * (TARGETS != PAD)).mean()


@pytest.mark.parametrize("loss", [over_all_positions, masked_and_averaged])
def test_divided_by_all_positions(loss) -> None:
    finding = found(modules(), "loss-padding-invariance", inputs=(TOKENS,), loss=loss)
    assert finding.severity is Severity.FAULT
    assert finding.measured == pytest.approx(REAL / TOKENS.numel(), rel=0.01)


def mean_of_means(logits: Tensor) -> Tensor:
    each = F.cross_entropy(logits.transpose(1, 2), TOKENS, ignore_index=PAD, reduction="none")
    return (each.sum(1) / (TOKENS != PAD).sum(1)).mean()


def accumulated(logits: Tensor) -> Tensor:
    parts = [F.cross_entropy(one, ids, ignore_index=PAD) for one, ids in zip(logits, TOKENS, strict=True)]
    return torch.stack(parts).mean()


@pytest.mark.parametrize("loss", [mean_of_means, accumulated])
def test_a_mean_of_means(loss) -> None:
    """huggingface/transformers#34191: each target of a short row counts more."""
    finding = found(modules(), "loss-padding-invariance", inputs=(TOKENS,), loss=loss)
    assert finding.severity is Severity.WARNING
    assert finding.measured == pytest.approx(13 / 9, rel=0.01)


SMOOTHING = 0.1


def smoothed_by_torch(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), TARGETS, ignore_index=PAD, label_smoothing=SMOOTHING)


def smoothed_over_others(logits: Tensor) -> Tensor:
    wanted = torch.full_like(logits, SMOOTHING / (VOCABULARY - 1))
    wanted.scatter_(-1, TOKENS[..., None], 1 - SMOOTHING)
    each = -(wanted * logits.log_softmax(-1)).sum(-1)
    return each[TOKENS != PAD].mean()


@pytest.mark.parametrize("loss", [smoothed_by_torch, smoothed_over_others])
def test_smoothing_that_spreads_what_it_takes(loss) -> None:
    for rule in ("loss-padding-invariance", "label-smoothing-mass"):
        assert silent(modules(), rule, inputs=(TOKENS,), loss=loss).findings == ()


def added_to_whole_targets(logits: Tensor) -> Tensor:
    log_p = logits.log_softmax(-1)
    each = -log_p.gather(-1, TOKENS[..., None])[..., 0] - SMOOTHING * log_p.mean(-1)
    return each[TOKENS != PAD].mean()


def spread_too_thin(logits: Tensor) -> Tensor:
    """ε/V over all others beside 1 − ε: the target's own share is lost."""
    wanted = torch.full_like(logits, 0.5 * SMOOTHING / VOCABULARY).scatter(-1, TOKENS[..., None], 1 - SMOOTHING)
    return -(wanted * logits.log_softmax(-1)).sum(-1)[TOKENS != PAD].mean()


@pytest.mark.parametrize(
    ("loss", "mass"),
    [
        (added_to_whole_targets, 1 + SMOOTHING),
        (spread_too_thin, 1 - SMOOTHING + 0.5 * SMOOTHING * (1 - 1 / VOCABULARY)),
    ],
)
def test_targets_of_another_mass(loss, mass) -> None:
    finding = found(modules(), "label-smoothing-mass", inputs=(TOKENS,), loss=loss)
    assert finding.severity is Severity.FAULT
    assert finding.measured == pytest.approx(mass, rel=0.001)
    assert silent(modules(), "loss-padding-invariance", inputs=(TOKENS,), loss=loss).findings == ()


def smoothed_at_padding(logits: Tensor) -> Tensor:
    log_p, real = logits.log_softmax(-1), (TOKENS != PAD).float()
    right = -log_p.gather(-1, TOKENS[..., None])[..., 0] * real
    return ((1 - SMOOTHING) * right.sum() - SMOOTHING * log_p.mean(-1).sum()) / real.sum()


class Generator(Modules):
    """Returns log-probabilities, for a loss that compares distributions."""

    def logits(self, hidden):
        return self.head(hidden).log_softmax(-1)


def divergence(spread: float, at_padding: float):
    """A criterion of the kind that makes its targets itself and takes their divergence from log-probabilities."""

    def loss(log_p: Tensor) -> Tensor:
        wanted = torch.full_like(log_p, SMOOTHING / spread).scatter(-1, TOKENS[..., None], 1 - SMOOTHING)
        wanted[..., PAD] = 0
        wanted = torch.where((TOKENS == PAD)[..., None], at_padding * wanted, wanted)
        return F.kl_div(log_p, wanted, reduction="sum") / REAL

    return loss


def test_ignored_positions_keep_the_smoothed_part() -> None:
    """pytorch/pytorch#73205, k-tahiro/bert-summarizer#41."""
    finding = found(modules(), "label-smoothing-mass", inputs=(TOKENS,), loss=smoothed_at_padding)
    assert finding.severity is Severity.FAULT
    assert finding.measured == pytest.approx(SMOOTHING, rel=0.02)
    written = divergence(VOCABULARY - 2, at_padding=1.0)
    finding = found(Generator(), "label-smoothing-mass", inputs=(TOKENS,), loss=written)
    assert finding.expected == 0.0
    assert finding.measured == pytest.approx(SMOOTHING * (VOCABULARY - 1) / (VOCABULARY - 2), rel=0.02)


def test_a_divergence_from_a_distribution_is_silent() -> None:
    """harvardnlp/annotated-transformer's: nothing for padding, neither as a class nor as a target."""
    written = divergence(VOCABULARY - 2, at_padding=0.0)
    for rule in ("loss-padding-invariance", "label-smoothing-mass", "double-softmax"):
        assert silent(Generator(), rule, inputs=(TOKENS,), loss=written).findings == ()
    wrong = divergence((VOCABULARY - 2) / 2, at_padding=0.0)
    finding = found(Generator(), "label-smoothing-mass", inputs=(TOKENS,), loss=wrong)
    assert finding.measured == pytest.approx(1 + SMOOTHING, rel=0.01)


class Probable(Modules):
    def logits(self, hidden):
        return self.head(hidden).softmax(-1)


class ProbableFlat(Flat):
    def readout(self, h):
        odds = super().readout(h).exp()
        return odds / odds.sum(-1, keepdim=True)


@pytest.mark.parametrize("kind", [Probable, ProbableFlat])
@pytest.mark.parametrize("loss", [None, by_index])
def test_a_softmax_before_the_loss(kind, loss) -> None:
    """bowang-lab/Transformer-GCN-QA#32."""
    finding = found(kind(), "double-softmax", inputs=(TOKENS,), loss=loss)
    assert finding.severity is Severity.FAULT
    assert finding.measured == pytest.approx(1.0, abs=1e-4)
    assert f"{log(1 + (VOCABULARY - 1) / e):.4g}" in finding.message


class Sorting(nn.Module):
    """Two classes."""

    def __init__(self, soft: bool) -> None:
        super().__init__()
        self.language, self.soft, self.last = Modules(), soft, nn.Linear(64, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.last(self.language.hidden(tokens).mean(1))
        return F.softmax(logits, dim=-1) if self.soft else logits


def test_a_classifiers_probabilities() -> None:
    finding = found(Sorting(soft=True), "double-softmax", inputs=(TOKENS,))
    assert f"{log(1 + 1 / e):.4g}" in finding.message
    silent(Sorting(soft=False), "double-softmax", inputs=(TOKENS,))


def test_probabilities_whose_logarithm_the_loss_takes_are_right() -> None:
    def likelihood(p: Tensor) -> Tensor:
        return F.nll_loss(p.flatten(0, 1).log(), TARGETS, ignore_index=PAD)

    silent(Probable(), "double-softmax", inputs=(TOKENS,), loss=likelihood)
    assert silent(Probable(), "loss-padding-invariance", inputs=(TOKENS,), loss=likelihood).findings == ()


def test_another_loss_is_skipped() -> None:
    report = asked(modules(), "loss-padding-invariance", inputs=(TOKENS,), loss=lambda logits: logits.square().mean())
    assert report.passed == () and "no cross-entropy" in report.skipped[0].reason


def gpt2() -> nn.Module:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES))


def test_a_model_that_computes_its_own_loss() -> None:
    for model in (gpt2(), transformers.BertForMaskedLM(transformers.BertConfig(
        vocab_size=300, hidden_size=48, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
    ))):  # fmt: skip
        report = check(model, select=["loss-padding-invariance", "label-smoothing-mass"])
        assert report.findings == (), str(report)
        assert set(report.passed) == {"loss-padding-invariance", "label-smoothing-mass"}


def shifted(labels: Tensor) -> Tensor:
    return F.pad(labels, (0, 1), value=-100)[:, 1:].flatten()


def a_sum(logits, labels, **_):
    return F.cross_entropy(logits.float().flatten(0, 1), shifted(labels), ignore_index=-100, reduction="sum")


def a_count_of_all(logits, labels, **_):
    return F.cross_entropy(logits.float().flatten(0, 1), shifted(labels).clamp(min=0))


def test_a_model_whose_own_loss_is_wrong() -> None:
    model = gpt2()
    model.loss_function = a_sum
    (finding,) = check(model, select=["loss-padding-invariance"]).failing
    assert (finding.severity, finding.measured) == (Severity.WARNING, 2.0)
    model = gpt2()
    model.loss_function = a_count_of_all
    (finding,) = check(model, select=["loss-padding-invariance"]).failing
    assert finding.severity is Severity.FAULT
    assert finding.measured == pytest.approx(3 * 7 / (6 * 13), rel=0.05)


def test_a_loss_of_a_model_output() -> None:
    """What models of Hugging Face's library return is a dict and a dataclass, and stays so on its way to the loss."""
    tokens = torch.randint(4, 300, (6, 13))

    def loss(output):
        return F.cross_entropy(output.logits.flatten(0, 1), tokens.flatten())

    report = judge(of_module(gpt2(), {"input_ids": tokens}, loss), select=["loss-padding-invariance"])
    assert report.passed == ("loss-padding-invariance",), str(report)


class Trained(Modules):
    """A model in the manner of nanoGPT: with targets it returns its loss beside the logits."""

    def __init__(self, ignored: int, soft: bool = False) -> None:
        super().__init__()
        self.table.padding_idx = PAD
        self.ignored, self.soft = ignored, soft

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits = super().forward(tokens)
        logits = logits.softmax(-1) if self.soft else logits
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=self.ignored)


@pytest.mark.parametrize("loss", [None, lambda output: output[1]])
def test_a_loss_that_the_forward_returns_is_read(loss) -> None:
    pair = (TOKENS, TOKENS.clone())
    for rule in ("loss-padding-invariance", "label-smoothing-mass", "double-softmax"):
        assert silent(Trained(ignored=PAD), rule, inputs=pair, loss=loss).findings == ()
    finding = found(Trained(ignored=-100), "loss-padding-invariance", inputs=pair, loss=loss)
    assert finding.measured == pytest.approx(1 - REAL / TOKENS.numel(), rel=0.02)
    assert found(Trained(ignored=PAD, soft=True), "double-softmax", inputs=pair, loss=loss).severity is Severity.FAULT


class Logarithm(Modules):
    """A generator that returns log-probabilities, of what is a softmax already."""

    def logits(self, hidden):
        return F.log_softmax(super().logits(hidden).softmax(-1), -1)


def test_a_logarithm_of_a_softmax_of_a_softmax() -> None:
    finding = found(Logarithm(), "double-softmax", inputs=(TOKENS,))
    assert "log_softmax takes their softmax" in finding.message
    silent(Generator(), "double-softmax", inputs=(TOKENS,))


def nowhere_told() -> nn.Module:
    """No padding_idx and no configuration: the ends of the shorter rows alone show which id is padding."""
    return Modules()


def test_padding_that_only_the_ends_of_rows_show() -> None:
    finding = found(nowhere_told(), "loss-padding-invariance", inputs=(TOKENS,), loss=everything)
    assert finding.severity is Severity.FAULT
    silent(nowhere_told(), "loss-padding-invariance", inputs=(TOKENS,), loss=by_index)
    met = TOKENS.clone()
    met[0, 4] = PAD  # it stands in the middle of a line too, so it is a word
    report = asked(nowhere_told(), "loss-padding-invariance", inputs=(met,), loss=everything)
    assert report.clean and any(one.site == "padding" for one in report.skipped)


def everything(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), TARGETS)


def test_the_mass_of_ignored_positions_is_exact_where_a_class_is_never_a_target() -> None:
    """As in the Annotated Transformer: ε over V - 2 classes, none at padding, whose own rows keep it."""

    def loss(logits: Tensor) -> Tensor:
        targets = torch.full((TARGETS.numel(), VOCABULARY), 0.1 / (VOCABULARY - 2)).to(logits)
        targets.scatter_(1, TARGETS[:, None], 0.9)
        targets[:, PAD] = 0
        return F.kl_div(logits.flatten(0, 1).log_softmax(-1), targets, reduction="sum") / REAL

    finding = found(modules(), "label-smoothing-mass", inputs=(TOKENS,), loss=loss)
    assert finding.measured == pytest.approx(0.1 * (VOCABULARY - 1) / (VOCABULARY - 2), rel=1e-4)


def test_a_factor_on_the_loss_is_no_padding() -> None:
    """One of two terms, or of four accumulated batches."""
    rule = "loss-padding-invariance"
    report = check(modules(), (TOKENS,), lambda logits: by_index(logits) / 4, select=[rule])
    assert [one.severity for one in report.findings] == [Severity.NOTE]
    assert report.findings[0].measured == pytest.approx(0.25, rel=0.01)


def test_a_sum_over_the_rows_is_told_as_one() -> None:
    def by_row(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), TARGETS, ignore_index=PAD, reduction="sum") / ROWS

    report = check(modules(), (TOKENS,), by_row, select=["loss-padding-invariance"])
    assert [one.severity for one in report.findings] == [Severity.FAULT]
    assert "6 rows" in report.findings[0].message


def test_behind_a_head_of_zeros_nothing_is_told() -> None:
    model = modules()
    nn.init.zeros_(model.head.weight)
    if model.head.bias is not None:
        nn.init.zeros_(model.head.bias)
    rules = ["loss-padding-invariance", "label-smoothing-mass"]
    report = check(model, (TOKENS,), by_index, select=rules)
    assert not report.findings
    assert {one.rule for one in report.skipped if "head of zeros" in one.reason} == set(rules)
