"""Inputs for a probe: built from the forward's signature and the model's configuration, or refused with a reason."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn

from surd.errors import SurdError

ROWS = 6
FEWEST_ROWS = 2
MOST_LOGITS = 2**24
"""Numbers that the logits of one forward may have; of huge vocabularies fewer rows are read."""
LENGTH = 13
"""Prime, so that a length is not mistaken for a width or a number of heads."""
WINDOW_LENGTH = 16
"""For models that cut their input into windows."""
FIRST_TOKEN = 4
"""Ids below are mostly special; so are those that the configuration names."""
SAMPLES = 2000
"""Enough sound for the deepest stack of strided convolutions."""
FEWEST = 5
"""Rows of a table of positions; fewer are kinds of segments."""
PATCHES = 4
"""In each direction, of an image whose size nothing tells."""
SEED = 19

TOKENS = re.compile(r"id|tok|src|tgt|source|target", re.IGNORECASE)
"""What the names of arguments that are tokens have in them."""
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

Inputs = Tensor | Sequence[Any] | Mapping[str, Any]
"""What a model is called with: one argument, positional ones, or named ones."""


def arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and the named arguments of the call."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs), {}) if isinstance(inputs, list | tuple) else ((inputs,), {})


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in nested containers and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name, None))


def are_ids(x: Tensor) -> bool:
    """Whether a tensor holds ids: whole numbers, which Keras hands on as floats."""
    if not x.is_floating_point():
        return x.dtype != torch.bool
    return x.dim() == 2 and x.numel() > 0 and bool((x >= 0).all()) and torch.equal(x, x.round()) and float(x.max()) > 1


def replaced(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same containers with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        parts = {key: replaced(part, change) for key, part in value.items()}
        if type(value) is dict:
            return parts
        if dataclasses.is_dataclass(value):  # what models of Hugging Face's library return is both
            return type(value)(**parts)
        same = copy(value)
        same.update(parts)
        return same
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(replaced(part, change) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(replaced(part, change) for part in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: replaced(getattr(value, f.name), change) for f in dataclasses.fields(value) if f.init}
        return dataclasses.replace(value, **parts)
    return value


def signature_of(model: nn.Module) -> inspect.Signature:
    """What a forward takes; a wrapper, such as an adapter, that hands on whatever it gets takes what its module takes.

    One that was compiled does not tell, and may take anything.
    """
    try:
        found = inspect.signature(model.forward)
    except (TypeError, ValueError):
        found = inspect.Signature([inspect.Parameter(kind.name.lower(), kind) for kind in VARIADIC])
    inner = list(model.children())
    hands_on = all(parameter.kind in VARIADIC for parameter in found.parameters.values()) and found.parameters
    return signature_of(inner[0]) if hands_on and len(inner) == 1 else found


def build_inputs(model: nn.Module) -> dict[str, Any]:
    """Named arguments for one forward: random tokens, pixels or sound of the sizes that the model asks for."""
    parameters = signature_of(model).parameters
    config = getattr(model, "config", None)
    known = _for_configured(config, parameters) if config is not None else {}
    known = known or _for_plain(model, parameters)
    absent = [name for name in _required(parameters) if name not in known]
    if not known or absent:
        raise SurdError(
            f"no inputs could be built for {type(model).__name__}.forward{signature_of(model)}: "
            f"found no way to fill {', '.join(absent or ['its arguments'])}; expected one or two batches of token ids, "
            "one of vectors or one of images. Pass `inputs`, a dict of its arguments."
        )
    return {name: _placed(value, model) if isinstance(value, Tensor) else value for name, value in known.items()}


def _for_configured(config: Any, parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """For a model that carries a configuration with the common names of sizes."""
    built: dict[str, Any] = {}
    if "pixel_values" in parameters:
        height, width = _pair(getattr(config, "image_size", 224))
        built["pixel_values"] = _normal(2, getattr(config, "num_channels", 3), height, width)
    elif "input_features" in parameters:
        mel = getattr(config, "num_mel_bins", 80)
        per_frame = getattr(config, "input_feat_per_channel", None)
        frames = 2 * getattr(config, "max_source_positions", 32)
        built["input_features"] = _normal(2, mel, frames) if per_frame is None else _normal(2, frames, per_frame)
    elif "input_values" in parameters and "input_ids" not in parameters:
        mel = getattr(config, "num_mel_bins", None)
        built["input_values"] = _normal(2, SAMPLES) if mel is None else _normal(2, config.max_length, mel)
    elif "input_ids" in parameters:
        length = WINDOW_LENGTH if hasattr(config, "attention_window") or hasattr(config, "block_size") else LENGTH
        built["input_ids"] = _tokens(_vocabulary(config), length, _special(config))
        if "attention_mask" in parameters:
            built["attention_mask"] = torch.ones_like(built["input_ids"])
        if "bbox" in parameters:
            built["bbox"] = torch.zeros(*built["input_ids"].shape, 4, dtype=torch.int64)
        if "langs" in parameters:
            built["langs"] = torch.zeros_like(built["input_ids"])
    if built and "decoder_input_ids" in parameters and getattr(config, "is_encoder_decoder", False):
        # Not the encoder's own ids: attention to the source and to oneself would look alike.
        source = next(iter(built.values()))
        length = source.shape[1] if "input_ids" in built else LENGTH
        built["decoder_input_ids"] = _tokens(_vocabulary(config), length, _special(config)).flip(0)[: len(source)]
    if built and "use_cache" in parameters:
        built["use_cache"] = False
    return built


def _for_plain(model: nn.Module, parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """For somebody's own module: tokens, pixels, or vectors of the width that its first layer reads."""
    required = _required(parameters)
    width = _first_width(model)
    tables = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)]
    if not tables and (width is None or all(TOKENS.search(name) for name in required)):
        tables = _bare_tables(model)
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)), None)
    if isinstance(first, nn.Conv2d) and len(required) == 1:
        return {required[0]: _normal(2, first.in_channels, *_image(model, first))}
    if tables and 1 <= len(required) <= 2:
        length = _length(tables)
        source = _tokens(tables[0], length, set())
        target = _tokens(min(tables[:2]), length, set()).flip(0)
        rows = min(len(source), len(target))
        return dict(zip(required, (source[:rows], target[:rows]), strict=False))
    if not tables and width is not None and 1 <= len(required) <= 3:
        return dict.fromkeys(required, _normal(ROWS, LENGTH, width))
    return {}


