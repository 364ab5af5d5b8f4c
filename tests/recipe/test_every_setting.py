"""Every setting of a recipe, of every member of every family, changes something that can be seen.

The settings are found by walking the recipe. One that is not in the tables below fails, so that no setting can be added
without somebody saying where it shows: in the weights after a few updates, in what is read, in how it is cut, in when
the training looks and ends, or in what is written.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, get_type_hints

import pytest
from run.tiny import tiny_run
from run.tiny_text import tiny_text_run
from training.tiny import tiny, tiny_text, write_pairs, write_text

from surd.data.corpus import DataSettings
from surd.data.prepare import learn_tokenizers, prepare, survey
from surd.data.prepare_text import prepare_text
from surd.data.survey import Survey
from surd.data.text import TextSurvey, survey_text
from surd.part import members
from surd.recipe import Draft, Recipe, Training, override, write
from surd.recipe.describe import family_of
from surd.run import Run
from surd.run.translator import Translator
from surd.run.use import opened
from surd.run.writer import Writer
from surd.training import loop
from surd.training.checkpoint import Checkpoints
from surd.training.events import Evaluated, Finished, Progress, Started
from surd.training.pace import Costs
from surd.training.start import budgeted, learnt, plan, train_new

SOUND = Recipe(task="translation", data=DataSettings(source="pairs.tsv"), training=Training(steps=5000))
UPDATES = 3
"""After which weights are looked at."""


def walk(cls: type, path: str = "") -> Iterator[tuple[str, str]]:
    """All settings beneath a dataclass as (path, kind): of a family itself the kind is "*", of a member's own setting
    it is that of the member, and of every other setting it is empty."""
    hints = get_type_hints(cls)
    for field in fields(cls):
        here, annotation = f"{path}.{field.name}" if path else field.name, hints[field.name]
        if family := family_of(annotation):
            yield here, "*"
            for kind, part in family.items():
                for inner, deeper in walk(part, here):
                    assert not deeper, "a family within a part: say in this test how it is to be walked"
                    yield inner, kind
        elif is_dataclass(annotation):
            yield from walk(annotation, here)
        else:
            yield here, ""


class Bench:
    """Small data and runs, and ways to look at what a recipe makes of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pairs = write_pairs(folder / "pairs.tsv", 300)
        self.text = write_text(folder / "text.txt", 120)
        self.other = write_pairs(folder / "other.tsv", 200, "xyz")
        for name, file in (("sides", self.pairs), ("others", self.other)):
            sides = zip(*(line.split("\t") for line in file.read_text().splitlines()), strict=True)
            for suffix, side in zip(("src", "tgt"), sides, strict=True):
                (folder / f"{name}.{suffix}").write_text("".join(f"{line}\n" for line in side))
        (folder / "three.tsv").write_text(
            "".join(f"{line}\t{line[:2]}{n}\n" for n, line in enumerate(self.pairs.read_text().splitlines()))
        )
        (folder / "odd.tsv").write_text("a b c d e f g h\tx" + " x" * 100 + "\n" + self.pairs.read_text())
        draw = Random(0)
        words = ["<url>", "owl☃", *("".join(draw.choices("abcdefghijklmn", k=draw.randint(2, 7))) for _ in range(200))]
        self.sentences = [" ".join(draw.choices(words, k=4)) for _ in range(400)]
        rows = (f"{line}\t{line[::-1].upper()}\n" for line in self.sentences)
        (folder / "sentences.tsv").write_text("".join(rows))
        run = train_new(plan(tiny(self.pairs, *ENDS)), folder / "run")
        self.run = self._begun(run, folder / "run")
        self.used, self.writer = opened(tiny_run(folder / "used")), opened(tiny_text_run(folder / "writer"))

    def _begun(self, events: Any, folder: Path) -> Run:
        """A run that is ready for its first update."""
        next(event for event in events if isinstance(event, Started))
        events.close()
        return Run.open(folder)

    @cache  # noqa: B019 - one bench a session
    def weights(self, words: tuple[str, ...]) -> dict[str, bytes]:
        """Those after a few updates, by name."""
        run, models = self._with(words), []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "ledger", models.append)
            patch.setattr(loop, "held_out_nll", lambda *given: 1.0)
            events = loop.train(run)
            for event in events:
                if isinstance(event, Progress) and event.step == UPDATES:
                    break
            events.close()
        return {name: weight.detach().numpy().tobytes() for name, weight in models[0].named_parameters()}

    def _with(self, words: tuple[str, ...]) -> Run:
        """The run that is ready, with another recipe."""
        run = self.run
        recipe = override(run.recipe, words)
        before = run.recipe_file.read_bytes()
        write(recipe, run.recipe_file)
        changed = Run.open(run.folder)
        assert changed.recipe == recipe
        run.recipe_file.write_bytes(before)
        return changed

    def course(self, words: tuple[str, ...]) -> dict[str, object]:
        """When a training looked, what it kept and why it ended, where the score never gets better."""
        observed: list[bool] = []
        real = loop.watch

        def spied(*given: Any, **named: Any) -> Any:
            watching = real(*given, **named)
            step = watching.step

            def counted(loss: Any) -> Any:
                vitals = step(loss)
                observed.append(vitals is not None)
                return vitals

            watching.step = counted
            return watching

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "ledger", lambda model: None)
            patch.setattr(loop, "better", lambda new, old, higher: False)
            patch.setattr(loop, "watch", spied)
            run = self._with(words)
            events = list(loop.train(run))
        kept = len(Checkpoints(run.checkpoint_folder).steps())
        shutil.rmtree(run.checkpoint_folder)
        finished = events[-1]
        assert isinstance(finished, Finished)
        return {
            "looks": [event.step for event in events if isinstance(event, Evaluated)],
            "why": finished.why,
            "candidates": [candidate.name for candidate in finished.candidates],
            "kept": kept,
            "observed": sum(observed),
        }

    def budget(self, words: tuple[str, ...]) -> int:
        """Updates that fit the minutes, where each takes a hundredth of a second."""
        costs = Costs(update=0.01, evaluation=0.1, final=1.0, timed=1)
        return budgeted(override(self.run.recipe, words), costs)[1]

    def read(self, words: tuple[str, ...]) -> object:
        """All pairs that are read, with which of them are held out."""
        draft = Draft().with_values({"task": "transduction", "data.source": str(self.pairs)}, "test")
        found = plan(draft.with_words(words)).survey
        assert isinstance(found, Survey)
        return list(found.kept()), found.scan.dev

    def planned(self, words: tuple[str, ...]) -> object:
        """What a task makes of pairs: which are left out, how they are cut and scored."""
        found = plan(tiny(self.pairs, *words))
        return found.survey.usable, found.recipe.tokenizer

    def cut(self, words: tuple[str, ...]) -> object:
        """Ids of known and of unknown text, on both sides, and the sizes of the vocabularies."""
        recipe = override(SOUND, ["tokenizer.joint=false", "model.tying=output", *words])
        found = survey(DataSettings(source=str(self.folder / "sentences.tsv")))
        learned = learn_tokenizers(recipe.tokenizer, found, fit=False)
        lines = [*self.sentences[:20], "the zebra 雪", "a <url> b"]
        return [(side.size, side.encode_all(lines)) for side in (learned.source, learned.target)]

    def windows(self, words: tuple[str, ...]) -> object:
        """The windows of a running text."""
        self.folder.joinpath("short.txt").write_text("the bird sings\n" * 9)
        draft = tiny_text(self.text, *TEXT_ENDS, *words)
        planned = plan(draft)
        assert isinstance(planned.survey, TextSurvey)
        folder = self.folder / f"windows{len(list(self.folder.glob('windows*')))}"
        prepared = prepare_text(planned.recipe.data, learnt(planned).target, planned.survey, folder)
        held_out = list(planned.survey.held_out_lines())
        return prepared.sequences, prepared.tokens, held_out, survey_text(planned.recipe.data).characters

    def fitting(self, words: tuple[str, ...]) -> int:
        """Pairs that are short enough once they are cut into tokens."""
        planned = plan(tiny(self.pairs, *words))
        assert isinstance(planned.survey, Survey)
        folder = self.folder / f"fitting{len(list(self.folder.glob('fitting*')))}"
        return prepare(planned.recipe.data, learnt(planned), planned.survey, folder).pairs

    def outputs(self, words: tuple[str, ...]) -> object:
        """What is written by a search, with the scores."""
        assert isinstance(self.used, Translator)
        decoding = override(self.used.recipe, words).decode
        return [(answer.text, answer.score) for answer in self.used.stream(["tomato", "surd", "a"], decoding)]

    def samples(self, words: tuple[str, ...]) -> list[str]:
        """What is written by chance."""
        assert isinstance(self.writer, Writer)
        sampling = override(self.writer.recipe, words).sample
        return [passage.text for passage in self.writer.passages(["the ", "a dog"], sampling, seed=1)]


