"""Tokenizers: raw text in and the same raw text out, sizes that fit the data, files that are safe to load."""

from pathlib import Path

import pytest
from data.texts import sentences
from hypothesis import example, given, settings
from hypothesis import strategies as st

from surd.data.tokenizer import (
    BPE,
    Characters,
    Tokenizer,
    TokenizerKind,
    TokenizerPair,
    Tokenizers,
    Unigram,
    Words,
    learn,
)
from surd.errors import Faults, SurdError
from surd.nn.special import BOS, EOS, PAD, UNK
from surd.part import structure, unstructure

LINES = [*sentences(300), "Grüße aus 東京 ▁ !", "\ue000", "</s> <unk> <s>"]
KINDS: list[TokenizerKind] = [BPE(size=500), Unigram(size=330), Characters(), Words()]
LEARNT = {part.kind: learn(part, LINES) for part in KINDS}
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@given(text=TEXT)
@example(text="▁ \ue000\ue001▁▁\ue002")
@example(text="  double  and outer  ")
@example(text="<s> </s> <unk> <pad> <0x41> ⁇")
@example(text="e\u0301\u2028\t")
def test_subwords_are_lossless_for_any_text(kind: str, text: str) -> None:
    tokenizer = LEARNT[kind]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(UNK < token < tokenizer.size for token in ids)


@pytest.mark.parametrize("kind", ["characters", "words"])
@given(picked=st.lists(st.sampled_from(LINES), max_size=3))
def test_symbols_are_lossless_for_known_symbols(kind: str, picked: list[str]) -> None:
    text = " ".join(picked)
    assert LEARNT[kind].decode(LEARNT[kind].encode(text)) == text


@pytest.mark.parametrize("kind", LEARNT)
def test_many_at_once_equal_one_by_one(kind: str) -> None:
    tokenizer, texts = LEARNT[kind], [*LINES, "", "unbekannt"] * 8
    ids = tokenizer.encode_all(texts)
    assert ids == [tokenizer.encode(text) for text in texts]
    assert tokenizer.decode_all(ids) == [tokenizer.decode(row) for row in ids]
    assert tokenizer.encode("") == [] and tokenizer.decode([]) == ""


@pytest.mark.parametrize("kind", LEARNT)
def test_special_ids_are_no_text(kind: str) -> None:
    tokenizer = LEARNT[kind]
    ids = tokenizer.encode("rot blau")
    assert tokenizer.decode([BOS, *ids, EOS, PAD, PAD]) == "rot blau"


def test_what_is_unknown_is_marked() -> None:
    assert LEARNT["characters"].decode(LEARNT["characters"].encode("roß☃")) == "roß⁇"
    assert LEARNT["words"].decode(LEARNT["words"].encode("rot ☃ blau")) == "rot ⁇ blau"
    bare = learn(BPE(size=100, byte_fallback=False), LINES)
    assert bare.decode(bare.encode("rot☃")) == "rot⁇"


def test_bytes_take_256_pieces_and_leave_nothing_unknown() -> None:
    text = "🤷🏽 שלום ﷽ \U0010ffff"
    for kind in (BPE, Unigram):
        full, bare = (learn(kind(size=500, byte_fallback=flag), LINES, fit=True) for flag in (True, False))
        assert full.decode(full.encode(text)) == text and UNK not in full.encode(text)
        assert UNK in bare.encode(text)
        assert full.encode("🤷")[-4:] == [full.encode("🤷")[-4] + gap for gap in (0, -81, -76, -57)], "f0 9f a4 b7"
    rare = [*LINES * 40, "☃"]
    common, all_ = (learn(BPE(size=500, coverage=share), rare) for share in (0.9995, 1.0))
    assert len(all_.encode("☃")) == 1 + 1 and len(common.encode("☃")) == 1 + 3, "left to bytes, or a piece of its own"


SYMBOLS = ("<url>", "<url", "a,b", '"q', "§", "{{x}}")
WITH_SYMBOLS = {part.kind: learn(part, LINES, symbols=SYMBOLS) for part in KINDS}
HOLDING = st.lists(st.sampled_from([*SYMBOLS, "rot", " ", "<", "url>", "☃", "▁"]), max_size=8).map("".join)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters"])
@given(text=HOLDING)
@example(text="<url><urlx<url>")
def test_symbols_are_never_split(kind: str, text: str) -> None:
    tokenizer = WITH_SYMBOLS[kind]
    ids = tokenizer.encode(text)
    own = {symbol: tokenizer.encode(symbol)[-1] for symbol in SYMBOLS}
    assert all(tokenizer.decode([token]) == symbol for symbol, token in own.items()) and len({*own.values()}) == 6
    if kind != "characters":
        assert tokenizer.decode(ids) == text
    counts = {symbol: text.count(symbol) for symbol in SYMBOLS}
    counts["<url"] -= counts["<url>"]
    assert {symbol: ids.count(token) for symbol, token in own.items()} == counts


def test_symbols_to_words_are_words_of_their_own() -> None:
    words = learn(Words(minimum_count=2, limit=3), ["a b a b b c"], symbols=("<url>", "<num>"))
    assert words.size == 4 + 3
    assert words.encode("b <url> a <num>")[1::2] == [4, 5] and words.decode(words.encode("<url> b")) == "<url> b"
    assert words.encode("a <url>.")[-1] == UNK
    assert learn(Words(limit=1), ["a b"], symbols=("<url>", "<num>")).size == 4 + 2


