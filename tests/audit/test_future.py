"""What of the future a model sees, and how that is told: by algebra none, through one layer, beside its memory."""

import pytest
import torch
import torch.nn.functional as F
import transformers
from audit.asked import asked, found, silent
from measure.faults import D_MODEL, HEALTHY, Attention, Language, merge, split
from torch import Tensor, nn

from surd.audit.finding import Severity

LENGTH = 13


@pytest.fixture(autouse=True)
def seeded() -> None:
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)


def asks_next(tokens: Tensor):
    return lambda logits: F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class DividedOut(Attention):
    """The weights of the future are cut away behind the softmax, and the others made to add up to 1 again."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.again = again

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(project(x)) for project in (self.query, self.key, self.value))
        weights = (q @ k.mT * HEALTHY).softmax(-1).tril()
        weights = weights / weights.sum(-1, keepdim=True) if self.again else weights
        return self.output(merge(weights @ v))


def test_a_future_that_is_divided_out_again():
    tokens = torch.randint(97, (6, LENGTH))
    silent(Language(DividedOut(True)), "causality", inputs=(tokens,), loss=asks_next(tokens))
    assert found(Language(DividedOut(False)), "causality", inputs=(tokens,), loss=asks_next(tokens)).measured > 1e-4


class Skewed(Attention):
    """Relative positions as in the Music Transformer: where none is, a zero is written, and rows are then shifted."""

    def __init__(self, whole: float | None = None) -> None:
        super().__init__()
        self.places, self.whole = nn.Parameter(torch.randn(LENGTH, D_MODEL // 4) * 0.02), whole

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(project(x)) for project in (self.query, self.key, self.value))
        future = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        near = (q @ self.places.mT).masked_fill(future.mT.flip(1), 0.0)
        near = F.pad(near, (1, 0)).view(*near.shape[:2], LENGTH + 1, LENGTH)[:, :, 1:]
        scores = (q @ k.mT + near) * HEALTHY
        hidden = scores.masked_fill(future, -1e9 if self.whole is None else self.whole)
        return self.output(merge(hidden.softmax(-1) @ v))


def test_a_number_written_over_one_summand_hides_nothing():
    report = asked(Language(Skewed()), "mask-fill", "mask-leak", "causality")
    assert report.findings == () and len(report.passed) == 3
    assert [one.rule for one in asked(Language(Skewed(0.0)), "mask-fill", "mask-leak").failing] == ["mask-leak"]


class Remembers(nn.Module):
    """Attends to a memory and, behind it, to its own positions, those after it hidden from `later` places on."""

    def __init__(self, later: int) -> None:
        super().__init__()
        self.table, self.head, self.parts, self.later = (
            nn.Embedding(97, D_MODEL),
            nn.Linear(D_MODEL, 97),
            Attention(),
            later,
        )

    def forward(self, tokens: Tensor, memory: Tensor) -> Tensor:
        x, kept = self.table(tokens), memory.shape[1]
        both = torch.cat([memory, x], 1)
        q, k, v = split(self.parts.query(x)), split(self.parts.key(both)), split(self.parts.value(both))
        hidden = torch.ones(x.shape[1], both.shape[1], dtype=torch.bool).triu(kept + self.later)
        scores = (q @ k.mT * HEALTHY).masked_fill(hidden, -1e9)
        return self.head(x + self.parts.output(merge(scores.softmax(-1) @ v)))


def test_a_triangle_behind_a_memory():
    tokens = torch.randint(97, (6, LENGTH))
    known = {"inputs": (tokens, torch.randn(6, 5, D_MODEL)), "loss": asks_next(tokens)}
    silent(Remembers(1), "causality", **known)
    finding = found(Remembers(2), "causality", **known)
    assert finding.site.endswith(":score") and "1 too wide" in finding.message


class FillsIn(nn.Module):
    """An encoder and a decoder, whose own attention has no mask."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.both = nn.Embedding(97, D_MODEL), nn.Transformer(D_MODEL, 4, 1, 1, 96, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.both(self.table(source), self.table(target)) @ self.table.weight.T


def test_a_decoder_that_fills_in_what_is_masked():
    source, meant = torch.randint(96, (6, 11)), torch.randint(96, (6, LENGTH))
    blank = torch.rand(meant.shape) < 0.5
    labels, target = meant.masked_fill(~blank, -100), meant.masked_fill(blank, 96)

    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    silent(FillsIn(), "causality", inputs=(source, target), loss=loss)
    finding = found(FillsIn(), "causality", inputs=(source, meant), loss=loss)
    assert finding.severity is Severity.WARNING


def test_a_kernel_that_is_causal_only_beside_padding_mixes_no_masks():
    """Hugging Face hands over a mask where there is padding, and asks the kernel for a triangle where there is none."""
    sizes = {"hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 96}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=97, num_key_value_heads=2, **sizes))
    for causal in (True, False):
        for layer in model.model.layers:
            layer.self_attn.is_causal = causal
        inputs = {"input_ids": torch.randint(1, 97, (3, LENGTH))}
        loss = lambda output: asks_next(inputs["input_ids"])(output.logits)  # noqa: B023, E731
        report = asked(model, "causality", "mask-leak", inputs=inputs, loss=loss)
        assert [one.rule for one in report.failing] == ([] if causal else ["causality"]), str(report)
