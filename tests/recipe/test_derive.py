"""What the data decide: size, vocabulary, batches, duration, each with its reason, and never against what was asked."""

from dataclasses import replace

import pytest
from recipe.corpora import enlarged, inflections, sentences, sounds, surveyed

from surd.data.corpus import DataSettings
from surd.data.prepare import learn_tokenizers
from surd.errors import Faults, SurdError
from surd.nn.tying import Tying
from surd.recipe import Draft, Recipe, Training, derive, explain, find, suggested, with_steps
from surd.recipe.file import values
from surd.recipe.table import get, leaves
from surd.training.start import Plan


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return surveyed(tmp_path_factory.mktemp("text"), sentences())


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return surveyed(tmp_path_factory.mktemp("words"), sounds())


def asked(*settings: str) -> Draft:
    return Draft().with_words(settings)


@pytest.mark.parametrize(
    ("pairs", "size"), [(20, "nano"), (1_999, "nano"), (29_000, "tiny"), (150_000, "small"), (4_500_000, "base")]
)
def test_the_shipped_recipe_of_that_size_is_the_only_source_of_its_numbers(text, pairs, size):
    survey = enlarged(text, pairs)
    recipe, reasons = derive(survey)
    shipped = Draft.read(find(size)).values
    plain = values(recipe)
    bent = {"batch.tokens", "training.schedule.rate"} if pairs == 20 else {"training.schedule.rate"} & set(reasons)
    bent |= {"tokenizer.source.size", "tokenizer.target.size", "batch.tokens", "training.schedule.rate"}
    same = [path for path in leaves(shipped) if path not in bent]
    assert {path: get(plain, path) for path in same} == {path: get(shipped, path) for path in same}
    assert f"{pairs:,} usable pairs ({size}): " in reasons["model.d_model"]


def test_at_multi30ks_size_the_published_settings_come_out(text):
    multi30k = replace(enlarged(text, 29_000), source_words=377_534, target_words=360_706)
    plain = values(derive(multi30k)[0])
    published = Draft.read(find("multi30k")).values
    differ = {path for path in leaves(published) if get(plain, path) != get(published, path)}
    assert differ <= {
        "tokenizer.source.size",
        "tokenizer.target.size",
        "tokenizer.source.byte_fallback",
        "tokenizer.target.byte_fallback",
        "tokenizer.source.coverage",
        "tokenizer.target.coverage",
        "training.evaluate_every",
        "training.optimizer.epsilon",
    }


def test_every_derived_value_has_a_reason_in_one_line(text, words):
    for survey in (text, words):
        recipe, reasons = derive(survey)
        assert all(reason and "\n" not in reason for reason in reasons.values())
        assert set(reasons) <= {row.setting for row in explain(recipe, reasons)}
        for path in ("model.d_model", "model.heads", "model.dropout", "model.tying", "batch.tokens", "training.steps"):
            assert path in reasons


@pytest.mark.parametrize("pairs", [12, 40, 280])
def test_a_derived_vocabulary_fits_the_data(tmp_path, pairs):
    survey = surveyed(tmp_path, sentences()[:pairs])
    recipe, _ = derive(survey)
    learnt = learn_tokenizers(recipe.tokenizer, survey, fit=True)
    assert learnt.source.size <= recipe.tokenizer.source.size
    assert recipe.tokenizer.source.size <= 500


def test_more_words_allow_more_pieces_up_to_the_size_of_the_recipe(text):
    sizes = [derive(enlarged(text, pairs))[0].tokenizer.source.size for pairs in (2_000, 5_000, 20_000, 90_000)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1] == get(Draft.read(find("tiny")).values, "tokenizer.source.size")


def test_tying_follows_from_the_vocabulary(text, words):
    assert derive(text)[0].tokenizer.joint
    assert derive(text)[0].model.tying is Tying.ALL
    assert derive(words)[0].model.tying is Tying.OUTPUT
    apart = derive(text, asked("tokenizer.joint=false"))[0]
    assert apart.model.tying is Tying.OUTPUT
    other_script = replace(text, target_scripts={"CYRILLIC": 1.0})
    assert not derive(other_script)[0].tokenizer.joint
    assert derive(other_script, asked("model.tying=all"))[0].tokenizer.joint
    with pytest.raises(Faults, match=r"model\.tying and tokenizer\.joint"):
        derive(words, asked("model.tying=all"))


