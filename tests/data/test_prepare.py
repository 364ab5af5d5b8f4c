"""Preparing and reading back: text to ids to batches and to text again, a function of seed and epoch, safe on disk."""

import json
from pathlib import Path

import pytest
import torch
from data.texts import pairs, tsv, two_files

from surd.data import prepare as prepare_module
from surd.data.batch import Batch, Batching
from surd.data.corpus import DataSettings, Pair
from surd.data.hold_out import HeldOut
from surd.data.prepare import learn_tokenizers, prepare
from surd.data.stream import INDEX, Prepared
from surd.data.survey import survey
from surd.data.tokenizer import BPE, Characters, TokenizerPair, Tokenizers, Words
from surd.errors import Faults, SurdError
from surd.nn.special import BOS, EOS

KINDS = {
    "joint": Tokenizers(source=BPE(size=400), target=BPE(size=400)),
    "separate": Tokenizers(joint=False, source=Characters(), target=Words()),
}
SMALL = Batching(tokens=60)


def prepared(
    folder: Path, rows: list[Pair], tokenizers: Tokenizers = KINDS["separate"], **settings: object
) -> tuple[Prepared, TokenizerPair]:
    found = survey(DataSettings(source=tsv(folder / "pairs.tsv", rows), **settings))
    learnt = learn_tokenizers(tokenizers, found)
    return prepare(found.settings, learnt, found, folder / "data"), learnt


def texts(batch: Batch, tokenizers: TokenizerPair) -> list[Pair]:
    """The pairs of a batch as text, once it has been checked that its three sequences belong together."""
    sources = [row.tolist() for row in batch.source.tokens.split(list(batch.source.lengths))]
    targets = [row.tolist() for row in batch.target.tokens.split(list(batch.target.lengths))]
    labels = [row.tolist() for row in batch.labels.split(list(batch.target.lengths))]
    assert all(row[-1] == EOS for row in (*sources, *labels))
    assert all([*target[1:], EOS] == label and target[0] == BOS for target, label in zip(targets, labels, strict=True))
    return list(zip(tokenizers.source.decode_all(sources), tokenizers.target.decode_all(labels), strict=True))


def ids(batches: list[Batch]) -> list[tuple]:
    return [(batch.numbers, batch.source.tokens.tolist(), batch.labels.tolist()) for batch in batches]


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_holds_every_training_pair_once_and_no_held_out_one(tmp_path: Path, kind: str) -> None:
    rows = pairs(200)
    data, tokenizers = prepared(tmp_path, rows, KINDS[kind])
    trained = [pair for batch in data.batches(SMALL, seed=1, epoch=0) for pair in texts(batch, tokenizers)]
    held_out = [(row.source, reference) for row in data.texts for reference in row.references]
    assert len(trained) == data.pairs == 190
    assert sorted(trained + held_out) == sorted(rows)
    measured = [pair for batch in data.held_out_batches(SMALL) for pair in texts(batch, tokenizers)]
    assert sorted(source for source, _ in measured) == sorted(source for source, _ in held_out)


def test_batches_are_a_function_of_seed_and_epoch(tmp_path: Path) -> None:
    data, _ = prepared(tmp_path, pairs(200))
    for batching in (SMALL, Batching(tokens=60, pool=30)):
        first = ids(list(data.batches(batching, seed=1, epoch=0)))
        assert first == ids(list(Prepared(tmp_path / "data").batches(batching, seed=1, epoch=0)))
        assert len(first) == data.batch_count(batching, seed=1, epoch=0)
        for seed, epoch in ((2, 0), (1, 1)):
            other = ids(list(data.batches(batching, seed, epoch)))
            assert first != other
            assert sorted(number for batch in first for number in batch[0]) == sorted(
                number for batch in other for number in batch[0]
            )


@pytest.mark.parametrize("pool", [1_000_000, 30])
def test_starting_later_equals_leaving_out_the_first(tmp_path: Path, pool: int) -> None:
    data, _ = prepared(tmp_path, pairs(100))
    batching = Batching(tokens=60, pool=pool)
    everything = ids(list(data.batches(batching, seed=3, epoch=2)))
    for start in (0, 1, 5, len(everything) - 1, len(everything), len(everything) + 3):
        assert ids(list(data.batches(batching, seed=3, epoch=2, start=start))) == everything[start:]


def test_no_side_of_a_batch_is_larger_than_asked(tmp_path: Path) -> None:
    data, _ = prepared(tmp_path, pairs(200))
    for batch in data.batches(Batching(tokens=150), seed=1, epoch=0):
        assert len(batch) * max(batch.source.lengths) <= 150
        assert len(batch) * max(batch.target.lengths) <= 150
        assert batch.tokens == sum(batch.source.lengths) + sum(batch.target.lengths)


def test_several_lines_with_one_source_are_references(tmp_path: Path) -> None:
    rows = [(source, f"{target} {variant}") for source, target in pairs(40) for variant in "AB"]
    data, _ = prepared(tmp_path, rows)
    assert {row.source: row.references for row in data.texts} == {
        source: tuple(target for s, target in rows if s == source) for source in {row.source for row in data.texts}
    }
    assert all(len(row.references) == 2 for row in data.texts)


def test_vocabularies_are_learnt_from_training_pairs_alone(tmp_path: Path) -> None:
    rows = [(source, f"{target} only{number}") for number, (source, target) in enumerate(pairs(100))]
    data, tokenizers = prepared(tmp_path, rows)
    trained = " ".join(target for batch in data.batches(SMALL, 1, 0) for _, target in texts(batch, tokenizers))
    assert "⁇" not in trained
    for row in data.texts:
        assert tokenizers.target.decode(tokenizers.target.encode(row.references[0])).endswith("⁇")