TEXT_ENDS = ["training.steps=6", "training.watch_every=0", "training.evaluate_every=50", "training.patience=0"]
ENDS = [*TEXT_ENDS, "data.held_out=4", "decode.extra=2", "decode.factor=0.5"]


@dataclass(frozen=True)
class Shown:
    """A value that shows, held against another: the default, or `before`."""

    value: str
    by: Callable[[Bench, tuple[str, ...]], object] = Bench.weights
    before: str | None = None
    beside: tuple[str, ...] = ()
    """Words on both sides, without which nothing could show."""


LOOKS = ("training.steps=6", "training.evaluate_every=2", "training.watch_every=3")
SIDES = ("tokenizer.source.size=310", "tokenizer.target.size=310")
FILES = ("data.source=@sides.src",)
SETTINGS = {
    "task": Shown("translation", Bench.planned, before="transduction"),
    "seed": Shown("2"),
    "data.source": Shown("@other.tsv", Bench.read),
    "data.target": Shown("@sides.tgt", Bench.read, before="@sides.src", beside=FILES),
    "data.dev_source": Shown("@other.tsv", Bench.read),
    "data.dev_target": Shown(
        "@others.tgt",
        Bench.read,
        before="@others.src",
        beside=(*FILES, "data.target=@sides.tgt", "data.dev_source=@others.src"),
    ),
    "data.columns": Shown("1,3", Bench.read, before="1,2", beside=("data.source=@three.tsv",)),
    "data.held_out": Shown("9", Bench.read),
    "data.max_length": Shown("3", Bench.fitting),
    "data.max_ratio": Shown("40.0", Bench.read, beside=("data.source=@odd.tsv",)),
    "data.text": Shown("@short.txt", Bench.windows),
    "data.dev_text": Shown("@short.txt", Bench.windows),
    "data.document": Shown("line", Bench.windows),
    "data.context": Shown("8", Bench.windows),
    "tokenizer.joint": Shown("true", Bench.cut, beside=SIDES),
    "tokenizer.symbols": Shown('["<url>"]', Bench.cut, beside=SIDES),
    "model.d_model": Shown("48"),
    "model.heads": Shown("4"),
    "model.d_k": Shown("8"),
    "model.key_value_heads": Shown("1"),
    "model.d_ff": Shown("80"),
    "model.encoder_layers": Shown("2"),
    "model.decoder_layers": Shown("2"),
    "model.dropout": Shown("0.3"),
    "model.attention_dropout": Shown("0.2"),
    "model.norm_order": Shown("post"),
    "model.tying": Shown("output"),
    "model.output_bias": Shown("true"),
    "model.cap": Shown("0.5"),
    "model.input_gradient": Shown("0.5"),
    "batch.tokens": Shown("256"),
    "batch.pool": Shown("100"),
    "training.steps": Shown("4", Bench.course, beside=LOOKS[1:], before="6"),
    "training.minutes": Shown("2", Bench.budget, before="1"),
    "training.patience": Shown("1", Bench.course, beside=LOOKS),
    "training.evaluate_every": Shown("3", Bench.course, beside=(LOOKS[0], LOOKS[2]), before="2"),
    "training.accumulation": Shown("2"),
    "training.clip": Shown("0.01"),
    "training.average": Shown("1", Bench.course, beside=LOOKS),
    "training.watch_every": Shown("1", Bench.course, beside=LOOKS[:2], before="3"),
    "training.keep": Shown("1", Bench.course, beside=LOOKS),
    "training.smoothing": Shown("0.2"),
    "training.terms.z": Shown("0.01"),
    "training.precision": Shown("bf16"),
    "decode.beam": Shown("1", Bench.outputs),
    "decode.length_penalty": Shown("0.0", Bench.outputs),
    "decode.factor": Shown("0.0", Bench.outputs),
    "decode.extra": Shown("1", Bench.outputs),
    "sample.temperature": Shown("0.0", Bench.samples),
    "sample.top_k": Shown("1", Bench.samples),
    "sample.top_p": Shown("0.1", Bench.samples),
    "sample.max_length": Shown("3", Bench.samples),
}
"""Settings outside of parts."""


