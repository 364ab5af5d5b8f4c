"""One training at a time in a folder, and nothing left behind that would block the next."""

from pathlib import Path

import pytest
from run.tiny import tiny_run
from training.tiny import tiny, write_pairs

from surd.errors import SurdError
from surd.run import Run
from surd.run.lock import LOCK, held, is_held
from surd.training.loop import train
from surd.training.start import plan, train_new
from surd.training.verify import verify_run


def test_a_folder_that_is_trained_in_is_refused_to_others_but_can_be_read(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run")
    with held(run.folder):
        assert is_held(run.folder)
        for second in (lambda: list(train(run)), lambda: verify_run(run)):
            with pytest.raises(SurdError, match="another process is training in this folder"):
                second()
        assert Run.open(run.folder).load_model()
    assert not is_held(run.folder)
    assert (run.folder / LOCK).exists()  # and blocks nobody
    with held(run.folder):
        pass


def test_what_a_kill_left_of_a_run_in_the_making_goes_and_what_is_being_made_stays(tmp_path: Path) -> None:
    dead, alive, other = (tmp_path / name for name in (".run.7.partial", ".run.8.partial", ".other.7.partial"))
    for folder in (dead, alive, other):
        folder.mkdir()
        (folder / "half").write_text("")
    with held(alive), Run.create(tmp_path / "run", "transduction", ["pairs.tsv"]) as run:
        assert (not dead.exists(), alive.exists(), other.exists()) == (True, True, True)
        run.tokenizer_folder.mkdir()


def test_before_the_first_checkpoint_it_starts_afresh_from_the_same_seed(tmp_path: Path) -> None:
    words = ("training.steps=6", "training.evaluate_every=3")
    planned = plan(tiny(write_pairs(tmp_path / "pairs.tsv"), *words))
    list(train_new(planned, tmp_path / "straight"))
    events = train_new(planned, tmp_path / "stopped")
    for event in events:
        if getattr(event, "step", 0) == 2:  # dropped as by a kill: nothing is saved on the way out
            break
    events.close()
    stopped = Run.open(tmp_path / "stopped")
    assert not list(stopped.checkpoint_folder.glob("step-*"))
    list(train(stopped))
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("straight", "stopped")]
    assert weights[0] == weights[1]
