"""Modules that do what nobody expects of a Transformer, each with the arguments and the loss it is checked with."""

import dataclasses
import random
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, WIDTH = 50, 16
TOKENS = torch.randint(4, WORDS, (6, 13), generator=torch.Generator().manual_seed(0))


class Plain(nn.Module):
    """A sound one: table, attention, feed-forward, head."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.last = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, WORDS)

    def body(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        y = self.norm(x)
        x = x + F.scaled_dot_product_attention(self.query(y), self.key(y), self.value(y))
        return self.head(self.last(x))

    def forward(self, tokens: Tensor) -> Any:
        return self.body(tokens)


@dataclasses.dataclass
class Output:
    logits: Tensor
    more: Any = None


def returning(make: Callable[[Tensor], Any]) -> nn.Module:
    class Returns(Plain):
        def forward(self, tokens: Tensor) -> Any:
            return make(self.body(tokens))

    return Returns()


def raising(error: BaseException, at: int) -> nn.Module:
    class Raises(Plain):
        calls = 0

        def forward(self, tokens: Tensor) -> Tensor:
            self.calls += 1
            Raises.calls += 1
            if Raises.calls > at:
                raise error
            return self.body(tokens)

    return Raises()


class Prints(Plain):
    def forward(self, tokens: Tensor) -> Tensor:
        print("\x1b[31mhere", file=sys.stdout)
        sys.stderr.write("there\n")
        return self.body(tokens)


class Needs(Plain):
    def forward(self, tokens: Tensor, temperature: float, *, mode: str, **rest: Any) -> Tensor:
        return self.body(tokens) * temperature


class Anything(Plain):
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.body(args[0] if args else kwargs["tokens"])


class Changes(Plain):
    """Is another one after each call."""

    def forward(self, tokens: Tensor) -> Tensor:
        with torch.no_grad():
            self.head.weight.add_(1.0)
        self.seen = tokens
        self.add_module(f"more{len(self._modules)}", nn.Linear(2, 2))
        torch.manual_seed(3)
        random.seed(4)
        return self.body(tokens)


class Deletes(Plain):
    def forward(self, tokens: Tensor) -> Tensor:
        out = self.body(tokens)
        del self._modules["last"]
        return out


class Calls(Plain):
    """Itself, without end."""

    def forward(self, tokens: Tensor) -> Tensor:
        return self(tokens)


class Refuses(Plain):
    def train(self, mode: bool = True) -> nn.Module:
        raise RuntimeError("this one is never trained")

    def __getattr__(self, name: str) -> Any:
        if name == "config":
            raise KeyError("no configuration")
        return super().__getattr__(name)


class Silent(nn.Module):
    """Has no forward."""


class Nothing(nn.Module):
    """Has no parameters."""

    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.mT).softmax(-1) @ x


class Scalar(Plain):
    def forward(self, tokens: Tensor) -> Tensor:
        return self.body(tokens).mean()


class Backwards(torch.autograd.Function):
    """Whose gradient nobody has written."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ValueError("no gradient is known")


class Ungraded(Plain):
    def forward(self, tokens: Tensor) -> Tensor:
        return Backwards.apply(self.body(tokens))


def filled(value: float) -> nn.Module:
    model = Plain()
    with torch.no_grad():
        model.key.weight[3, 4] = value
    return model


def lazy() -> nn.Module:
    model = Plain()
    model.query = nn.LazyLinear(WIDTH)
    return model


def integers() -> nn.Module:
    model = Plain()
    model.table.weight = nn.Parameter(torch.randint(-9, 9, (WORDS, WIDTH), dtype=torch.int8), requires_grad=False)
    return model


def quantised() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(Plain(), {nn.Linear}, dtype=torch.qint8)


def scripted() -> nn.Module:
    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.table(tokens)
            return self.head((x @ x.transpose(1, 2)).softmax(-1) @ x)

    return torch.jit.trace(Body(), TOKENS)


def expanded() -> nn.Module:
    """A matrix of a million million entries, which lie in one."""
    model = Plain()
    model.big = nn.Parameter(torch.zeros(1).expand(10**6, 10**6), requires_grad=False)
    return model


def cyclic() -> nn.Module:
    model = Plain()
    model._modules["itself"] = model
    return model


def nested() -> nn.Module:
    model: nn.Module = Plain()
    for _ in range(1500):
        model = nn.Sequential(model)
    return model


