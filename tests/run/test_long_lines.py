"""Long lines: cut where a reader would cut them, nothing lost, and in time whatever the line is made of."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surd.data.clean import tidy
from surd.data.tokenizer import BPE, Characters, Tokenizer, Words, learn
from surd.run.long_lines import Section, rejoined, sections, sentences
from surd.run.outputs import _before, _words

TOKENIZERS = [learn(kind, ["a b", "ab 。b"] * 9, fit=True) for kind in (BPE(size=270), Characters(), Words())]


def fits(text: str) -> bool:
    return len(text) <= 20


SENTENCES = {
    "He came home. He was tired! Was he?  Yes.": ["He came home.", "He was tired!", "Was he?", "Yes."],
    "Dr. Smith was born on 3. May, z. B. here. So!": ["Dr. Smith was born on 3. May, z. B. here.", "So!"],
    "Cats, dogs etc. and so forth. He (too.) Left.": ["Cats, dogs etc. and so forth.", "He (too.)", "Left."],
    "It costs 3.14 at example.com. See a.org... So": ["It costs 3.14 at example.com.", "See a.org...", "So"],
    "你好。再见！ 吃饭了吗？「是。」好": ["你好。", "再见！", "吃饭了吗？", "「是。」", "好"],
    "no end": ["no end"],
    "...": ["..."],
}


@pytest.mark.parametrize("line", SENTENCES)
def test_sentences_end_where_a_reader_sees_their_end(line: str) -> None:
    assert list(sentences(line)) == SENTENCES[line]


def test_what_is_too_long_is_cut_at_blanks_and_then_anywhere() -> None:
    line = "One two three four five six. Seven abcdefghijklmnopqrstuvwxyz eight."
    assert sections(line, fits) == [
        Section("One two three four"),
        Section("five six."),
        Section("Seven"),
        Section("abcdefghijklmnopqrst", apart=False),
        Section("uvwxyz"),
        Section("eight."),
    ]


def test_no_cut_falls_within_a_symbol_or_between_a_letter_and_its_marks() -> None:
    assert [part.text for part in sections("x" * 18 + "<url>" + "y" * 30, fits, ("<url>",))] == [
        "x" * 18,
        "<url>" + "y" * 15,
        "y" * 15,
    ]
    marked = [part.text for part in sections("ab\u0301" * 15, fits)]
    assert "".join(marked) == "ab\u0301" * 15 and not any(part.startswith("\u0301") for part in marked)
    heap = sections("a" + "\u0301" * 40, fits)
    assert len(heap) > 1 and all(fits(part.text) for part in heap), "a heap of marks is cut after all"


def test_a_character_that_does_not_fit_stays() -> None:
    assert [part.text for part in sections("abc", lambda text: False)] == ["a", "b", "c"]


@given(text=st.text(st.sampled_from("ab .!。\u0301\u3000<>😀\"'"), max_size=80))
@settings(max_examples=200, deadline=None)
def test_nothing_but_white_space_is_lost_and_every_part_fits(text: str) -> None:
    parts = sections(text, fits)
    assert "".join("".join(part.text.split()) for part in parts) == "".join(text.split())
    assert all(part.text == part.text.strip() != "" and fits(part.text) for part in parts)


@pytest.mark.parametrize("unit", [".", "a", ". ", "a ", "ab. ", '."', "。", "word ", "?!”"])
def test_a_hundred_thousand_characters_take_few_looks(unit: str) -> None:
    looked_at = 0

    def counting(text: str) -> bool:
        nonlocal looked_at
        looked_at += len(text)
        return len(text) <= 250

    line = (unit * 100_000)[:100_000]
    parts = sections(line, counting)
    assert "".join("".join(part.text.split()) for part in parts) == "".join(line.split())
    assert looked_at < 20 * len(line)


def test_outputs_are_rejoined_as_their_script_asks() -> None:
    parts = [Section("A."), Section("B", apart=False), Section("C"), Section("D")]
    assert rejoined(parts, ["a.", "b", "c", "d"], "") == "a. bc d"
    assert rejoined(parts, ["K", "AE", "", "T"], " ") == "K AE T"
    assert rejoined(parts[:2], ["你好。", "再见。"], "") == "你好。再见。"
    assert rejoined(parts[:2], ["안녕", "하세요"], "") == "안녕 하세요"
    assert rejoined(parts[:2], ["ok 😀", "then"], "") == "ok 😀 then"


def before_plainly(parts: list[Section], texts: list[str], tokenizer: Tokenizer) -> list[int]:
    """How many words of the whole stand before each part, by joining all that comes before it anew."""
    found = []
    for count, text in enumerate(texts, start=1):
        whole = rejoined(parts[:count], texts[:count], tokenizer.separator)
        found.append(_words(whole, tokenizer) - _words(text, tokenizer))
    return found


@given(
    rows=st.lists(st.tuples(st.text(st.sampled_from("ab 。\u3000"), max_size=5).map(tidy), st.booleans()), max_size=7),
    kind=st.sampled_from(range(3)),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_words_before_a_part_are_counted_once(rows: list[tuple[str, bool]], kind: int) -> None:
    tokenizer = TOKENIZERS[kind]
    parts, texts = [Section("", apart=apart) for _, apart in rows], [text for text, _ in rows]
    assert _before(parts, texts, tokenizer) == before_plainly(parts, texts, tokenizer)
