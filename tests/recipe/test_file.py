"""Recipes as files: whatever can be built is written and read again as it was; shipped recipes are sound."""

import os
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surd.data.batch import Batching
from surd.data.corpus import DataSettings
from surd.data.tokenizer import BPE, Characters, Tokenizers, Unigram, Words
from surd.decode.decoding import Decoding
from surd.decode.sample import Sampling
from surd.errors import Faults, SurdError
from surd.models.seq2seq import Architecture
from surd.nn.norm import LayerNorm, NormOrder
from surd.nn.position import Sinusoidal
from surd.nn.tying import Tying
from surd.optim.optimizer import AdamW
from surd.optim.schedule import Cosine, InverseRootDecay, Paper
from surd.recipe import Draft, Recipe, Training, find, override, read, shipped, write
from surd.recipe.document import parse
from surd.tasks import pair_tasks

BASE = Recipe(task="translation", data=DataSettings(source="/pairs.tsv"), training=Training(steps=5000))

counts = st.integers(1, 10**6)
shares = st.floats(0, 0.99)
sizes = st.floats(1e-12, 1e12)
paths = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0/"), min_size=1).map(
    lambda name: os.path.abspath(f"/{name}")
)
subwords = [st.builds(kind, size=st.integers(300, 10**5), byte_fallback=st.booleans()) for kind in (BPE, Unigram)]
tokenizers = st.one_of(*subwords, st.builds(Characters), st.builds(Words, minimum_count=counts, limit=counts))
schedules = st.one_of(
    st.builds(InverseRootDecay, rate=sizes, warmup=st.integers(0, 10)),
    st.builds(Paper, factor=sizes, warmup=st.integers(0, 10)),
    st.builds(Cosine, rate=sizes, warmup=st.integers(0, 10), steps=st.none() | st.integers(11, 99), floor=shares),
)


held_out_files = {"dev_source": paths, "dev_target": st.none() | paths}
held_out_share = {"held_out": st.floats(0.001, 0.999) | counts}


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    source, other, joint = draw(tokenizers), draw(tokenizers), draw(st.booleans())
    steps = draw(st.none() | st.integers(10, 10**6))
    beam = draw(st.integers(1, 50))
    return Recipe(
        task=draw(st.sampled_from([task.name for task in pair_tasks()])),
        seed=draw(st.integers(0, 2**32)),
        data=draw(
            st.builds(
                DataSettings,
                source=paths | st.just("-"),
                target=st.none() | paths,
                **draw(st.sampled_from([held_out_files, held_out_share])),
                max_length=counts,
                max_ratio=st.floats(1.5, 1e6),
            )
        ),
        tokenizer=Tokenizers(joint=joint, source=source, target=source if joint else other),
        model=draw(
            st.builds(
                Architecture,
                d_model=counts.map(lambda half: 2 * half),
                d_k=counts,
                dropout=shares,
                norm_order=st.sampled_from(NormOrder),
                tying=st.sampled_from(Tying if joint else [Tying.NONE, Tying.OUTPUT]),
                output_bias=st.booleans(),
                position=st.builds(Sinusoidal, layout=st.sampled_from(["interleaved", "halves"])),
                norm=st.builds(LayerNorm, epsilon=sizes),
            )
        ),
        batch=draw(st.builds(Batching, tokens=counts, pool=counts)),
        training=draw(
            st.builds(
                Training,
                steps=st.just(steps),
                minutes=st.none() if steps else sizes,
                evaluate_every=st.integers(1, steps or 10**6),
                patience=st.integers(0, 100),
                watch_every=st.integers(0, 100),
                clip=st.just(0.0) | sizes,
                smoothing=shares,
                precision=st.sampled_from(["auto", "bf16", "fp32"]),
                optimizer=st.builds(AdamW, beta1=shares, epsilon=sizes, decay=shares),
                schedule=schedules,
            )
        ),
        decode=draw(st.builds(Decoding, beam=st.just(beam), length_penalty=st.floats(-5, 5))),
    )


