"""What is told of all lines together: placeholders that are lost, symbols that are unknown."""

from surd.run.outputs import Output
from surd.run.tally import Tally
from surd.run.text import Answer


def answer(text: str, unknown: int = 0) -> Answer:
    return Answer(text=text, score=-1.0, unknown=unknown)


def test_nothing_lost_is_nothing_told() -> None:
    tally = Tally(("<url>", "<num>"))
    tally.add(1, "see <url>", answer("siehe <url>"))
    tally.add(2, "", answer("<num>"))
    assert list(tally.warnings()) == []


def test_each_missing_placeholder_is_counted_once_for_each_time_it_is_missing() -> None:
    tally = Tally(("<url>", "<num>"))
    tally.add(3, "<url> <url> <num>", answer("<url>"))
    assert list(tally.warnings()) == [
        'line 3: placeholders of the source are missing in the output: "<url>" once, "<num>" once'
    ]
    tally.add(7, "<url>", answer("url", unknown=2))
    assert list(tally.warnings()) == [
        "2 lines, the first of them line 3: placeholders of the source are missing in the output: "
        '"<url>" 2 times, "<num>" once',
        "line 7: symbols that the model has never seen, which it reads as ⁇",
    ]


def test_every_output_of_a_line_is_counted() -> None:
    tally = Tally(("<url>",))
    others = (Output(text="url", score=-2.0), Output(text="<url>", score=-3.0))
    tally.add(1, "<url>", Answer(text="-", score=-1.0, others=others, looped=2))
    tally.add(2, "a", Answer(text="b", score=-1.0))
    assert list(tally.warnings()) == [
        'line 1: placeholders of the source are missing in the output: "<url>" 2 times',
        "line 1: 2 outputs went in circles, and were searched for again without",
    ]


def test_placeholders_that_no_training_text_held_are_told() -> None:
    tally = Tally(("<url>", "<num>"), untrained=["<num>"])
    tally.add(1, "<url>", answer("<url>"))
    tally.add(2, "<num> <num>", answer("<num> <num>"))
    assert list(tally.warnings()) == [
        "line 2: placeholders that stand nowhere in what the model was trained on, so what becomes of them is chance: "
        '"<num>"'
    ]
