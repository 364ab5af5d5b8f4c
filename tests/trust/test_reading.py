"""A run is read while it is being trained: a reader at every call of the writer gets whole weights, or a message."""

import warnings
from itertools import count

from training.tiny import tiny, write_pairs

import surd
from surd import files
from surd.errors import SurdError
from surd.training.start import plan, train_new

CALLS = ("write", "sync", "rename")
EACH = 11
"""Every so many calls there is a look: prime to how many calls a checkpoint takes, so that looks come everywhere."""


def test_a_reader_at_every_call_of_the_writer_gets_the_last_complete_checkpoint(tmp_path, monkeypatch):
    run = tmp_path / "run"
    read: list[str] = []
    refused: list[str] = []

    calls = count(1)

    def look() -> None:
        if next(calls) % EACH:
            return
        monkeypatch.undo()
        try:
            with warnings.catch_warnings(action="ignore"):  # it knows next to nothing yet
                (text,) = surd.load(run).translate(["abc"])
            read.append(text)
        except SurdError as error:
            refused.append(str(error))
        finally:
            put()

    def put() -> None:
        for name in CALLS:
            monkeypatch.setattr(files, name, _watched(getattr(files, name), look))

    draft = tiny(write_pairs(tmp_path / "pairs.tsv"), "training.steps=12", "training.evaluate_every=3")
    put()
    for _ in train_new(plan(draft), run):
        pass
    monkeypatch.undo()
    assert len(read) > 6, refused
    # Refused only before the first checkpoint, each time with a message that says so.
    assert all("hardly begun" in told or "no such folder" in told for told in refused), set(refused)


def _watched(call, look):
    def watched(*arguments):
        look()
        return call(*arguments)

    return watched
