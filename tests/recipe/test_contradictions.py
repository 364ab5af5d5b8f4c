"""Every value and every pair of values that a recipe refuses, by the message it gives."""

from dataclasses import replace

import pytest

from surd.data.corpus import DataSettings
from surd.data.tokenizer import Tokenizers
from surd.errors import Faults
from surd.models.architecture import Architecture
from surd.nn.tying import Tying
from surd.recipe import Recipe, Training, override
from surd.recipe.contradictions import contradictions

SOUND = Recipe(task="translation", data=DataSettings(source="pairs.tsv"), training=Training(steps=5000))

CASES = {
    "task=translatoin": 'task: unknown task "translatoin". Did you mean "translation"?',
    "seed=-1": "seed: expected at least 0, found -1",
    "model.d_model=0": "model.d_model: expected at least 1, found 0",
    "model.d_model=65": "model.d_model: model.position = sinusoidal needs an even width",
    "model.heads=0": "model.heads: expected at least 1, found 0",
    "model.d_k=-2": "model.d_k: expected at least 1, found -2",
    "model.d_ff=0": "model.d_ff: expected at least 1, found 0",
    "model.encoder_layers=0": "model.encoder_layers: expected at least 1, found 0",
    "model.decoder_layers=0": "model.decoder_layers: expected at least 1, found 0",
    "model.dropout=1.0": "model.dropout: expected a share from 0 to below 1 (0.996 at most), found 1.0",
    "model.dropout=nan": "model.dropout: expected a number up to 1e+30, found nan",
    "model.attention_dropout=-0.1": "model.attention_dropout: expected a share from 0 to below 1",
    "model.norm_order=middle": "model.norm_order: unknown value",
    "tokenizer.joint=false": "model.tying and tokenizer.joint: tying all three matrices needs one vocabulary",
    "tokenizer.source=words": "tokenizer.joint: one vocabulary for both sides needs the same tokenizer on both",
    "tokenizer.source.size=3": "tokenizer.source.size: expected at least",
    "batch.tokens=0": "batch.tokens: expected at least 1, found 0",
    "training.steps=0": "training.steps: expected at least 1, found 0",
    "training.minutes=0": "training.minutes: expected more than 0, found 0.0",
    "training.patience=-1": "training.patience: expected at least 0, found -1",
    "training.evaluate_every=0": "training.evaluate_every: expected at least 1, found 0",
    "training.watch_every=-1": "training.watch_every: expected at least 0, found -1",
    "training.accumulation=0": "training.accumulation: expected at least 1, found 0",
    "training.clip=-1": "training.clip: expected a norm, or 0 to cut nothing, found -1.0",
    "training.clip=inf": "training.clip: expected a number up to 1e+30, found inf",
    "training.average=0": "training.average: expected at least 1, found 0",
    "training.keep=0": "training.keep: expected at least 1, found 0",
    "training.smoothing=1": "training.smoothing: expected a share from 0 to below 1, found 1.0",
    "training.precision=fp16": "training.precision: unknown value",
    "training.optimizer.beta1=1": "training.optimizer.beta1: expected a share from 0 to below 1, found 1.0",
    "training.optimizer.beta2=-1": "training.optimizer.beta2: expected a share from 0 to below 1, found -1.0",
    "training.optimizer.epsilon=0": "training.optimizer.epsilon: expected more than 0, found 0.0",
    "training.optimizer.decay=2": "training.optimizer.decay: expected a share from 0 to below 1, found 2.0",
    "training.schedule.rate=0": "training.schedule.rate: expected more than 0, found 0.0",
    "training.schedule.rate=inf": "training.schedule.rate: expected a number up to 1e+30, found inf",
    "training.schedule.warmup=-1": "training.schedule.warmup: expected at least 0, found -1",
    "training.schedule.warmup=5001": "training.schedule.warmup and training.steps: a warm-up of 5001",
    "training.schedule={kind='paper', factor=0}": "training.schedule.factor: expected more than 0, found 0.0",
    "training.schedule={kind='cosine', floor=2}": "training.schedule.floor: expected a share from 0 to 1, found 2.0",
    "training.schedule={kind='cosine', steps=9, warmup=9}": "training.schedule.steps and training.schedule.warmup:",
    "training.schedule={kind='cosine', steps=4000, warmup=9}": "training.schedule.steps and training.steps: the rate",
    "model.position={kind='learned', length=256}": (
        "model.position.length and data.max_length: every sequence needs as many positions as it has tokens, found 256"
    ),
    "data.held_out=inf": "data.held_out: expected a share between 0 and 1 or a whole number, found inf",
    "data.held_out=nan": "data.held_out: expected a share between 0 and 1 or a whole number, found nan",
    "data.max_ratio=nan": "data.max_ratio: expected more than 1, found nan",
    "model.norm.epsilon=nan": "model.norm.epsilon: expected a number up to 1e+30, found nan",
    "model.multiplier={kind='fixed', value=1e300}": "model.multiplier.value: expected a number up to 1e+30",
    "model.d_model=1000000000000": "model.d_model: expected a whole number up to 2,147,483,647, found 1,000,000",
    "model.heads=1000000000000000000": "model.heads: expected a whole number up to 2,147,483,647, found",
    f"batch.tokens={10**400}": "batch.tokens: expected a whole number up to 2,147,483,647, found one of more than 30",
    f"training.clip={10**400}": "training.clip: expected a number, found one that is too large",
    "model.decoder_layers=10001": "model.decoder_layers: expected at most 10,000, found 10,001",
    "training.accumulation=1001": "training.accumulation: expected at most 1,000, found 1,001",
    "decode.beam=1001": "decode.beam: expected at most 1,000, found 1001",
    "decode.length_penalty=11": "decode.length_penalty: expected a number from -10 to 10, found 11",
    "decode.beam=0": "decode.beam: expected at least 1, found 0",
}


