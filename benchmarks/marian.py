"""Hugging Face's MarianMTModel in the same shape and with the same weights as one of ours."""

import torch
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel

from surd.models.seq2seq import Architecture, Seq2Seq
from surd.nn.special import BOS, EOS, PAD


def marian(architecture: Architecture, vocabulary: int, longest: int, attention: str = "eager") -> MarianMTModel:
    """An untrained model of that shape; `attention` is Hugging Face's name of the implementation."""
    a = architecture
    config = MarianConfig(
        vocab_size=vocabulary,
        d_model=a.d_model,
        encoder_layers=a.encoder_layers,
        decoder_layers=a.decoder_layers,
        encoder_attention_heads=a.heads,
        decoder_attention_heads=a.heads,
        encoder_ffn_dim=a.d_ff,
        decoder_ffn_dim=a.d_ff,
        activation_function="relu",
        dropout=a.dropout,
        attention_dropout=a.attention_dropout,
        activation_dropout=0.0,
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        max_position_embeddings=longest,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        forced_eos_token_id=None,
        decoder_start_token_id=BOS,
        attn_implementation=attention,
    )
    return MarianMTModel(config)


def copy_weights(ours: Seq2Seq, theirs: MarianMTModel) -> None:
    """Every weight of ours into theirs, positions included; fails when one of theirs that trains gets none."""
    missing = {name for name, weight in theirs.named_parameters() if weight.requires_grad}

    def put(name: str, value: Tensor) -> None:
        weight = theirs.get_parameter(name)
        assert weight.shape == value.shape, f"{name}: {tuple(weight.shape)} against {tuple(value.shape)}"
        weight.data.copy_(value)
        missing.discard(name)

    def put_linear(name: str, weight: Tensor, bias: Tensor) -> None:
        put(f"{name}.weight", weight)
        put(f"{name}.bias", bias)

    def put_attention(name: str, query_key_value: list[tuple[Tensor, Tensor]], output: nn.Linear) -> None:
        for part, (weight, bias) in zip(("q_proj", "k_proj", "v_proj"), query_key_value, strict=True):
            put_linear(f"{name}.{part}", weight, bias)
        put_linear(f"{name}.out_proj", output.weight, output.bias)

    with torch.no_grad():
        put("model.shared.weight", ours.target.table)
        for embedding in (theirs.model.encoder.embed_positions, theirs.model.decoder.embed_positions):
            longest, width = embedding.weight.shape
            embedding.weight.copy_(
                ours.target.position(longest, width, embedding.weight.dtype, embedding.weight.device)
            )
        for side, stack in (("encoder", ours.encoder), ("decoder", ours.decoder)):
            for number, layer in enumerate(stack.layers):
                name = f"model.{side}.layers.{number}"
                put_attention(f"{name}.self_attn", split(layer.attention.query_key_value, 3), layer.attention.output)
                norms = [
                    ("self_attn_layer_norm", layer.attention_residual),
                    ("final_layer_norm", layer.feedforward_residual),
                ]
                if side == "decoder":
                    cross = layer.cross
                    query_key_value = split(cross.query, 1) + split(cross.key_value, 2)
                    put_attention(f"{name}.encoder_attn", query_key_value, cross.output)
                    norms.append(("encoder_attn_layer_norm", layer.cross_residual))
                put_linear(f"{name}.fc1", layer.feedforward.inner.weight, layer.feedforward.inner.bias)
                put_linear(f"{name}.fc2", layer.feedforward.outer.weight, layer.feedforward.outer.bias)
                for their_name, residual in norms:
                    put_linear(f"{name}.{their_name}", residual.norm.gain, residual.norm.bias)
    assert not missing, f"weights of Marian that got no value: {sorted(missing)}"


def split(linear: nn.Linear, parts: int) -> list[tuple[Tensor, Tensor]]:
    """A fused projection's parts: weight and bias of each."""
    return list(zip(linear.weight.chunk(parts), linear.bias.chunk(parts), strict=True))


def trainable(model: nn.Module) -> int:
    """Numbers that train, a shared matrix once."""
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
