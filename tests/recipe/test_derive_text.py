"""What running text decides for a language model: size, vocabulary, windows, duration, each with its reason."""

from dataclasses import replace

import pytest

from surd.data.corpus import DataSettings
from surd.data.text import TextSurvey, survey_text
from surd.nn.tying import Tying
from surd.recipe import Draft, Recipe, derive_text, explain, find
from surd.recipe.file import values
from surd.recipe.table import get, leaves


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> TextSurvey:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"the {number}th line of the text is like the others\n" for number in range(2000)))
    return survey_text(DataSettings(text=str(path), held_out=0.1))


def enlarged(survey: TextSurvey, characters: int) -> TextSurvey:
    words = survey.words * characters // survey.characters
    return replace(survey, words=words, report=replace(survey.report, train_characters=characters))


def derived(survey: TextSurvey, *words: str) -> tuple[Recipe, dict[str, str]]:
    return derive_text(survey, Draft().with_values({"data.text": survey.settings.text}, "given").with_words(words))


@pytest.mark.parametrize(("characters", "size"), [(1_000_000, "characters"), (20_000_000, "language")])
def test_the_shipped_recipe_of_that_size_is_the_only_source_of_its_numbers(
    survey: TextSurvey, characters: int, size: str
) -> None:
    recipe, reasons = derived(enlarged(survey, characters))
    plain, shipped = values(recipe), Draft.read(find(size)).values
    differ = {path for path in leaves(shipped) if get(plain, path) != get(shipped, path)}
    assert differ == set()
    assert f"{characters:,} characters ({size}): " in reasons["model.d_model"]
    assert all(reason and "\n" not in reason for reason in reasons.values())
    assert set(reasons) <= {row.setting for row in explain(recipe, reasons)}
    assert recipe.model.tying is Tying.OUTPUT and recipe.task == "language"


def test_little_text_has_small_batches_few_pieces_and_short_warm_up(survey: TextSurvey) -> None:
    recipe, reasons = derived(survey, "tokenizer.target=bpe", "training.steps=40")
    assert recipe.tokenizer.target.size == 500 < 8000
    assert recipe.data.context <= recipe.batch.tokens
    assert recipe.training.schedule.warmup == 10
    assert "quarter" in reasons["training.schedule.warmup"]


def test_learnt_positions_follow_the_context(survey: TextSurvey) -> None:
    recipe, reasons = derived(survey, "model.position=learned", "data.context=96")
    assert recipe.model.position.length == recipe.data.context == 96
    assert "data.context" in reasons["model.position.length"]
    assert reasons["data.context"] == "given on the command line"


def test_what_depends_on_the_width_follows_it(survey: TextSurvey) -> None:
    recipe, _ = derived(enlarged(survey, 1_000_000), "model.d_model=256", "model.heads=8")
    assert (recipe.model.d_k, recipe.model.d_ff) == (32, 1024)
    usual = get(Draft.read(find("characters")).values, "training.schedule.rate")
    assert recipe.training.schedule.rate == pytest.approx(usual / 2)


@pytest.mark.parametrize("characters", [2_000, 10**6, 10**9])
@pytest.mark.parametrize("duration", ["steps=1", "steps=7", "steps=100000", "minutes=0.1"])
def test_no_derived_value_contradicts_another(survey: TextSurvey, characters: int, duration: str) -> None:
    derived(enlarged(survey, characters), f"training.{duration}")
    derived(enlarged(survey, characters), f"training.{duration}", "data.document=line", "model.position=none")


def test_a_whole_recipe_is_derived_as_itself(survey: TextSurvey) -> None:
    whole, _ = derived(survey, "sample.top_k=5", "seed=3")
    draft = Draft().with_values(values(whole), "given")
    assert derive_text(replace(survey, settings=whole.data), draft)[0] == whole
    assert (whole.sample.top_k, whole.seed, whole.data.held_out) == (5, 3, 0.1)
