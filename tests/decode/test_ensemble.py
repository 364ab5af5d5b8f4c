"""An ensemble: probabilities by hand, a search over all outputs, and a model beside itself."""

from math import log

import numpy as np
import pytest
import torch
from decode.table import Table, all_outputs
from parity.small import pairs, sentences, small_model

from surd.decode.beam import beam_search
from surd.decode.decoding import Decoding
from surd.decode.ensemble import Ensemble, mixture
from surd.decode.generate import generate
from surd.nn.special import EOS

SOURCES = [[4, EOS], [5, 4, EOS], [EOS]]


def test_probabilities_are_averaged() -> None:
    first, second = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.1, 0.1, 0.8]])
    expected = torch.tensor([[log(0.3), log(0.2), log(0.5)]])
    torch.testing.assert_close(mixture([first.log() + 7, second.log() - 2]), expected)


class Mean(Table):
    """What two tables say on average."""

    def draw(self, source: tuple[int, ...], beginning: tuple[int, ...]) -> torch.Tensor:
        members = [Table(self.vocabulary, seed).logits(source, beginning).softmax(0) for seed in (1, 2)]
        return torch.stack(members).mean(0).log()


@pytest.mark.parametrize("length_penalty", [1.0, 0.0])
def test_a_search_finds_the_best_of_all_outputs(length_penalty: float) -> None:
    space, limit = 2**3 * 3, 4
    settings = Decoding(beam=space, length_penalty=length_penalty, factor=0.0, extra=limit)
    together = Ensemble([Table(5, 1), Table(5, 2)])
    for source, found in zip(SOURCES, beam_search(together, SOURCES, settings, 10), strict=True):
        expected = all_outputs(Mean(5, 0), source, limit, length_penalty)[:10]
        assert [hypothesis.tokens for hypothesis in found] == [listed.tokens for listed in expected]
        np.testing.assert_allclose([h.score for h in found], [h.score for h in expected], rtol=1e-5, atol=1e-6)


def test_a_model_beside_itself_is_the_model() -> None:
    torch.manual_seed(0)
    model = small_model(torch.float32).eval()
    sources = [[*sentence, EOS] for sentence in sentences((5, 9, 1, 6))]
    for settings in (Decoding(beam=1), Decoding(beam=4)):
        alone = generate(model, sources, settings, n_best=settings.beam)
        beside = generate(Ensemble([model, model, model]), sources, settings, n_best=settings.beam)
        for one, other in zip(alone, beside, strict=True):
            assert [hypothesis.tokens for hypothesis in one] == [hypothesis.tokens for hypothesis in other]
            np.testing.assert_allclose([h.score for h in one], [h.score for h in other], atol=1e-5)


@torch.no_grad()
def test_the_loss_is_that_of_the_mean_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surd.decode.ensemble.ROWS", 4)
    torch.manual_seed(1)
    models = [small_model().eval() for _ in range(2)]
    source, target, labels = pairs(sentences((5, 9, 1)), sentences((7, 2, 6)))
    probabilities = torch.stack([model.logits(model(source, target)).softmax(1) for model in models]).mean(0)
    found = Ensemble(models).loss(source, target, labels)
    expected = -probabilities.gather(1, labels[:, None]).log().sum()
    assert found.tokens == len(labels)
    assert found.nll.item() == pytest.approx(expected.item(), rel=1e-6)
    assert found.correct == (probabilities.argmax(1) == labels).sum()


def test_modes_are_those_of_the_members() -> None:
    models = [small_model().train(mode) for mode in (True, False)]
    together = Ensemble(models)
    assert together.training and not together.train(False).training
    assert not any(model.training for model in models)
