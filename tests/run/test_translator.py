"""The translator: what `surd.load` gives, with the recipe's settings and with others."""

from pathlib import Path

import pytest
import torch
from run.tiny import PHONES, WORDS, tiny_run

import surd
from surd.errors import Faults, SurdError
from surd.metrics.perplexity import perplexity
from surd.recipe import Recipe
from surd.run.translator import Translator


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
    with pytest.warns(UserWarning, match="line 2: longer than what the model was trained on: its last 7 tokens"):
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
