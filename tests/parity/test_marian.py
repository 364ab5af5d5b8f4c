"""The whole model against Hugging Face's MarianMTModel, built from a config and given every weight of ours."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from parity.marian import marian_weights, to_marian
from parity.small import VOCABULARY, pairs, sentences, small_model
from torch import Tensor

from surd.models.seq2seq import Seq2Seq
from surd.nn.position import Sinusoidal
from surd.nn.ragged import Ragged
from surd.nn.tying import Tying

SOURCE_LENGTHS, TARGET_LENGTHS = (5, 9, 1, 6), (7, 2, 6, 4)


def model_in_halves(dtype: torch.dtype = torch.float64, **changes: Any) -> Seq2Seq:
    return small_model(dtype, position=Sinusoidal(layout="halves"), **changes)


def their_logits(marian, source: Ragged, target: Ragged) -> Tensor:
    """At the real positions of the target, flat."""
    output = marian(
        input_ids=source.padded(),
        attention_mask=source.layout.real.long(),
        decoder_input_ids=target.padded(),
        decoder_attention_mask=target.layout.real.long(),
        use_cache=False,
    )
    return output.logits[target.layout.real]


@pytest.mark.parametrize("tying", list(Tying))
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_logits_and_gradients_equal_marian(tying: Tying, bias: bool) -> None:
    """Its final_logits_bias is a buffer without a gradient; of ours the closed form p - y is checked elsewhere."""
    model = model_in_halves(tying=tying, output_bias=bias)
    marian = to_marian(model)
    source, target, labels = pairs(sentences(SOURCE_LENGTHS), sentences(TARGET_LENGTHS))
    logits = model.logits(model(source, target))
    theirs = their_logits(marian, source, target)
    assert (logits - theirs).abs().max() <= 1e-9

    model.loss(source, target, labels, smoothing=0.1).loss.backward()
    F.cross_entropy(theirs, labels, label_smoothing=0.1, reduction="sum").backward()
    gradients = copy.deepcopy(model)
    with torch.no_grad():
        for ours, weight in zip(gradients.parameters(), model.parameters(), strict=True):
            ours.copy_(weight.grad)
    expected = marian_weights(gradients, 8)
    for name, weight in marian.named_parameters():
        if "embed_positions" not in name:
            # torch gives the padding row of an Embedding no gradient; ours is never looked up, and a tied one gets it
            # from the softmax in both.
            assert (weight.grad - expected[name]).abs().max() <= 1e-9, name


def test_fp32_logits_are_close_to_marian() -> None:
    model = model_in_halves(torch.float32, tying=Tying.ALL)
    source, target, _ = pairs(sentences(SOURCE_LENGTHS), sentences(TARGET_LENGTHS))
    theirs = their_logits(to_marian(model), source, target)
    assert (model.logits(model(source, target)) - theirs).abs().max() <= 2e-5 * theirs.abs().max()


def test_their_own_position_table_is_ours_in_fp32() -> None:
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=VOCABULARY, d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=8, decoder_ffn_dim=8,
        encoder_attention_heads=4, decoder_attention_heads=4, max_position_embeddings=128, pad_token_id=0,
    )  # fmt: skip
    table = MarianMTModel(config).model.encoder.embed_positions.weight
    ours = Sinusoidal(layout="halves")(128, 32, torch.float32, torch.device("cpu"))
    assert (table - ours).abs().max() <= 1e-7
