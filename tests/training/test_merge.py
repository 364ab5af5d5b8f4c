"""Averages by hand: of a run's kept evaluations, of several runs, and what cannot be averaged."""

from pathlib import Path

import pytest
import torch
from run.tiny import tiny_run
from training.tiny import tiny, write_pairs

import surd
from surd.cli import main
from surd.errors import SurdError
from surd.files import load_tensors
from surd.run import Run
from surd.run.translator import Translator
from surd.training.checkpoint import Checkpoints
from surd.training.loop import train
from surd.training.merge import averaged
from surd.training.start import plan, train_new


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with evaluations after updates 2, 4, 6 and 8, of which some are kept."""
    folder = tmp_path_factory.mktemp("trained")
    words = ["training.steps=8", "training.evaluate_every=2", "training.average=2"]
    list(train_new(plan(tiny(write_pairs(folder / "pairs.tsv"), *words)), folder / "run"))
    return Run.open(folder / "run")


@pytest.mark.usefixtures("compiled")
def test_the_mean_of_chosen_evaluations_can_be_used_at_once(trained: Run, tmp_path: Path) -> None:
    merged = averaged([trained], tmp_path / "mean", steps=[4, 8])
    checkpoints = Checkpoints(trained.checkpoint_folder)
    four, eight, mean = (
        load_tensors(path) for path in (checkpoints.weights(4), checkpoints.weights(8), merged.run.weights())
    )
    for name, tensor in mean.items():
        assert torch.allclose(tensor, (four[name] + eight[name]) / 2, atol=1e-7), name
    translator = surd.load(merged.run.folder)
    assert isinstance(translator, Translator) and len(list(translator.stream(["abc", ""]))) == 2
    assert [one["step"] for one in merged.run.about["origin"]["runs"]] == [4, 8]
    assert merged.run.about["data"] == ["pairs.tsv"]
    assert averaged([trained], tmp_path / "two", last=2).weights_of == "average of 2 checkpoints (updates 6, 8)"
    with pytest.raises(SurdError, match=r"is an average of trained weights.*--from"):
        list(train(merged.run))


def test_the_mean_of_two_runs(tmp_path: Path) -> None:
    runs = [tiny_run(tmp_path / name, seed=seed) for seed, name in enumerate(("a", "b"))]
    merged = averaged(runs, tmp_path / "mean")
    one, two, mean = (load_tensors(run.weights()) for run in (*runs, merged.run))
    assert all(torch.allclose(mean[name], (one[name] + two[name]) / 2, atol=1e-7) for name in mean)
    assert [told["run"] for told in merged.run.about["origin"]["runs"]] == ["a", "b"]


def test_runs_of_another_kind_are_refused_in_one_message(trained: Run, tmp_path: Path) -> None:
    with pytest.raises(SurdError, match="cannot be averaged with runs of another kind") as caught:
        averaged([trained, tiny_run(tmp_path / "other")], tmp_path / "mean")
    assert "model.d_model is 32 and 16" in str(caught.value)
    assert "tokenizer.target.kind is characters and words" in str(caught.value)
    assert not (tmp_path / "mean").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "nothing to average"),
        (["RUN"], "--out is missing"),
        (["RUN", "--steps", "2,8", "--out", "x"], "no evaluation of update 2 is kept; there is: 4, 6, 8"),
        (["RUN", "--steps", "8", "--out", "x"], "two evaluations or more"),
        (["RUN", "--steps", "four", "--out", "x"], "expected numbers of updates"),
        (["RUN", "--last", "4", "--out", "x"], "expected from 2 to 3"),
        (["RUN", "--last", "2", "--steps", "4,8", "--out", "x"], "give one of the two"),
        (["RUN", "RUN", "--last", "2", "--out", "x"], "are chosen from one run"),
        (["RUN", "RUN", "--out", "x"], "has the same weights"),
        (["RUN", "--out", "full"], "is not empty"),
    ],
)
def test_mistakes_are_told_and_leave_nothing(
    trained: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    assert main(["average", *(str(trained.folder) if word == "RUN" else word for word in given)]) == 2
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["full", "mine"]
