"""What a configuration of Hugging Face's library, and the table of families, state of a model's scales."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from surd.audit.declared import Declared, Stated
from surd.interchange.quantities import head_width, latent_gain, number, quantity, rotary_gain, width
from surd.measure.calling.fields import field

FILE = Path(__file__).parent / "families.toml"
CAUSAL = ("ForCausalLM", "LMHeadModel")
"""Endings of classes that write a text from left to right."""
MASKED = ("ForMaskedLM",)


@dataclass(frozen=True)
class Part:
    """A configuration, or one nested in it, with the name by which messages call it."""

    config: Any
    name: str

    @property
    def families(self) -> tuple[str, ...]:
        """Its type, and what it is the text part of."""
        kind = str(field(self.config, "model_type", ""))
        bases = (kind.removesuffix(ending) for ending in ("_text", "_decoder", "_encoder"))
        return tuple(dict.fromkeys((kind, *bases)))


def is_configuration(value: Any) -> bool:
    """Whether it has the shape of such a configuration: a type, and a way to become a dict."""
    return isinstance(field(value, "model_type"), str) and callable(field(value, "to_dict"))


def declared(config: Any, architecture: str = "") -> Declared:
    """All that is stated; `architecture` is the name of the class that is, or would be, built."""
    parts = list(_parts(config, "config"))
    text = _text(parts)
    return replace(
        _of_family(text, parts[0]),
        family=str(config.model_type),
        attention=_attention(parts),
        attention_by_path=_by_layer(parts),
        qk_norm=next((said for part in parts if (said := _flag(part, "qk_norm")) is not None), None),
        score_cap=number_stated(text, "score_cap"),
        logit_cap=number_stated(text, "logit_cap"),
        embedding=_embedding(text),
        residual=_residual(text),
        tied=_tied(parts[0], text),
        epsilon=_agreed(parts, "epsilon"),
        std=_agreed(parts, "std"),
        padding=whole_stated(text, "padding"),
        vocabulary=whole_stated(text, "vocabulary"),
        causal=_causal(text, architecture),
        writes=_writes(architecture),
        head_bias=_flag(text, "head_bias"),
        dtype=_dtype(config),
    )


def _parts(config: Any, name: str) -> Iterator[Part]:
    """A configuration and all that are nested in it, each once."""
    seen: set[int] = set()
    waiting = [Part(config, name)]
    while waiting:
        part = waiting.pop(0)
        if id(part.config) in seen:
            continue
        seen.add(id(part.config))
        yield part
        nested = vars(part.config) if hasattr(part.config, "__dict__") else {}
        waiting += [Part(value, f"{part.name}.{key}") for key, value in nested.items() if is_configuration(value)]


def _text(parts: list[Part]) -> Part:
    """The part that writes: the decoder where there is one, else the text, else the whole."""
    endings = (".decoder", ".text_config", ".text_encoder", ".language_config")
    return next((part for end in endings for part in parts if part.name.endswith(end)), parts[0])


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def _entries(part: Part) -> Iterator[dict[str, Any]]:
    """What the table says of the part's family."""
    for entry in _table()["family"]:
        if any(kind in entry["types"] for kind in part.families):
            yield entry


def _said(part: Part, what: str) -> Stated[Any] | None:
    """What the table of families says of a quantity."""
    for entry in _entries(part):
        if what in entry:
            raw = entry[what]
            value = raw if isinstance(raw, bool) else quantity(part.config, raw)
            return None if value is None else Stated(value, entry["by"])
    return None


def number_stated(part: Part, what: str) -> Stated[float] | None:
    """The first of the fields that is a number."""
    for name in _table()["fields"][what]:
        if (value := number(part.config, name)) is not None:
            return Stated(float(value), f"{part.name}.{name}")
    return None


def whole_stated(part: Part, what: str) -> Stated[int] | None:
    said = number_stated(part, what)
    return Stated(int(said.value), said.by) if said else None


def _flag(part: Part, what: str) -> Stated[bool] | None:
    for name in _table()["fields"][what]:
        if isinstance(value := field(part.config, name), bool):
            return Stated(value, f"{part.name}.{name}")
    return _said(part, what) if what != "head_bias" else None


def _agreed(parts: list[Part], what: str) -> Stated[float] | None:
    """A number that all parts state alike; where an image's part has another one, no single number is stated."""
    if any(what in entry.get("unread", ()) for part in parts for entry in _entries(part)):
        return None
    said = [found for part in parts if (found := number_stated(part, what)) is not None]
    return said[0] if said and len({one.value for one in said}) == 1 else None


def _of_family(text: Part, whole: Part) -> Declared:
    """What stands only in the table."""
    released = {rule: entry["by"] for entry in _entries(whole) for rule in entry.get("released", ())}
    return Declared(
        head=_said(text, "head") or _said(whole, "head"),
        gain_offset=_said(text, "gain_offset"),
        fan_in=_said(text, "fan_in"),
        embedding_rounded=_said(text, "embedding_rounded"),
        depth_scaled=_said(text, "depth_scaled"),
        depth_scaled_in="decoder." if text.name.endswith(".decoder") else "",
        released=released,
    )


def _attention(parts: list[Part]) -> Stated[tuple[float, ...]] | None:
    """All factors that occur, where some part states one: then those of the others are told beside it."""
    said = [(part, _factors(part)) for part in parts]
    stated = [found for _, found in said if found is not None]
    if not stated:
        return None
    values = [value for found in stated for value in found.value]
    for part, found in said:
        if found is None and (whole := head_width(part.config)):
            values.append(whole**-0.5)
    return Stated(tuple(dict.fromkeys(values)), stated[0].by)


