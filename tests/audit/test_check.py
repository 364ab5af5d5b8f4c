"""`surd.check`: what it is given comes back as it was, what cannot be judged is one message, and stdout stays clean."""

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from run.tiny import tiny_run
from safetensors.torch import save_file
from torch import Tensor, nn

import surd
from surd.audit.rule import names
from surd.audit.specimen import language_model
from surd.errors import SurdError


class Busy(nn.Module):
    """A Transformer that draws, counts and prints in its forward, as people's own do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = language_model()
        self.frozen = nn.Dropout(0.5)
        self.calls = 0
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, tokens: Tensor) -> Tensor:
        print("called")
        self.calls += 1
        self.seen += random.random() + torch.rand(())
        return self.frozen(self.inner(tokens))


def test_a_model_comes_back_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    model = Busy().train()
    model.frozen.eval()
    names = [name for name, _ in model.named_parameters()]
    model.get_parameter(names[0]).requires_grad_(False)
    model.get_parameter(names[1]).grad = torch.ones_like(model.get_parameter(names[1]))
    handle = model.inner.register_forward_hook(lambda module, args, out: None)
    tokens = torch.randint(4, 400, (6, 13))
    before = {name: x.clone() for name, x in model.state_dict().items()}
    objects = {name: id(x) for name, x in (*model.named_parameters(), *model.named_buffers())}
    gradients = {name: x.grad for name, x in model.named_parameters()}
    wanted = [x.requires_grad for x in model.parameters()]
    modes = [module.training for module in model.modules()]
    hooks = [(dict(m._forward_hooks), dict(m._forward_pre_hooks), dict(m._backward_hooks)) for m in model.modules()]
    given, states = tokens.clone(), (torch.get_rng_state(), random.getstate())

    report = surd.check(model, tokens, lambda logits: logits.square().mean())

    assert report.trace is not None and report.trace.attention
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert {name: id(x) for name, x in (*model.named_parameters(), *model.named_buffers())} == objects
    assert {name: x.grad for name, x in model.named_parameters()} == gradients
    assert [x.requires_grad for x in model.parameters()] == wanted
    assert [module.training for module in model.modules()] == modes
    assert [
        (dict(m._forward_hooks), dict(m._forward_pre_hooks), dict(m._backward_hooks)) for m in model.modules()
    ] == hooks
    assert torch.equal(tokens, given) and model.calls == 0
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert torch.is_grad_enabled()
    handle.remove()
    told = capsys.readouterr()
    assert told.out == "" and "called" in told.err


def test_healthy_specimens_and_runs_have_nothing_against_them(tmp_path: Path) -> None:
    assert surd.check(language_model()).findings == ()
    run = tiny_run(tmp_path / "run")
    for given in (run.folder, str(run.folder), surd.load(run.folder)):
        report = surd.check(given)
        assert report.trace is not None and report.clean, str(report)


class Raises(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("on purpose")


class Asks(Raises):
    def forward(self, x: Tensor, scale: float, other: Tensor, more: Tensor) -> Tensor:
        return x


def broken(value: float) -> nn.Module:
    model = language_model()
    next(model.parameters()).data[3, 2] = value
    return model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Raises(), "the forward of Raises raised RuntimeError: on purpose"),
        (Asks(), r"no way to fill x, scale, other, more.*Give what it is called with"),
        (nn.Sequential(nn.Linear(8, 8), nn.ReLU()), "no attention was found: looked for scaled_dot_product_attention"),
        (nn.Embedding(50, 8), "no attention was found"),
        (nn.Linear(4, 4, device="meta"), "weight is on the meta device"),
        (nn.LazyLinear(4), "weight belongs to a lazy layer"),
        (broken(float("nan")), r"^table.weight: 1 of its [\d,]+ numbers are NaN or infinite"),
        (broken(float("inf")), r"^table.weight: 1 of its"),
        (3, "found a int"),
    ],
)
def test_what_cannot_be_judged_is_one_message(model: object, message: str) -> None:
    with pytest.raises(SurdError, match=message):
        surd.check(model)


def test_a_batch_in_a_file_is_what_the_model_is_called_with(tmp_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = language_model()

        def forward(self, tokens: Tensor, shift: Tensor, unused: Tensor) -> Tensor:
            return self.inner(tokens) + shift

    path = tmp_path / "batch.safetensors"
    save_file({"tokens": torch.randint(4, 400, (6, 13)), "shift": torch.zeros(1), "unused": torch.zeros(2)}, path)
    report = surd.check(Two(), batch=path)
    assert report.trace is not None and report.trace.attention
    with pytest.raises(SurdError, match="example and batch are both given"):
        surd.check(Two(), torch.zeros(1), batch=path)
    with pytest.raises(SurdError, match="there is no such file"):
        surd.check(Two(), batch=tmp_path / "none")
    (tmp_path / "junk").write_bytes(b"junk")
    with pytest.raises(SurdError, match=r"not a \.safetensors file"):
        surd.check(Two(), batch=tmp_path / "junk")


def test_only_selected_rules_look() -> None:
    model = copy.deepcopy(language_model())
    report = surd.check(model, select=["attention-scale"])
    assert report.passed == ("attention-scale",) and report.skipped == ()
    static = surd.check(model, static=True)
    assert static.trace is None and "attention-scale" not in static.passed
    assert "nothing is run" in next(one.reason for one in static.skipped if one.rule == "attention-scale")
    with pytest.raises(SurdError, match='Did you mean "attention-scale"'):
        surd.check(model, select=["attention-scales"])


def test_one_rule_may_be_given_as_a_text() -> None:
    report = surd.check(language_model(), select="attention-scale")
    assert report.passed == ("attention-scale",)
    assert "attention-scale" not in surd.check(language_model(), static=True, ignore="attention-scale").passed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": 5}, "expected a loss to be a function"),
        ({"trained": "untrained"}, "trained is True or False"),
        ({"select": ["soft-cap"], "ignore": ["soft-cap"]}, "none is left"),
        ({"static": True, "batch": "none"}, "static calls nothing"),
        ({"select": "attention-scales"}, 'Did you mean "attention-scale"'),
    ],
)
def test_what_an_argument_cannot_be_is_one_message(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SurdError, match=message):
        surd.check(language_model(), **changes)


def test_what_nobody_looked_at_is_not_clean() -> None:
    report = surd.check(language_model(), static=True, select="attention-scale")
    assert not report.looked and not report.clean
    assert str(report).startswith("LanguageModel: nothing was looked at")


def test_two_live_models_of_one_class_are_told_apart() -> None:
    report = surd.check(language_model(0), against=language_model(1))
    assert report.subject == "LanguageModel against the other LanguageModel"
    known = {*report.passed, *(one.rule for one in report.skipped), *(one.rule for one in report.findings)}
    assert known == set(names())


def test_a_run_is_padded_and_saved(tmp_path: Path) -> None:
    run = str(tiny_run(tmp_path / "run").folder)
    alone = surd.check(run, select=["mask-leak", "empty-rows"])
    assert "mask-leak" in alone.passed and "all padding" in alone.skipped[0].reason
    for state in ("padded", "saved"):
        assert surd.check(run, against=state).clean, state
    assert "mask-leak" in surd.check(run, against="padded").passed
