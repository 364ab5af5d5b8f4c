"""Faults that rubbish once found, each pinned by itself: refused with one message, at once, and nothing touched."""

import gzip
import json
import lzma
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import zstandard
from fuzz import folders, guard
from run.tiny import tiny_run
from training.tiny import write_pairs

from surd.cli import main
from surd.data.corpus import Corpus
from surd.data.lines import LONGEST_LINE, Complaints, Input, missing
from surd.data.tokenizer import load
from surd.errors import Faults, SurdError
from surd.files import replacing
from surd.models.architecture import Architecture
from surd.models.size import least_parameters, refuse_too_large
from surd.nn.position import LearnedPosition
from surd.recipe.document import LARGEST_FILE, parse
from surd.run import Run, built_model


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return tiny_run(tmp_path / "run")


def told(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says as it refuses these words."""
    with guard.bounded(), guard.hurried():
        assert main(words) == 2
    error = capsys.readouterr().err
    assert error.count("error: ") == 1, error
    return error


@pytest.mark.parametrize("to", ["../../outside", "/etc/passwd", "/dev/zero"])
def test_a_link_that_leads_out_of_a_run(run: Run, to: str) -> None:
    (run.folder.parent / "outside").write_text("precious")
    (run.tokenizer_folder / "link").symlink_to(to)
    with pytest.raises(SurdError, match="a link to"):
        Run.open(run.folder)


def test_a_pipe_in_a_run(run: Run) -> None:
    os.mkfifo(run.folder / "pipe")
    with pytest.raises(SurdError, match="expected a file, found a pipe or device"):
        Run.open(run.folder)


@pytest.mark.parametrize("name", ["../precious", "tokenizer/../../precious", "/etc/passwd", "tokenizer/a\nb", ""])
def test_a_checksum_of_a_file_elsewhere(run: Run, name: str) -> None:
    about = json.loads((run.folder / "run.json").read_text())
    (run.folder / "run.json").write_text(json.dumps(about | {"files": {name: "0" * 64}}))
    with pytest.raises(SurdError, match='damaged, "files" names'):
        Run.open(run.folder)


@pytest.mark.parametrize(
    "origin", [1, "from", [], {"runs": 1}, {"runs": [1]}, {"runs": [{"data": 1}]}, {"runs": [{"origin": {"runs": 2}}]}]
)
def test_an_origin_that_is_none(run: Run, origin: object) -> None:
    about = json.loads((run.folder / "run.json").read_text())
    (run.folder / "run.json").write_text(json.dumps(about | {"origin": origin}))
    with pytest.raises(SurdError, match='"origin" is not what this surd writes'):
        Run.open(run.folder)


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000, b"\xff\xfe", b""])
def test_json_that_is_none(run: Run, content: bytes) -> None:
    (run.folder / "run.json").write_bytes(content)
    with pytest.raises(SurdError, match="damaged, not"):
        Run.open(run.folder)


def test_json_lines_that_are_nested_too_deep(tmp_path: Path) -> None:
    (tmp_path / "pairs").write_bytes(b'{"source": "a", "target": "b"}\n{"source": ' + b"[" * 100_000 + b"\n")
    complaints = Complaints()
    list(Corpus(str(tmp_path / "pairs")).pairs(complaints))
    with pytest.raises(Faults, match="line 2: not JSON"):
        complaints.raise_any()


def replayed(folder: Path, *changes: folders.Change) -> str:
    """How going on with a run ends whose files were changed."""
    names = sorted(path.relative_to(folders.model_run(0)).as_posix() for path in folders.model_run(0).rglob("*.jsonl"))
    every = sorted(
        p.relative_to(folders.model_run(0)).as_posix() for p in folders.model_run(0).rglob("*") if p.is_file()
    )
    where = str(every.index(next(name for name in names if name.startswith("data/"))))
    case = folders.Folder(run=0, changes=tuple((where, one) for one in changes), fitting=False, use="resume")
    return guard.outcome(case, folder)


@pytest.mark.parametrize("content", [b"9" * 5000, b"[" * 100_000])
def test_held_out_text_that_is_no_text(tmp_path: Path, content: bytes) -> None:
    assert "damaged, not a prepared corpus" in replayed(tmp_path, folders.Replace(content))


def test_an_average_of_no_update(tmp_path: Path) -> None:
    assert replayed(tmp_path, folders.Add("checkpoints/averaging/step-y.safetensors", b"")) == "done"


def test_half_a_character_in_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "target.json").write_text('{"separator": "", "symbols": ["a", "\\ud800"]}')
    with pytest.raises(SurdError, match=r"target\.json: damaged"):
        load(tmp_path, "target")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("data=808", "nothing to train on"),
        ("model=3", "model: expected"),
        ("training.optimizer=7", "optimizer: expected"),
    ],
)
def test_a_value_in_the_place_of_a_table(
    tmp_path: Path, word: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = write_pairs(tmp_path / "pairs.tsv", 20)
    assert expected in told(["train", str(pairs), "--plan", word], capsys)


@pytest.mark.parametrize("word", ["model.d_model=100000000", "model.heads=1000000000", "model.encoder_layers=1000000"])
def test_a_model_that_no_memory_holds(tmp_path: Path, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = write_pairs(tmp_path / "pairs.tsv", 20)
    before = guard.highest()
    words = ["model.d_k=8", "training.steps=4"]
    error = told(["train", str(pairs), "--plan", *words, word], capsys)
    assert "parameters, which take" in error or "expected at most 10,000" in error, error
    assert guard.highest() - before < guard.ROOM


def test_the_size_of_a_model_is_no_more_than_it_has(run: Run) -> None:
    model = built_model(run.recipe, run.tokenizers)
    a = run.recipe.model
    least = least_parameters(a, run.tokenizers.target.size, a.encoder_layers + a.decoder_layers)
    held, _ = model.parameter_counts()
    assert held / 3 < least <= held
    with pytest.raises(SurdError, match="make them smaller"):
        refuse_too_large(Architecture(position=LearnedPosition(length=2**31)), 8000, 12)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/full", "/dev/urandom"])
def test_a_device_for_a_corpus(device: str) -> None:
    if not Path(device).is_char_device():
        pytest.skip(f"{device}: this system has no such device")
    assert missing(device) == f"{device}: expected a file, found a device"


def test_standard_input_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/zero").is_char_device():
        pytest.skip("this system has no such device")
    with open("/dev/zero", "rb") as zeros, guard.hurried():
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=zeros))
        with pytest.raises(SurdError, match="standard input: a line of more than"):
            Input("-")


def test_a_device_or_an_endless_file_for_a_recipe(tmp_path: Path) -> None:
    with (tmp_path / "long.toml").open("wb") as file:
        file.truncate(100 * LARGEST_FILE)
    for path in (tmp_path / "long.toml", *filter(Path.is_char_device, [Path("/dev/zero")])):
        with pytest.raises(SurdError, match="not a recipe, it has more than"):
            parse(path)


@pytest.mark.parametrize("name", ["x" * 300, "a/" * 3000, "\0", "a\0b"])
def test_a_name_that_no_file_has(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no file can be found there" in str(missing(name))
    if "\0" not in name:
        for words in (["info", name], ["translate", name], ["train", name, "--plan"], ["train", "--resume", name]):
            assert "too long" in told(words, capsys)


def test_names_cannot_command_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["info", "\x1b[31m\u202ered"], ["train", "\x1b[2J\u202e", "--plan"], ["\x1b[31m"]):
        error = told(words, capsys)
        assert "\\x1b" in error and not {"\x1b", "\u202e"} & set(error)


def test_a_pipe_is_never_replaced_by_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    for path in (pipe, tmp_path / "link"):
        with pytest.raises(SurdError, match="a device or pipe"), replacing(path) as temporary:
            temporary.write_text("text")
    assert pipe.is_fifo() and sorted(os.listdir(tmp_path)) == ["link", "pipe"]


BOMBS = {
    "gz": lambda data: gzip.compress(data, 1),
    "xz": lambda data: lzma.compress(data, preset=0),
    "zst": zstandard.ZstdCompressor(level=1).compress,
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_is_read_bit_by_bit(tmp_path: Path, kind: str) -> None:
    """A line of 80 MB in a small file: refused as soon as it is too long, with little more memory than that."""
    path = tmp_path / f"bomb.{kind}"
    path.write_bytes(b"".join(BOMBS[kind](b"\0" * (LONGEST_LINE // 4)) for _ in range(5)))
    assert path.stat().st_size < 2**20
    guard.forget_highest()
    before, complaints = guard.highest(), Complaints()
    with guard.bounded():
        assert list(Input(str(path)).lines(complaints)) == []
    with pytest.raises(Faults, match="a line of more than 64 MiB"):
        complaints.raise_any()
    assert guard.highest() - before < 8 * LONGEST_LINE
