"""The translator: what `surd.load` gives, with the recipe's settings and with others."""

from pathlib import Path

import numpy as np
import pytest
import torch
from run.tiny import PHONES, WORDS, tiny_run

import surd
from surd.data.tokenizer import Words, learn
from surd.decode.ensemble import Ensemble
from surd.decode.generate import generate
from surd.decode.sample import Sampling
from surd.errors import Faults, SurdError
from surd.files import read_json, sha256, write_json
from surd.metrics.perplexity import perplexity
from surd.nn.position import LearnedPosition
from surd.nn.special import EOS
from surd.recipe import Draft, Recipe
from surd.run.request import Request
from surd.run.translator import Translator
from surd.training.extend import extended
from surd.training.start import plan


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run(tmp_path_factory.mktemp("runs") / "run").folder


@pytest.fixture(scope="module")
def translator(folder: Path) -> Translator:
    return surd.load(folder, device=torch.device("cpu"), precision="fp32")


def test_loading_twice_gives_the_same_answers(folder: Path, translator: Translator) -> None:
    again = surd.load(folder, device=torch.device("cpu"), precision="fp32")
    assert again.translate(WORDS[:3]) == translator.translate(WORDS[:3])
    assert isinstance(translator.recipe, Recipe) and translator.recipe.task == "pronunciation"


def test_settings_take_the_place_of_the_recipes(translator: Translator) -> None:
    assert (translator.decoding().beam, translator.decoding().length_penalty) == (3, 1.0)
    assert (translator.decoding(beam=1).beam, translator.decoding(length_penalty=0.0).length_penalty) == (1, 0.0)
    scored = translator.translate(WORDS[:3], scores=True)
    assert [text for text, _ in scored] == translator.translate(WORDS[:3], beam=3)
    assert all(score < 0 for _, score in scored)
    greedy = translator.translate(WORDS[:3], beam=1, length_penalty=0.0, scores=True)
    best = translator.translate(WORDS[:3], beam=5, length_penalty=0.0, scores=True)
    assert all(one[1] <= other[1] + 1e-4 for one, other in zip(greedy, best, strict=True))
    with pytest.raises(Faults, match="beam: expected at least 1, found 0"):
        translator.translate(["cat"], beam=0)


def test_a_single_text_is_refused_and_nothing_is_nothing(translator: Translator) -> None:
    with pytest.raises(SurdError, match=r"write translate\(\[text\]\)"):
        translator.translate("cat")
    assert translator.translate([]) == []


def test_a_long_line_warns(translator: Translator) -> None:
    with pytest.warns(UserWarning, match="line 2: longer than what the model was trained on: translated in 2 parts"):
        translator.translate(["cat", "tomatoto" + "cat " * 3])


def test_scores_are_the_tasks_with_perplexity(translator: Translator) -> None:
    outputs = translator.translate(WORDS)
    scores = translator.score(WORDS, PHONES)
    assert [score.name for score in scores] == ["WER", "PER", "perplexity"]
    assert scores[:2] == translator.run.task.score(outputs, [[line] for line in PHONES])
    perfect = translator.score(WORDS, [[output, "K"] for output in outputs])
    assert perfect[0].value == 0
    assert scores[2] == translator.perplexity(WORDS, PHONES)
    assert scores[2].value == pytest.approx(perplexity(*translator.scribe.nll(WORDS, PHONES, 10)).value, rel=1e-5)


def test_joined_columns_may_come_with_tabs(tmp_path: Path) -> None:
    joined = tiny_run(tmp_path / "run", columns="1+2,3").load_model(torch.device("cpu"), "fp32")
    translator = Translator(run=tiny_run(tmp_path / "other", columns="1+2,3"), model=joined)
    assert translator.translate(["cat\ta"]) == translator.translate(["cat a"])