def test_a_sound_recipe_has_none():
    assert contradictions(SOUND) == []


@pytest.mark.parametrize("word", CASES)
def test_each_is_refused_by_name(word):
    with pytest.raises(Faults) as caught:
        override(SOUND, [word])
    told = [line for line in caught.value.lines if line.startswith(CASES[word])]
    assert told, caught.value.lines


def test_all_of_them_come_together():
    words = [
        word
        for word in CASES
        if word.startswith("training.") and not {"schedule", "steps", "minutes"} & {*word.replace("=", ".").split(".")}
    ]
    words = list({word.partition("=")[0]: word for word in words}.values())
    with pytest.raises(Faults) as caught:
        override(SOUND, [*words, "training.schedule.rate=-1", "model.heads=0"])
    assert len(caught.value.lines) == len(words) + 2, caught.value.lines


def test_held_out_files_and_a_held_out_share_exclude_each_other():
    both = DataSettings(source="pairs.tsv", dev_source="dev.tsv", held_out=0.1)
    (found,) = contradictions(replace(SOUND, data=both))
    assert found.message.startswith("data.held_out and data.dev_source: one of the two")
    assert contradictions(replace(SOUND, data=replace(both, held_out=DataSettings.held_out))) == []


TEXT = Recipe(
    task="language",
    data=DataSettings(text="text.txt", context=64),
    tokenizer=Tokenizers(joint=False),
    model=Architecture(tying=Tying.OUTPUT),
    training=Training(steps=5000),
)

