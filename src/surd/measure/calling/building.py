"""Inputs for a probe: built from the forward's signature and the model's configuration, or refused with a reason."""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn

from surd.errors import SurdError
from surd.measure.calling.fields import field
from surd.measure.calling.inputs import GIVE, VARIADIC, signature_of, spelt
from surd.measure.calling.restore import preserved

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

CONTENT = ("pixel_values", "input_features", "input_values", "input_ids")
"""Arguments of configured models that are content."""
SOUND = "sound"
PARTS = ("vision_config", "audio_config", "text_config", "encoder", "decoder")
"""Configurations within a configuration."""

IMAGES = re.compile(r"^(img|image|pixel|photo)", re.IGNORECASE)
"""How the names of arguments that are pixels begin."""
TOKENS = re.compile(r"id|tok|src|tgt|source|target", re.IGNORECASE)
"""What the names of arguments that are tokens have in them."""


def build_inputs(model: nn.Module) -> dict[str, Any]:
    """Named arguments for one forward: random tokens, pixels or sound of the sizes that the model asks for.

    Where several would fit the signature, it is the first of them that the forward takes; the model is left as it was.
    """
    found = [{name: _placed(value, model) for name, value in known.items()} for known in _candidates(model)]
    if not found:
        names = _required(signature_of(model).parameters)
        raise SurdError(
            f"no inputs could be built for {type(model).__name__}.forward{spelt(signature_of(model))}: "
            f"found no way to fill {', '.join(names) or 'its arguments'}; expected one or two batches of token ids, "
            f"one of vectors or one of images. {GIVE}"
        )
    if len(found) == 1:
        return found[0]
    return next((known for known in found if _runs(model, known)), found[0])


def _runs(model: nn.Module, known: dict[str, Any]) -> bool:
    with preserved(model), torch.no_grad():
        try:
            model(**{name: value.clone() if isinstance(value, Tensor) else value for name, value in known.items()})
        except Exception:
            return False
    return True


def _candidates(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Ways to call the model, the likeliest first."""
    parameters = signature_of(model).parameters
    config = field(model, "config")
    if config is not None and (ways := [*_for_configured(config, parameters)]):
        yield from (known for known in ways if not set(_required(parameters)) - known.keys())
        return
    required = _required(parameters)
    masks = dict.fromkeys(name for name in required if "mask" in name)
    content = [name for name in required if name not in masks]
    if content:
        yield from ({**known, **masks} for known in _for_plain(model, content))


def _for_configured(config: Any, parameters: Mapping[str, inspect.Parameter]) -> Iterator[dict[str, Any]]:
    """For a model that carries a configuration with the common names of sizes: all it takes together, then one kind."""
    kinds = [name for name in CONTENT if name in parameters]
    if "input_ids" in kinds and "input_values" in kinds:
        kinds.remove("input_values")
    ways = [kinds, *([kind] for kind in kinds)] if len(kinds) > 1 else [kinds] if kinds else []
    if ["input_values"] in ways and _said(config, "num_mel_bins", None) is not None:
        ways.append([SOUND])  # the bins may be those of what it makes
    for way in ways:
        built = {name: value for kind in way for name, value in _content(kind, config, parameters).items()}
        if "decoder_input_ids" in parameters and field(config, "is_encoder_decoder", False):
            # Not the encoder's own ids: attention to the source and to oneself would look alike.
            source = next(iter(built.values()))
            length = source.shape[1] if "input_ids" in built else LENGTH
            built["decoder_input_ids"] = _tokens(_vocabulary(config), length, _special(config)).flip(0)[: len(source)]
        if "use_cache" in parameters:
            built["use_cache"] = False
        rows = min(len(value) for value in built.values() if isinstance(value, Tensor))
        yield {name: value[:rows] if isinstance(value, Tensor) else value for name, value in built.items()}


def _content(kind: str, config: Any, parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """One kind of content, of the sizes that a configuration or the part of it for that kind says."""
    if kind == "pixel_values":
        height, width = _pair(_said(config, "image_size", 224))
        frames = _said(config, "num_frames", None)
        moving = (2,) if frames is None else (2, frames)
        return {kind: _normal(*moving, _said(config, "num_channels", 3), height, width)}
    if kind == "input_features":
        mel, per_frame = _said(config, "num_mel_bins", 80), _said(config, "input_feat_per_channel", None)
        frames = 2 * _said(config, "max_source_positions", 32)
        return {kind: _normal(2, mel, frames) if per_frame is None else _normal(2, frames, per_frame)}
    if kind == "input_values":
        mel = _said(config, "num_mel_bins", None)
        return {kind: _normal(2, SAMPLES) if mel is None else _normal(2, _said(config, "max_length", SAMPLES), mel)}
    if kind == SOUND:
        return {"input_values": _normal(2, SAMPLES)}
    length = (
        WINDOW_LENGTH if any(field(config, name) is not None for name in ("attention_window", "block_size")) else LENGTH
    )
    ids = _tokens(_vocabulary(config), length, _special(config))
    built = {kind: ids}
    if "attention_mask" in parameters:
        built["attention_mask"] = torch.ones_like(ids)
    if "bbox" in parameters:
        built["bbox"] = torch.zeros(*ids.shape, 4, dtype=torch.int64)
    if "langs" in parameters:
        built["langs"] = torch.zeros_like(ids)
    return built


def _said(config: Any, name: str, otherwise: Any) -> Any:
    """What a configuration says, or the first of its parts that says it."""
    for part in (config, *(field(config, part) for part in PARTS)):
        if (value := field(part, name)) is not None:
            return value
    return otherwise


def _for_plain(model: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """For somebody's own module: tokens, pixels, or vectors of the width that its first layer reads."""
    width = _first_width(model)
    tables = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)]
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)), None)
    pixels = isinstance(first, nn.Conv2d) or IMAGES.search(names[0]) is not None
    if len(names) == 1 and pixels:
        yield from ({names[0]: image} for image in _images(model, first))
    if tables and len(names) <= 2:
        yield _sentences(names, tables)
    bare = [] if tables else _bare_tables(model)
    vectors = len(names) <= 3 and not tables and width is not None
    if vectors and not all(TOKENS.search(name) for name in names):
        yield dict.fromkeys(names, _normal(ROWS, LENGTH, width))
    if len(names) <= 2:
        yield from (_sentences(names, [rows, *bare]) for rows in dict.fromkeys(bare))
    if vectors and all(TOKENS.search(name) for name in names):
        yield dict.fromkeys(names, _normal(ROWS, LENGTH, width))
    if len(names) == 1 and not tables and not pixels:
        yield from ({names[0]: image} for image in _images(model, first))


