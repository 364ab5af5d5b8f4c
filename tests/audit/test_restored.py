"""A model is after a check what it was before, bit by bit: also one whose forward or loss raises in the middle."""

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import surd
from surd.errors import SurdError

WORDS, WIDTH = 60, 16
TOKENS = torch.randint(4, WORDS, (6, 13), generator=torch.Generator().manual_seed(1))


class Parts(nn.Module):
    """One block with whatever changes in a forward: dropout, statistics of batches, power iterations, caches, draws."""

    def __init__(self, body: Callable[[nn.Module], nn.Module] = lambda x: x) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(WORDS, WIDTH, padding_idx=0), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=0.1, batch_first=True)
        self.inner = body(nn.Linear(WIDTH, WIDTH))
        self.batch = nn.BatchNorm1d(WIDTH)
        self.dropout, self.last = nn.Dropout(0.2), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.generator = torch.Generator().manual_seed(4)
        self.seen: list[int] = []
        self.calls = 0

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(len(tokens))
        self.latest = tokens
        noise = random.random() + float(numpy.random.rand()) + torch.rand(()) + torch.rand((), generator=self.generator)
        x = self.table(tokens)
        y = self.norm(x)
        x = x + self.dropout(self.attention(y, y, y, need_weights=False)[0])
        x = x + self.batch(self.inner(x).mT).mT * (1 + 0 * noise)
        return self.head(self.last(x))


class Raises(Parts):
    """Half way, at the first call or at a later one."""

    total = 0  # of the class, as what a model counts by itself is given back too

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def forward(self, tokens: Tensor) -> Tensor:
        Raises.total += 1
        self.head.weight.data.mul_(1.5)
        super().forward(tokens)
        if Raises.total > self.at:
            raise ValueError("half way")
        return super().forward(tokens)


class Checkpointed(Parts):
    def forward(self, tokens: Tensor) -> Tensor:
        return checkpoint(super().forward, tokens, use_reentrant=False)


class Wrapper(nn.Module):
    """As data parallelism wraps: another name in front of every weight."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


def tied() -> nn.Module:
    model = Parts()
    model.head.weight = model.table.weight
    return model


STYLES: dict[str, Callable[[], nn.Module]] = {
    "plain": Parts,
    "spectral norm": lambda: Parts(nn.utils.parametrizations.spectral_norm),
    "weight norm": lambda: Parts(nn.utils.parametrizations.weight_norm),
    "spectral norm by a hook": lambda: Parts(nn.utils.spectral_norm),
    "tied": tied,
    "compiled": lambda: torch.compile(Parts(), backend="eager"),
    "checkpointed": Checkpointed,
    "wrapped": lambda: Wrapper(tied()),
    "in data parallelism": lambda: nn.DataParallel(Parts()),
    "raises at once": lambda: Raises(0),
    "raises in the probe": lambda: Raises(2),
    "raises after the probe": lambda: Raises(5),
}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")


def state(model: nn.Module) -> dict[str, Any]:
    """All that could be changed; tensors by their numbers and by which object they are."""
    modules = dict(model.named_modules())
    tensors = dict([*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)])
    found: dict[str, Any] = {f"numbers of {name}": x.detach().clone() for name, x in tensors.items()}
    for name, x in tensors.items():
        found[f"about {name}"] = (id(x), x.data_ptr(), x.requires_grad, x.dtype, str(x.device), x.is_leaf)
        found[f"gradient of {name}"] = None if x.grad is None else x.grad.clone()
        found[f"gradient object of {name}"] = id(x.grad)
    for path, module in modules.items():
        found[f"mode of {path}"] = module.training
        found[f"hooks of {path}"] = [dict(getattr(module, name)) for name in HOOKS]
        found[f"class of {path}"] = type(module)
        found[f"attributes of {path}"] = sorted(vars(module))
        plain = {name: value for name, value in vars(module).items() if isinstance(value, int | list | str | float)}
        found[f"values of {path}"] = copy.deepcopy(plain)
        generators = [value for value in vars(module).values() if isinstance(value, torch.Generator)]
        found[f"generators of {path}"] = [value.get_state() for value in generators]
    return found | {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": [part.tolist() if hasattr(part, "tolist") else part for part in numpy.random.get_state()],
        "gradients on": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "type": torch.get_default_dtype(),
        "anomalies": torch.is_anomaly_enabled(),
        "kernels": (
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
            torch.backends.mha.get_fastpath_enabled(),
            torch.are_deterministic_algorithms_enabled(),
        ),
    }


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    def same(one: Any, other: Any) -> bool:
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            return torch.equal(one, other)
        if isinstance(one, list) and isinstance(other, list):
            return len(one) == len(other) and all(map(same, one, other))
        return one == other

    return [key for key in before.keys() | after.keys() if not same(before.get(key), after.get(key))]


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    surd.check(nn.TransformerEncoderLayer(16, 2, 16, batch_first=True), torch.randn(2, 5, 16))


@pytest.mark.parametrize("style", STYLES)
def test_a_whole_check_changes_nothing(style: str) -> None:
    torch.manual_seed(0)
    Raises.total = 0
    model = STYLES[style]().train()
    parts = list(model.modules())
    parts[-1].eval()
    parts[-2].register_forward_hook(lambda module, args, output: None)
    parameters = list(model.parameters())
    parameters[-1].requires_grad_(False)
    parameters[0].grad = torch.ones_like(parameters[0])
    before, given = state(model), TOKENS.clone()

    def loss(output: Any) -> Tensor:
        return nn.functional.cross_entropy(output.flatten(0, 1), TOKENS.flatten())

    if style in ("raises at once", "raises in the probe"):
        with pytest.raises(SurdError, match="half way"):
            surd.check(model, TOKENS, loss)
    else:
        report = surd.check(model, TOKENS, loss)
        assert report.trace is not None and report.trace.attention
        assert style != "raises after the probe" or any("half way" in one.reason for one in report.skipped)
    assert differences(before, state(model)) == []
    assert torch.equal(TOKENS, given)


def test_a_loss_that_raises_changes_nothing() -> None:
    model = Parts().train()
    before = state(model)

    def loss(output: Tensor) -> Tensor:
        raise ZeroDivisionError("on purpose")

    with pytest.raises(SurdError, match="the loss raised ZeroDivisionError"):
        surd.check(model, TOKENS, loss)
    assert differences(before, state(model)) == []


def test_what_differs_would_be_seen() -> None:
    model = Parts()
    before = state(model)
    model.head.weight.data[0, 0] += 1
    model.extra = torch.ones(1)
    torch.rand(())
    assert set(differences(before, state(model))) == {"numbers of head.weight", "attributes of ", "torch"}
