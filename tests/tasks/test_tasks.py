"""Tasks: one file each, recognised by their pairs, scored by their own metrics."""

from dataclasses import replace

import pytest
from recipe.corpora import inflections, sentences, sounds, surveyed

from surd.errors import SurdError
from surd.recipe import shipped
from surd.tasks import guess, named, names, pair_tasks, text_tasks
from surd.tasks.pronunciation import without_stress
from surd.tasks.transduction import shared_pairs

PAIRS = sorted(task.name for task in pair_tasks())


def test_a_task_learns_from_pairs_or_from_running_text():
    assert {*PAIRS, *(task.name for task in text_tasks())} == set(names())
    assert [task.name for task in text_tasks()] == ["language"]
    assert {named(name).use for name in PAIRS} == {"translate"}
    assert named("language").use == "generate"


@pytest.mark.parametrize(
    ("pairs", "task"), [(sentences(), "translation"), (sounds(), "pronunciation"), (inflections(), "transduction")]
)
def test_pairs_are_recognised_with_a_reason(tmp_path, pairs, task):
    found, reason = guess(surveyed(tmp_path, pairs))
    assert found.name == task
    assert reason and "\n" not in reason


@pytest.mark.parametrize(
    "pairs",
    [
        [(f"word{n}", "你好"[n % 2 :] + chr(0x4E00 + n)) for n in range(60)],
        [(f"hello{n}", f"xin chào {chr(97 + n % 26)}{n}") for n in range(900)],
    ],
)
def test_short_words_are_no_phones(tmp_path, pairs):
    assert guess(surveyed(tmp_path, pairs))[0].name != "pronunciation"


def test_sentences_without_blanks_are_no_words(tmp_path):
    line = "一个穿着红色衣服的男人正在街上骑着自行车"
    pairs = [(line[n % 5 :] + chr(0x4E00 + n), line[::-1][n % 5 :] + chr(0x5E00 + n)) for n in range(60)]
    assert guess(surveyed(tmp_path, pairs))[0].name == "translation"


def test_two_claims_are_left_to_the_user(tmp_path):
    both = replace(surveyed(tmp_path, inflections()), one_word_sources=1.0, short_symbol_targets=1.0, target_words=999)
    with pytest.raises(SurdError, match=r"several tasks \(pronunciation: .*; transduction: .*Name one with --task"):
        guess(both)


def test_an_unknown_task_is_refused_with_the_nearest():
    with pytest.raises(
        SurdError, match=r'unknown task "translate"\. Did you mean "translation"\? There is: language, pronunciation'
    ):
        named("translate")


@pytest.mark.parametrize("name", names())
def test_every_task_has_its_name_and_a_shipped_recipe_for_every_size(name):
    task = named(name)
    assert task.name == name
    limits = [limit for limit, _ in task.sizes]
    assert limits == sorted(limits)
    assert {task.size(pairs) for pairs in (10, 10**4, 10**6, 10**9)} <= set(shipped())


@pytest.mark.parametrize("name", PAIRS)
def test_the_right_answer_has_the_best_score(name):
    task = named(name)
    references = [["AH0 B IY1", "AH0 B EY1"], ["a small green house stands here"]]
    right = task.score([lines[-1] for lines in references], references)
    wrong = task.score(["AH0 T", "x"], references)
    assert [score.name for score in right] == [score.name for score in wrong]
    assert all(good.better_than(bad) for good, bad in zip(right, wrong, strict=True))
    assert {round(score.value) for score in right} <= {0, 100}


def test_the_selecting_scores_are_those_of_the_field():
    first = {name: [score.name for score in named(name).score(["b"], [["a"]])] for name in PAIRS}
    assert first == {
        "pronunciation": ["WER", "PER"],
        "transduction": ["accuracy", "CER"],
        "translation": ["BLEU", "chrF2"],
    }


def test_stress_is_scored_with_and_without():
    scores = named("pronunciation").score(["K AE0 T", "D AO1 G"], [["K AE1 T"], ["D AO1 G"]])
    values = {score.name: score.value for score in scores}
    assert values == {"WER": 50.0, "PER": pytest.approx(100 / 6), "WER without stress": 0.0, "PER without stress": 0.0}
    assert "stress:ignored" in scores[-1].signature


@pytest.mark.parametrize(("phones", "bare"), [("AH0 B IY1", "AH B IY"), ("t͡ʃ 1 a2", "t͡ʃ 1 a2"), ("ZH", "ZH"), ("", "")])
def test_only_arpabet_loses_its_digits(phones, bare):
    assert without_stress(phones) == bare


def test_copies_are_dropped_for_translation_alone():
    assert [name for name in PAIRS if named(name).drop_copies] == ["translation"]


def test_shared_pairs():
    assert shared_pairs("walk", "walked") == pytest.approx(3 / 5)
    assert shared_pairs("walk", "x") == 0.0
