"""config.json of a Hugging Face folder, made a configuration: nothing in it can run code, fetch, or fill the memory."""

import json
import warnings
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from surd.errors import Faults, SurdError, nearest
from surd.files import refuse_endless
from surd.interchange.installed import installed

NAME = "config.json"
LONGEST = 16 * 2**20
"""Bytes; the largest real ones have a few hundred thousand labels."""
UNSAFE = (
    "auto_map",  # code of the folder's own
    "attn_implementation",  # may name a kernel to be fetched
    "_attn_implementation",
    "_attn_implementation_internal",
    "experts_implementation",
    "_experts_implementation",
    "kernel_config",
    "use_kernels",
    "distributed_config",
    "quantization_config",  # how weights were packed; they are refused elsewhere
    "custom_pipelines",
    "_name_or_path",
)
"""Fields that could make the library fetch or run something; the model is the same without them."""
LARGEST = 10**9
"""Of any size: no dimension of a Transformer comes near."""
MOST_LAYERS = 2000
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
"""Names of the number of layers of the whole model, which has some."""
SIZES = ("size", "dim", "layers", "layer", "heads", "head", "width", "embd", "d_model", "d_ff", "d_kv", "experts")
"""Endings of the names of sizes."""


def read_config(folder: Path) -> dict[str, Any]:
    """What the file says, cleaned of all that could run or fetch something."""
    path = folder / NAME
    refuse_endless(path)
    try:
        if path.stat().st_size > LONGEST:
            raise SurdError(f"{path}: {path.stat().st_size:,} bytes, where a configuration has a few thousand")
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise SurdError(f"{path}: cannot be read ({(error.strerror or str(error)).lower()})") from None
    except RecursionError:
        raise SurdError(f"{path}: nested too deeply for a configuration") from None
    except ValueError as error:
        raise SurdError(f"{path}: not JSON ({error})") from None
    if not isinstance(found, dict):
        raise SurdError(f"{path}: expected an object of settings, found a {type(found).__name__}")
    if lines := [*_absurd(found, path)]:
        raise Faults(lines)
    return found


def _absurd(value: Mapping[str, Any], path: Path, inside: str = "") -> Iterator[str]:
    """Sizes beyond all measure, which would fill the memory, or take for ever, before anything could be counted."""
    for name, one in value.items():
        if isinstance(one, Mapping):
            yield from _absurd(one, path, f"{inside}{name}.")
        elif isinstance(one, int | float) and not isinstance(one, bool) and name.endswith(SIZES):
            most = MOST_LAYERS if name.endswith(("layers", "n_layer")) else LARGEST
            if not abs(one) <= most:
                yield f"{path}: {inside}{name} is {one:,}; no model has more than {most:,}"
            elif (one < 0 and not name.endswith("vocab_size")) or (one == 0 and not inside and name in DEPTHS):
                yield f"{path}: {inside}{name} is {one:,}; expected a number above 0"


def configuration(raw: Mapping[str, Any], folder: Path) -> Any:
    """The configuration's object, of the library's own class for that type."""
    path = folder / NAME
    library = transformers(path)
    known = library.models.auto.configuration_auto.CONFIG_MAPPING_NAMES
    kind = raw.get("model_type")
    if not isinstance(kind, str) or kind not in known:
        raise SurdError(_unknown(path, kind, raw, known))
    cleaned = _cleaned(raw)
    with quiet():
        try:
            return library.CONFIG_MAPPING[kind].from_dict(cleaned)
        except Exception as error:  # whatever the library says of wrong values
            raise SurdError(f"{path}: the library refuses it as a {kind}: {first_line(error)}") from None


def transformers(path: Path) -> Any:
    """The library, imported when it is needed."""
    if installed("transformers") is None:
        raise SurdError(f"{path}: a Hugging Face model; to open it, install the library: pip install transformers")
    with quiet():
        return import_module("transformers")


def _unknown(path: Path, kind: object, raw: Mapping[str, Any], known: Mapping[str, str]) -> str:
    if kind is None:
        return f"{path}: model_type is missing, so nobody knows what to build; expected a name such as gpt2 or llama"
    if not isinstance(kind, str):
        return f"{path}: model_type is {kind!r}; expected a name such as gpt2 or llama"
    guess = nearest(kind, known)
    meant = f' Did you mean "{guess}"?' if guess else ""
    if "auto_map" in raw:
        return (
            f'{path}: model_type "{kind}" needs code from its own folder (auto_map), which check never runs.{meant} '
            "Where you trust it, load it yourself: surd check package.module:factory"
        )
    version = installed("transformers")
    return f'{path}: unknown model_type "{kind}": transformers {version} has no such model.{meant}'


def _cleaned(value: Any) -> Any:
    """Without the unsafe fields, at any depth; a backbone is built, never fetched."""
    if isinstance(value, Mapping):
        kept = {name: _cleaned(one) for name, one in value.items() if name not in UNSAFE}
        if "use_pretrained_backbone" in kept:
            kept["use_pretrained_backbone"] = False
        return kept
    return [_cleaned(one) for one in value] if isinstance(value, list) else value


def first_line(error: BaseException) -> str:
    """What it says, in one line that is not long."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]} …"


@contextmanager
def quiet() -> Generator[None]:
    """Inside, the library is silent and no hub is asked, whatever its settings say."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        constants: Any = import_module("huggingface_hub.constants") if installed("huggingface_hub") else None
        before = getattr(constants, "HF_HUB_OFFLINE", None)
        logging: Any = import_module("transformers.utils.logging")
        verbosity = logging.get_verbosity()
        if constants is not None:
            constants.HF_HUB_OFFLINE = True
        logging.set_verbosity(logging.CRITICAL)
        bars = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(verbosity)
            if bars:
                logging.enable_progress_bar()
            if constants is not None:
                constants.HF_HUB_OFFLINE = before