def sparse() -> nn.Module:
    model = Plain()
    model.more = nn.Parameter(torch.eye(20).to_sparse(), requires_grad=False)
    return model


def complex_numbers() -> nn.Module:
    model = Plain()
    model.more = nn.Parameter(torch.randn(20, 20, dtype=torch.complex64))
    return model


def empty() -> nn.Module:
    model = Plain()
    model.more, model.none = nn.Parameter(torch.empty(0, 20)), nn.Parameter(torch.tensor(2.0))
    return model


def of_type(dtype: torch.dtype) -> nn.Module:
    return Plain().to(dtype)


def large() -> nn.Module:
    """Asks for more than there is, once it runs."""

    class Asks(Plain):
        def forward(self, tokens: Tensor) -> Tensor:
            return self.body(tokens) + torch.ones(2**40)[0]

    return Asks()


class Theirs(Exception):
    """An exception whose text cannot be read."""

    def __str__(self) -> str:
        return "\x1b[2J\n" + "x" * 100_000


MODULES: tuple[Callable[[], Any], ...] = (
    Plain,
    lambda: returning(Output),
    lambda: returning(lambda x: Output(x, [None, {"a": (x,)}])),
    lambda: returning(lambda x: (x, None, "text", 3)),
    lambda: returning(lambda x: {"logits": x, 1: None}),
    lambda: returning(lambda x: None),
    lambda: returning(lambda x: "text"),
    lambda: returning(lambda x: [[x]] * 3),
    lambda: returning(lambda x: x.argmax(-1)),
    lambda: returning(lambda x: x[:0]),
    lambda: returning(lambda x: x.detach()),
    lambda: returning(lambda x: x * float("nan")),
    lambda: returning(lambda x: x.to(torch.complex64)),
    lambda: returning(lambda x: x.to_sparse()),
    lambda: returning(lambda x: iter([x])),
    lambda: returning(lambda x: x.softmax(-1)),
    *(lambda at=at: raising(ValueError("not today"), at) for at in (0, 1, 2, 4)),
    *(lambda at=at: raising(Theirs(), at) for at in (0, 3)),
    lambda: raising(MemoryError(), 0),
    lambda: raising(KeyError("input_ids"), 1),
    lambda: raising(SystemExit(3), 1),
    lambda: raising(StopIteration(), 0),
    Prints,
    Needs,
    Anything,
    Changes,
    Deletes,
    Calls,
    Refuses,
    Silent,
    Nothing,
    Scalar,
    Ungraded,
    *(lambda value=value: filled(value) for value in (float("nan"), float("inf"), 1e38)),
    lazy,
    integers,
    quantised,
    scripted,
    expanded,
    cyclic,
    nested,
    sparse,
    complex_numbers,
    empty,
    large,
    lambda: Plain().to("meta"),
    *(lambda dtype=dtype: of_type(dtype) for dtype in (torch.float64, torch.float16, torch.bfloat16)),
    lambda: nn.Linear(4, 4),
    lambda: nn.ReLU(),
    lambda: nn.Transformer(16, 2, 1, 1, 16),
    lambda: nn.DataParallel(Plain()),
    lambda: nn.LSTM(8, 8),
    lambda: None,
    lambda: 7,
    lambda: Plain,
    lambda: {"weight": torch.ones(3)},
)
INPUTS: tuple[Any, ...] = (
    *[None] * 6,
    (TOKENS,),
    TOKENS[:1],
    TOKENS[:, :1],
    (TOKENS.float(),),
    (TOKENS + 10**6,),
    (TOKENS[:0],),
    {"nonsense": TOKENS},
    {},
    "tokens",
    [None],
    torch.randn(3),
)
LOSSES: tuple[Any, ...] = (
    *[None] * 6,
    lambda out: out.square().mean(),
    lambda out: F.cross_entropy(out.flatten(0, 1), TOKENS.flatten()),
    lambda out: out,
    lambda out: "loss",
    lambda out: None,
    lambda out: 1 / 0,
    lambda out: torch.tensor(float("nan"), requires_grad=True),
)


def drawn(draw: random.Random) -> tuple[Any, dict[str, Any]]:
    """A module, and the options of its check."""
    torch.manual_seed(draw.randrange(1000))
    options = {"example": draw.choice(INPUTS), "loss": draw.choice(LOSSES)}
    if draw.random() < 0.2:
        options["trained"] = draw.random() < 0.5
    if draw.random() < 0.1:
        options["static"] = True
    return draw.choice(MODULES)(), options
