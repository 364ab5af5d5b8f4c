"""Quantities that a table of families names instead of a number, each worked out from one configuration."""

from collections.abc import Callable, Mapping
from math import log, sqrt
from typing import Any

from surd.measure.calling.fields import field, refuses

WIDTHS = ("hidden_size", "d_model", "n_embd", "dim", "embed_dim")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads")


def number(config: Any, *names: str) -> float | None:
    """The first field that is a number; booleans are none."""
    for name in names:
        value = field(config, name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
    return None


def width(config: Any) -> float | None:
    """The residual stream's."""
    return number(config, *WIDTHS)


def head_width(config: Any) -> float | None:
    """d_k: stated, or width over heads."""
    rope, other = number(config, "qk_rope_head_dim"), number(config, "qk_nope_head_dim")
    if rope and other:
        return rope + other
    names = ("head_dim", "d_kv", "d_head", "attention_head_dim")
    if (known := number(config, *names)) or any(refuses(config, name) for name in names):
        return known  # or none, where each layer has its own
    whole, heads = width(config), number(config, *HEADS)
    return whole // heads if whole and heads else None


def rotary_gain(config: Any) -> tuple[float, ...]:
    """What rotary positions multiply q·k by, one value a kind of layer: YaRN and LongRoPE scale sine and cosine.

    Peng et al. 2023 (arXiv 2309.00071), section 3.4; Ding et al. 2024 (arXiv 2402.13753). Where only a share r of each
    head is rotated by f, the mean square of a query grows by r·f² + 1 - r, and so does the product's.
    """
    stated = field(config, "rope_parameters")
    if not isinstance(stated, Mapping):
        return (1.0,)
    kinds = [part for part in stated.values() if isinstance(part, Mapping)] or [stated]
    return tuple(dict.fromkeys(_rotary_gain(config, kind) for kind in kinds))


def _rotary_gain(config: Any, kind: Mapping[str, Any]) -> float:
    if kind.get("rope_type") not in ("yarn", "longrope"):
        return 1.0
    original = kind.get("original_max_position_embeddings") or number(config, "original_max_position_embeddings")
    longest = number(config, "max_position_embeddings")
    factor = kind.get("factor") or (longest / original if longest and original else 1.0)
    stretched = kind.get("attention_factor")
    if stretched is None and kind["rope_type"] == "longrope":
        stretched = sqrt(1 + log(factor) / log(original)) if factor > 1 and original else 1.0
    elif stretched is None:
        both = kind.get("mscale"), kind.get("mscale_all_dim")
        stretched = magnitude(factor, both[0]) / magnitude(factor, both[1]) if all(both) else magnitude(factor)
    rope, whole = number(config, "qk_rope_head_dim"), head_width(config)
    share = rope / whole if rope and whole else kind.get("partial_rotary_factor", 1.0)
    return share * stretched**2 + 1 - share


def magnitude(factor: float, weight: float | None = 1.0) -> float:
    """YaRN's: 0.1 · weight · ln factor + 1."""
    return 0.1 * (weight or 0.0) * log(factor) + 1 if factor > 1 else 1.0


def latent_gain(config: Any) -> float:
    """What latent attention (DeepSeek) puts on the factor itself where YaRN has `mscale_all_dim`."""
    stated = field(config, "rope_parameters")
    if number(config, "qk_rope_head_dim") is None or not isinstance(stated, Mapping):
        return 1.0
    weight = stated.get("mscale_all_dim")
    return magnitude(stated.get("factor") or 1.0, weight) ** 2 if weight and stated.get("rope_type") == "yarn" else 1.0


def _over(value: float | None) -> float | None:
    return 1 / value if value else None


def _root(value: float | None) -> float | None:
    return sqrt(value) if value else None


def _disentangled(config: Any) -> float | None:
    """1/√(d_k · terms): content to content, and those of `pos_att_type`."""
    whole = head_width(config)
    terms = field(config, "pos_att_type") or ()
    kinds = terms.split("|") if isinstance(terms, str) else list(terms)
    known = {kind.strip().lower() for kind in kinds} & {"c2p", "p2c"}
    relative = field(config, "relative_attention", False)
    return (whole * (1 + len(known) * bool(relative))) ** -0.5 if whole else None


def _rounded_root(config: Any) -> float | None:
    """√d_model with the 8 significant bits of bfloat16."""
    import torch

    root = _root(width(config))
    return float(torch.tensor(root, dtype=torch.bfloat16)) if root else None


def _where(config: Any, flag: str) -> float | None:
    """1/√d_model where the flag is set, else 1."""
    return _over(_root(width(config))) if field(config, flag, False) else 1.0


def _depth_share(config: Any) -> float | None:
    share, layers = number(config, "scale_depth"), number(config, "num_hidden_layers")
    return share / sqrt(layers) if share and layers else None


QUANTITIES: Mapping[str, Callable[[Any], float | None]] = {
    "root width": lambda config: _root(width(config)),
    "root width in bfloat16": _rounded_root,
    "inverse root width where scale_decoder_outputs": lambda config: _where(config, "scale_decoder_outputs"),
    "inverse root width where tied": lambda config: _where(config, "tie_word_embeddings"),
    "inverse root head": lambda config: _over(_root(head_width(config))),
    "inverse head": lambda config: _over(head_width(config)),
    "half head": lambda config: _over(_root((head_width(config) or 0) / 2)),
    "disentangled": _disentangled,
    "depth share": _depth_share,
}


def quantity(config: Any, named: float | str) -> float | None:
    """A number as it is, a name of the table, a field, or `inverse` and a field."""
    if not isinstance(named, str):
        return float(named)
    if named in QUANTITIES:
        return QUANTITIES[named](config)
    return _over(number(config, name)) if (name := named.removeprefix("inverse ")) != named else number(config, named)
