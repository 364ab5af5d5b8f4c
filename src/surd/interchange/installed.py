"""Installed classes: tables and attentions as the libraries on this machine start them, read from the classes."""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from surd.interchange.packages import installed

Built = TypeVar("Built")


@dataclass(frozen=True, kw_only=True)
class Class(Generic[Built]):
    """A class of a library, and how what it starts with is got."""

    package: str
    """The distribution to be installed."""
    build: Callable[..., Built]
    """From its sizes and a seed."""

    @property
    def version(self) -> str | None:
        """The installed version, None if there is none."""
        return installed(self.package)


@dataclass(frozen=True, kw_only=True)
class Attention:
    """One attention at the start."""

    query: Tensor
    """(d_model, heads · d_k), as in x W."""
    key: Tensor
    """The same for the keys."""
    scale: float
    """What the class multiplies q·k with."""


def torch_attention(d_model: int, heads: int, d_k: int, seed: int) -> Attention:
    """torch.nn.MultiheadAttention: the three projections in one matrix, drawn by one Glorot rule."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        query, key, _ = nn.MultiheadAttention(d_model, heads).in_proj_weight.detach().chunk(3)
    return Attention(query=query.T, key=key.T, scale=d_k**-0.5)


def torch_table(rows: int, width: int, seed: int) -> Tensor:
    """torch.nn.Embedding."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return nn.Embedding(rows, width).weight.detach()


def keras_attention(d_model: int, heads: int, d_k: int, seed: int) -> Attention:
    """keras.layers.MultiHeadAttention: kernels (d_model, heads, d_k), built for inputs of width d_model."""
    keras = _keras(seed)
    layer = keras.layers.MultiHeadAttention(num_heads=heads, key_dim=d_k)
    layer.build((1, 2, d_model), (1, 2, d_model))
    query, key = (_numbers(dense.kernel).reshape(d_model, -1) for dense in (layer.query_dense, layer.key_dense))
    return Attention(query=query, key=key, scale=d_k**-0.5)


def keras_table(rows: int, width: int, seed: int) -> Tensor:
    """keras.layers.Embedding."""
    layer = _keras(seed).layers.Embedding(rows, width)
    layer.build((1, 2))
    return _numbers(layer.embeddings)


def _keras(seed: int) -> Any:
    os.environ.setdefault("KERAS_BACKEND", "torch")  # the one that is here; read when Keras is imported
    keras = import_module("keras")
    keras.utils.set_random_seed(seed % 2**32)
    return keras


def _numbers(variable: Any) -> Tensor:
    value = variable.value  # a tensor of whatever backend Keras has
    return torch.as_tensor(value if isinstance(value, Tensor) else variable.numpy()).detach().clone()


def transformers_attention(query: str, key: str, scaled: bool, kind: str, *sizes: int) -> Attention:
    """The first self-attention of a model type of transformers; `scaled` tells whether it has the factor 1/√d_k."""
    d_model, heads, d_k, seed = sizes
    parameters = dict(small_model(kind, d_model, heads, d_k, seed).named_parameters())
    weights = [parameters[f"{path}.weight"].detach() for path in dict.fromkeys((query, key))]
    if len(weights) == 1:  # GPT-2 keeps the three side by side, as (inputs, outputs)
        weights = list(weights[0].T.chunk(3)[:2])
    return Attention(query=weights[0].T, key=weights[1].T, scale=d_k**-0.5 if scaled else 1.0)


def small_model(kind: str, d_model: int, heads: int, d_k: int, seed: int) -> nn.Module:
    """A fresh model of a type of transformers: its class's defaults, but few layers, tokens and features."""
    usual = defaults(kind)
    sizes = {
        **dict.fromkeys(("hidden_size", "d_model", "n_embd", "word_embed_proj_dim"), d_model),
        **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_head", "n_heads", "num_heads"), heads),
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "attention_heads"), heads),
        **dict.fromkeys(("head_dim", "d_kv"), d_k),
        **dict.fromkeys(("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "n_inner"), 64),
        **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 1),
        **dict.fromkeys(("encoder_layers", "decoder_layers"), 1),
        **{"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1},
    }
    with _quiet() as transformers, torch.random.fork_rng([]):
        config = type(usual)(**{name: size for name, size in sizes.items() if name in vars(usual)})
        auto = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
        torch.manual_seed(seed)
        return auto.from_config(config).eval()


def defaults(kind: str) -> Any:
    """The config of a type of transformers as its class has it."""
    with _quiet():
        return import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING[kind]()


@contextmanager
def _quiet() -> Generator[Any]:
    """The library, without its remarks on special tokens that lie beyond a small vocabulary."""
    transformers = import_module("transformers")
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield transformers
    finally:
        transformers.logging.set_verbosity(before)


VOCABULARY = 512
TABLES = {
    "torch.nn.Embedding": Class(package="torch", build=torch_table),
    "keras.layers.Embedding": Class(package="keras", build=keras_table),
}
"""Tables of embeddings, from rows, width and seed."""
_HUGGING_FACE = {
    "llama": ("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj", True),
    "gpt2": ("transformer.h.0.attn.c_attn", "transformer.h.0.attn.c_attn", True),
    "bart": ("model.encoder.layers.0.self_attn.q_proj", "model.encoder.layers.0.self_attn.k_proj", True),
    "t5": ("encoder.block.0.layer.0.SelfAttention.q", "encoder.block.0.layer.0.SelfAttention.k", False),
}
"""Names of the two projections, and whether q·k is multiplied by 1/√d_k."""
ATTENTIONS = {
    "torch.nn.MultiheadAttention": Class(package="torch", build=torch_attention),
    "keras MultiHeadAttention": Class(package="keras", build=keras_attention),
    **{
        f"transformers {kind}": Class(package="transformers", build=partial(transformers_attention, *how, kind))
        for kind, how in _HUGGING_FACE.items()
    },
}
"""Attentions, from d_model, heads, d_k and seed."""