TEXT_CASES = {
    "model.tying=all": "model.tying: a language model has one table to tie to its pre-softmax",
    "model.position={kind='learned', length=63}": "model.position.length and data.context: every window needs as many",
    "batch.tokens=63": "batch.tokens and data.context: a batch holds at least one window",
    "data.held_out=3": "data.held_out: of running text a share below 1 is held out, found 3",
    "data.context=1": "data.context: expected at least 2, found 1",
    "data.document=word": "data.document: unknown value",
    "sample.temperature=-1": "sample.temperature: expected a number of at least 0, found -1.0",
    "sample.top_k=0": "sample.top_k: expected at least 1, found 0",
    "sample.top_p=2": "sample.top_p: expected a share above 0 and up to 1, found 2.0",
    "sample={temperature=0.0, top_k=3}": "sample.temperature and sample.top_k: a temperature of 0 takes",
    "sample={temperature=0.0, top_p=0.5}": "sample.temperature and sample.top_p: a temperature of 0 takes",
    "sample.max_length=0": "sample.max_length: expected at least 1, found 0",
    "model.d_model=65": "model.d_model: model.position = sinusoidal needs an even width",
    "data.source=pairs.tsv": "data.source: a language model learns from running text",
    "data.max_length=9": "data.max_length: running text is cut into windows of data.context",
    "data.columns=1,2": "data.columns: running text has no columns",
    "tokenizer.joint=true": "tokenizer.joint: a language model has one tokenizer, tokenizer.target",
    "tokenizer.source.kind=words": "tokenizer.source.kind: a language model has one tokenizer, tokenizer.target",
    "model.encoder_layers=2": "model.encoder_layers: a language model has no encoder; its layers are",
    "decode.beam=2": "decode.beam: a language model samples, it does not search: see sample",
    "task=translation": "data.text: running text is for language models (task = language)",
}


def test_a_sound_language_model_has_none():
    assert contradictions(TEXT) == []
    assert override(TEXT, []) == TEXT


@pytest.mark.parametrize("word", TEXT_CASES)
def test_each_is_refused_by_name_for_a_language_model(word):
    with pytest.raises(Faults) as caught:
        override(TEXT, [word])
    assert [line for line in caught.value.lines if line.startswith(TEXT_CASES[word])], caught.value.lines


@pytest.mark.parametrize("word", ["data.text=a.txt", "data.context=9", "data.document=line", "sample.top_k=3"])
def test_what_only_language_models_have_is_refused_for_pairs(word):
    with pytest.raises(Faults) as caught:
        override(SOUND, [word])
    (line,) = caught.value.lines
    assert line.startswith(f"{word.partition('=')[0]}: ") and "language models" in line


def test_a_meaningless_value_is_not_dropped_in_silence():
    """A recipe that was built in Python is read over by the same rules as one that was written."""
    with pytest.raises(Faults, match=r"model\.encoder_layers: a language model has no encoder"):
        override(replace(TEXT, model=replace(TEXT.model, encoder_layers=3)), [])


def test_a_held_out_file_and_a_held_out_share_of_a_text_exclude_each_other():
    both = DataSettings(text="a.txt", dev_text="b.txt", held_out=0.1)
    (found,) = contradictions(replace(TEXT, data=both))
    assert found.message.startswith("data.held_out and data.dev_text: one of the two")


def test_a_training_needs_an_end():
    messages = [found.message for found in contradictions(Recipe(task="translation", data=SOUND.data))]
    assert messages == ["training.steps and training.minutes: nothing says when to stop: give one of the two"]


def test_a_schedule_that_ends_with_the_training_or_above_zero_is_no_contradiction():
    for schedule in ("{kind='cosine', steps=5000}", "{kind='cosine', steps=4000, floor=0.1}", "{kind='cosine'}"):
        assert contradictions(override(SOUND, [f"training.schedule={schedule}"])) == []


def test_the_width_of_a_head_need_not_divide_the_model():
    assert override(SOUND, ["model.heads=3", "model.d_k=7", "model.d_model=50"]).model.d_k == 7


def test_a_fault_between_settings_hides_no_other():
    with pytest.raises(Faults) as caught:
        override(SOUND, ["tokenizer.source=words", "training.keep=0"])
    assert [line.partition(":")[0] for line in caught.value.lines] == ["tokenizer.joint", "training.keep"]


def test_positions_for_all_of_the_text_are_enough():
    """An output is closed where they end."""
    assert override(SOUND, ["model.position={kind='learned', length=257}"]).model.position.length == 257
