"""Installed classes: how attention starts in the libraries that this machine has, read from the classes themselves."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from surd.lab.experiment import installed


@dataclass(frozen=True, kw_only=True)
class Attention:
    """One attention at the start, with the weights of its queries and keys."""

    query: Tensor
    """(d_model, heads · d_k), as in x W."""
    key: Tensor
    """The same for the keys."""
    scale: float
    """What the class multiplies q·k with."""


@dataclass(frozen=True, kw_only=True)
class Library:
    """A class, where it comes from, and how its weights are got."""

    package: str
    """The distribution to be installed."""
    build: Callable[[int, int, int, int], Attention]
    """From d_model, heads, d_k and a seed."""

    @property
    def version(self) -> str | None:
        """The installed version, None if there is none."""
        return installed(self.package)


def torch_attention(d_model: int, heads: int, d_k: int, seed: int) -> Attention:
    """torch.nn.MultiheadAttention: the three projections in one matrix, drawn by one Glorot rule."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        query, key, _ = torch.nn.MultiheadAttention(d_model, heads).in_proj_weight.detach().chunk(3)
    return Attention(query=query.T, key=key.T, scale=d_k**-0.5)


def keras_attention(d_model: int, heads: int, d_k: int, seed: int) -> Attention:
    """keras.layers.MultiHeadAttention: kernels (d_model, heads, d_k), built for inputs of width d_model."""
    os.environ.setdefault("KERAS_BACKEND", "torch")  # the one that is here; read when Keras is imported
    keras = import_module("keras")
    keras.utils.set_random_seed(seed % 2**32)
    layer = keras.layers.MultiHeadAttention(num_heads=heads, key_dim=d_k)
    shape = (1, 2, d_model)
    layer.build(shape, shape)
    kernels = [torch.tensor(keras.ops.convert_to_numpy(one.kernel)) for one in (layer.query_dense, layer.key_dense)]
    query, key = (kernel.reshape(d_model, -1) for kernel in kernels)
    return Attention(query=query, key=key, scale=d_k**-0.5)


def transformers_attention(kind: str) -> Callable[[int, int, int, int], Attention]:
    """The first self-attention of a model type of transformers, built from its config with few layers and tokens."""
    sizes, query, key, scaled = HUGGING_FACE[kind]

    def build(d_model: int, heads: int, d_k: int, seed: int) -> Attention:
        model = hugging_face(kind, sizes(d_model, heads, d_k), seed)
        weights = [model.get_submodule(path).weight.detach() for path in dict.fromkeys((query, key))]
        if len(weights) == 1:  # GPT-2 keeps the three side by side, as (inputs, outputs)
            weights = list(weights[0].T.chunk(3)[:2])
        return Attention(query=weights[0].T, key=weights[1].T, scale=d_k**-0.5 if scaled else 1.0)

    return build


def hugging_face(kind: str, sizes: dict[str, Any], seed: int) -> torch.nn.Module:
    """A fresh model of that type, of the class that generates text with it."""
    transformers = import_module("transformers")
    config = import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING[kind](**sizes)
    auto = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return auto.from_config(config).eval()


def defaults(kind: str) -> Any:
    """The config of a model type as its class has it."""
    return import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING[kind]()


def _decoder(d_model: int, heads: int, d_k: int) -> dict[str, Any]:
    return {
        "vocab_size": 64,
        "hidden_size": d_model,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": d_k,
    }


def _gpt2(d_model: int, heads: int, d_k: int) -> dict[str, Any]:
    sizes = {"vocab_size": 64, "n_embd": d_model, "n_layer": 1, "n_head": heads, "n_inner": 64}
    return sizes | {"bos_token_id": 0, "eos_token_id": 0}  # the usual ones lie beyond so small a vocabulary


def _t5(d_model: int, heads: int, d_k: int) -> dict[str, Any]:
    return {"vocab_size": 64, "d_model": d_model, "d_kv": d_k, "d_ff": 64, "num_layers": 1, "num_heads": heads}


def _bart(d_model: int, heads: int, d_k: int) -> dict[str, Any]:
    names = ("layers", "attention_heads", "ffn_dim")
    return {"vocab_size": 64, "d_model": d_model} | {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in zip(names, (1, heads, 64), strict=True)
    }


Sizes = Callable[[int, int, int], dict[str, Any]]
HUGGING_FACE: dict[str, tuple[Sizes, str, str, bool]] = {
    "llama": (_decoder, "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj", True),
    "gpt2": (_gpt2, "transformer.h.0.attn.c_attn", "transformer.h.0.attn.c_attn", True),
    "bart": (
        _bart,
        "model.encoder.layers.0.self_attn.q_proj",
        "model.encoder.layers.0.self_attn.k_proj",
        True,
    ),
    "t5": (_t5, "encoder.block.0.layer.0.SelfAttention.q", "encoder.block.0.layer.0.SelfAttention.k", False),
}
"""Sizes, names of the two projections, and whether q·k is multiplied by 1/√d_k."""

LIBRARIES = {
    "torch.nn.MultiheadAttention": Library(package="torch", build=torch_attention),
    "keras MultiHeadAttention": Library(package="keras", build=keras_attention),
    **{
        f"transformers {kind}": Library(package="transformers", build=transformers_attention(kind))
        for kind in HUGGING_FACE
    },
}
