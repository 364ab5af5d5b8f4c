"""Flat sequences and their padded view: one is the other, forwards and backwards, for any lengths."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from surd.nn.ragged import Layout, Ragged, pad, unpad
from surd.nn.special import PAD

CPU = torch.device("cpu")
LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=7).map(tuple)
FEW = settings(max_examples=60, deadline=None)


@FEW
@given(st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=9), min_size=1, max_size=7))
def test_lists_survive_flat_and_padded(sequences: list[list[int]]) -> None:
    ragged = Ragged.from_lists(sequences)
    assert len(ragged) == len(sequences)
    assert [part.tolist() for part in ragged.tokens.split(ragged.lengths)] == sequences
    padded = ragged.padded()
    longest = max(map(len, sequences))
    assert padded.tolist() == [sequence + [PAD] * (longest - len(sequence)) for sequence in sequences]
    again = Ragged.from_padded(padded, ragged.lengths)
    assert torch.equal(again.tokens, ragged.tokens) and again.lengths == ragged.lengths


@FEW
@given(LENGTHS)
def test_layout_against_its_definition(lengths: tuple[int, ...]) -> None:
    layout = Layout(lengths, CPU)
    assert (layout.batch, layout.total, layout.longest) == (len(lengths), sum(lengths), max(lengths))
    assert layout.full == (len(set(lengths)) == 1)
    cells = [(row, step) for row, length in enumerate(lengths) for step in range(length)]
    assert layout.positions.tolist() == [step for _, step in cells]
    assert layout.cells.tolist() == [row * layout.longest + step for row, step in cells]
    assert layout.real.nonzero().tolist() == [list(cell) for cell in cells]


@FEW
@given(LENGTHS)
def test_unpad_undoes_pad(lengths: tuple[int, ...]) -> None:
    layout = Layout(lengths, CPU)
    flat = torch.randn(layout.total, 2, 3)
    padded = pad(flat, layout)
    assert padded.shape == (layout.batch, layout.longest, 2, 3)
    assert torch.equal(unpad(padded, layout), flat)
    assert torch.equal(padded[layout.real], flat)
    assert torch.isfinite(padded).all(), "padding must hold numbers: a masked NaN is still NaN"


@FEW
@given(LENGTHS)
def test_each_is_the_other_ones_gradient_at_real_cells(lengths: tuple[int, ...]) -> None:
    """⟨pad(x), y⟩ = ⟨x, unpad(y)⟩ for y that is zero at padding; what arrives at padding never reaches x."""
    layout = Layout(lengths, CPU)
    flat = torch.randn(layout.total, 3, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(layout.batch, layout.longest, 3, dtype=torch.float64)
    pad(flat, layout).backward(upstream)
    assert torch.equal(flat.grad, upstream[layout.real])
    padded = torch.randn(layout.batch, layout.longest, 3, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(layout.total, 3, dtype=torch.float64)
    unpad(padded, layout).backward(upstream)
    assert torch.equal(padded.grad[layout.real], upstream)
    assert padded.grad[~layout.real].abs().sum() == 0


@pytest.mark.parametrize("lengths", [(3, 1, 2), (2, 2)], ids=["ragged", "full"])
def test_gradcheck(lengths: tuple[int, ...]) -> None:
    layout = Layout(lengths, CPU)
    flat = torch.randn(layout.total, 2, dtype=torch.float64, requires_grad=True)
    padded = torch.randn(layout.batch, layout.longest, 2, dtype=torch.float64, requires_grad=True)
    real = layout.real[..., None]
    assert torch.autograd.gradcheck(lambda x: pad(x, layout) * real, (flat,))
    assert torch.autograd.gradcheck(lambda x: unpad(x, layout), (padded,))


def test_lengths_must_add_up() -> None:
    with pytest.raises(AssertionError, match="add up"):
        Ragged(torch.arange(5), (2, 2))
