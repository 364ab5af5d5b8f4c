"""Drawing outputs: as often as the model says, by numbers that nothing else in the batch has a part in."""

from collections import Counter

import pytest
from decode.table import Table, all_outputs
from decode.test_search import Broken, teacher_forced

from surd.decode.decoding import Decoding
from surd.decode.draw import draw
from surd.decode.generate import Wishes, generate
from surd.decode.greedy import greedy
from surd.decode.sample import Sampling
from surd.errors import SurdError
from surd.nn.special import UNK

SOURCES = [[5, 7, 9, 2], [2], [4, 2], [4, 4, 4, 4, 4, 4, 2], [8, 2]]
SEEDS = [[10 * number + sample for sample in range(3)] for number in range(len(SOURCES))]
SETTINGS = Decoding(beam=1, factor=1.0, extra=4)


def test_outputs_come_as_often_as_the_model_says() -> None:
    model, limit, draws = Table(6, 1), 3, 4000
    settings = Decoding(factor=0.0, extra=limit)
    [found] = draw(model, [[4, 2]], settings, Sampling(), [list(range(draws))])
    counts = Counter((hypothesis.tokens, hypothesis.ended) for hypothesis in found)
    listed = [output for output in all_outputs(model, [4, 2], limit, 1.0) if UNK not in output.tokens]
    assert counts.keys() <= {(output.tokens, output.ended) for output in listed}
    # Three tokens are never drawn, so at each step the others share their probability.
    chances = {(output.tokens, output.ended): chance(model, output.tokens, output.ended) for output in listed}
    assert sum(chances.values()) == pytest.approx(1, abs=1e-6)
    for output, expected in chances.items():
        spread = (draws * expected * (1 - expected)) ** 0.5
        assert abs(counts[output] - draws * expected) <= 4 * spread + 1, output


def chance(model: Table, tokens: tuple[int, ...], ended: bool) -> float:
    total = 1.0
    for place, token in enumerate([*tokens, 2] if ended else tokens):
        logits = model.logits((4, 2), (1, *tokens[:place])).clone()
        logits[[0, 1, UNK]] = float("-inf")
        total *= logits.softmax(0)[token].item()
    return total


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.5, top_k=4), Sampling(top_p=0.6)])
def test_alone_or_beside_others(sampling: Sampling) -> None:
    model = Table(12, 3)
    together = draw(model, SOURCES, SETTINGS, sampling, SEEDS)
    for number, source in enumerate(SOURCES):
        assert draw(model, [source], SETTINGS, sampling, [SEEDS[number]]) == [together[number]]
        singly = [draw(model, [source], SETTINGS, sampling, [[seed]])[0][0] for seed in SEEDS[number]]
        assert singly == together[number]
    ranked = [sorted(found, key=lambda one: (-one.score, one.tokens)) for found in together]
    for batch_tokens in (1, 30):
        wishes = Wishes(sampling=sampling, seeds=SEEDS)
        assert generate(model, SOURCES, SETTINGS, batch_tokens, wishes=wishes) == ranked
    assert draw(model, [], SETTINGS, sampling, []) == []


def test_scores_are_the_models_whatever_the_temperature() -> None:
    model, settings = Table(12, 3), Decoding(length_penalty=0.8, factor=1.0, extra=4)
    wishes = Wishes(sampling=Sampling(temperature=3.0), seeds=SEEDS)
    for source, hypotheses in zip(SOURCES, generate(model, SOURCES, settings, wishes=wishes), strict=True):
        assert [one.score for one in hypotheses] == sorted((one.score for one in hypotheses), reverse=True)
        for one in hypotheses:
            length = len(one.tokens) + one.ended
            assert length <= settings.limit(len(source)) and (one.ended or length == settings.limit(len(source)))
            assert one.log_probability == pytest.approx(teacher_forced(model, source, one), abs=1e-5)
            assert one.score == pytest.approx(one.log_probability / length**0.8)


def test_a_temperature_of_zero_is_greedy() -> None:
    model = Table(12, 5)
    drawn = draw(model, SOURCES, SETTINGS, Sampling(temperature=0), [[seed[0]] for seed in SEEDS])
    searched = greedy(model, SOURCES, SETTINGS)
    alike = [(one[0].tokens, other[0].tokens) for one, other in zip(drawn, searched, strict=True)]
    assert all(one == other for one, other in alike if UNK not in other) and any(UNK not in other for _, other in alike)


def test_a_prefix_is_kept() -> None:
    prefixes = [(7, 8), (), (4,), (5, 5, 5), ()]
    wishes = Wishes(prefixes=prefixes, sampling=Sampling(), seeds=SEEDS)
    for prefix, found in zip(prefixes, generate(Table(12, 3), SOURCES, SETTINGS, wishes=wishes), strict=True):
        assert len(found) == 3 and all(one.tokens[: len(prefix)] == prefix for one in found)


def test_a_model_of_no_numbers_is_refused() -> None:
    with pytest.raises(SurdError, match="not numbers"):
        draw(Broken(9, 0), SOURCES, SETTINGS, Sampling(), SEEDS)
