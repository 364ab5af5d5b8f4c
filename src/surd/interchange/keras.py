"""Models of Keras as subjects of a check: a .keras file or a live model, with torch as the backend.

Keras' layers are then torch modules. Opening a file runs no code that it may hold: Keras' safe mode stays on.
"""

import os
from collections.abc import Generator, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from torch import Tensor, nn

from surd.audit.declared import NOTHING, Declared
from surd.audit.subject import Subject, of_module
from surd.errors import SurdError, raised
from surd.interchange.installed import installed
from surd.measure.calling.building import LENGTH, ROWS, SEED
from surd.measure.calling.inputs import GIVE, arguments

SIDE = 32
"""Of an image whose size a model leaves open."""


def of_file(path: Path, inputs: Any, loss: Any, trained: bool | None) -> Subject:
    """A model saved by `model.save("name.keras")`."""
    if not is_zipfile(path):
        raise SurdError(f"{path}: not a .keras file, which is a zip archive; save it with model.save(NAME.keras)")
    keras = _keras(str(path))
    try:
        model = keras.saving.load_model(str(path), compile=False, safe_mode=True)
    except Exception as error:  # whatever Keras says of classes it does not know, lambdas, or broken weights
        text = " ".join(str(error).split())[:300]
        raise SurdError(
            f"{path}: Keras cannot open it: {text}. A model with classes of your own is opened by your own code: "
            "surd check package.module:factory"
        ) from None
    return live(model, inputs, loss, trained, str(path))


def live(model: Any, inputs: Any, loss: Any, trained: bool | None, name: str = "") -> Subject:
    """A model in memory."""
    keras = _keras(name or "the model")
    if not isinstance(model, nn.Module):
        raise SurdError(
            f"{name or 'the model'}: a {type(model).__name__} of Keras on the backend {keras.backend.backend()}; "
            f"{NEEDED}"
        )
    given = inputs if inputs is not None else _inputs(model)
    if given is None:
        raise SurdError(
            f"{name or model.name}: a {type(model).__name__} of Keras does not tell what it is called with. {GIVE}"
        )
    said = NOTHING if loss is not None or _takes_logits(model) else PROBABLE
    layers: Any = model
    if not all(layer.built for layer in layers._flatten_layers(include_self=True)):
        _build(model, given, name or str(model.name))
    return of_module(Named(model), given, loss, said, trained, name or str(model.name))


def _takes_logits(model: Any) -> bool:
    """Whether the loss that the model was compiled with takes a softmax itself."""
    fn = getattr(model, "loss", None)
    stated = getattr(fn, "_fn_kwargs", None) or {}
    return bool(stated.get("from_logits", getattr(fn, "from_logits", False)))


PROBABLE = Declared(released={"double-softmax": "Keras' losses take probabilities, unless from_logits is set"})


def _build(model: Any, given: Any, name: str) -> None:
    """Calls once what has never been called: only then does Keras make its weights."""
    args, kwargs = arguments(given)
    try:
        with torch.no_grad(), torch.random.fork_rng([]):
            model(*args, **kwargs)
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise SurdError(f"{name}: its first call raised {type(error).__name__}: {text}. {GIVE}") from None


class Named(nn.Module):
    """A Keras model whose layers and variables have Keras' own names, each once.

    To torch, a functional model is one module without children, that holds each variable two or three times.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        object.__setattr__(self, "keras", model)  # hidden from torch, which would find all of it a second time

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.keras(*args, **kwargs)

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Generator[Any]:
        """The whole, and its layers by their paths."""
        yield prefix, self
        yield from _layers(self.keras).items()

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """The variables by their paths."""
        for variable in self.keras.variables:
            if isinstance(variable.value, nn.Parameter):
                yield _dotted(variable.path), variable.value


def _layers(model: Any) -> dict[str, nn.Module]:
    """All layers by their paths, those within others too."""
    found: dict[str, nn.Module] = {}
    for layer in model._flatten_layers(include_self=False):
        path = _dotted(getattr(layer, "path", None) or layer.name)
        number = 1
        while (name := path if number == 1 else f"{path}_{number}") in found:
            number += 1
        found[name] = layer
    return found


def _dotted(path: str) -> str:
    """A path of Keras as one of torch."""
    return path.replace("/", ".")


NEEDED = "check reads Keras on torch: set KERAS_BACKEND=torch before Keras is imported, and open the saved model again"


def _keras(name: str) -> Any:
    if installed("keras") is None:
        raise SurdError(f"{name}: a model of Keras; to open it, install the library: pip install keras")
    os.environ.setdefault("KERAS_BACKEND", "torch")  # read when Keras is imported
    try:
        keras = import_module("keras")
    except Exception as error:  # whatever another backend says, which may be unknown, or not installed
        backend = os.environ["KERAS_BACKEND"]
        raise SurdError(
            f"{name}: Keras cannot be imported on the backend {backend} ({raised(error)}); {NEEDED}"
        ) from None
    if keras.backend.backend() != "torch":
        raise SurdError(f"{name}: Keras runs on {keras.backend.backend()} here; {NEEDED}")
    return keras


def _inputs(model: Any) -> tuple[Any, ...] | None:
    """One batch for each of the model's inputs, as its graph or its first call says; None where it says nothing."""
    wanted = getattr(model, "inputs", None)
    if not wanted:
        return None
    given = [_batch(one, number, _vocabulary(model)) for number, one in enumerate(wanted)]
    structure = getattr(model, "_inputs_struct", None)
    if isinstance(structure, dict) and len(structure) == len(given):
        return (dict(zip(structure, given, strict=True)),)
    return (given[0],) if len(given) == 1 else (given,)


def _batch(wanted: Any, number: int, vocabulary: int | None) -> Tensor:
    """Tokens for a table, else normal numbers; sizes that are left open are those of a probe."""
    free = LENGTH if len(wanted.shape) < 4 else SIDE
    shape = [ROWS, *(free if size is None else size for size in wanted.shape[1:])]
    generator = torch.Generator().manual_seed(SEED + number)
    integer = "int" in str(wanted.dtype)
    if vocabulary is not None and (integer or len(shape) == 2):
        low = 1 if vocabulary > 1 else 0  # 0 mostly stands for padding
        tokens = torch.randint(low, vocabulary, shape, generator=generator)
        return tokens if integer else tokens.float()
    return torch.randn(shape, generator=generator)


def _vocabulary(model: Any) -> int | None:
    """Rows of the smallest table of tokens; those of positions are mostly as long as a text."""
    rows: list[Any] = [getattr(layer, "input_dim", None) for layer in _layers(model).values()]
    return min((row for row in rows if isinstance(row, int)), default=None)