def test_one_side_follows_the_other(text):
    assert "side" not in derive(text)[1]["tokenizer.target.kind"]
    recipe, reasons = derive(text, asked("tokenizer.source.kind=unigram"))
    assert recipe.tokenizer.joint
    assert recipe.tokenizer.source == recipe.tokenizer.target
    assert recipe.tokenizer.target.kind == "unigram"
    assert reasons["tokenizer.target.kind"] == "as on the source side"
    recipe, _ = derive(text, asked("tokenizer.target.size=700"))
    assert recipe.tokenizer.joint
    assert (recipe.tokenizer.source.size, recipe.tokenizer.target.size) == (700, 700)
    recipe, _ = derive(text, asked("tokenizer.source=characters", "tokenizer.target=words"))
    assert (recipe.tokenizer.joint, recipe.model.tying) == (False, Tying.OUTPUT)


def test_what_depends_on_the_width_follows_it(text):
    recipe, _ = derive(enlarged(text, 50_000), asked("model.d_model=256", "model.heads=8"))
    assert (recipe.model.d_k, recipe.model.d_ff) == (32, 512)
    tiny = Draft.read(find("tiny")).values
    assert recipe.training.schedule.rate == pytest.approx(get(tiny, "training.schedule.rate") / 2)


def test_outputs_may_be_twice_as_long_as_the_pairs_let_expect(text):
    """Digits to number words: a target of sixty letters to a source of four."""
    sides = {"source_characters": 4 * text.usable, "target_characters": 60 * text.usable}
    recipe, reasons = derive(
        replace(text, **sides), asked("tokenizer.source=characters", "tokenizer.target=characters")
    )
    assert recipe.decode.factor == pytest.approx(2 * 61 / 5, rel=0.02)
    assert "12.2 times" in reasons["decode.factor"]
    asked_for = asked("tokenizer.source=characters", "tokenizer.target=characters", "decode.factor=3")
    assert derive(replace(text, **sides), asked_for)[0].decode.factor == 3.0


def test_a_shipped_vocabulary_is_the_most_that_is_wanted_and_an_asked_one_is_meant(text):
    def fits(draft: Draft) -> bool:
        return Plan(survey=text, draft=draft, recipe=derive(text, draft)[0], reasons={}).fit

    assert fits(Draft())
    assert fits(suggested("small"))
    assert fits(suggested("small").with_words(["model.dropout=0.2"]))
    assert not fits(suggested("small").with_words(["tokenizer.source.size=9000", "tokenizer.target.size=9000"]))
    assert not fits(Draft.read(find("small"))), "a file of one's own"


def test_a_shorter_training_has_a_shorter_warm_up_and_earlier_looks(text):
    recipe, reasons = derive(enlarged(text, 50_000), asked("training.steps=400"))
    assert recipe.training.schedule.warmup == 100
    assert recipe.training.evaluate_every <= 40
    assert recipe.training.schedule.rate < get(Draft.read(find("tiny")).values, "training.schedule.rate")
    assert "quarter" in reasons["training.schedule.warmup"]
    assert derive(enlarged(text, 50_000), asked("training.steps=1"))[0].training.evaluate_every == 1


def test_another_schedule_takes_over_peak_and_warm_up(text):
    recipe, _ = derive(enlarged(text, 50_000), asked("training.schedule=cosine"))
    tiny = Draft.read(find("tiny")).values
    assert recipe.training.schedule.kind == "cosine"
    assert recipe.training.schedule.rate == get(tiny, "training.schedule.rate")
    assert recipe.training.schedule.warmup == get(tiny, "training.schedule.warmup")
    assert derive(text, asked("training.schedule=paper"))[0].training.schedule.factor == 1.0