def tokenizer_settings(side: str) -> dict[tuple[str, str], Shown]:
    other = {"source": "target", "target": "source"}[side]
    beside = (f"tokenizer.{other}.size=310",)
    subwords = {
        "size": Shown("315", Bench.cut, "310", beside),
        "byte_fallback": Shown("false, size=60", Bench.cut, "true, size=310", beside),
        "coverage": Shown("0.98, size=320", Bench.cut, "1.0, size=320", beside),
    }
    symbols = {"minimum_count": Shown("20", Bench.cut, "1", beside), "limit": Shown("5", Bench.cut, "50", beside)}
    kinds = {"bpe": subwords, "unigram": subwords, "characters": symbols, "words": symbols}
    return {
        (f"tokenizer.{side}.{name}", kind): shown
        for kind, names in kinds.items()
        for name, shown in names.items()
        if (kind, name) != ("characters", "limit")
    }


PARTS = {
    **tokenizer_settings("source"),
    **tokenizer_settings("target"),
    ("model.scale.factor", "inverse"): Shown("2.0"),
    ("model.scale.value", "fixed"): Shown("0.6", before="0.3"),
    ("model.scale.length", "log_length"): Shown("4", before="9"),
    ("model.query_key_norm.epsilon", "layer"): Shown("0.5"),
    ("model.query_key_norm.epsilon", "rms"): Shown("0.5"),
    ("model.multiplier.value", "fixed"): Shown("3.0", before="2.0"),
    ("model.position.layout", "sinusoidal"): Shown("'halves'"),
    ("model.position.layout", "rotary"): Shown("'interleaved'", before="'halves'"),
    ("model.position.base", "rotary"): Shown("50.0"),
    ("model.position.length", "learned"): Shown("300"),
    ("model.position.std", "learned"): Shown("0.1"),
    ("model.norm.epsilon", "layer"): Shown("0.5"),
    ("model.norm.epsilon", "rms"): Shown("0.5"),
    ("model.init.attention_gain", "transformer"): Shown("1.0"),
    ("model.init.attention_gain", "depth"): Shown("1.0"),
    ("model.init.version", "keras"): Shown("'3.14'"),
    ("model.init.std", "small"): Shown("0.1"),
    ("training.terms.augmented.gamma", "augmented"): Shown("0.9"),
    ("training.terms.augmented.temperature", "augmented"): Shown("2.0"),
    ("training.optimizer.beta1", "adamw"): Shown("0.5"),
    ("training.optimizer.beta2", "adamw"): Shown("0.5"),
    ("training.optimizer.epsilon", "adamw"): Shown("0.01"),
    ("training.optimizer.decay", "adamw"): Shown("0.1"),
    ("training.schedule.rate", "inverse_root"): Shown("0.01, warmup=2", before="0.005, warmup=2"),
    ("training.schedule.warmup", "inverse_root"): Shown("3", before="2"),
    ("training.schedule.factor", "paper"): Shown("0.5, warmup=2", before="1.0, warmup=2"),
    ("training.schedule.warmup", "paper"): Shown("3", before="2"),
    ("training.schedule.rate", "cosine"): Shown("0.01, warmup=1", before="0.005, warmup=1"),
    ("training.schedule.warmup", "cosine"): Shown("3", before="2"),
    ("training.schedule.steps", "cosine"): Shown("3, warmup=1, floor=0.1", before="4, warmup=1, floor=0.1"),
    ("training.schedule.floor", "cosine"): Shown("0.5, warmup=1", before="0.1, warmup=1"),
}
"""Settings of parts, by the kind of the part."""


