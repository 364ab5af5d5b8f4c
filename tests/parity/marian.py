"""The same network as Hugging Face's Marian, every weight copied: an outside reference for model and search."""

from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from surd.models.seq2seq import Seq2Seq
from surd.nn.norm import NormOrder
from surd.nn.special import BOS, EOS, PAD
from surd.nn.tying import Tying


def to_marian(model: Seq2Seq, positions: int = 256) -> MarianMTModel:
    """A Marian in evaluation mode that computes what `model` computes, in the dtype and on the device of its weights.

    Possible where Marian has the same parts: post-norm, positions in halves, heads · d_k = d_model. Our position table,
    its first `positions` rows, is copied like a weight: theirs is made in fp32 whatever the dtype.
    """
    a = model.architecture
    assert a.norm_order is NormOrder.POST and a.position.layout == "halves" and a.heads * a.d_k == a.d_model
    source_vocabulary, target_vocabulary = model.vocabularies
    config = MarianConfig(
        vocab_size=source_vocabulary,
        decoder_vocab_size=target_vocabulary,
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
        scale_embedding=True,
        max_position_embeddings=positions,
        share_encoder_decoder_embeddings=a.tying is Tying.ALL,
        tie_word_embeddings=a.tying is not Tying.NONE,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        attn_implementation="eager",
    )
    weight = model.target.table
    marian = MarianMTModel(config).to(dtype=weight.dtype, device=weight.device)
    marian.load_state_dict(marian_weights(model, positions))  # strict: every name of theirs has a weight of ours
    return marian.eval()


def marian_weights(model: Seq2Seq, positions: int) -> dict[str, Tensor]:
    """Our weights under Marian's names, tied ones under each of them."""
    a, table = model.architecture, model.target.table
    waves = a.position(positions, a.d_model, table.dtype, table.device)
    bias = model.projection.bias
    weights = {
        "final_logits_bias": (table.new_zeros(len(table)) if bias is None else bias)[None],
        "lm_head.weight": model.projection.weight,
        "model.encoder.embed_tokens.weight": model.source.table,
        "model.decoder.embed_tokens.weight": model.target.table,
        "model.encoder.embed_positions.weight": waves,
        "model.decoder.embed_positions.weight": waves,
    }
    if a.tying is Tying.ALL:
        weights["model.shared.weight"] = model.source.table
    for number, layer in enumerate(model.encoder.layers):
        name = f"model.encoder.layers.{number}"
        weights |= _projections(f"{name}.self_attn", "qkv", layer.attention.query_key_value)
        weights |= _projections(f"{name}.self_attn", ["out"], layer.attention.output)
        weights |= _norm(f"{name}.self_attn_layer_norm", layer.attention_residual.norm)
        weights |= _feedforward(name, layer)
    for number, layer in enumerate(model.decoder.layers):
        name = f"model.decoder.layers.{number}"
        weights |= _projections(f"{name}.self_attn", "qkv", layer.attention.query_key_value)
        weights |= _projections(f"{name}.self_attn", ["out"], layer.attention.output)
        weights |= _norm(f"{name}.self_attn_layer_norm", layer.attention_residual.norm)
        weights |= _projections(f"{name}.encoder_attn", "q", layer.cross.query)
        weights |= _projections(f"{name}.encoder_attn", "kv", layer.cross.key_value)
        weights |= _projections(f"{name}.encoder_attn", ["out"], layer.cross.output)
        weights |= _norm(f"{name}.encoder_attn_layer_norm", layer.cross_residual.norm)
        weights |= _feedforward(name, layer)
    return {name: weight.detach() for name, weight in weights.items()}


def _projections(name: str, parts: str | list[str], stacked) -> dict[str, Tensor]:
    """One layer of ours holds several of theirs, one above the other."""
    weights = zip(parts, stacked.weight.chunk(len(parts)), stacked.bias.chunk(len(parts)), strict=True)
    return {f"{name}.{part}_proj.{kind}": x for part, w, b in weights for kind, x in (("weight", w), ("bias", b))}


def _norm(name: str, norm) -> dict[str, Tensor]:
    return {f"{name}.weight": norm.gain, f"{name}.bias": norm.bias}


def _feedforward(name: str, layer) -> dict[str, Tensor]:
    inner, outer = layer.feedforward.inner, layer.feedforward.outer
    return {
        f"{name}.fc1.weight": inner.weight,
        f"{name}.fc1.bias": inner.bias,
        f"{name}.fc2.weight": outer.weight,
        f"{name}.fc2.bias": outer.bias,
        **_norm(f"{name}.final_layer_norm", layer.feedforward_residual.norm),
    }
