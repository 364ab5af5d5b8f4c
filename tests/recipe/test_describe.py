"""Every setting of a recipe says what it means, and one that may be none is none by default."""

from types import NoneType
from typing import get_args

from surd.data.corpus import DataSettings
from surd.recipe import Recipe, Training, explain
from surd.recipe.describe import meaning_of, settings
from surd.recipe.file import values
from surd.recipe.table import get, leaves

DEFAULT = Recipe(task="translation", data=DataSettings(source="pairs.tsv"), training=Training(steps=1000))


def test_every_setting_has_a_docstring_beneath_it():
    assert [setting.path for setting in settings(Recipe) if not setting.meaning] == []


def test_every_setting_of_a_recipe_is_described():
    known = {setting.path for setting in settings(Recipe)}
    assert set(leaves(values(DEFAULT))) <= known


def test_what_may_be_none_is_none_by_default():
    """TOML has no word for none, so a setting that is none is left out and must come back as none."""
    plain = values(DEFAULT)
    optional = [setting.path for setting in settings(Recipe) if NoneType in get_args(setting.annotation)]
    assert optional
    given = {"training.steps", "data.source"}
    assert [path for path in optional if get(plain, path) is not None and path not in given] == []


def test_rows_tell_value_reason_and_meaning():
    rows = {row.setting: row for row in explain(DEFAULT, {"model.d_model": "because"})}
    assert (rows["model.d_model"].value, rows["model.d_model"].reason) == ("512", "because")
    assert rows["model.output_bias"].value == "false"
    assert rows["training.smoothing"].reason == ""
    assert rows["training.smoothing"].meaning == meaning_of(Recipe, "training.smoothing") != ""
    assert rows["training.schedule.kind"].value == "inverse_root"