def _factors(part: Part) -> Stated[tuple[float, ...]] | None:
    """Of one part: what it states of the factor, times what rotary positions multiply."""
    base = _factor(part)
    gains = rotary_gain(part.config)
    latent = latent_gain(part.config)
    if base is None and latent == 1 and gains == (1.0,):
        return None
    whole = head_width(part.config)
    factor = base.value if base else (whole or 0) ** -0.5 if whole else None
    if factor is None:
        return None
    by = base.by if base else f"{part.name}.rope_parameters"
    return Stated(tuple(factor * latent * gain for gain in gains), by)


def _factor(part: Part) -> Stated[float] | None:
    config = part.config
    if (scalar := number(config, "query_pre_attn_scalar")) and scalar > 0:
        return Stated(scalar**-0.5, f"{part.name}.query_pre_attn_scalar")
    if (multiplier := number(config, "attention_multiplier")) is not None:
        return Stated(float(multiplier), f"{part.name}.attention_multiplier")
    if field(config, "scale_attn_weights", True) is False:
        return Stated(1.0, f"{part.name}.scale_attn_weights")
    inner = field(config, "attn_config")
    if (scale := number(inner, "softmax_scale")) is not None:
        return Stated(float(scale), f"{part.name}.attn_config.softmax_scale")
    whole = head_width(config)
    if (multiplier := number(config, "key_multiplier")) is not None and whole:
        return Stated(multiplier * whole**-0.5, f"{part.name}.key_multiplier")
    return _said(part, "attention")


def _by_layer(parts: list[Part]) -> Stated[Mapping[str, float]] | None:
    """GPT-2's second option: 1/(layer + 1) besides."""
    config = parts[0].config
    layers, whole = number(config, "num_hidden_layers", "n_layer"), head_width(config)
    if field(config, "scale_attn_by_inverse_layer_idx", False) is not True or not layers or not whole:
        return None
    base = 1.0 if field(config, "scale_attn_weights", True) is False else whole**-0.5
    factors = {f"h.{layer}.": base / (layer + 1) for layer in range(int(layers))}
    return Stated(factors, "config.scale_attn_by_inverse_layer_idx")


def _embedding(part: Part) -> Stated[float] | None:
    for flag in ("scale_embedding", "rescale_embeddings", "mup_enabled"):
        if isinstance(on := field(part.config, flag), bool):
            whole = width(part.config)
            return Stated(whole**0.5 if on and whole else 1.0, f"{part.name}.{flag}")
    return number_stated(part, "embedding") or _said(part, "embedding")


def _residual(part: Part) -> Stated[float] | None:
    return number_stated(part, "residual") or _said(part, "residual")


def _tied(whole: Part, text: Part) -> Stated[bool] | None:
    """The outer flag counts, as the class with the head reads it; but a decoder is a model with a head of its own."""
    for part in (text, whole) if text.name.endswith(".decoder") else (whole, text):
        if isinstance(value := field(part.config, "tie_word_embeddings"), bool):
            return Stated(value, f"{part.name}.tie_word_embeddings")
    return None


def _causal(part: Part, architecture: str) -> Stated[bool] | None:
    """Whether a text is written from left to right, by the class and by the fields that make it so."""
    for name in ("is_decoder", "causal"):
        value = field(part.config, name)
        if isinstance(value, bool) and architecture.endswith(CAUSAL) and _also_masked(part):
            return Stated(value, f"{part.name}.{name}")
    if field(part.config, "attn_type") == "bi":
        return Stated(False, f"{part.name}.attn_type")
    if architecture.endswith(CAUSAL):
        return Stated(True, f"the class {architecture}")
    if architecture.endswith(MASKED):
        return Stated(False, f"the class {architecture}")
    return None


def _writes(architecture: str) -> Stated[bool] | None:
    """By the name of the class: of others nothing is known."""
    known = architecture.endswith((*CAUSAL, *MASKED, "ForConditionalGeneration"))
    return Stated(True, f"the class {architecture}") if known else None


def _also_masked(part: Part) -> bool:
    """Whether the type is an encoder too: of others, `is_decoder` says nothing."""
    known = import_module("transformers.models.auto.modeling_auto")
    return part.config.model_type in known.MODEL_FOR_MASKED_LM_MAPPING_NAMES


def _dtype(config: Any) -> Stated[str] | None:
    value = field(config, "dtype")
    return None if value is None else Stated(str(value).removeprefix("torch."), "config.dtype")


def ties(model: Any, said: Declared) -> Declared:
    """With the pairs of names that the class of a live model declares to be one."""
    made = getattr(model, "all_tied_weights_keys", None)
    pairs = dict(made) if isinstance(made, Mapping) else {}
    if said.tied is not None and said.tied.value:
        # A loader that finds two names with different numbers leaves them out of what it ties; the class does not.
        names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        of_class = getattr(type(model), "_tied_weights_keys", None)
        whole = of_class.items() if isinstance(of_class, Mapping) else ()
        pairs |= {first: second for first, second in whole if first in names and second in names}
    if not pairs:
        return said
    by = f"{type(model).__name__}._tied_weights_keys"
    return replace(said, ties=Stated(tuple((str(first), str(second)) for first, second in pairs.items()), by))