def test_minutes_become_steps(text):
    recipe, _ = derive(text, asked("training.minutes=4"))
    assert (recipe.training.steps, recipe.training.minutes) == (None, 4.0)
    shorter, reasons = with_steps(recipe, 200, "what 4 minutes allow here")
    assert (shorter.training.steps, shorter.training.minutes) == (200, None)
    assert shorter.training.schedule.warmup == 50
    assert shorter.training.evaluate_every <= 20
    assert reasons["training.steps"] == "what 4 minutes allow here"
    assert replace(shorter, training=recipe.training) == recipe


def test_minutes_for_few_pairs_go_into_updates_rather_than_looks(text):
    assert derive(text, asked("training.minutes=1"))[0].training.evaluate_every == 50


@pytest.mark.parametrize("pairs", [10, 1_999, 2_000, 10**5, 10**7])
@pytest.mark.parametrize("duration", ["steps=1", "steps=7", "steps=100000", "minutes=0.1"])
def test_no_derived_value_contradicts_another(text, words, pairs, duration):
    for survey in (text, words):
        derive(enlarged(survey, pairs), asked(f"training.{duration}"))


def test_few_pairs_have_small_batches(text, words):
    assert derive(text)[0].batch.tokens == 256
    assert derive(enlarged(words, 120_000))[0].batch.tokens == get(
        Draft.read(find("pronunciation")).values, "batch.tokens"
    )


def test_what_was_asked_stands(text):
    recipe, reasons = derive(text, asked("model.dropout=0.05", "seed=7", "task=transduction", "decode.beam=2"))
    assert (recipe.model.dropout, recipe.seed, recipe.task, recipe.decode.beam) == (0.05, 7, "transduction", 2)
    assert reasons["task"] == reasons["model.dropout"] == "given on the command line"
    with pytest.raises(SurdError, match='Did you mean "transduction"'):
        derive(text, asked("task=transducton"))


@pytest.mark.parametrize("name", ["multi30k", "pronunciation", "pronunciation-demo"])
def test_whole_recipes_leave_nothing_to_the_data(text, words, name):
    few = text if name == "multi30k" else words
    draft = Draft.read(find(name))
    results = [values(derive(enlarged(few, pairs), draft)[0]) for pairs in (few.usable, 10**6)]
    open_ = {"training.evaluate_every", "training.schedule.warmup", "model.d_k"}
    differ = {path for path in leaves(results[0]) if get(results[0], path) != get(results[1], path)}
    assert differ <= open_


def test_a_whole_recipe_is_derived_as_itself(text):
    whole = Recipe(task="translation", data=text.settings, training=Training(steps=5000))
    draft = Draft().with_values(values(whole), "given")
    assert derive(text, draft)[0] == whole


def test_inflection_is_in_characters(tmp_path):
    recipe, reasons = derive(surveyed(tmp_path, inflections()))
    assert (recipe.task, recipe.tokenizer.joint, recipe.tokenizer.source.kind) == ("transduction", True, "characters")
    assert "letter pairs" in reasons["task"]
    assert recipe.data == DataSettings(source=str(tmp_path / "pairs.tsv"))


def test_learnt_positions_reach_as_far_as_outputs_may(tmp_path):
    found = surveyed(tmp_path, sounds())
    recipe, reasons = derive(found, Draft().with_words(["model.position=learned", "training.steps=500"]))
    assert recipe.model.position.length == recipe.decode.limit(recipe.data.max_length + 1)
    assert reasons["model.position.length"].startswith("outputs may have")
    given = Draft().with_words(["model.position={kind='learned', length=600}", "training.steps=500"])
    assert derive(found, given)[0].model.position.length == 600


def test_heads_that_do_not_divide_the_width_are_refused_unless_d_k_is_given(text):
    asked = Draft().with_words(["model.d_model=64", "model.heads=3"])
    with pytest.raises(
        SurdError, match=r"model\.heads: expected a divisor of model\.d_model = 64 \(1, 2, 4, .*found 3"
    ):
        derive(text, asked)
    recipe, _ = derive(text, asked.with_words(["model.d_k=20"]))
    assert (recipe.model.heads, recipe.model.d_k) == (3, 20)