def test_held_out_files_are_kept_whole(tmp_path: Path) -> None:
    dev = [("ein Satz", "a"), ("ein Satz", "b"), ("noch ein Satz", "c"), ("noch ein Satz", "c"), ("x", "")]
    source, target = two_files(tmp_path, dev, "dev")
    data, _ = prepared(tmp_path, pairs(30), dev_source=source, dev_target=target)
    assert data.texts == (HeldOut("ein Satz", ("a", "b")), HeldOut("noch ein Satz", ("c",)))
    assert (data.pairs, data.report.held_out, data.report.held_out_sources) == (30, 3, 2)


def test_copies_stay_unless_they_are_dropped(tmp_path: Path) -> None:
    copies = [(source, source) for source, _ in pairs(10, start=500)]
    found = survey(DataSettings(source=tsv(tmp_path / "pairs.tsv", pairs(50) + copies)))
    for name, each in (("with", found), ("without", found.without_copies())):
        data = prepare(each.settings, learn_tokenizers(KINDS["separate"], each), each, tmp_path / name)
        assert data.report.usable == data.pairs + len(data.texts) == (60 if name == "with" else 50)


def test_pairs_with_too_many_tokens_are_dropped_and_counted(tmp_path: Path) -> None:
    rows = [*pairs(30), ("w" * 50, "kurz und gut"), ("ein zwei drei " * 9, "w")]
    data, _ = prepared(tmp_path, rows, max_length=45, max_ratio=100)
    (long,) = data.report.dropped
    assert (long.cause, long.count, [example.line for example in long.examples]) == ("too long", 2, [31, 32])
    assert data.report.usable == data.pairs + len(data.texts) == 30


def test_only_over_long_lines_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(SurdError, match=r"0 pairs to train on and 0 held out have at most 5 tokens a side") as caught:
        prepared(tmp_path, [(f"abcdefgh{number}", "k l m") for number in range(30)], max_length=5)
    assert "the shortest of the others has 9. Raise data.max_length" in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_sizes_that_do_not_fit_are_told_of_both_sides(tmp_path: Path) -> None:
    tokenizers = Tokenizers(joint=False, source=BPE(size=9000), target=BPE(size=9001))
    with pytest.raises(Faults) as caught:
        prepared(tmp_path, pairs(30), tokenizers)
    assert [line.split(":")[0] for line in caught.value.lines] == ["tokenizer.source.size", "tokenizer.target.size"]
    found = survey(DataSettings(source=str(tmp_path / "pairs.tsv")))
    assert learn_tokenizers(tokenizers, found, fit=True).source.size < 9000


def test_blocks_of_pairs_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = prepared(tmp_path, pairs(100))
    whole = ids(list(data.batches(SMALL, 1, 0)))
    monkeypatch.setattr(prepare_module, "BLOCK", 7)
    (tmp_path / "again").mkdir()
    data, _ = prepared(tmp_path / "again", pairs(100))
    assert ids(list(data.batches(SMALL, 1, 0))) == whole


def test_large_vocabularies_are_kept_in_four_bytes(tmp_path: Path) -> None:
    rows = [(f"w{number}", " ".join(f"v{number * 700 + part}" for part in range(700))) for number in range(110)]
    tokenizers = Tokenizers(joint=False, source=Characters(), target=Words(limit=100_000))
    data, learnt = prepared(tmp_path, rows, tokenizers, max_length=1000, held_out=2.0)
    assert learnt.target.size > 2**16
    trained = sorted(pair for batch in data.batches(SMALL, 1, 0) for pair in texts(batch, learnt))
    assert set(trained) < set(rows) and len(trained) == 108


def test_a_prepared_corpus_can_be_moved(tmp_path: Path) -> None:
    data, _ = prepared(tmp_path, pairs(40))
    before = ids(list(data.batches(SMALL, 1, 0)))
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    (tmp_path / "pairs.tsv").unlink()
    assert ids(list(Prepared(tmp_path / "elsewhere").batches(SMALL, 1, 0))) == before


def test_damaged_data_are_refused(tmp_path: Path) -> None:
    prepared(tmp_path, pairs(40))
    folder = tmp_path / "data"
    ids_file = folder / "train.source.ids"
    content = ids_file.read_bytes()
    ids_file.write_bytes(content[:-1])
    with pytest.raises(SurdError, match=r"train\.source\.ids: damaged, [\d,]+ bytes instead of [\d,]+"):
        Prepared(folder)
    ids_file.unlink()
    with pytest.raises(SurdError, match=r"train\.source\.ids: no such file"):
        Prepared(folder)
    ids_file.write_bytes(content)
    about = json.loads((folder / INDEX).read_text())
    (folder / INDEX).write_text(json.dumps(about | {"format": 99}))
    with pytest.raises(SurdError, match="written by a newer surd"):
        Prepared(folder)
    (folder / INDEX).write_text(json.dumps({"format": 1}))
    with pytest.raises(SurdError, match="damaged, not a prepared corpus"):
        Prepared(folder)


def test_a_batch_moves_as_a_whole(tmp_path: Path) -> None:
    data, _ = prepared(tmp_path, pairs(40))
    batch = next(data.batches(SMALL, 1, 0)).to(torch.device("meta"))
    assert {batch.source.tokens.device.type, batch.target.tokens.device.type, batch.labels.device.type} == {"meta"}
