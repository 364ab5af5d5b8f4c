"""Recipe files keep their comments and say what is wrong with them."""

import pytest

from surd.errors import SurdError
from surd.recipe.document import parse, render

TEXT = """\
# My recipe,
# for two languages.

# what it is
task = "translation"  # running text

[model]  # the network
d_model = 64  # narrow
# heads were tried: 2, 4
heads = 4

# slow at first
[training.schedule]
warmup = 100
# the end
"""


def test_comments_are_read_where_they_stand(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(TEXT)
    document = parse(path)
    assert document.values == {
        "task": "translation",
        "model": {"d_model": 64, "heads": 4},
        "training": {"schedule": {"warmup": 100}},
    }
    assert document.reasons == {"task": "running text", "model": "the network", "model.d_model": "narrow"}
    assert document.comments == {
        "": ("My recipe,", "for two languages."),
        "task": ("what it is",),
        "model.heads": ("heads were tried: 2, 4",),
        "training.schedule": ("slow at first",),
        ".": ("the end",),
    }


def test_rendered_text_is_read_again_as_it_was(tmp_path):
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text(TEXT)
    document = parse(first)
    second.write_text(render(document.values, document.reasons, document.comments))
    assert parse(second) == document


def test_comments_of_settings_that_are_gone_are_kept_at_the_end(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(render({"task": "translation"}, {}, {"training.minutes": ("after lunch",)}))
    assert path.read_text() == 'task = "translation"\n\n# after lunch\n'


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"steps = \n", "not TOML: .* line 1"),
        (b"a = 1\na = 2\n", 'not TOML: Key "a" already exists'),
        (b"task = 'x'\n# caf\xe9\n", "line 2: not UTF-8"),
    ],
)
def test_what_is_no_toml_is_refused_with_its_line(tmp_path, data, message):
    path = tmp_path / "recipe.toml"
    path.write_bytes(data)
    with pytest.raises(SurdError, match=message):
        parse(path)


def test_a_missing_file_is_refused_with_the_nearest_name(tmp_path):
    (tmp_path / "recipe.toml").write_text("")
    with pytest.raises(SurdError, match=r"no such recipe; did you mean .*recipe\.toml\?"):
        parse(tmp_path / "recipes.toml")


def test_a_folder_is_no_recipe(tmp_path):
    with pytest.raises(SurdError, match="cannot be read as a recipe"):
        parse(tmp_path)
