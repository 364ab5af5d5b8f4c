"""A start that is killed while it prepares: the same command goes on there, and the run is the same to the bit."""

import os
from pathlib import Path

import pytest
from data.test_progress import killed
from training.tiny import tiny, write_pairs
from trust.equal import assert_equal

from surd.data import prepare as preparing
from surd.data import progress
from surd.data.progress import PROGRESS
from surd.files import read_json
from surd.run import Run
from surd.run.unseen import UNSEEN
from surd.training import start
from surd.training.events import Preparing
from surd.training.start import plan, train_new

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

SUBWORDS = [
    "tokenizer.joint=true",
    'tokenizer.source={kind="bpe", size=290}',
    'tokenizer.target={kind="bpe", size=290}',
]
WORDS = [*SUBWORDS, "training.steps=2", "training.evaluate_every=2", "training.schedule.warmup=1"]


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.usefixtures("compiled")
def test_the_same_command_goes_on_with_what_was_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "BLOCK", 20)
    monkeypatch.setattr(progress, "EVERY", 3)
    planned = plan(tiny(write_pairs(tmp_path / "pairs.tsv"), *WORDS))
    list(train_new(planned, tmp_path / "straight"))
    (tmp_path / "there").mkdir()
    out = tmp_path / "there" / "run"
    killed(lambda: list(train_new(planned, out)), "sync:4")  # the tokenizers are noted, the ids not yet
    learnt = start.learnt
    monkeypatch.setattr(start, "learnt", None)  # nothing is learnt twice
    killed(lambda: list(train_new(planned, out)), "sync:30")
    [left] = list(out.parent.iterdir())
    assert read_json(left / "data" / PROGRESS)["blocks"] > 0
    (out.parent / ".run.1.partial").mkdir()  # an older one, which counts for nothing
    os.utime(out.parent / ".run.1.partial", (0, 0))
    blocks: list[int] = []
    encoded = preparing._encoded
    monkeypatch.setattr(preparing, "_encoded", lambda *given: blocks.append(1) or encoded(*given))
    events = list(train_new(planned, out))
    assert next(event.doing for event in events if isinstance(event, Preparing)).endswith("killed has left")
    assert 0 < len(blocks) < 600 // 20
    assert [path.name for path in out.parent.iterdir()] == ["run"]
    assert names(out) == names(tmp_path / "straight")
    assert_equal(out, tmp_path / "straight")
    for name in (name for name in names(out / "data") if name != "progress.json"):
        assert (out / "data" / name).read_bytes() == (tmp_path / "straight" / "data" / name).read_bytes()
    # Other text under the same name: nothing of what is left counts.
    other = plan(tiny(write_pairs(tmp_path / "other.tsv", 500), *WORDS))
    monkeypatch.setattr(start, "learnt", learnt)
    killed(lambda: list(train_new(planned, tmp_path / "there" / "new")), "sync:40")
    list(train_new(other, tmp_path / "there" / "new"))
    list(train_new(other, tmp_path / "other"))
    assert_equal(tmp_path / "there" / "new", tmp_path / "other")
    assert names(tmp_path / "there" / "new") == names(tmp_path / "other")


@pytest.mark.usefixtures("compiled")
def test_placeholders_that_stand_nowhere_are_noted(tmp_path: Path) -> None:
    source = write_pairs(tmp_path / "pairs.tsv")
    with source.open("a") as file:
        file.write("".join(f"ab<x>{word}\t{word}<x>ba\nb<y>{word}\t{word}b\n" for word in ("a", "b", "cc", "d") * 3))
    symbols = 'tokenizer.symbols=["<x>", "<y>", "<z>"]'
    for kind, words in (("characters", []), ("bpe", SUBWORDS)):
        list(train_new(plan(tiny(source, symbols, *words, *WORDS[3:])), tmp_path / kind))
        assert read_json(tmp_path / kind / UNSEEN) == {"source": ["<z>"], "target": ["<y>", "<z>"]}
    with source.open("a") as file:
        file.write("".join(f"ab<z>{word}\t{word}<z>ba\n" for word in ("a", "b", "cc", "d", "ef", "fe") * 3))
    draft = tiny(source).without("model").without("tokenizer").without("decode").with_words(WORDS[3:])
    list(train_new(plan(draft, Run.open(tmp_path / "bpe")), tmp_path / "on"))
    assert read_json(tmp_path / "on" / UNSEEN) == {"source": [], "target": ["<y>"]}
