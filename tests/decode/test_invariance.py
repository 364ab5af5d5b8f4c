"""An answer does not depend on its neighbours: alone, in batches of any size and order, beside one far longer."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from training.tiny import tiny, write_pairs

import surd
from surd.device import Precision
from surd.run.text import Answer
from surd.run.translator import Translator
from surd.training.start import plan, train_new


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learnt enough to be sure of some letters and unsure of others."""
    folder = tmp_path_factory.mktemp("invariance")
    pairs = write_pairs(folder / "pairs.tsv", 600, longest=12)
    list(train_new(plan(tiny(pairs, "training.steps=100", "training.evaluate_every=100")), folder / "run"))
    return folder / "run"


@pytest.fixture(scope="module")
def lines() -> list[str]:
    draw = random.Random(5)
    return ["".join(draw.choices("abcdef", k=draw.randint(1, 12))) for _ in range(40)]


def answers(translator: Translator, lines: Sequence[str], at_once: int, beam: int) -> list[Answer]:
    return list(translator.stream(lines, translator.decoding(beam=beam), at_once=at_once))


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_answer_does_not_depend_on_its_neighbours(
    run: Path, lines: list[str], beam: int, precision: Precision
) -> None:
    translator = surd.load(run, precision=precision)
    assert isinstance(translator, Translator)
    alone = answers(translator, lines, 1, beam)
    shuffled = random.Random(1).sample(range(len(lines)), len(lines))
    by_number = dict(zip(shuffled, answers(translator, [lines[number] for number in shuffled], 64, beam), strict=True))
    arms = {
        "in sevens": answers(translator, lines, 7, beam),
        "all at once": answers(translator, lines, 64, beam),
        "shuffled": [by_number[number] for number in range(len(lines))],
        "beside a long one": answers(translator, [lines[0] * 100, *lines], 64, beam)[1:],
    }
    for name, found in arms.items():
        for one, other in zip(alone, found, strict=True):
            if precision == "fp32":
                assert (one.text, one.score) == (other.text, pytest.approx(other.score, abs=1e-5)), name
            else:  # near-ties may fall either way
                assert one.text == other.text or abs(one.score - other.score) < 1e-2, name
