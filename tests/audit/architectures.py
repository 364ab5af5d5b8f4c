"""Public architectures built from their configurations with random weights, small or wide, and what is wrong in some.

The sizes are those of tests/measure/architectures.json; wide is 512 or more, with two layers and 2,000 tokens.
"""

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from surd.measure.calling.building import build_inputs
from surd.measure.calling.inputs import signature_of

TABLE: dict[str, Any] = json.loads((Path(__file__).parents[1] / "measure" / "architectures.json").read_text())

FAULTY = {
    "luke": ({"weight-tying"}, "its configuration ties the head of its masked LM, and its class makes two matrices"),
    "mt5": (
        {"initial-loss", "tied-init-std", "logit-scale"},
        "its head is tied to a table of std 1 and is not scaled by 1/√d_model, as T5's is",
    ),
}
"""Types that are wrong as they are released: the rules that may say so, and why they are right."""

WIDTH, HEADS, VOCABULARY = 512, 8, 2000
GROWN = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "word_embed_proj_dim"), WIDTH),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), HEADS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), HEADS),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), HEADS),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "d_ff", "dff"), 4 * WIDTH),
    **dict.fromkeys(("hidden_dim", "n_inner", "d_inner"), 4 * WIDTH),
    **dict.fromkeys(("head_dim", "d_kv", "d_head"), WIDTH // HEADS),
    **dict.fromkeys(("embedding_size", "entity_emb_size", "input_embedding_size"), WIDTH // 2),
    "output_embedding_size": WIDTH,
    "moe_intermediate_size": WIDTH,
    "rotary_dim": 32,
    "num_key_value_heads": HEADS // 2,
    "query_pre_attn_scalar": 80,
    "attention_multiplier": HEADS / WIDTH,
    "vocab_size": VOCABULARY,
}
"""What takes the place of the small sizes, where a type has such a field."""
OF_A_TYPE: dict[str, dict[str, Any]] = {
    "cvt": {"embed_dim": [64, 192, WIDTH], "num_heads": [1, 3, HEADS], "depth": [1, 2, 3]},
    "swinv2": {"embed_dim": WIDTH // 2, "num_heads": [4, HEADS]},
    "whisper": {"num_mel_bins": 80},
}
"""Sizes that only one type calls so."""
WIDE = [
    *("bert", "albert", "electra", "deberta", "deberta-v2", "rembert", "xlm", "flaubert", "longformer", "funnel"),
    *("nystromformer", "esm", "modernbert", "luke", "gpt2", "gpt_neo", "gptj", "opt", "bloom", "llama", "gemma"),
    *("gemma2", "gemma3_text", "recurrent_gemma", "qwen3", "qwen3_moe", "olmo2", "persimmon", "granite", "granitemoe"),
    *("cohere", "cohere2", "gpt_oss", "ctrl", "xglm", "biogpt", "trocr", "t5", "mt5", "umt5", "longt5", "t5gemma"),
    *("bart", "mvp", "mbart", "marian", "pegasus", "pegasus_x", "m2m_100", "prophetnet", "fsmt", "whisper"),
    *("speech_to_text", "vit", "swinv2", "cvt"),
]
"""The types that are also built wide: every family whose scales differ from the paper's is among them."""


def is_missing(name: str) -> bool:
    """Whether this version of the library lacks the type."""
    return name not in transformers.CONFIG_MAPPING or not hasattr(transformers, TABLE[name]["model"])


def built(name: str, wide: bool = False) -> torch.nn.Module:
    """A model of that type with random weights."""
    entry = TABLE[name]
    sizes = {**_grown(entry["config"]), **OF_A_TYPE.get(name, {})} if wide else entry["config"]
    torch.manual_seed(0)
    return getattr(transformers, entry["model"])(transformers.AutoConfig.for_model(name, **sizes))


def training_batch(model: torch.nn.Module) -> dict[str, Any] | None:
    """What a trainer calls it with: labels where it takes them, the ends of every other row hidden as padding.

    None where there are neither.
    """
    given = dict(build_inputs(model))
    takes = signature_of(model).parameters
    ids, mask = given.get("input_ids"), given.get("attention_mask")
    if mask is None and ids is not None and "attention_mask" in takes:
        mask = torch.ones_like(ids)
    padded = mask is not None and mask.dim() == 2
    if padded:
        mask = mask.clone()
        mask[::2, -4:] = 0
        given["attention_mask"] = mask
        padding = getattr(model.config, "pad_token_id", None)
        if padding is not None and padding >= 0 and ids is not None and ids.shape == mask.shape:
            given["input_ids"] = ids.where(mask.bool(), padding)
    name = next((name for name in ("decoder_input_ids", "input_ids") if name in given), None)
    if name is not None and "labels" in takes:
        given["labels"] = given[name].clone()
        if padded and name == "input_ids":
            given["labels"][mask == 0] = -100
    return given if padded or "labels" in given else None


def _grown(sizes: dict[str, Any]) -> dict[str, Any]:
    """The same fields, nested ones too, with the large values."""
    return {key: _grown(value) if isinstance(value, dict) else GROWN.get(key, value) for key, value in sizes.items()}
