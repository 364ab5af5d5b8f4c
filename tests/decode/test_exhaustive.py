"""A beam that holds the whole space finds what listing every output finds, ties included."""

import numpy as np
import pytest
from decode.table import Table, all_outputs

from surd.decode.beam import beam_search
from surd.decode.decoding import Decoding

PENALTIES = [1.0, 0.0, 0.6, 2.0, -0.5]
SOURCES = [[4, 2], [5, 4, 2], [2]]


@pytest.mark.parametrize("length_penalty", PENALTIES)
@pytest.mark.parametrize("levels", [None, 2, 1])
@pytest.mark.parametrize("vocabulary", [4, 5, 6])
def test_a_beam_of_the_whole_space_is_exhaustive(vocabulary: int, levels: int | None, length_penalty: float):
    for seed, limit in enumerate([5] if vocabulary == 6 else [3, 4, 5]):
        model = Table(vocabulary, seed, levels)
        # At each step the beam has room for all continuations: by all tokens but PAD and BOS, of all that did not end.
        space = (vocabulary - 3) ** (limit - 1) * (vocabulary - 2)
        n_best = min(10, space)
        settings = Decoding(beam=space, length_penalty=length_penalty, factor=0.0, extra=limit)
        for source, found in zip(SOURCES, beam_search(model, SOURCES, settings, n_best), strict=True):
            expected = all_outputs(model, source, limit, length_penalty)[:n_best]
            assert [(h.tokens, h.ended) for h in found] == [(h.tokens, h.ended) for h in expected]
            scores = [(h.score, h.log_probability) for h in expected]
            np.testing.assert_allclose([(h.score, h.log_probability) for h in found], scores, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("length_penalty", PENALTIES)
def test_the_stop_is_exact(length_penalty: float):
    """It stops when no unfinished hypothesis can win; asking for more finished ones makes it go further, in vain."""
    for seed in range(20):
        model = Table(8, seed)
        settings = Decoding(beam=4, length_penalty=length_penalty, factor=0.0, extra=12)
        early = beam_search(model, SOURCES, settings)
        rows, model.rows = model.rows, 0
        late = beam_search(model, SOURCES, settings, n_best=4)
        assert [hypotheses[0] for hypotheses in early] == [hypotheses[0] for hypotheses in late]
        assert rows <= model.rows <= 12 * len(SOURCES) * 4


def test_a_smaller_beam_never_finds_a_better_score():
    for seed in range(5):
        model = Table(6, seed)
        best = all_outputs(model, [4, 2], 4, 1.0)[0].score
        for beam in range(1, 8):
            settings = Decoding(beam=beam, factor=0.0, extra=4)
            assert beam_search(model, [[4, 2]], settings)[0][0].score <= best + 1e-6