def _bare_tables(model: nn.Module) -> list[int]:
    """How many rows each table has that is a parameter without a layer, that of the tokens first: it has most."""
    shapes = [
        parameter.shape
        for module in model.modules()
        if not type(module).__module__.startswith("torch.nn") or isinstance(module, nn.ParameterDict | nn.ParameterList)
        for parameter in module.parameters(recurse=False)
        if parameter.dim() == 2 and parameter.is_floating_point()
    ]
    if not shapes:
        return []
    tokens = max(shapes)
    return [tokens[0], *(shape[0] for shape in shapes if shape != tokens and shape[1] == tokens[1] != shape[0])]


def _length(tables: Sequence[int]) -> int:
    """That of a probe, unless a table of positions is shorter; one with a handful of rows tells segments apart."""
    return min([LENGTH, *(rows for rows in tables[1:] if rows >= FEWEST)])


def _image(model: nn.Module, first: nn.Conv2d) -> tuple[int, int]:
    """Height and width: as an attribute says, or as many patches as there are positions, with or without a class."""
    for module in model.modules():
        for name in ("image_size", "img_size", "input_size"):
            size = getattr(module, name, None)
            if isinstance(size, int) or (isinstance(size, list | tuple) and len(size) == 2):
                return _pair(size)
    height, width = first.stride[0], first.stride[1]
    for parameter in model.parameters():
        if parameter.dim() in (2, 3) and parameter.shape[-1] == first.out_channels:
            for positions in (parameter.shape[-2], parameter.shape[-2] - 1):
                side = isqrt(positions)
                if side > 1 and side * side == positions:
                    return side * height, side * width
    return PATCHES * height, PATCHES * width


def _first_width(model: nn.Module) -> int | None:
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            return module.embed_dim
        if isinstance(module, nn.Linear):
            return module.in_features
        if isinstance(module, nn.LayerNorm):
            return module.normalized_shape[-1]
    return None


def _required(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    return [
        name
        for name, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty and parameter.kind not in VARIADIC
    ]


def _tokens(vocabulary: int, length: int, special: set[int]) -> Tensor:
    """Ids that differ from row to row, none of them special."""
    allowed = [token for token in range(max(0, min(FIRST_TOKEN, vocabulary - 1)), vocabulary) if token not in special]
    if not allowed:
        raise SurdError(f"no inputs could be built: of a vocabulary of {vocabulary:,} no token is left; pass inputs")
    rows = max(FEWEST_ROWS, min(ROWS, MOST_LOGITS // (length * vocabulary)))
    drawn = torch.randint(len(allowed), (rows, length), generator=torch.Generator().manual_seed(SEED))
    return torch.tensor(allowed)[drawn]


def _vocabulary(config: Any) -> int:
    """Of nested configurations too; the smaller one where source and target have their own."""
    sizes = [getattr(config, name, None) for name in ("vocab_size", "src_vocab_size", "tgt_vocab_size")]
    sizes += [
        getattr(getattr(config, name, None), "vocab_size", None) for name in ("text_config", "encoder", "decoder")
    ]
    known = [size for size in sizes if isinstance(size, int)]
    return min(known) if known else 2**16  # characters, as in models without a table


def _special(config: Any) -> set[int]:
    names = [f"{name}_token_id" for name in ("pad", "bos", "eos", "sep", "cls", "mask", "decoder_start")]
    values = [getattr(config, name, None) for name in names]
    return {value for value in values if isinstance(value, int)}


def _pair(size: Any) -> tuple[int, int]:
    return tuple(size) if isinstance(size, list | tuple) else (size, size)


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(SEED))


def _placed(x: Tensor, model: nn.Module) -> Tensor:
    """On the model's device, numbers in the model's own format."""
    first = next((parameter for parameter in model.parameters() if parameter.is_floating_point()), None)
    if first is None:
        return x
    return x.to(first.device, first.dtype if x.is_floating_point() else x.dtype)
