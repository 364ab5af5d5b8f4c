"""Whatever a forward does to its module, the probe leaves no trace; what goes wrong becomes one message."""

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from measure import constructions as built
from measure.faults import VOCABULARY, Attention, Language, by_argument
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from surd.errors import SurdError
from surd.measure.calling.restore import preserved
from surd.measure.probe import probe


class Mutable(Language):
    """Does to itself what forwards do: counts, caches, replaces a buffer, draws random numbers."""

    def __init__(self, fails: bool):
        super().__init__(Attention())
        self.fails, self.calls, self.last = fails, 0, None
        self.past, self.cache, self.total = [], {}, torch.zeros(1)
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("grown", torch.zeros(1))
        self.frozen = nn.Dropout(0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls += 1
        self.seen += 1
        self.total += 1
        self.grown = torch.zeros(2)
        self.past.append(tokens)
        self.cache[self.calls] = tokens
        self.last = self.frozen(self.table(tokens)) + torch.randn(()) + random.random()
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
    hooks = [dict(module._forward_hooks) for module in model.modules()]
    tokens = torch.randint(VOCABULARY, (6, 13))
    same, torch_state, python_state = tokens.clone(), torch.get_rng_state(), random.getstate()
    if fails:
        with pytest.raises(SurdError, match="on purpose"):
            probe(model, tokens, torch.sum)
    else:
        assert probe(model, tokens, torch.sum).attention
    assert torch.equal(tokens, same)
    assert torch.equal(torch.get_rng_state(), torch_state) and random.getstate() == python_state
    after = model.state_dict()
    assert after.keys() == state.keys() and all(torch.equal(after[name], state[name]) for name in state)
    assert all(buffer is buffers[name] for name, buffer in model.named_buffers())
    assert (model.calls, model.last, model.past, model.cache, model.total.item()) == (0, None, [], {}, 0.0)
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
    model.table.max_norm = 1.0  # torch itself then shortens the rows that it looks up
    before = copy.deepcopy(model.state_dict())
    assert probe(model).attention[0].judged
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


class Copies(TorchFunctionMode):
    """Whose memory is copied."""

    def __init__(self) -> None:
        super().__init__()
        self.of: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "clone":
            self.of.add(args[0].data_ptr())
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("writes", [False, True])
def test_weights_are_copied_only_when_something_is_written_to_them(writes: bool) -> None:
    """A copy of each, each time, would double the memory of a large model."""
    model = Language(Attention())
    with Copies() as copies, preserved(model), torch.no_grad():
        model(torch.randint(VOCABULARY, (2, 5)))
        if writes:
            model.head.weight.mul_(2)
    weights = {weight.data_ptr() for weight in model.parameters()}
    assert copies.of & weights == ({model.head.weight.data_ptr()} if writes else set())


@pytest.mark.parametrize("build", [Attention, lambda: Attention(by_argument), built.Rotary])
def test_the_tap_changes_no_output(build: Callable[[], nn.Module]) -> None:
    seen: list[Tensor] = []
    model = Language(build()).eval()
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


def test_inputs_that_cannot_be_guessed_are_refused_with_the_signature() -> None:
    class Many(nn.Module):
        def forward(self, first: Tensor, second: Tensor, third: Tensor) -> Tensor:
            return first + second + third

    with pytest.raises(SurdError, match=r"first, second, third.*Give what it is called with"):
        probe(Many())


def test_a_forward_that_raises_is_reported_with_what_it_was_given() -> None:
    with pytest.raises(SurdError, match=r"IndexError.*input 1 \(6, 2\)"):
        probe(Language(Attention()), torch.full((6, 2), VOCABULARY))


def test_a_forward_that_needs_its_own_no_grad_gets_it_and_what_it_hides_is_said() -> None:
    class Counting(Attention):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.output.bias += 1.0  # no leaf may be changed in place while a graph is kept
            return super().forward(x)

    trace = probe(Language(Counting()))
    assert trace.attention[0].judged
    assert any("torch.no_grad" in unseen.reason for unseen in trace.unseen)
