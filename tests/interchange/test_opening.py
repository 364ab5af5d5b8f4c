"""What a check is given by name: runs, files, factories; and what it says of everything that is none."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from run.tiny import tiny_run
from safetensors.torch import save_file
from torch import nn

from surd.errors import SurdError
from surd.interchange.opening import opened


def test_a_run_is_opened_with_what_its_recipe_says(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run")
    found = opened(run.folder)
    assert found.module is not None and found.inputs is not None
    said = found.declared
    assert said.attention is not None and said.attention.value == (8**-0.5,)
    assert said.embedding is not None and said.embedding.value == 4.0
    assert said.tied is not None and said.tied.value is True
    assert said.ties is not None
    assert all(found.weights.tensor(x).data_ptr() == found.weights.tensor(y).data_ptr() for x, y in said.ties.value)
    assert said.epsilon is not None and said.causal is not None
    assert said.vocabulary is None, "there are two, of different sizes"


def test_a_file_of_weights_is_read_by_itself(tmp_path: Path) -> None:
    save_file({"a.weight": torch.randn(4, 3)}, tmp_path / "one.safetensors")
    found = opened(tmp_path / "one.safetensors")
    assert found.module is None and found.weights.names() == ["a.weight"]
    assert "without a configuration" in found.notes[0]


def write(name: str, content: bytes = b"x") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "nowhere", "there is no such file or folder. Expected a run of surd"),
        (lambda folder: "someone/model", "Nothing is fetched from a hub"),
        (lambda folder: folder, r"a folder without config\.json or run\.json, so no model \(it holds nothing\)"),
        (write("model.bin"), "is a pickle, which can run code"),
        (write("model.h5"), r"is not read; save the model as \.keras"),
        (write("model.py"), "surd check model:FUNCTION"),
        (write("config.json"), "one file of a model; name its folder"),
        (write("notes.txt"), "not a model that check can open"),
        (write("model.keras"), r"not a \.keras file"),
        (write("model.safetensors"), "not a safetensors file"),
        (lambda folder: "a\0b", "cannot be opened"),
        (lambda folder: "x" * 5000, "cannot be opened"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, make: Callable[[Path], Path | str], message: str) -> None:
    with pytest.raises(SurdError, match=message):
        opened(make(tmp_path))


def test_folders_without_a_model_say_what_they_hold(tmp_path: Path) -> None:
    (tmp_path / "model-00001.safetensors").touch()
    with pytest.raises(SurdError, match=r"Its weights alone can be read: surd check .*model-00001\.safetensors"):
        opened(tmp_path)
    (tmp_path / "adapter_config.json").touch()
    with pytest.raises(SurdError, match="holds an adapter"):
        opened(tmp_path)
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    (inner / "config.json").touch()
    with pytest.raises(SurdError, match=r"There is a model in .*inner"):
        opened(tmp_path / "outer")
    with pytest.raises(SurdError, match=r"Did you mean .*outer"):
        opened(tmp_path / "uoter")


CODE = """
from collections import OrderedDict
from math import sqrt

import torch
from torch import nn

print("imported")

class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x):
        print("called")
        return self.attention(x, x, x)[0]

    @staticmethod
    def again():
        return Attends()

def alone(): return Attends()
def pair(): return Attends(), torch.zeros(2, 5, 16)
def three(): return Attends(), {"x": torch.zeros(2, 5, 16)}, torch.sum
def number(): return 3
def wrong_loss(): return Attends(), torch.zeros(2, 5, 16), 3
def raises(): raise ValueError("on purpose")
def leaves(): raise SystemExit("gone")
def asks(width): return Attends()
def imports(): import no_such_package
constant = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current folder, of the user's."""
    (tmp_path / "their_models.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "their_models", raising=False)
    return "their_models"


def test_a_factory_makes_the_model(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = list(sys.path)
    alone, pair, three = (opened(f"{own}:{name}") for name in ("alone", "pair", "three"))
    assert isinstance(alone.module, nn.Module) and alone.inputs is None
    assert isinstance(pair.inputs, torch.Tensor) and pair.loss is None
    assert isinstance(three.inputs, dict) and three.loss is torch.sum
    assert opened(f"{own}:Attends.again").module is not None and opened(f"{own}:Attends").module is not None
    assert sys.path == before
    told = capsys.readouterr()
    assert told.out == "" and "imported" in told.err


def test_only_what_the_module_defines_is_named(own: str) -> None:
    with pytest.raises(SurdError, match='unknown name "nosuch"') as told:
        opened(f"{own}:nosuch")
    assert "Attends, alone, pair" in str(told.value)
    assert "OrderedDict" not in str(told.value) and "sqrt" not in str(told.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", r"your code raised ValueError: on purpose \(.*their_models.py, line \d+\)"),
        ("leaves", "your code raised SystemExit: gone"),
        ("imports", "your code raised ModuleNotFoundError: No module named 'no_such_package'"),
        ("number", r"expected a module, \(module, example\), or \(module, example, loss\); it returned int"),
        ("wrong_loss", "expected a loss to be a function"),
        ("asks", r"needs arguments \(width\)"),
        ("constant", "expected a function that returns"),
        ("alome", 'Did you mean "alone"'),
    ],
)
def test_a_factory_that_fails_is_told_as_theirs(own: str, name: str, message: str) -> None:
    with pytest.raises(SurdError, match=message):
        opened(f"{own}:{name}")


def test_a_module_that_is_not_there(own: str) -> None:
    with pytest.raises(SurdError, match="there is no module their_modelz"):
        opened("their_modelz:alone")