def test_several_outputs_are_those_of_the_search(translator: Translator) -> None:
    answers = translator.answers([*WORDS, ""], beam=4, n_best=4)
    assert [answer.text for answer in answers] == translator.translate([*WORDS, ""], beam=4)
    for word, answer in zip(WORDS, answers, strict=False):
        source = [*translator.scribe.tokenizers.source.encode(word), EOS]
        [found] = generate(translator.model, [source], translator.decoding(4), n_best=4)
        texts = translator.scribe.tokenizers.target.decode_all([hypothesis.tokens for hypothesis in found])
        assert [output.text for output in answer.outputs] == texts
        np.testing.assert_allclose([output.score for output in answer.outputs], [h.score for h in found], atol=1e-5)
    assert [output.text for output in answers[-1].outputs] == [""]
    with pytest.raises(SurdError, match=r"n_best: expected at most the beam, .*\(3\), found 5; ask for a beam of 5"):
        translator.answers(["cat"], n_best=5)
    with pytest.raises(SurdError, match="n_best: expected at least 1, found 0"):
        translator.answers(["cat"], n_best=0)


def test_outputs_begin_with_the_prefix(translator: Translator) -> None:
    prefixes = ["T AH", "", " K ", "D"]
    answers = translator.answers(["cat", "dog", "tomato", ""], prefix=prefixes, n_best=2)
    for prefix, answer in zip(prefixes[:3], answers, strict=False):
        assert all(f"{output.text} ".startswith(f"{prefix.strip()} ".lstrip()) for output in answer.outputs)
    assert answers[3].text == "", "an empty line stays empty"
    assert answers[1].outputs == translator.answers(["dog"], n_best=2)[0].outputs
    assert [one.text.split()[0] for one in translator.answers(["cat", "dog"], prefix="UW")] == ["UW", "UW"]
    with pytest.raises(SurdError, match=r"line 2: the prefix has 5 tokens, and an output of that line at most 5"):
        translator.answers(["tomato", "cat"], prefix="K K K K K")
    with pytest.raises(SurdError, match='line 1: the prefix "K Q" holds a symbol that the model has never seen'):
        translator.answers(["cat"], prefix="K Q")
    for given in (["K"], ["K"] * 3):
        with pytest.raises(SurdError, match=f"prefixes: expected one for each of the 2 lines, found {len(given)}"):
            translator.answers(["cat", "dog"], prefix=given)


def test_prefixes_of_a_stream_are_missed_when_their_line_comes(translator: Translator) -> None:
    answers = translator.stream_chunks([["cat"], ["dog", "tomato"], ["cat"]], prefixes=iter(["K", "D"]))
    assert [next(answers).text[0] for _ in range(2)] == ["K", "D"]
    with pytest.raises(SurdError, match="prefixes: expected one for each line, found 2: line 3 has none"):
        next(answers)
    answers = translator.stream_chunks([["cat"]], prefixes=iter(["K", "D"]))
    assert next(answers).text[0] == "K"
    with pytest.raises(SurdError, match="prefixes: expected one for each line, found more than the 1 lines"):
        next(answers)


def test_alignments_name_letters_and_phones(translator: Translator) -> None:
    for word, answer in zip(WORDS, translator.answers(WORDS, align=True, n_best=2), strict=True):
        for output in answer.outputs:
            assert [place for _, place in output.alignment] == list(range(len(output.text.split())))
            assert all(0 <= letter < len(word) for letter, _ in output.alignment)
            assert output.links.split() == [f"{letter}-{place}" for letter, place in output.alignment]
    assert translator.answers(["cat"])[0].alignment == ()


def test_parts_of_a_long_line_are_aligned_as_one(translator: Translator) -> None:
    line = "tomato tomato tomato"
    with pytest.warns(UserWarning, match="translated in 3 parts"):
        [whole] = translator.answers([line], align=True, prefix="T AH")
    first, other = translator.answers(["tomato", "tomato"], align=True, prefix=["T AH", ""])
    assert whole.text == " ".join([first.text, other.text, other.text])
    length = len(first.text.split())
    expected = [*first.alignment]
    expected += [(letter + 7, place + length) for letter, place in other.alignment]
    length += len(other.text.split())
    expected += [(letter + 14, place + length) for letter, place in other.alignment]
    assert list(whole.alignment) == expected


