"""What a line holds besides the text to translate comes out as it went in."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surd.commands.forms import Columns, Form, Keys, Text, chosen_form
from surd.errors import SurdError

KEYS = Keys(("text",), ("score", "translation"))
FOUND = {"score": -0.123456, "translation": "o\tk"}


def test_plain_text_is_replaced() -> None:
    assert Text().read("a\tb") == "a\tb"
    assert Text().write("a", {"translation": "x"}) == "x"
    assert Text().write("a", FOUND) == "-0.1235\to\tk"


def test_columns_stay_and_the_answer_is_the_last() -> None:
    form = Columns((2,))
    assert form.read("1\tcat\t") == "cat"
    assert form.write("1\tcat\t", FOUND) == "1\tcat\t\t-0.1235\to k", "a tab in the answer would be a column"
    assert (form.read(""), form.write("", FOUND)) == ("", "")
    assert (form.read("\t"), form.write("\t", {"translation": ""})) == ("", "\t\t")
    assert Columns((3, 1)).read("a\tb\tc") == "c a"
    with pytest.raises(SurdError, match="expected at least 2 columns with a tab between them, found 1"):
        form.read("cat")


def test_keys_stay_to_the_byte_and_the_answer_is_added() -> None:
    line = '  {"n": 1.10, "text":"gr\\u00fcn", "big": 12345678901234567890123, "x": {"a": [1,2]} } '
    assert KEYS.read(line) == "grün"
    written = KEYS.write(line, {"translation": 'say "é"'})
    assert written == line.rstrip()[:-2] + ', "translation": "say \\"é\\""}'
    assert json.loads(written) == json.loads(line) | {"translation": 'say "é"'}
    assert json.loads(KEYS.write('{"text": ""}', FOUND)) == {"text": "", "score": -0.1235, "translation": "o\tk"}
    assert KEYS.read('{"text": "a\\r\\nb\\nc\\rd"}') == "a b c d"
    assert (KEYS.read(""), KEYS.write("", FOUND)) == ("", "")
    assert Keys(("a", "b"), ()).read('{"a": "x", "b": "y"}') == "x y"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(row=st.dictionaries(st.text(max_size=5), VALUES, max_size=4), text=TEXT, pad=st.text(" \t", max_size=2))
def test_any_object_keeps_what_it_holds(row: dict, text: str, pad: str) -> None:
    row = {key: value for key, value in row.items() if key not in KEYS.added} | {"text": text}
    line = pad + json.dumps(row, indent=None) + pad
    assert KEYS.read(line).split() == text.split()
    assert json.loads(KEYS.write(line, {"translation": text})) == row | {"translation": text}


@given(line=st.text(st.characters(exclude_characters="\n")))
def test_any_line_is_read_or_refused(line: str) -> None:
    for form in (Text(), Columns((2,)), KEYS):
        try:
            text = form.read(line)
        except SurdError:
            continue
        assert text == "" or form is Text() or text in line
        assert "\n" not in form.write(line, {"translation": "x"})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON (Expecting property name"),
        ('["text"]', 'expected a JSON object, found ["text"]'),
        ('{"txt": "a"}', 'there is no key "text", found "txt"'),
        ('{"text": 3}', 'expected text under "text", found 3'),
        ('{"text": "\\ud83d"}', 'expected text under "text", found "\\ud83d"'),
        ('{"text": "a", "translation": "b"}', 'there is a key "translation" already'),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_line_without_the_text_says_what_is_wrong(line: str, message: str) -> None:
    with pytest.raises(SurdError) as caught:
        KEYS.read(line)
    assert message in str(caught.value)


def test_options_choose_the_form() -> None:
    assert chosen_form(None, None, ()) == Text()
    assert chosen_form("1+3", None, ()) == Columns((1, 3))
    assert chosen_form(None, "a", ("translation",)) == Keys(("a",), ("translation",))
    for column, key, message in (
        ("0", None, "numbered from 1"),
        ("two", None, "numbered from 1"),
        ("1+", None, "numbered from 1"),
        (None, "", "expected the key"),
        ("1", "text", "do not go together"),
    ):
        with pytest.raises(SurdError, match=message):
            chosen_form(column, key, ())


@pytest.mark.parametrize("form", [Text(), Columns((1,)), KEYS])
def test_one_line_stays_one_line(form: Form) -> None:
    line = '{"text": "a\u2028b"}'
    assert form.read(line) in (line, "a\u2028b")
    assert "\n" not in form.write(line, {"translation": "x\u2028\x0by"})
