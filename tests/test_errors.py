"""Errors that tell the nearest right thing."""

from surd.errors import Faults, nearest, unknown


def test_the_nearest_word_is_found_across_case_and_slips() -> None:
    assert nearest("Translaton", ["translation", "transduction"]) == "translation"
    assert nearest("BLEU", ["bleu", "chrf"]) == "bleu"
    assert nearest("zzz", ["translation"]) is None
    assert nearest("x", []) is None


def test_an_unknown_name_is_told_with_what_exists() -> None:
    assert unknown("task", "word", ["translation"]) == 'unknown task "word". There is: translation.'
    assert unknown("task", "word", []) == 'unknown task "word". There is none.'


def test_faults_are_one_message_of_many_lines() -> None:
    fault = Faults(line for line in ["a: wrong", "b: wrong"])
    assert fault.lines == ("a: wrong", "b: wrong")
    assert str(fault) == "a: wrong\nb: wrong"
