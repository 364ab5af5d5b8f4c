"""A run's folder: made whole or not at all, movable, and refused with a reason when it is not sound."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from run.tiny import tiny_run

from surd.errors import SurdError
from surd.models.weights import weights_of
from surd.run import Run, refuse_occupied


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return tiny_run(tmp_path / "en-ph")


def refused(path: Path, *parts: str) -> None:
    with pytest.raises(SurdError) as caught:
        Run.open(path).load_model()
    for part in parts:
        assert part in str(caught.value), str(caught.value)


def test_what_is_saved_is_what_is_loaded(run: Run) -> None:
    torch.manual_seed(3)
    model = run.build_model()
    run.save_model(model, {"step": 7})
    loaded = Run.open(run.folder).load_model(torch.device("cpu"), "fp32")
    assert not loaded.training and loaded.compute_dtype == torch.float32
    for name, weight in weights_of(model).items():
        assert torch.equal(weight, weights_of(loaded)[name]), name
    assert json.loads((run.folder / "model.json").read_text())["step"] == 7
    assert run.load_model(precision="bf16").compute_dtype == torch.bfloat16


def test_a_run_can_be_moved_and_holds_no_pickle(run: Run, tmp_path: Path) -> None:
    before = weights_of(run.load_model())
    moved = tmp_path / "elsewhere" / "renamed"
    moved.parent.mkdir()
    shutil.move(run.folder, moved)
    after = weights_of(Run.open(moved).load_model())
    assert all(torch.equal(before[name], after[name]) for name in before)
    suffixes = {path.suffix for path in moved.rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".toml", ".model", ".safetensors"}


def test_creation_that_fails_or_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    for error in (ValueError, KeyboardInterrupt, SurdError):
        with pytest.raises(error), Run.create(tmp_path / "runs" / "new", "translation", []) as run:
            run.tokenizer_folder.mkdir()
            raise error("stop")
        assert list(tmp_path.iterdir()) == []


def test_an_occupied_folder_is_refused_and_an_empty_one_is_not(run: Run, tmp_path: Path) -> None:
    def message(path: Path) -> str:
        with pytest.raises(SurdError) as caught:
            refuse_occupied(path)
        return str(caught.value)

    assert "holds another run" in message(run.folder) and "surd train --resume" in message(run.folder)
    full = tmp_path / "full"
    full.mkdir()
    refuse_occupied(full)
    refuse_occupied(tmp_path / "missing")
    for name in "abcdefg":
        (full / name).touch()
    assert "it holds a, b, c, d, e and 2 more" in message(full)
    assert "is a file" in message(full / "a")
    with pytest.raises(SurdError, match="holds another run"), Run.create(run.folder, "translation", []):
        raise AssertionError("the block must not be entered")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert tiny_run(empty).folder == empty


def test_a_run_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(SurdError, match="is not empty"), Run.create(tmp_path / "out", "translation", []) as run:
        run.tokenizer_folder.mkdir()
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "theirs").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "theirs"]


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(SurdError, match=r"out: cannot be made \(permission denied\)"):
        tiny_run(tmp_path / "out")
    tmp_path.chmod(0o700)


def test_what_is_no_run_is_told_apart_and_the_nearest_run_is_named(run: Run, tmp_path: Path) -> None:
    refused(tmp_path / "en-phh", "no such folder", f"Did you mean {run.folder}?")
    refused(tmp_path / "zzz", "no such folder", "Runs beside it: en-ph.")
    refused(tmp_path, "not a run, but it holds", str(run.folder))
    refused(run.folder / "tokenizer", "not a run itself, but inside one", str(run.folder))
    (tmp_path / "text.txt").write_text("hello")
    refused(tmp_path / "text.txt", "a file of 5 bytes")
    other = tmp_path / "other" / "inner"
    other.mkdir(parents=True)
    (other / "notes").touch()
    refused(other, "a folder without run.json", "it holds notes", "No run is beside it.")


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_newer_formats_are_refused(run: Run) -> None:
    change(run.folder / "model.json", format=2)
    refused(run.folder, "model.json: written by a newer surd (model format 2, this one reads up to 1)")
    change(run.folder / "run.json", format=9)
    refused(run.folder, "run.json: written by a newer surd (run format 9")


@pytest.mark.parametrize("name", ["run.json", "model.json"])
def test_damaged_descriptions_are_refused(run: Run, name: str) -> None:
    path = run.folder / name
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(run.folder, name, "damaged")
    path.write_text('["format"]')
    refused(run.folder, name, "damaged")
    path.write_text('{"format": 1}')
    refused(run.folder, name, "is missing")


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer/source.json", "tokenizer/target.json"])
def test_one_changed_byte_or_a_missing_file_is_refused(run: Run, name: str) -> None:
    path = run.folder / name
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    refused(run.folder, path.name, "damaged")
    path.unlink()
    refused(run.folder, path.name, "no such file")


def test_a_recipe_changed_after_training_is_refused(run: Run) -> None:
    text = run.recipe_file.read_text()
    run.recipe_file.write_text(re.sub(r"heads = 2", "heads = 4", text))
    refused(run.folder, "recipe.toml", "[model] is not what was trained")
    run.recipe_file.write_text(re.sub(r"beam = 3", "beam = 2", text))
    assert Run.open(run.folder).recipe.decode.beam == 2


def test_an_unfinished_training_says_so_or_has_no_model_to_use(run: Run) -> None:
    assert run.note() == ""
    run.save_model(run.build_model(), {"step": 20, "finished": False})
    assert "has not finished, this is the best model up to update 20" in run.note()
    run.load_model()
    (run.folder / "model.json").unlink()
    refused(run.folder, "its training has hardly begun", f"surd train --resume {run.folder}")


def test_a_stop_between_the_renames_of_a_save_leaves_a_model_that_opens(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = weights_of(run.load_model())

    def stop(path: Path, target: Path) -> None:
        assert target.name == "model.safetensors"
        raise KeyboardInterrupt

    monkeypatch.setattr("surd.run.folder.rename", stop)
    with pytest.raises(KeyboardInterrupt):
        run.save_model(run.build_model(), {"step": 1})
    monkeypatch.undo()
    after = weights_of(Run.open(run.folder).load_model())
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not list(run.folder.glob(".*"))