def test_draws_follow_from_seed_and_line_alone(translator: Translator) -> None:
    drawn = translator.answers(WORDS, sample=True, seed=3, n_best=2)
    assert len({answer.text for answer in drawn}) > 1
    shuffled = translator.answers(["a", *WORDS[1:3], "surd surd"], sample=True, seed=3, n_best=2)
    for one, other in zip(shuffled[1:3], drawn[1:3], strict=True):
        assert [output.text for output in one.outputs] == [output.text for output in other.outputs]
    for batch_tokens, at_once in ((1, 1), (40, 3)):
        request = Request(sampling=Sampling(), seed=3, n_best=2)
        streamed = translator.stream(WORDS, None, batch_tokens, at_once, request)
        assert [answer.text for answer in streamed] == [answer.text for answer in drawn]
    assert [a.text for a in translator.answers(WORDS, sample=True, seed=4)] != [answer.text for answer in drawn]
    twice = translator.answers(["cat", "cat"], sample=True, n_best=3)
    assert twice[0].outputs != twice[1].outputs
    cold = translator.answers(WORDS, sample=True, temperature=0, guard=False)
    assert len({answer.text for answer in cold} & set(translator.translate(WORDS, beam=1))) > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sample": True, "beam": 2}, "it does not go with a beam"),
        ({"top_k": 2, "seed": 1}, "top_k, seed: for outputs that are drawn"),
        ({"sample": True, "top_p": 0.0, "temperature": -1.0}, "(?s)temperature: .*top_p: "),
    ],
)
def test_settings_that_do_not_fit_are_refused(translator: Translator, settings: dict, message: str) -> None:
    with pytest.raises(SurdError, match=message):
        translator.answers(["cat"], **settings)
    with pytest.raises(SurdError, match=r"write answers\(\[text\]\)"):
        translator.answers("cat")


def test_runs_translate_together(folder: Path, translator: Translator, tmp_path: Path) -> None:
    cpu = {"device": torch.device("cpu"), "precision": "fp32"}
    alone = translator.translate(WORDS, scores=True)
    beside = surd.load([folder, folder], **cpu)
    for (text, score), (other, nearly) in zip(alone, beside.translate(WORDS, scores=True), strict=True):
        assert text == other and score == pytest.approx(nearly, abs=1e-5)
    assert beside.perplexity(WORDS, PHONES).value == pytest.approx(translator.perplexity(WORDS, PHONES).value, rel=1e-5)
    other = tiny_run(tmp_path / "other", seed=1).folder
    together = surd.load([folder, other], **cpu)
    assert isinstance(together.model, Ensemble) and len(together.model.members) == 2
    assert together.translate(WORDS, scores=True) != alone
    assert surd.load([folder], **cpu).translate(WORDS, scores=True) == alone
    with pytest.raises(SurdError, match="ledger: an ensemble has several models"):
        surd.ledger(together)
    with pytest.raises(SurdError, match="found an empty list"):
        surd.load([])


def test_an_ensemble_has_one_vocabulary(folder: Path, tmp_path: Path) -> None:
    other = tiny_run(tmp_path / "other")
    learn(Words(), [*PHONES, "NG"]).save(other.tokenizer_folder, "target")
    about, changed = read_json(other.folder / "run.json"), "tokenizer/target.json"
    write_json(other.folder / "run.json", about | {"files": about["files"] | {changed: sha256(other.folder / changed)}})
    with pytest.raises(SurdError, match=f"an ensemble has one vocabulary, and that of {other.folder} is not that of"):
        surd.load([folder, other.folder])


def test_a_run_with_as_many_positions_as_its_text_needs_opens_and_goes_on(tmp_path: Path) -> None:
    """Its outputs might be longer by the recipe, which nobody had asked for."""
    run = tiny_run(tmp_path / "run", factor=2.0, position=LearnedPosition(length=13))
    assert run.recipe.decode.limit(13) > 13
    lines = ["tomatotomato", "a", "cat " * 9]
    with pytest.warns(UserWarning, match="translated in"):
        answers = surd.load(run.folder).answers(lines, n_best=3, guard=False)
    assert all(len(answers[number].text.split()) <= 13 for number in (0, 1))
    assert extended(run, ["training.steps=200"]).recipe.training.steps == 200
    pairs = tmp_path / "pairs.tsv"
    rows = (f"{word}{other}\t{phones}\n" for word, phones in zip(WORDS, PHONES, strict=True) for other in WORDS)
    pairs.write_text("".join(rows))
    words = ["training.steps=9", "training.schedule.warmup=2", "data.max_ratio=100.0"]
    asked = Draft().with_values({"data.source": str(pairs)}, "given in a test").with_words(words)
    assert plan(asked, run).recipe.model.position == LearnedPosition(length=13)
