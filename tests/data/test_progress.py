"""Preparations that are killed: the next one goes on where they were, and makes the same files to the byte."""

import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from data.texts import pairs, tsv
from trust.killed import die_at

from surd.data import documents, progress
from surd.data import prepare as preparing
from surd.data.corpus import DataSettings
from surd.data.prepare import learn_tokenizers, prepare
from surd.data.prepare_text import learn_text_tokenizer, prepare_text
from surd.data.progress import PROGRESS
from surd.data.survey import Survey, survey
from surd.data.text import survey_text
from surd.data.tokenizer import Characters, TokenizerPair, Tokenizers, Words

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

KINDS = Tokenizers(joint=False, source=Characters(), target=Words())
BLOCK, EVERY = 7, 2


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and notes that come often."""
    monkeypatch.setattr(preparing, "BLOCK", BLOCK)
    monkeypatch.setattr(documents, "BLOCK", BLOCK)
    monkeypatch.setattr(progress, "EVERY", EVERY)


def killed(make: Callable[[], object], at: str) -> None:
    """Makes something in a process that kills itself at a call: `sync:3`."""
    kind, _, number = at.partition(":")
    child = os.fork()
    if child == 0:
        try:
            die_at(kind, int(number), Counter())
            make()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, "it was to be killed"


def files(folder: Path) -> dict[str, bytes]:
    """All that a preparation has made, but for the note."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != PROGRESS}


def corpus(path: Path, count: int = 120, start: int = 0) -> tuple[Survey, TokenizerPair]:
    """Pairs of which some turn out too long, and the tokenizers."""
    rows = pairs(count, start)
    rows[24::25] = [(f"{source} {'w' * 60}", target) for source, target in rows[24::25]]
    found = survey(DataSettings(source=tsv(path, rows), max_length=60, max_ratio=100))
    return found, learn_tokenizers(KINDS, found)


@pytest.mark.parametrize("at", ["write:3", "sync:12", "rename:1", "sync:40", "rename:5", "sync_folder:8", "write:60"])
def test_a_preparation_goes_on_where_it_was_killed(tmp_path: Path, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, tokenizers = corpus(tmp_path / "pairs.tsv")
    prepare(found.settings, tokenizers, found, tmp_path / "straight")
    killed(lambda: prepare(found.settings, tokenizers, found, tmp_path / "again"), at)
    if not (tmp_path / "again" / PROGRESS).is_file():  # nothing counts yet: where a run is made, this is cleared
        assert at in ("write:3", "rename:1")
        return
    blocks: list[Any] = []
    encoded = preparing._encoded
    monkeypatch.setattr(preparing, "_encoded", lambda *given: blocks.append(1) or encoded(*given))
    again = prepare(found.settings, tokenizers, found, tmp_path / "again")
    assert len(blocks) <= -(-found.usable // BLOCK) - EVERY
    assert files(tmp_path / "again") == files(tmp_path / "straight")
    assert [drop.count for drop in again.report.dropped] == [4]


def test_other_text_or_other_tokenizers_begin_anew(tmp_path: Path) -> None:
    found, tokenizers = corpus(tmp_path / "pairs.tsv")
    other, others = corpus(tmp_path / "other.tsv", 150, 500)
    shorter = replace(found.settings, max_length=59)
    for name, asked in {
        "text": (other.settings, tokenizers, other),
        "tokenizers": (found.settings, others, found),
        "limit": (shorter, tokenizers, found),
    }.items():
        killed(lambda name=name: prepare(found.settings, tokenizers, found, tmp_path / name), "sync:40")
        assert (tmp_path / name / PROGRESS).is_file()
        (tmp_path / name / "of_something_else").write_text("")
        prepare(*asked, tmp_path / name)
        prepare(*asked, tmp_path / f"{name} straight")
        assert files(tmp_path / name) == files(tmp_path / f"{name} straight")


@pytest.mark.parametrize("spoil", [lambda path: os.truncate(path, 10), lambda path: path.unlink()])
def test_files_that_do_not_hold_what_was_noted_are_made_anew(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    found, tokenizers = corpus(tmp_path / "pairs.tsv")
    prepare(found.settings, tokenizers, found, tmp_path / "straight")
    killed(lambda: prepare(found.settings, tokenizers, found, tmp_path / "again"), "sync:40")
    spoil(tmp_path / "again" / "train.source.ids")
    prepare(found.settings, tokenizers, found, tmp_path / "again")
    assert files(tmp_path / "again") == files(tmp_path / "straight")


@pytest.mark.parametrize("unit", ["text", "line"])
def test_running_text_goes_on_too(tmp_path: Path, unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{source} {target}" for source, target in pairs(150)]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    settings = DataSettings(text=str(tmp_path / "text.txt"), document=unit, context=16, held_out=0.1)
    found = survey_text(settings)
    tokenizer = learn_text_tokenizer(Characters(), found)
    straight = prepare_text(settings, tokenizer, found, tmp_path / "straight")
    killed(lambda: prepare_text(settings, tokenizer, found, tmp_path / "again"), "sync:20")
    encoded: list[str] = []
    whole = tokenizer.encode_all
    monkeypatch.setattr(tokenizer, "encode_all", lambda block: encoded.extend(block) or whole(block))
    assert prepare_text(settings, tokenizer, found, tmp_path / "again").tokens == straight.tokens
    assert len(encoded) < 0.8 * len(lines)
    assert files(tmp_path / "again") == files(tmp_path / "straight")
