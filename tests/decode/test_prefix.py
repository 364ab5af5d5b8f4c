"""A prefix: of all outputs those that begin with it are left, in their order and with their scores."""

import numpy as np
import pytest
import torch
from decode.table import Table, all_outputs

from surd.decode.beam import beam_search
from surd.decode.decoding import Decoding
from surd.decode.generate import Wishes, generate
from surd.decode.prefix import Forced
from surd.decode.steering import withheld
from surd.nn.special import PAD

SOURCES = [[4, 2], [5, 4, 2], [2], [4, 4, 2]]
PREFIXES = [(4,), (), (3, 4), (4, 4, 3)]


@pytest.mark.parametrize("length_penalty", [1.0, 0.0, -0.5])
@pytest.mark.parametrize("levels", [None, 2])
def test_what_begins_otherwise_is_left_out(levels: int | None, length_penalty: float) -> None:
    limit, space = 5, 2**4 * 3
    model = Table(5, 0, levels)
    settings = Decoding(beam=space, length_penalty=length_penalty, factor=0.0, extra=limit)
    results = beam_search(Forced(model, PREFIXES), SOURCES, settings, 10)
    for source, prefix, found in zip(SOURCES, PREFIXES, results, strict=True):
        outputs = all_outputs(model, source, limit, length_penalty)
        expected = [output for output in outputs if output.tokens[: len(prefix)] == prefix][:10]
        assert [(h.tokens, h.ended) for h in found] == [(h.tokens, h.ended) for h in expected]
        scores = [(h.score, h.log_probability) for h in expected]
        np.testing.assert_allclose([(h.score, h.log_probability) for h in found], scores, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("beam", [1, 3])
def test_batches_change_nothing(beam: int) -> None:
    model, settings = Table(12, 3), Decoding(beam=beam, factor=1.0, extra=6)
    alone = [
        generate(model, [source], settings, n_best=beam, wishes=Wishes(prefixes=[prefix]))[0]
        for source, prefix in zip(SOURCES, PREFIXES, strict=True)
    ]
    for batch_tokens in (1, 20, 10_000):
        assert generate(model, SOURCES, settings, batch_tokens, beam, Wishes(prefixes=PREFIXES)) == alone
    plain = generate(model, SOURCES, settings, n_best=beam)
    assert alone[1] == plain[1], "an empty prefix leaves everything as it is"
    assert generate(model, SOURCES, settings, n_best=beam, wishes=Wishes(prefixes=[()] * 4)) == plain


def test_what_is_withheld_keeps_its_share() -> None:
    logits = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    hidden = torch.zeros(3, 8, dtype=torch.bool)
    hidden[0, [3, 4]], hidden[1, 5] = True, True
    before, after = logits.log_softmax(1), withheld(logits, hidden).log_softmax(1)
    others = ~hidden
    others[:, PAD] = False
    torch.testing.assert_close(after[others], before[others])
    assert (after[hidden] == -torch.inf).all()
    given = before.exp()[0, [3, 4]].sum()
    torch.testing.assert_close(after.exp()[0, PAD] - before.exp()[0, PAD], given)