@pytest.mark.parametrize("kind", WITH_SYMBOLS)
def test_symbols_are_saved(tmp_path: Path, kind: str) -> None:
    TokenizerPair(WITH_SYMBOLS[kind], WITH_SYMBOLS[kind]).save(tmp_path)
    loaded = TokenizerPair.load(tmp_path).source
    assert equal(loaded, WITH_SYMBOLS[kind])
    assert loaded.encode("rot <url> x") == WITH_SYMBOLS[kind].encode("rot <url> x")


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        (["<url>", "<num>", "<url>"], 'symbols: "<url>" is listed twice: name each symbol once'),
        (["a b"], 'symbols: "a b": expected a symbol without blanks'),
        (["a\u00a0b"], "expected a symbol without blanks"),
        (["\x07"], "expected a symbol without blanks and control characters"),
        ([""], 'symbols: expected text such as "<url>", found ""'),
        (["</s>"], 'symbols: "</s>" is what SentencePiece calls a piece of its own'),
        (["<0x0A>"], "a piece of its own"),
        (["e\u0301"], "all text is composed"),
    ],
)
def test_symbols_that_cannot_be_are_refused(symbols: list[str], message: str) -> None:
    with pytest.raises(Faults) as caught:
        structure(Tokenizers, {"symbols": symbols})
    assert message in str(caught.value)
    assert len(caught.value.lines) == 1


def test_symbols_count_as_pieces() -> None:
    with pytest.raises(SurdError, match=r"^size: this data allows at least [\d,]+ pieces, found 320; ask for"):
        learn(BPE(size=320), LINES, symbols=[f"<{number}>" for number in range(60)])
    assert learn(BPE(size=320), LINES, fit=True, symbols=[f"<{number}>" for number in range(60)]).size > 320


def test_a_no_break_space_does_not_separate_words() -> None:
    words = learn(Words(), ["10\u00a0km weit"])
    assert words.encode("10\u00a0km  weit") == words.encode("10\u00a0km weit") and words.size == 6


def test_symbols_can_be_limited() -> None:
    lines = ["a a a b b c"]
    assert learn(Words(minimum_count=2), lines).size == 6
    assert learn(Words(limit=1), lines).size == 5
    assert learn(Characters(minimum_count=3), lines).size == 6


@pytest.mark.parametrize("part", [BPE(size=50_000), Unigram(size=50_000)])
def test_a_size_that_was_asked_for_and_does_not_fit_names_the_largest(part: BPE | Unigram) -> None:
    with pytest.raises(SurdError, match=r"^size: this data allows at most [\d,]+ pieces, found 50,000; ask for"):
        learn(part, LINES)
    with pytest.raises(SurdError, match=r"^size: this data allows at least [\d,]+ pieces, found 270; ask for"):
        learn(type(part)(size=270), LINES)


@pytest.mark.parametrize("kind", [BPE, Unigram])
@given(lines=st.lists(TEXT.filter(bool), min_size=1, max_size=4), size=st.sampled_from([270, 5000]))
@settings(max_examples=25)
def test_a_derived_size_always_fits(kind: type[BPE] | type[Unigram], lines: list[str], size: int) -> None:
    tokenizer = learn(kind(size=size), lines, fit=True)
    assert [tokenizer.decode(tokenizer.encode(line)) for line in lines] == lines


def test_learning_is_a_function_of_the_lines() -> None:
    for part in KINDS:
        again = learn(part, LINES)
        assert again.encode_all(LINES) == LEARNT[part.kind].encode_all(LINES)


def test_settings_that_cannot_be_meant() -> None:
    with pytest.raises(Faults) as caught:
        BPE(size=100, coverage=0.5)
    assert caught.value.lines == (
        "size: expected at least 261 (special ids, bytes and one piece), found 100",
        "coverage: expected a share between 0.98 and 1, found 0.5",
    )
    with pytest.raises(SurdError, match=r"^joint: one vocabulary for both sides needs the same tokenizer"):
        Tokenizers(joint=True, source=Characters(), target=Words())
    for part in KINDS:
        pair = Tokenizers(joint=False, source=part, target=Words())
        assert structure(Tokenizers, unstructure(pair)) == pair


def equal(first: Tokenizer, second: Tokenizer) -> bool:
    return first.size == second.size and first.encode_all(LINES) == second.encode_all(LINES)


@pytest.mark.parametrize("kind", LEARNT)
def test_a_saved_pair_comes_back(tmp_path: Path, kind: str) -> None:
    joint = TokenizerPair(LEARNT[kind], LEARNT[kind])
    joint.save(tmp_path / "joint")
    loaded = TokenizerPair.load(tmp_path / "joint")
    assert loaded.joint and equal(loaded.source, joint.source)
    separate = TokenizerPair(LEARNT[kind], LEARNT["words"])
    separate.save(tmp_path / "separate")
    loaded = TokenizerPair.load(tmp_path / "separate")
    assert equal(loaded.source, separate.source) and equal(loaded.target, separate.target)


def test_damaged_tokenizers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SurdError, match=r"no tokenizer named source: expected source\.model or source\.json"):
        TokenizerPair.load(tmp_path)
    (tmp_path / "joint.model").write_bytes(b"\x80\x04not a model")
    with pytest.raises(SurdError, match=r"joint\.model: damaged"):
        TokenizerPair.load(tmp_path)
    (tmp_path / "joint.model").unlink()
    for content in ("[]", '{"separator": "", "symbols": ["a", 3]}', '{"separator": "x", "symbols": []}', "{"):
        (tmp_path / "joint.json").write_text(content)
        with pytest.raises(SurdError, match=r"joint\.json: damaged"):
            TokenizerPair.load(tmp_path)