def _sentences(names: Sequence[str], tables: Sequence[int]) -> dict[str, Any]:
    """Ids for a table of so many rows; those of a second argument fit the next one too."""
    length = _length(tables)
    source, target = _tokens(tables[0], length, set()), _tokens(min(tables[:2]), length, set()).flip(0)
    rows = min(len(source), len(target))
    return dict(zip(names, (source[:rows], target[:rows]), strict=False))


def _bare_tables(model: nn.Module) -> list[int]:
    """How many rows each matrix has that is a parameter without a layer, most first: one may be the tokens' table."""
    found = [
        parameter.shape[0]
        for module in model.modules()
        if not type(module).__module__.startswith("torch.nn") or isinstance(module, nn.ParameterDict | nn.ParameterList)
        for parameter in module.parameters(recurse=False)
        if parameter.dim() == 2 and parameter.is_floating_point()
    ]
    return sorted(found, reverse=True)


def _length(tables: Sequence[int]) -> int:
    """That of a probe, unless a table of positions is shorter; one with a handful of rows tells segments apart."""
    return min([LENGTH, *(rows for rows in tables[1:] if rows >= FEWEST)])


def _images(model: nn.Module, first: nn.Module | None) -> Iterator[Tensor]:
    """For a convolution over patches, or for a layer that reads patches of as many pixels as it has columns."""
    if isinstance(first, nn.Conv2d):
        yield _normal(2, first.in_channels, *_image(model, first.out_channels, first.stride[0], first.stride[1]))
    elif isinstance(first, nn.Linear):
        for channels in (3, 1):
            side = isqrt(first.in_features // channels)
            if channels * side * side == first.in_features:
                yield _normal(2, channels, *_image(model, first.out_features, side, side))


def _image(model: nn.Module, width: int, height_of_patch: int, width_of_patch: int) -> tuple[int, int]:
    """Height and width: as an attribute says, or as many patches as there are positions, with or without a class."""
    for module in model.modules():
        for name in ("image_size", "img_size", "input_size"):
            size = getattr(module, name, None)
            if isinstance(size, int) or (isinstance(size, list | tuple) and len(size) == 2):
                return _pair(size)
    for parameter in model.parameters():
        if parameter.dim() in (2, 3) and parameter.shape[-1] == width:
            for positions in (parameter.shape[-2], parameter.shape[-2] - 1):
                side = isqrt(positions)
                if side > 1 and side * side == positions:
                    return side * height_of_patch, side * width_of_patch
    return PATCHES * height_of_patch, PATCHES * width_of_patch


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
        raise SurdError(f"no inputs could be built: of a vocabulary of {vocabulary:,} no token is left. {GIVE}")
    rows = max(FEWEST_ROWS, min(ROWS, MOST_LOGITS // (length * vocabulary)))
    drawn = torch.randint(len(allowed), (rows, length), generator=torch.Generator().manual_seed(SEED))
    return torch.tensor(allowed)[drawn]


def _vocabulary(config: Any) -> int:
    """Of nested configurations too; the smaller one where source and target have their own."""
    sizes = [field(config, name) for name in ("vocab_size", "src_vocab_size", "tgt_vocab_size")]
    sizes += [field(field(config, name), "vocab_size") for name in ("text_config", "encoder", "decoder")]
    known = [size for size in sizes if isinstance(size, int)]
    return min(known) if known else 2**16  # characters, as in models without a table


def _special(config: Any) -> set[int]:
    names = [f"{name}_token_id" for name in ("pad", "bos", "eos", "sep", "cls", "mask", "decoder_start")]
    parts = [config, field(config, "text_config")]
    values = [field(part, name) for name in names for part in parts]
    return {value for value in values if isinstance(value, int)}


def _pair(size: Any) -> tuple[int, int]:
    if isinstance(size, Mapping):
        return size["height"], size["width"]
    return tuple(size) if isinstance(size, list | tuple) else (size, size)


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(SEED))


def _placed(x: Any, model: nn.Module) -> Any:
    """A tensor on the model's device, numbers in the model's own format."""
    if not isinstance(x, Tensor):
        return x
    first = next((parameter for parameter in model.parameters() if parameter.is_floating_point()), None)
    if first is None:
        return x
    return x.to(first.device, first.dtype if x.is_floating_point() else x.dtype)
