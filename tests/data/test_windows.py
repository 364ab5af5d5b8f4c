"""Windows: every token is predicted exactly once, from those before it in its window; batches follow from the seed."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from surd.data.batch import Batching
from surd.data.corpus import DataSettings
from surd.data.documents import Documents, write_documents
from surd.data.prepare_text import learn_text_tokenizer, prepare_text
from surd.data.text import survey_text
from surd.data.tokenizer import BPE, Characters, Symbols, learn
from surd.data.windows import WindowBatch, Windows, all_windows, cut_documents
from surd.errors import SurdError
from surd.nn.special import BOS, EOS, UNK

CONTEXT = 7
BATCHING = Batching(tokens=3 * CONTEXT)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(2, 12), st.data())
def test_every_token_is_predicted_exactly_once(predicted: list[int], context: int, data: st.DataObject) -> None:
    shift = data.draw(st.integers(0, context - 1))
    starts = np.cumsum([0, *(one + 1 for one in predicted)])
    cuts = cut_documents(starts, context, shift)
    assert cuts.lengths.max() <= context and cuts.lengths.min() >= 1
    labels = np.concatenate([begin + 1 + np.arange(n) for begin, n in zip(cuts.begins, cuts.lengths, strict=True)])
    expected = np.concatenate([start + 1 + np.arange(n) for start, n in zip(starts[:-1], predicted, strict=True)])
    assert np.array_equal(np.sort(labels), expected), "all but the first token of each document"
    whole = cuts.lengths == context
    assert shift or (~whole).sum() <= len(predicted), "only the last window of a document may be short"


def text_of(folder: Path, document: str = "text", count: int = 60) -> tuple[Windows, list[str], Symbols]:
    """A prepared text of short lines, its training lines, and its tokenizer."""
    lines = [f"row {number} of {count}" for number in range(count)]
    (folder / "a.txt").write_text("".join(f"{line}\n" for line in lines))
    data = DataSettings(text=str(folder / "a.txt"), document=document, context=CONTEXT, held_out=0.1)
    survey = survey_text(data)
    tokenizer = learn_text_tokenizer(Characters(), survey)
    return prepare_text(data, tokenizer, survey, folder / "data"), list(survey.training_lines()), tokenizer


def rows(batch: WindowBatch) -> list[tuple[list[int], list[int]]]:
    read = batch.text.tokens.split(batch.text.lengths)
    labels = batch.labels.split(batch.text.lengths)
    return [(one.tolist(), other.tolist()) for one, other in zip(read, labels, strict=True)]


def test_a_whole_text_goes_on_over_its_line_ends(tmp_path: Path) -> None:
    windows, lines, tokenizer = text_of(tmp_path)
    whole = [EOS]
    for line in lines:
        whole += [*tokenizer.encode(line), EOS]
    assert windows.tokens == len(whole) - 1
    for epoch in range(3):
        seen = []
        for batch in windows.batches(BATCHING, seed=1, epoch=epoch):
            assert batch.tokens == batch.labels.numel() <= BATCHING.tokens and len(batch) <= 3
            seen += rows(batch)
        assert sum(len(labels) for _, labels in seen) == windows.tokens
        assert sorted(token for _, labels in seen for token in labels) == sorted(whole[1:])
        assert all(read[1:] == labels[:-1] for read, labels in seen)
    firsts = [next(windows.batches(BATCHING, seed=1, epoch=epoch)).labels.tolist() for epoch in range(3)]
    assert firsts[0] != firsts[1] != firsts[2]


def test_an_epoch_follows_from_its_seed_and_can_be_gone_on_with(tmp_path: Path) -> None:
    windows, _, _ = text_of(tmp_path)
    again = Windows(tmp_path / "data", CONTEXT)
    one = [batch.labels for batch in windows.batches(BATCHING, seed=3, epoch=1)]
    assert windows.batch_count(BATCHING, 3, 1) == len(one)
    rest = [batch.labels for batch in again.batches(BATCHING, seed=3, epoch=1, start=4)]
    assert all(torch.equal(*pair) for pair in zip(one[4:], rest, strict=True))
    other = [batch.labels for batch in windows.batches(BATCHING, seed=4, epoch=1)]
    assert not all(len(a) == len(b) and torch.equal(a, b) for a, b in zip(one, other, strict=False))


def test_lines_are_documents_of_their_own(tmp_path: Path) -> None:
    windows, lines, tokenizer = text_of(tmp_path, "line")
    found: list[str] = []
    for batch in windows.batches(BATCHING, seed=1, epoch=0):
        for read, labels in rows(batch):
            found += [tokenizer.decode(labels)] if read[0] == BOS else []
            assert read[0] == BOS or len(read) <= CONTEXT
            assert EOS not in read
    starts = sorted(line[:CONTEXT] for line in lines)
    assert sorted(found) == starts, "a line begins with BOS, and is cut where the context is full"
    assert windows.sequences == sum(-(-(len(line) + 1) // CONTEXT) for line in lines)


def test_held_out_windows_are_all_of_the_end_once_in_one_order(tmp_path: Path) -> None:
    windows, lines, _ = text_of(tmp_path)
    batches = list(windows.held_out_batches(BATCHING))
    assert sum(batch.tokens for batch in batches) == windows.held_out.about.tokens == windows.held_out.about.bytes
    assert sum(map(len, batches)) == windows.held_out_sequences
    again = list(windows.held_out_batches(BATCHING))
    assert all(torch.equal(a.labels, b.labels) for a, b in zip(batches, again, strict=True))
    some = list(windows.held_out_batches(BATCHING, most=4))
    assert sum(map(len, some)) == 4
    ends = [labels for batch in batches for _, labels in rows(batch)]
    assert all(labels in ends for batch in some for _, labels in rows(batch))
    assert len(lines) > 50


@pytest.mark.parametrize("count", [0, 1, 8192, 8193])
@pytest.mark.parametrize("unit", ["text", "line"])
def test_documents_are_written_in_blocks(count: int, unit: str, tmp_path: Path) -> None:
    tokenizer = learn(Characters(), ["ab"])
    lines = ["ab", "b", "c", "äb"] * (count // 4 + 1)
    about = write_documents(tmp_path, "x", lines[:count], tokenizer, unit)
    documents = Documents(tmp_path, "x", about)
    assert about.bytes == sum(len(line.encode()) + 1 for line in lines[:count])
    assert about.unknown == sum(("c" in line) + ("ä" in line) for line in lines[:count])
    assert about.documents == (count if unit == "line" else 1)
    expected: list[int] = [] if unit == "line" else [EOS]
    for line in lines[:count]:
        expected += [BOS] * (unit == "line") + [*tokenizer.encode(line), EOS]
    assert documents.ids.tolist() == expected
    ends = documents.starts[1:] - 1
    assert documents.starts[-1] == len(expected)
    assert count == 0 or (documents.ids[ends] == EOS).all()
    if count:
        assert sum(batch.tokens for batch in all_windows(documents, 5, BATCHING)) == about.tokens
    assert UNK not in expected[:3]


def test_subwords_spell_a_text_as_it_was(tmp_path: Path) -> None:
    lines = [f"  the {word} row, and the {word}s" for word in ("first", "second", "tenth") * 10] + [""]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")
    data = DataSettings(text=str(tmp_path / "a.txt"), context=CONTEXT, held_out=0.1)
    survey = survey_text(data)
    tokenizer = learn_text_tokenizer(BPE(size=300), survey, fit=True)
    windows = prepare_text(data, tokenizer, survey, tmp_path / "data")
    assert windows.held_out.about.unknown == 0
    ids = [token for batch in windows.held_out_batches(Batching(tokens=CONTEXT)) for token in batch.labels.tolist()]
    assert len(ids) == windows.held_out.about.tokens < windows.held_out.about.bytes


def test_a_text_shorter_than_a_window_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ab\nc\n")
    data = DataSettings(text=str(tmp_path / "a.txt"), context=64, held_out=0.1)
    survey = survey_text(data)
    with pytest.raises(SurdError, match=r"3 tokens to train on, fewer than the 64 of one window \(data\.context\)"):
        prepare_text(data, learn_text_tokenizer(Characters(), survey), survey, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    text_of(tmp_path)
    (tmp_path / "data" / "train.ids").write_bytes(b"short")
    with pytest.raises(SurdError, match=r"train\.ids: damaged, 5 bytes instead of"):
        Windows(tmp_path / "data", CONTEXT)
