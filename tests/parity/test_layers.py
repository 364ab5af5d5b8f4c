"""Our layers against torch's own with copied weights: outputs, input gradients and every weight gradient."""

from functools import partial

import pytest
import torch
from parity.small import LENGTHS, shake
from torch import Tensor, nn

from surd.nn.block import DecoderLayer, EncoderLayer, Residual
from surd.nn.feedforward import ReLU
from surd.nn.mask import Mask, causal_mask, padding_mask
from surd.nn.multihead import CrossAttention, Heads, SelfAttention
from surd.nn.norm import LayerNormLayer, NormOrder
from surd.nn.ragged import Layout, pad, unpad

D_MODEL, HEADS, D_FF = 32, 4, 48
SOURCE_LENGTHS = (4, 6, 2, 5)
ORDERS = [NormOrder.POST, NormOrder.PRE]
PRECISIONS = [pytest.param(torch.float64, id="float64"), pytest.param(torch.float32, id="fp32")]
CPU = torch.device("cpu")
SHAPE = Heads(d_model=D_MODEL, heads=HEADS, d_k=D_MODEL // HEADS)


def residual(order: NormOrder) -> Residual:
    return Residual(LayerNormLayer(D_MODEL, 1e-5, 1.0), order, 0.0)


def self_attention() -> SelfAttention:
    return SelfAttention(SHAPE)


def encoder_layers(order: NormOrder, dtype: torch.dtype) -> tuple[EncoderLayer, nn.TransformerEncoderLayer]:
    ours = EncoderLayer(self_attention(), ReLU().build(D_MODEL, D_FF), partial(residual, order))
    theirs = nn.TransformerEncoderLayer(
        D_MODEL, HEADS, D_FF, dropout=0.0, batch_first=True, norm_first=order is NormOrder.PRE, dtype=dtype
    )
    shake(ours)
    return ours.to(dtype), theirs


def decoder_layers(order: NormOrder, dtype: torch.dtype) -> tuple[DecoderLayer, nn.TransformerDecoderLayer]:
    ours = DecoderLayer(self_attention(), CrossAttention(SHAPE), ReLU().build(D_MODEL, D_FF), partial(residual, order))
    theirs = nn.TransformerDecoderLayer(
        D_MODEL, HEADS, D_FF, dropout=0.0, batch_first=True, norm_first=order is NormOrder.PRE, dtype=dtype
    )
    shake(ours)
    return ours.to(dtype), theirs


def matched(ours: nn.Module, theirs: nn.Module) -> list[tuple[str, list[nn.Parameter], nn.Parameter]]:
    """Their parameter beside ours that, one above the other, must equal it."""
    names = {
        "self_attn.in_proj": ["attention.query_key_value"],
        "self_attn.out_proj.": ["attention.output"],
        "linear1.": ["feedforward.inner"],
        "linear2.": ["feedforward.outer"],
        "norm1.": ["attention_residual.norm"],
        "norm2.": ["feedforward_residual.norm"],
    }
    if isinstance(ours, DecoderLayer):
        names |= {
            "multihead_attn.in_proj": ["cross.query", "cross.key_value"],
            "multihead_attn.out_proj.": ["cross.output"],
            "norm2.": ["cross_residual.norm"],
            "norm3.": ["feedforward_residual.norm"],
        }
    table = []
    for name, parameter in theirs.named_parameters():
        prefix = next(prefix for prefix in names if name.startswith(prefix))
        kind = name.removeprefix(prefix).removeprefix("_")
        kind = "gain" if prefix.startswith("norm") and kind == "weight" else kind
        table.append((name, [ours.get_parameter(f"{own}.{kind}") for own in names[prefix]], parameter))
    assert sum(len(own) for _, own, _ in table) == len(list(ours.parameters())), "a weight of ours has no counterpart"
    return table


def copy_weights(ours: nn.Module, theirs: nn.Module) -> None:
    with torch.no_grad():
        for _, own, parameter in matched(ours, theirs):
            parameter.copy_(torch.cat(list(own)))


def compare(name: str, ours: Tensor, theirs: Tensor, dtype: torch.dtype) -> None:
    allowed = 1e-12 if dtype == torch.float64 else 2e-5 * theirs.abs().max().item()
    assert (ours - theirs).abs().max().item() <= allowed, name


def compare_weight_gradients(ours: nn.Module, theirs: nn.Module, dtype: torch.dtype) -> None:
    for name, own, parameter in matched(ours, theirs):
        compare(name, torch.cat([weight.grad for weight in own]), parameter.grad, dtype)


def leaf(lengths: tuple[int, ...], dtype: torch.dtype) -> tuple[Layout, Tensor]:
    layout = Layout(lengths, CPU)
    return layout, torch.randn(layout.total, D_MODEL, dtype=dtype, requires_grad=True)


def padded(flat: Tensor, layout: Layout) -> Tensor:
    """As a leaf of its own; what stands at padding must not matter, so it is made large."""
    cells = pad(flat.detach(), layout).clone()
    cells[~layout.real] = 7.0
    return cells.requires_grad_()


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("hidden", ["padding", "causal", "both", "nothing"])
def test_encoder_layer_equals_torch(hidden: str, order: NormOrder, dtype: torch.dtype) -> None:
    ours, theirs = encoder_layers(order, dtype)
    copy_weights(ours, theirs)
    layout, x = leaf((6, 6, 6) if hidden in ("causal", "nothing") else LENGTHS, dtype)
    causal = causal_mask(layout.longest, dtype, CPU).added if hidden in ("causal", "both") else None
    padding = padding_mask(layout, dtype).added if hidden in ("padding", "both") else None
    masks = [mask for mask in (causal, padding) if mask is not None]
    their_x = padded(x, layout)

    added = sum(masks[1:], masks[0]) if masks else None
    y = ours(x, layout, Mask(added, padding_mask(layout, dtype).keys))
    their_y = unpad(
        theirs(
            their_x,
            src_mask=None if causal is None else causal[0, 0],
            src_key_padding_mask=None if padding is None else padding[:, 0, 0],
        ),
        layout,
    )
    compare("output", y, their_y, dtype)

    upstream = torch.randn_like(y)
    y.backward(upstream)
    their_y.backward(upstream)
    compare("input gradient", x.grad, unpad(their_x.grad, layout), dtype)
    assert their_x.grad[~layout.real].abs().sum() == 0
    compare_weight_gradients(ours, theirs, dtype)


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("lengths", [LENGTHS, (5, 5, 5, 5)], ids=["ragged", "full"])
def test_decoder_layer_equals_torch(lengths: tuple[int, ...], order: NormOrder, dtype: torch.dtype) -> None:
    """Causal and padding masks on the target, padding mask on the source; in ours the causal mask does both alone."""
    ours, theirs = decoder_layers(order, dtype)
    copy_weights(ours, theirs)
    layout, x = leaf(lengths, dtype)
    memory_layout, memory = leaf(SOURCE_LENGTHS, dtype)
    causal, memory_mask = causal_mask(layout.longest, dtype, CPU), padding_mask(memory_layout, dtype)
    their_x, their_memory = padded(x, layout), padded(memory, memory_layout)

    y = ours(x, layout, causal, memory, memory_layout, memory_mask)
    their_y = unpad(
        theirs(
            their_x,
            their_memory,
            tgt_mask=causal.added[0, 0],
            tgt_key_padding_mask=torch.zeros_like(layout.real, dtype=dtype).masked_fill(~layout.real, float("-inf")),
            memory_key_padding_mask=memory_mask.added[:, 0, 0],
        ),
        layout,
    )
    compare("output", y, their_y, dtype)

    upstream = torch.randn_like(y)
    y.backward(upstream)
    their_y.backward(upstream)
    compare("input gradient", x.grad, unpad(their_x.grad, layout), dtype)
    compare("memory gradient", memory.grad, unpad(their_memory.grad, memory_layout), dtype)
    compare_weight_gradients(ours, theirs, dtype)
