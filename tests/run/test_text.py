"""Text in, text out: in order, one for one, whatever the line, however the lines are cut into chunks."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from run.tiny import PHONES, WORDS, tiny_run

from surd.decode.decoding import Decoding
from surd.decode.ensemble import Ensemble
from surd.decode.generate import generate
from surd.decode.sample import Sampling
from surd.errors import SurdError
from surd.models.architecture import Architecture
from surd.models.seq2seq import Seq2Seq
from surd.nn.position import LearnedPosition
from surd.nn.ragged import Ragged
from surd.nn.special import BOS, EOS
from surd.nn.tying import Tying
from surd.run.outputs import one_line
from surd.run.request import PLAIN, Request
from surd.run.text import Scribe

DECODING = Decoding(beam=2, factor=0.5, extra=2)


@pytest.fixture(scope="module")
def scribe(tmp_path_factory: pytest.TempPathFactory) -> Scribe:
    run = tiny_run(tmp_path_factory.mktemp("runs") / "run")
    return Scribe(model=run.load_model(torch.device("cpu"), "fp32"), tokenizers=run.tokenizers, longest=8)


def test_an_answer_is_the_best_hypothesis_as_text(scribe: Scribe) -> None:
    for word, answer in zip(WORDS, scribe.answer(WORDS, DECODING, 100), strict=True):
        ids = [*scribe.tokenizers.source.encode(word), EOS]
        [[hypothesis]] = generate(scribe.model, [ids], DECODING)
        assert answer.text == scribe.tokenizers.target.decode(hypothesis.tokens)
        assert answer.score == pytest.approx(hypothesis.score, abs=1e-5)
        assert answer.parts == 1


def test_empty_lines_stay_empty_and_do_not_touch_the_model(scribe: Scribe) -> None:
    lines = ["", "cat", "   ", "dog", "\t", ""]
    answers = list(scribe.answer(lines, DECODING, 100))
    assert [bool(answer.text) for answer in answers] == [False, True, False, True, False, False]
    without = Scribe(model=None, tokenizers=scribe.tokenizers, longest=scribe.longest)
    for request in (PLAIN, Request(align=True, guard=False), Request(sampling=Sampling(), n_best=2)):
        answers = list(without.answer(["", " "], DECODING, 100, request=request, prefixes="K"))
        assert [answer.text for answer in answers] == ["", ""]
    assert list(scribe.answer([], DECODING, 100)) == []


def test_order_and_text_do_not_depend_on_the_chunks(scribe: Scribe) -> None:
    lines = [*WORDS, "", *reversed(WORDS)]
    whole = [answer.text for answer in scribe.answer(lines, DECODING, 1000)]
    for at_once in (1, 3, 17):
        assert [answer.text for answer in scribe.answer(lines, DECODING, 12, at_once)] == whole
    assert whole[: len(WORDS)] == whole[:-9:-1]


def test_input_is_read_as_it_is_needed(scribe: Scribe) -> None:
    def endless():
        while True:
            yield "cat"

    answers = scribe.answer(endless(), DECODING, 100, at_once=4)
    assert len({next(answers).text for _ in range(10)}) == 1


def test_a_long_line_is_translated_in_parts_and_says_so(scribe: Scribe) -> None:
    whole, other, long = scribe.answer(["tomatoto", "cat", "tomatotocat"], DECODING, 100)
    assert (whole.parts, long.parts) == (1, 2)
    assert long.text == f"{whole.text} {other.text}".strip()
    assert "translated in 2 parts" in long.parts_warning
    total = sum(
        generate(scribe.model, [[*scribe.tokenizers.source.encode(word), EOS]], DECODING)[0][0].log_probability
        for word in ("tomatoto", "cat")
    )
    assert total / long.score == pytest.approx(round(total / long.score), abs=1e-3), "the mean over all tokens"


def test_nll_is_that_of_each_pair_alone(scribe: Scribe) -> None:
    total, tokens = scribe.nll(WORDS, PHONES, batch_tokens=30)
    expected = 0.0
    for word, phones in zip(WORDS, PHONES, strict=True):
        source, target = scribe.tokenizers.source.encode(word), scribe.tokenizers.target.encode(phones)
        with torch.no_grad():
            hidden = scribe.model(Ragged.from_lists([[*source, EOS]]), Ragged.from_lists([[BOS, *target]]))
            probabilities = scribe.model.logits(hidden).log_softmax(-1)
        expected -= probabilities[range(len(target) + 1), [*target, EOS]].sum().item()
    assert total == pytest.approx(expected, rel=1e-5)
    assert tokens == sum(len(phones.split()) + 1 for phones in PHONES)
    assert total / tokens == pytest.approx(math.log(scribe.tokenizers.target.size), abs=1.5)


def test_nll_leaves_out_pairs_without_a_source(scribe: Scribe) -> None:
    assert scribe.nll(["cat", ""], ["K AE T", "D"], 100)[1] == 4
    assert scribe.nll([""], ["D"], 100) == (0.0, 0)


def test_no_line_end_leaves_the_model() -> None:
    assert one_line("a\nb\r\nc") == "a b  c"


def test_no_output_is_longer_than_the_positions_that_were_learnt(scribe: Scribe) -> None:
    shape = {"d_model": 16, "heads": 2, "d_k": 8, "d_ff": 32, "encoder_layers": 1, "decoder_layers": 1}
    learnt = Architecture(**shape, position=LearnedPosition(length=9), tying=Tying.OUTPUT)
    torch.manual_seed(3)
    model = Seq2Seq(learnt, scribe.tokenizers.source.size, scribe.tokenizers.target.size).eval()
    with torch.no_grad():
        model.projection.bias = torch.nn.Parameter(torch.zeros(len(model.projection.weight)))
        model.projection.bias[EOS] = -100.0  # it never comes to an end by itself
    bounded = replace(scribe, model=model)
    usual = Decoding(beam=2, factor=2.0, extra=20)
    requests = (PLAIN, Request(n_best=2, guard=False), Request(sampling=Sampling(), n_best=2, align=True))
    for request, decoding in product(requests, (usual, replace(usual, beam=1, extra=3), usual.within(7))):
        if request.n_best > decoding.beam and request.sampling is None:
            continue
        for answer in bounded.answer(["cat", "a"], decoding, 100, request=request):
            longest = min(decoding.limit(5), 9)
            assert all(len(output.text.split()) <= longest for output in answer.outputs)
    assert max(len(answer.text.split()) for answer in bounded.answer(["cat"], usual, 100)) == 9
    with pytest.raises(SurdError, match="line 1: the prefix has 9 tokens, and an output of that line at most 9"):
        list(bounded.answer(["cat"], usual, 100, prefixes=" ".join(["K"] * 9)))
    assert replace(bounded, model=Ensemble([scribe.model, model])).positions == 9
    assert scribe.positions is None