@dataclass(frozen=True)
class Family:
    """How the members of a family are told apart: each makes something else."""

    by: Callable[[Bench, tuple[str, ...]], object] = Bench.weights
    given: str = ""
    """Settings that stand beside every kind that has them, as in a table of TOML."""
    beside: tuple[str, ...] = ()


SHORT = "size=310"
FAMILIES = {
    "tokenizer.source": Family(Bench.cut, SHORT, ("tokenizer.target.size=310",)),
    "tokenizer.target": Family(Bench.cut, SHORT, ("tokenizer.source.size=310",)),
    "model.scale": Family(given="value=0.3"),
    "model.score": Family(beside=("model.scale=none",)),
    "model.query_key_norm": Family(),
    "model.multiplier": Family(given="value=0.3"),
    "model.position": Family(),
    "model.norm": Family(),
    "model.feedforward": Family(),
    "model.init": Family(),
    "training.terms.augmented": Family(),
    "training.optimizer": Family(),
    "training.schedule": Family(given="warmup=2"),
}
"""All families; of those that may be none, that nothing is chosen shows too."""
ALONE = {"training.optimizer": "a family of one: its settings show, and any other kind is refused by name"}
"""Families with a single member that cannot be left out."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))


def annotation(path: str) -> Any:
    """The type of the setting at a dotted path outside of parts."""
    found: Any = Recipe
    for name in path.split("."):
        found = get_type_hints(found)[name]
    return found


def test_no_setting_is_forgotten_and_none_is_listed_that_does_not_exist() -> None:
    found = list(walk(Recipe))
    assert {path for path, kind in found if not kind} == SETTINGS.keys()
    assert {(path, kind) for path, kind in found if kind not in ("", "*")} == PARTS.keys()
    assert {path for path, kind in found if kind == "*"} == FAMILIES.keys()
    assert all(len(members(annotation(path))) == 1 for path in ALONE)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("path", SETTINGS)
def test_a_setting_shows(bench: Bench, path: str) -> None:
    shown = SETTINGS[path]
    before = () if shown.before is None else (f"{path}={shown.before}",)
    differ(bench, shown, before, (f"{path}={shown.value}",))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("path", "kind"), PARTS)
def test_a_setting_of_a_part_shows(bench: Bench, path: str, kind: str) -> None:
    shown = PARTS[path, kind]
    family, _, name = path.rpartition(".")
    before = "" if shown.before is None else f", {name}={shown.before}"
    differ(
        bench,
        shown,
        (f"{family}={{kind='{kind}'{before}}}",),
        (f"{family}={{kind='{kind}', {name}={shown.value}}}",),
    )


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("path", sorted(FAMILIES.keys() - ALONE.keys()))
def test_each_member_of_a_family_makes_something_else(bench: Bench, path: str) -> None:
    family, found = FAMILIES[path], {}
    for kind, part in members(annotation(path)).items() or family_of(annotation(path)).items():
        given = f", {family.given}" if family.given.partition("=")[0] in {field.name for field in fields(part)} else ""
        found[kind] = family.by(bench, (*family.beside, f"{path}={{kind='{kind}'{given}}}"))
    default = next(field for field in fields(owner(path)) if field.name == path.rpartition(".")[2])
    if default.default is None and default.default_factory is MISSING:
        found["none"] = family.by(bench, family.beside)
    same = [(one, other) for one in found for other in found if one < other and found[one] == found[other]]
    assert not same
    assert len(found) > 1


def owner(path: str) -> type:
    """The dataclass that has the setting at a dotted path."""
    above = path.rpartition(".")[0]
    return annotation(above) if above else Recipe


def differ(bench: Bench, shown: Shown, before: tuple[str, ...], after: tuple[str, ...]) -> None:
    """What is seen is one thing before and another after."""
    there = [
        tuple(word.replace("@", f"{bench.folder}/") for word in (*shown.beside, *words)) for words in (before, after)
    ]
    assert shown.by(bench, there[0]) != shown.by(bench, there[1])


@pytest.mark.usefixtures("compiled")
def test_what_is_seen_is_the_same_when_seen_again(bench: Bench) -> None:
    """Else any setting would show."""
    for see, words in {
        Bench.weights.__wrapped__: (),
        Bench.course: LOOKS,
        Bench.read: (),
        Bench.planned: (),
        Bench.fitting: (),
        Bench.windows: (),
        Bench.cut: SIDES,
        Bench.outputs: (),
        Bench.samples: (),
    }.items():
        assert see(bench, words) == see(bench, words), see
