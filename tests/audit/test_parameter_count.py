"""Counts of parameters that take a shared matrix twice, or leave it out."""

from typing import Any

import pytest
import torch
import transformers
from audit.asked import asked, found, silent
from torch import nn

from surd.api import check
from surd.audit.declared import Declared, Stated
from surd.audit.finding import Severity
from surd.audit.specimen import VOCABULARY, WIDTH, LanguageModel

RULE = "parameter-count"
SHARED = VOCABULARY * WIDTH


class Counted(LanguageModel):
    """With a table of positions that is not as large as that of tokens."""

    def numbers(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


class OverStages(Counted):
    def count_parameters(self) -> int:
        stages = [self.table, self.places, self.blocks, self.norm, self.head]
        return sum(parameter.numel() for stage in stages for parameter in stage.parameters())


class OverNames(Counted):
    @property
    def num_params(self) -> int:
        return sum(parameter.numel() for _, parameter in self.named_parameters(remove_duplicate=False))


class Subtracted(Counted):
    def get_num_params(self) -> int:
        return self.numbers() - self.table.weight.numel()


class SubtractedTwice(Counted):
    def num_parameters(self) -> int:
        return self.numbers() - self.table.weight.numel() - self.head.weight.numel()


class InMillions(Counted):
    def num_params(self) -> float:
        return round(sum(parameter.numel() for parameter in self.state_dict().values()) / 1e6, 4)


class RightInMillions(Counted):
    def num_params(self) -> float:
        return self.numbers() / 1e6


class Right(Counted):
    def num_parameters(self) -> int:
        return self.numbers()


class WithoutPositions(Counted):
    def get_num_params(self, non_embedding: bool = True) -> int:
        return self.numbers() - (self.places.weight.numel() if non_embedding else 0)


class WithoutTable(Counted):
    def get_num_params(self, non_embedding: bool = True) -> int:
        return self.numbers() - (self.table.weight.numel() if non_embedding else 0)


class SaidSo(Counted):
    def count_params(self) -> int:
        """Of all that is no embedding."""
        return self.numbers() - self.table.weight.numel()


@pytest.mark.parametrize(
    ("kind", "difference"),
    [
        (OverStages, SHARED),
        (OverNames, SHARED),
        (Subtracted, -SHARED),
        (SubtractedTwice, -2 * SHARED),
        (InMillions, SHARED),
    ],
)
def test_a_shared_matrix_is_counted_wrong(kind: Any, difference: int) -> None:
    model = kind()
    one = found(model, RULE)
    assert one.severity is Severity.FAULT
    assert one.expected == model.numbers() and one.measured == model.numbers() + difference
    model.head.weight = nn.Parameter(torch.randn(VOCABULARY, WIDTH))
    assert asked(model, RULE).clean, "of two matrices there are two"


def test_a_number_that_was_noted_down() -> None:
    """A summary that is the same for tied and untied, kept as an attribute; and one that an index states."""
    model = Counted()
    model.total_params = model.numbers() + SHARED
    one = found(model, RULE)
    assert one.measured == model.numbers() + SHARED and one.expected == model.numbers() and one.site == "total_params"
    declared = Declared(parameters=Stated(Counted().numbers() + SHARED, "the index"))
    assert found(Counted(), RULE, declared=declared).expected == Counted().numbers()
    silent(Counted(), RULE, declared=Declared(parameters=Stated(Counted().numbers(), "the index")))


def test_a_released_model_counts_right_and_a_subclass_does_not() -> None:
    config = transformers.GPT2Config(vocab_size=96, n_embd=32, n_layer=1, n_head=4, n_positions=32)

    class Twice(transformers.GPT2LMHeadModel):
        def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
            return super().num_parameters() + self.lm_head.weight.numel()

    assert RULE in check(transformers.GPT2LMHeadModel(config), select=[RULE]).passed
    one = check(Twice(config), select=[RULE]).failing[0]
    assert one.measured - one.expected == 96 * 32  # type: ignore[operator]


@pytest.mark.parametrize("kind", [Right, RightInMillions, WithoutPositions, WithoutTable])
def test_counts_that_are_right_or_have_an_option_for_the_rest(kind: Any) -> None:
    silent(kind(), RULE)


def test_a_count_that_says_what_it_leaves_out_is_not_judged() -> None:
    report = asked(SaidSo(), RULE)
    assert report.findings == () and RULE not in report.passed


def test_a_position_table_as_large_as_the_shared_one() -> None:
    """What was left out is then not known."""

    class Square(Counted):
        def num_params(self) -> int:
            return self.numbers() - self.places.weight.numel()

    model = Square()
    model.places = nn.Embedding(VOCABULARY, WIDTH)
    silent(model, RULE)


def test_nobody_says_a_number() -> None:
    report = asked(Counted(), RULE)
    assert RULE not in report.passed and len(report.skipped) == 1


def test_a_method_leaves_nothing_behind() -> None:
    class Restless(Counted):
        def num_params(self) -> int:
            self.calls = 1
            self.train()
            torch.rand(3)
            with torch.no_grad():
                self.norm.weight.add_(1)
            self.norm.weight.requires_grad_(False)
            return self.numbers() + SHARED

        def count_params(self) -> int:
            raise RuntimeError("it needs the network")

        def n_params(self, what: str) -> int:
            return len(what)

        def total_params(self) -> int:
            raise SystemExit(3)

    model = Restless().eval()
    state = torch.get_rng_state()
    assert found(model, RULE).site == "num_params()"
    assert not hasattr(model, "calls") and not model.training and model.norm.weight.requires_grad
    assert torch.equal(torch.get_rng_state(), state)
    assert bool((model.norm.weight == 1).all())


def test_without_running_anything_no_method_is_called() -> None:
    class Loud(Counted):
        def num_params(self) -> int:
            raise AssertionError("it was called")

        @property
        def total_params(self) -> int:
            raise AssertionError("it was called")

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            raise AssertionError("it was called")

    report = check(Loud(), static=True)
    assert report.trace is None and RULE in [one.rule for one in report.skipped]
