"""Every experiment, without being told of it: what it says of itself, what it finds, and its page in the docs."""

import runpy
import sys
from pathlib import Path

import pytest
from lab.fast import record

import surd.lab.experiments
from surd.errors import SurdError
from surd.lab import experiment
from surd.lab.experiment import LEAST_SEEDS, named, names, questions, run
from surd.lab.record import digest
from surd.lab.verdict import Verdict

PROBE = '''
"""Is one equal to one?"""

from surd.lab.experiment import Experiment, Findings
from surd.lab.finding import near


class One(Experiment):
    """Counts."""

    prediction = "It is."
    sources = ("Peano 1889.",)

    def measure(self, seeds):
        return Findings(comparisons=(near("one", [1.0 for _ in seeds], 1.0, 0.0, "one"),), claims=(), figures=())
'''


def test_there_are_the_ten() -> None:
    assert len(names()) >= 10
    assert "softmax-gradient" in names()


@pytest.mark.parametrize("name", names())
def test_an_experiment_says_what_it_asks_predicts_and_builds_on(name: str) -> None:
    one = named(name)
    assert one.name == name
    assert dict(questions())[name] == one.question
    assert one.question.endswith("?") and len(one.question) <= 120
    assert one.prediction.endswith(".") and one.sources
    assert type(one).__doc__


@pytest.mark.parametrize("name", names())
def test_the_prediction_holds(name: str) -> None:
    found = record(name)
    failed = [one.quantity for one in found.comparisons if one.verdict in (Verdict.REFUTED, Verdict.UNDECIDED)]
    assert failed == []
    assert found.verdict is Verdict.CONFIRMED


@pytest.mark.parametrize("name", names())
def test_everything_compared_has_a_reason_and_everything_random_enough_seeds(name: str) -> None:
    found = record(name)
    compared = [*found.comparisons, *(one for claim in found.claims for one in claim.comparisons)]
    assert found.comparisons and found.figures
    for one in compared:
        assert one.source
        assert len(one.values) in (0, 1, LEAST_SEEDS)
    for one in found.comparisons:
        assert len(one.values) < 2 or len(set(one.values)) > 1, f"{one.quantity} does not depend on the seed"
    quantities = [one.quantity for one in found.comparisons]
    assert len(set(quantities)) == len(quantities)


@pytest.mark.parametrize("name", names())
def test_its_page_in_the_docs_is_current(name: str, root: Path) -> None:
    page = (root / "docs" / "lab" / f"{name}.md").read_text(encoding="utf-8")
    one, found = named(name), record(name)
    advice = f"run: python docs/lab/write.py {name}"
    assert page.startswith(f"# {one.question}\n"), advice
    for text in (one.prediction, *one.sources, f"settings:{digest(one.settings)[:8]}"):
        assert text in page, advice
    for claim in found.claims:
        told = page.partition(f"> {claim.text} ({claim.heard})\n\n")[2]
        assert told.startswith(f"**{claim.verdict}.** "), advice
    assert page.count("\n> ") == len(found.claims), advice


def test_the_list_of_the_docs_is_current(root: Path) -> None:
    folder = root / "docs" / "lab"
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert runpy.run_path(str(folder / "write.py"))["index"](text) == text, "run: python docs/lab/write.py"
    assert {path.stem for path in folder.glob("*.md")} == {"README", *names()}


def test_a_new_file_is_a_new_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one_and_one.py").write_text(PROBE, encoding="utf-8")
    monkeypatch.setattr(experiment, "FOLDER", tmp_path)
    monkeypatch.setattr(surd.lab.experiments, "__path__", [*surd.lab.experiments.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "surd.lab.experiments.one_and_one", raising=False)
    assert list(questions()) == [("one-and-one", "Is one equal to one?")]
    assert run(named("one-and-one"), 5).verdict is Verdict.CONFIRMED


def test_an_unknown_experiment_is_refused_with_the_nearest() -> None:
    with pytest.raises(SurdError, match=r'unknown experiment "lenght"\. Did you mean "length"\?'):
        named("lenght")


@pytest.mark.parametrize("seeds", [4, 0, -3])
def test_too_few_seeds_are_refused(seeds: int) -> None:
    with pytest.raises(SurdError, match=f"seeds: expected at least 5, found {seeds}"):
        run(named("length"), seeds)
