"""The quick choice of continuations equals the plain one, for wide and narrow vocabularies, ties and empty places."""

import pytest
import torch

from surd.decode.candidates import best_continuations, best_continuations_plainly


@pytest.mark.parametrize("vocabulary", [4, 6, 63, 64, 65, 128, 130, 1000, 1024])
@pytest.mark.parametrize("beam", [1, 3, 5])
@pytest.mark.parametrize("seed", [0, 1])
def test_equals_sorting(vocabulary: int, beam: int, seed: int):
    torch.manual_seed(seed)
    logits = torch.randn(7 * beam, vocabulary) * 3
    sums = -torch.rand(7, beam).sort(1).values
    sums[3, 1:] = float("-inf")  # as at the first step
    count = min(2 * beam, vocabulary - 2)
    values, parents, tokens = best_continuations(logits.clone(), sums, count)
    expected = best_continuations_plainly(logits.clone(), sums, count)
    torch.testing.assert_close(values, expected[0], atol=1e-5, rtol=0)
    assert torch.equal(parents, expected[1]) and torch.equal(tokens, expected[2])


@pytest.mark.parametrize("vocabulary", [10, 200, 700])
def test_equal_continuations_come_by_parent_then_by_token(vocabulary: int):
    torch.manual_seed(0)
    logits = torch.randint(3, (20, vocabulary)).float()
    values, parents, tokens = best_continuations(logits.clone(), torch.full((5, 4), -1.0), 8)
    # The rows of one sentence normalise differently: ties are within a parent, or between equal rows.
    for sentence in range(5):
        order = [(-v, p, t) for v, p, t in zip(*(x[sentence].tolist() for x in (values, parents, tokens)), strict=True)]
        assert order == sorted(order)
    same = torch.zeros(8, vocabulary)
    _, parents, tokens = best_continuations(same, torch.full((2, 4), -1.0), 8)
    in_order = [(parent, token) for parent in range(4) for token in range(2, vocabulary)]
    assert list(zip(parents[0].tolist(), tokens[0].tolist(), strict=True)) == in_order[:8]


@pytest.mark.parametrize("vocabulary", [10, 200, 700])
def test_ties_as_of_bfloat16_equal_sorting(vocabulary: int):
    torch.manual_seed(1)
    logits = torch.randn(16, vocabulary).bfloat16().float()
    sums = torch.zeros(16, 1)
    found, expected = (choose(logits.clone(), sums, 8) for choose in (best_continuations, best_continuations_plainly))
    assert torch.equal(found[2], expected[2])


def test_the_forbidden_keep_their_probability():
    logits = torch.tensor([[100.0, 3.0, 1.0, 2.0, 0.0]])
    value, _, token = best_continuations(logits.clone(), torch.zeros(1, 1), 1)
    assert token.item() == 3
    assert value.item() == pytest.approx(logits.log_softmax(1)[0, 3].item())


def test_numbers_of_all_sizes_and_signs_are_ordered():
    logits = torch.tensor([[0.0, 0.0, -0.5, 40.0, -1e30, -torch.inf, 1.5, 1e-3, -80.0]])
    values, _, tokens = best_continuations(logits.clone(), torch.zeros(1, 1), 7)
    assert tokens[0].tolist() == [3, 6, 7, 2, 8, 4, 0]
    assert values[0, -1] == -torch.inf
