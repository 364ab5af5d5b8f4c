"""The language model against Hugging Face's GPT-2 and Llama, built from a config and given every weight of ours."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from parity.small import VOCABULARY, sentences, small_language, windows
from torch import Tensor

from surd.models.language import Language
from surd.nn.embedding import NoMultiplier
from surd.nn.feedforward import GELU, SwiGLU
from surd.nn.norm import NormOrder, RMSNorm
from surd.nn.position import LearnedPosition, Rotary
from surd.nn.ragged import Ragged
from surd.nn.tying import Tying

LENGTHS = (7, 11, 1, 11)
POSITIONS = 16


def gpt2(model: Language) -> Any:
    """A GPT-2 that computes what `model` computes; its GELU is the exact one, which GPT-2 has under that name too."""
    from transformers import GPT2Config, GPT2LMHeadModel

    a = model.architecture
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=POSITIONS, n_embd=a.d_model, n_layer=a.decoder_layers, n_head=a.heads,
        n_inner=a.d_ff, activation_function="gelu", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        layer_norm_epsilon=a.norm.epsilon, bos_token_id=1, eos_token_id=2, attn_implementation="eager",
    )  # fmt: skip
    weights = {
        "transformer.wte.weight": model.text.table,
        "transformer.wpe.weight": model.text.position.table,
        "lm_head.weight": model.projection.weight,
        **_pair("transformer.ln_f", model.decoder.norm.gain, model.decoder.norm.bias),
    }
    for number, layer in enumerate(model.decoder.layers):
        name, attention, feedforward = f"transformer.h.{number}", layer.attention, layer.feedforward
        for place, linear in {
            "attn.c_attn": attention.query_key_value,
            "attn.c_proj": attention.output,
            "mlp.c_fc": feedforward.inner,
            "mlp.c_proj": feedforward.outer,
        }.items():
            weights |= _pair(f"{name}.{place}", linear.weight.T, linear.bias)  # theirs are written inputs first
        weights |= _pair(f"{name}.ln_1", layer.attention_residual.norm.gain, layer.attention_residual.norm.bias)
        weights |= _pair(f"{name}.ln_2", layer.feedforward_residual.norm.gain, layer.feedforward_residual.norm.bias)
    return _filled(GPT2LMHeadModel(config), weights)


def llama(model: Language) -> Any:
    """A Llama that computes what `model` computes; it has no biases, so ours must be zero."""
    from transformers import LlamaConfig, LlamaForCausalLM

    a = model.architecture
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=a.d_model, intermediate_size=a.d_ff, num_hidden_layers=a.decoder_layers,
        num_attention_heads=a.heads, num_key_value_heads=a.key_value_heads, head_dim=a.d_k, rms_norm_eps=a.norm.epsilon,
        max_position_embeddings=POSITIONS, tie_word_embeddings=False, attention_bias=False, mlp_bias=False,
        bos_token_id=1, eos_token_id=2, attn_implementation="eager",
    )  # fmt: skip
    weights = {
        "model.embed_tokens.weight": model.text.table,
        "model.norm.weight": model.decoder.norm.gain,
        "lm_head.weight": model.projection.weight,
    }
    for number, layer in enumerate(model.decoder.layers):
        name, fused = f"model.layers.{number}", layer.attention.query_key_value
        assert not fused.bias.any() and not layer.attention.output.bias.any()
        for part, weight in zip("qkv", fused.weight.split(fused.outputs), strict=True):
            weights[f"{name}.self_attn.{part}_proj.weight"] = weight
        weights[f"{name}.self_attn.o_proj.weight"] = layer.attention.output.weight
        gate, value = layer.feedforward.inner.weight.chunk(2)
        weights |= {f"{name}.mlp.gate_proj.weight": gate, f"{name}.mlp.up_proj.weight": value}
        weights[f"{name}.mlp.down_proj.weight"] = layer.feedforward.outer.weight
        weights[f"{name}.input_layernorm.weight"] = layer.attention_residual.norm.gain
        weights[f"{name}.post_attention_layernorm.weight"] = layer.feedforward_residual.norm.gain
    return _filled(LlamaForCausalLM(config), weights)


def like_gpt2() -> Language:
    return small_language(
        torch.float32,
        norm_order=NormOrder.PRE,
        multiplier=NoMultiplier(),
        position=LearnedPosition(length=POSITIONS),
        feedforward=GELU(),
    )


def like_llama() -> Language:
    model = small_language(
        torch.float32,
        norm_order=NormOrder.PRE,
        multiplier=NoMultiplier(),
        position=Rotary(),
        norm=RMSNorm(),
        feedforward=SwiGLU(),
        key_value_heads=2,
        tying=Tying.NONE,
    )
    with torch.no_grad():
        for layer in model.decoder.layers:
            layer.attention.query_key_value.bias.zero_()
            layer.attention.output.bias.zero_()
    return model


@pytest.mark.parametrize(("ours", "theirs"), [(like_gpt2, gpt2), (like_llama, llama)], ids=["GPT-2", "Llama"])
def test_logits_and_gradients_are_theirs(ours: Any, theirs: Any) -> None:
    model = ours()
    other = theirs(model)
    text, labels = windows(sentences(LENGTHS))
    logits = model.logits(model(text))
    expected = logits_of(other, text)
    assert expected.std() > 0.1, "there is something to compare"
    assert (logits - expected).abs().max() <= 1e-5

    model.loss(text, labels).loss.backward()
    F.cross_entropy(expected, labels, reduction="sum").backward()
    table, its_table = model.text.table, other.get_input_embeddings().weight
    read = text.tokens.unique()
    assert (table.grad - its_table.grad)[read].abs().max() <= 1e-5 * table.grad.abs().max()


@pytest.mark.parametrize(("ours", "theirs"), [(like_gpt2, gpt2), (like_llama, llama)], ids=["GPT-2", "Llama"])
@torch.no_grad()
def test_greedy_continuations_are_theirs(ours: Any, theirs: Any) -> None:
    from surd.decode.sample import Sampling, continue_texts

    model = ours()
    other = theirs(model)
    texts = [[1, *tokens] for tokens in sentences((4, 4, 4))]
    settings = Sampling(temperature=0.0, max_length=8)
    found = continue_texts(model, texts, settings, POSITIONS, [0] * len(texts), ends=False)
    for text, continuation in zip(texts, found, strict=True):
        for place, token in enumerate(continuation.tokens):
            chances = logits_of(other, Ragged.from_lists([[*text, *continuation.tokens[:place]]]))[-1]
            chances[[0, 1, 3]] = float("-inf")
            assert token == chances.argmax()


def logits_of(other: Any, text: Ragged) -> Tensor:
    """At the real positions, flat."""
    output = other(input_ids=text.padded(), attention_mask=text.layout.real.long(), use_cache=False)
    return output.logits[text.layout.real]


def _pair(name: str, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
    return {f"{name}.weight": weight, f"{name}.bias": bias}


def _filled(other: Any, weights: dict[str, Tensor]) -> Any:
    """Strict: every weight of theirs has one of ours."""
    other.load_state_dict({name: weight.detach().contiguous() for name, weight in weights.items()})
    return other.eval()