@st.composite
def language_recipes(draw: st.DrawFn) -> Recipe:
    """The same settings where they mean something to a language model."""
    pairs, context = draw(recipes()), draw(st.integers(2, 10**5))
    held_out = draw(st.sampled_from([{"dev_text": paths}, {"held_out": st.floats(0.001, 0.999)}]))
    data = st.builds(
        DataSettings,
        text=paths | st.just("-"),
        document=st.sampled_from(["text", "line"]),
        context=st.just(context),
        **held_out,
    )
    sampling = st.builds(
        Sampling,
        temperature=st.floats(0.001, 10),
        top_k=st.none() | counts,
        top_p=st.floats(0.01, 1),
        max_length=counts,
    ) | st.builds(Sampling, temperature=st.just(0.0), max_length=counts)
    return replace(
        pairs,
        task="language",
        data=draw(data),
        tokenizer=Tokenizers(joint=False, target=draw(tokenizers)),
        model=replace(pairs.model, tying=draw(st.sampled_from([Tying.NONE, Tying.OUTPUT]))),
        batch=Batching(tokens=draw(st.integers(context, 10**6))),
        decode=Decoding(),
        sample=draw(sampling),
    )


@settings(max_examples=40, deadline=None)
@given(
    recipe=recipes() | language_recipes(),
    reason=st.text(),
    comment=st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"])),
)
def test_every_recipe_is_read_as_it_was_written(tmp_path_factory, recipe, reason, comment):
    path = tmp_path_factory.mktemp("recipes") / "recipe.toml"
    write(recipe, path, {"model.d_model": reason, "data.source": reason}, {"model": (comment,)})
    assert read(path) == recipe
    first = path.read_bytes()
    write(recipe, path)
    assert path.read_bytes() == first


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_recipe_is_sound_and_gives_its_reasons(name):
    draft = Draft.read(find(name))
    draft.check()
    told = parse(find(name)).reasons
    assert [path for path in draft.reasons if path not in told] == []
    assert all(reason and not reason.startswith("given") for reason in draft.reasons.values())


def test_the_comments_of_a_users_file_survive(tmp_path):
    mine, run = tmp_path / "mine.toml", tmp_path / "recipe.toml"
    mine.write_text(
        "# Ours, of spring.\n\n"
        'task = "translation"\n'
        "[data]\n# the cleaned one\n"
        'source = "/a.tsv"  # from the archive\n'
        "[training]\n# longer was no better\n"
        "steps = 700  # measured\n"
    )
    draft = Draft.read(mine).with_words(["training.steps=800"])
    recipe = replace(BASE, data=DataSettings(source="/a.tsv"), training=Training(steps=800))
    write(recipe, run, draft.reasons, draft.comments)
    text = run.read_text()
    for words in (
        "# Ours, of spring.",
        "# the cleaned one",
        "# from the archive",
        "# longer was no better",
        "measured",
    ):
        assert words in text
    assert "steps = 800" in text
    assert "given on the command line, in place of 700 (measured)" in text
    assert text.index("the cleaned one") < text.index("source =") < text.index("from the archive")


def test_a_rewritten_file_keeps_what_still_holds(tmp_path):
    path = tmp_path / "recipe.toml"
    write(BASE, path, {"training.steps": "a limit", "model.d_model": "the paper's"})
    path.write_text(path.read_text().replace("[model]", "# wide enough\n[model]"))
    write(override(BASE, ["training.steps=6000"]), path, {"training.evaluate_every": "often"})
    document = parse(path)
    assert document.comments["model"] == ("wide enough",)
    assert document.reasons["model.d_model"] == "the paper's"
    assert document.reasons["training.evaluate_every"] == "often"
    assert document.reasons["training.steps"] != "a limit"


def test_every_value_is_written_with_a_reason_or_its_meaning(tmp_path):
    path = tmp_path / "recipe.toml"
    write(BASE, path)
    bare = [line for line in path.read_text().splitlines() if " = " in line and "#" not in line]
    kinds = [line for line in bare if line.startswith("kind = ") or line.endswith(('"inverse_root"', '"root_width"'))]
    assert set(bare) - set(kinds) <= {'feedforward = "relu"', 'init = "transformer"', 'score = "dot"'}


def test_relative_files_are_written_from_the_root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(replace(BASE, data=DataSettings(source="a.en", target="b/../b.de")), "recipe.toml")
    monkeypatch.chdir("/")
    data = read(tmp_path / "recipe.toml").data
    assert (data.source, data.target) == (str(tmp_path / "a.en"), str(tmp_path / "b.de"))


def test_a_recipe_alone_names_its_task_and_its_data(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text("[training]\nsteps = 0\n")
    with pytest.raises(Faults) as caught:
        read(path)
    assert [line.partition(":")[0] for line in caught.value.lines] == ["training.steps", "task", "data.source"]


def test_recipes_are_found_by_file_or_by_name(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("")
    assert find(path) == path
    assert find("multi30k") == shipped()["multi30k"]
    with pytest.raises(SurdError, match=r'multi30: there is no such recipe file\. Did you mean "multi30k"\?'):
        find("multi30")
