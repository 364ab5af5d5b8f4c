"""Factories: `package.module:name`, a function of the user's that makes the model; no other code of theirs runs."""

import inspect
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from typing import Any

from torch import nn

from surd.audit.subject import Subject
from surd.errors import SurdError, unknown
from surd.interchange.subject import subject

EXPECTED = "a module, (module, example), or (module, example, loss)"


def made(name: str, inputs: Any = None, loss: Any = None, trained: bool | None = None) -> Subject:
    """What the factory returns. Modules of the current folder can be imported; what it prints goes to stderr."""
    with _current_folder(), redirect_stdout(sys.stderr):
        factory = _found(name)
        result = factory if isinstance(factory, nn.Module) else _theirs(name, factory)
    model, example, their_loss = _parts(name, result)
    return subject(model, example if inputs is None else inputs, loss or their_loss, trained=trained, name=name)


def _found(name: str) -> Any:
    module_name, _, path = name.partition(":")
    found: Any = _theirs(name, lambda: import_module(module_name), module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            public = [one for one in vars(found) if not one.startswith("_")] if hasattr(found, "__dict__") else []
            functions = [one for one in public if callable(getattr(found, one, None))]
            own = [one for one in functions if getattr(getattr(found, one), "__module__", None) == module_name]
            raise SurdError(f"{name}: {unknown('name', part, own or functions)}")
        found = getattr(found, part)
    if not callable(found):
        raise SurdError(f"{name}: expected a function that returns {EXPECTED}; found a {type(found).__name__}")
    return found


def _theirs(name: str, call: Callable[[], Any], module_name: str = "") -> Any:
    """Calls their code; what it raises is told as theirs, with its own last line."""
    try:
        if not module_name and (needed := _needed(call)):
            raise SurdError(f"{name}: needs arguments ({', '.join(needed)}); expected a function without any")
        return call()
    except SurdError:
        raise
    except ModuleNotFoundError as error:
        if error.name and module_name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            meant = f". Did you mean {name.replace('.py:', ':')}?" if module_name.endswith(".py") else ""
            raise SurdError(
                f"{name}: there is no module {error.name}; it is looked for in the current folder and among the "
                f"installed packages{meant}"
            ) from None
        raise SurdError(_told(name, error)) from None
    except (Exception, SystemExit) as error:
        raise SurdError(_told(name, error)) from None


def _told(name: str, error: BaseException) -> str:
    """Their exception and their line, as ours would not know better."""
    frames = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
    theirs = [frame for frame in frames if frame.filename != __file__ and "importlib" not in frame.filename]
    where = f" ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else ""
    text = " ".join(str(error).split())
    return f"{name}: your code raised {type(error).__name__}{': ' + text if text else ''}{where}"


def _needed(call: Callable[..., Any]) -> list[str]:
    """Names of arguments without a default."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [one.name for one in parameters if one.default is inspect.Parameter.empty and one.kind in kinds]


def _parts(name: str, result: Any) -> tuple[Any, Any, Any]:
    """Model, example and loss; those that were not returned are None."""
    parts = (result,) if not isinstance(result, tuple) else result
    if not 1 <= len(parts) <= 3 or not _is_model(parts[0]):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise SurdError(f"{name}: expected {EXPECTED}; it returned {f'({kinds})' if len(parts) != 1 else kinds}")
    model, example, loss = (*parts, None, None)[:3]
    if loss is not None and not callable(loss):
        raise SurdError(
            f"{name}: expected a loss to be a function of what the module returns; found a {type(loss).__name__}"
        )
    return model, example, loss


def _is_model(value: Any) -> bool:
    return isinstance(value, nn.Module) or any(kind.__module__.startswith("keras.") for kind in type(value).__mro__)


@contextmanager
def _current_folder() -> Generator[None]:
    """Modules that lie in the current folder can be imported, as by `python -m`."""
    sys.path.insert(0, "")
    try:
        yield
    finally:
        if "" in sys.path:
            sys.path.remove("")
