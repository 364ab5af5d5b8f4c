"""Info: what a run is, at every stage of its life, in lines and as JSON."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from run.tiny import tiny_run
from run.tiny_text import tiny_text_run
from training.tiny import tiny, write_pairs

from surd.cli import main
from surd.errors import SurdError
from surd.models.architecture import Architecture
from surd.nn.scale import Fixed
from surd.nn.score import Additive
from surd.run.folder import CHECK
from surd.run.info import SCORES, info, origin_lines, scales
from surd.training.origin import record
from surd.training.start import plan, train_new


def test_a_finished_run_tells_data_scores_size_and_scales(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["training.steps=4", "training.evaluate_every=2"]
    list(train_new(plan(tiny(write_pairs(tmp_path / "pairs.tsv"), *words)), tmp_path / "run"))
    assert main(["info", str(tmp_path / "run")]) == 0
    told = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if not line.startswith(" "))
    assert (told["task"], told["data"]) == ("transduction", "pairs.tsv")
    assert told["training"] == "4 updates of at most 4, finished"
    assert told["scores"].startswith("accuracy ")
    assert told["parameters"].endswith("are saved by tying")
    assert told["vocabulary"] == "10 (characters), joint"
    assert told["attention"] == "inverse_root: 0.25 for a d_k of 16"
    assert told["embedding"] == "root_width: 5.657 for a d_model of 32"
    assert told["tying"] == "all"
    assert told["scales"].startswith("rms embed ")
    assert told["check"].startswith("at the start: no faults, no warnings; ")
    assert main(["info", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"] == info(tmp_path / "run").parameters
    assert [score["name"] for score in found["scores"]] == ["accuracy", "CER"]


def test_a_run_without_a_model_and_one_of_running_text(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run")
    (run.folder / "model.json").unlink()
    found = info(run.folder)
    assert (found.updates, found.finished, found.sizes, found.scores) == (None, False, None, ())
    text = info(tiny_text_run(tmp_path / "text").folder)
    assert len(text.vocabularies) == len(text.tokenizers) == 1
    assert text.layers.startswith("1 decoder layers")


def test_damaged_scores_are_refused(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run")
    (run.folder / "scores.json").write_text('{"scores": [{"name": "BLEU"}]}')
    with pytest.raises(SurdError, match=r"scores\.json: damaged"):
        info(run.folder)


@pytest.mark.parametrize("text", ["[]", "{}", "not json", '{"findings": [{"severity": "high"}], "skipped": []}'])
def test_a_damaged_verdict_is_refused(text: str, tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run")
    assert info(run.folder).check is None
    (run.folder / CHECK).write_text(text)
    with pytest.raises(SurdError, match=r"check\.json: damaged"):
        info(run.folder)


def test_scales_are_named_with_their_values() -> None:
    found = scales(replace(Architecture(), scale=Fixed(value=0.3)))
    assert found.attention == "fixed (value 0.3): 0.3 for a d_k of 64"
    assert "hold no product" in scales(replace(Architecture(), score=Additive())).attention


def test_an_origin_is_told_through_its_generations() -> None:
    first = {"how": "from", "runs": [{"run": "a", "data": ["x.tsv"], "step": 3}]}
    second = {"how": "average", "runs": [{"run": "b", "data": ["y.tsv"], "step": 5, "origin": first}]}
    assert origin_lines(second) == [
        "mean of b after update 5, which learnt from y.tsv",
        "  begun with a after update 3, which learnt from x.tsv",
    ]
    assert origin_lines(None) == []


def test_scores_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run")
    one = {"name": "chrF", "signature": "", "higher_is_better": True, "digits": 2}
    for value in (10**400, "high", None):
        (run.folder / SCORES).write_text(json.dumps({"scores": [one | {"value": value}], "basis": "a"}))
        with pytest.raises(SurdError, match="damaged, not the scores of a run"):
            info(run.folder)


def test_a_description_of_another_shape_is_refused_where_runs_are_averaged(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run")
    (run.folder / "model.json").write_text("[]")
    with pytest.raises(SurdError, match="damaged, not the description of a model"):
        record(run, "0" * 64)
