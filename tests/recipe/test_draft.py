"""Drafts: what is asked for, layer upon layer, and all its faults in one message."""

import pytest

from surd.errors import Faults
from surd.recipe import Draft


def test_words_are_toml_or_plain_text():
    words = [
        "model.d_model=256",
        "model.dropout = .5",
        "training.clip=1e1",
        "data.columns=1+2,3",
        "tokenizer.joint=true",
    ]
    draft = Draft().with_words([*words, 'task="translation"', "training.schedule=cosine", "training.schedule.rate=1"])
    assert draft.values["model"] == {"d_model": 256, "dropout": 0.5}
    assert draft.values["data"] == {"columns": "1+2,3"}
    assert draft.values["task"] == "translation"
    assert draft.values["training"] == {"clip": 10.0, "schedule": {"kind": "cosine", "rate": 1}}
    assert draft.values["tokenizer"] == {"joint": True}
    assert draft.reasons["model.d_model"] == "given on the command line"
    draft.check()


def test_four_faults_of_a_file_come_in_one_message(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text('[model]\nheads = "eight"\nd_modle = 64\ndropout = 1.5\n[training.schedule]\nkind = "cosin"\n')
    with pytest.raises(Faults) as caught:
        Draft.read(path).check()
    lines = sorted(caught.value.lines)
    assert len(lines) == 4, lines
    assert lines[0].startswith(
        'model.d_modle: unknown setting "d_modle". Did you mean "d_model"? There is: d_model, heads'
    )
    assert lines[1].startswith("model.dropout: expected a share from 0 to below 1")
    assert lines[2] == 'model.heads: expected a whole number, found "eight"'
    assert lines[3].startswith('training.schedule.kind: unknown kind "cosin". Did you mean "cosine"?')


def test_faults_of_words_come_with_those_of_the_file(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text("[training]\nwarmup = 3\nsteps = 0\n")
    with pytest.raises(Faults) as caught:
        Draft.read(path).with_words(["nonsense", "model.heads=[1", "model=3", "model.d_k=4"]).check()
    assert {line.partition(" ")[0] for line in caught.value.lines} == {
        "expected",
        "model.heads:",
        "model.d_k:",
        "training.warmup:",
        "model:",
        "training.steps:",
    }
    assert "Elsewhere there is training.schedule.warmup." in str(caught.value)


def test_a_setting_of_another_table_is_pointed_to():
    with pytest.raises(Faults, match=r"heads: unknown setting .* Elsewhere there is model\.heads\."):
        Draft().with_words(["heads=8"]).check()


def test_another_kind_replaces_the_settings_of_the_first():
    draft = Draft().with_words(["tokenizer.source.kind=bpe", "tokenizer.source.size=500"])
    assert draft.with_words(["tokenizer.source.size=600"]).values["tokenizer"]["source"] == {"kind": "bpe", "size": 600}
    assert draft.with_words(["tokenizer.source=characters"]).values["tokenizer"]["source"] == {"kind": "characters"}


def test_a_later_voice_replaces_the_budget_of_an_earlier_one(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text("[training]\nminutes = 4  # a demonstration\n")
    file = Draft.read(path)
    assert file.with_words(["training.steps=300"]).values["training"] == {"steps": 300}
    assert file.with_values({"training.minutes": 9}, "given").values["training"] == {"minutes": 9}
    with pytest.raises(Faults, match=r"training\.steps and training\.minutes: each is a limit"):
        Draft().with_words(["training.steps=300"]).with_words(["training.minutes=4"]).check()


def test_the_reason_of_a_replaced_value_is_kept(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text("[model]\nd_model = 64  # tried twice\nheads = 2\n")
    draft = Draft.read(path).with_words(["model.d_model=32", "model.heads=2"])
    assert draft.reasons["model.d_model"] == "given on the command line, in place of 64 (tried twice)"
    assert draft.reasons["model.heads"] == "given on the command line"


def test_files_are_named_from_the_folder_of_the_recipe(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text('[data]\nsource = "a.en"\ntarget = "/b.de"\ndev_source = "-"\n')
    data = Draft.read(path).values["data"]
    assert data == {"source": str(tmp_path / "a.en"), "target": "/b.de", "dev_source": "-"}


def test_a_single_side_says_nothing_against_a_joint_vocabulary():
    Draft().with_words(["tokenizer.source.kind=characters"]).check()
    Draft().with_words(["tokenizer.source.kind=characters", "tokenizer.joint=true"]).check()
    with pytest.raises(Faults, match=r"tokenizer\.joint: one vocabulary"):
        words = ["tokenizer.source.kind=characters", "tokenizer.target.kind=words", "tokenizer.joint=true"]
        Draft().with_words(words).check()


def test_what_chooses_no_kind_fits_any():
    Draft().with_words(["training.schedule.floor=0.1", "tokenizer.source.limit=5"]).check()
    with pytest.raises(Faults, match='unknown setting "flor"'):
        Draft().with_words(["training.schedule.flor=0.1"]).check()


def test_what_is_still_open_is_no_contradiction():
    Draft().with_words(["model.tying=all", "training.schedule.warmup=100000"]).check()


def test_a_value_that_is_refused_is_not_called_missing_as_well():
    with pytest.raises(Faults) as refusal:
        Draft().with_words(["model.scale.kind=fixed", "model.scale.value=-1"]).check()
    assert str(refusal.value) == "model.scale.value: expected a number above 0, found -1.0"
