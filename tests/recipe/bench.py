"""Small data and runs, and ways to look at what a recipe makes of them: to see which settings show."""

import shutil
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from run.tiny import tiny_run
from run.tiny_text import tiny_text_run
from training.tiny import tiny, tiny_text, write_pairs, write_text

from surd.data.corpus import DataSettings
from surd.data.prepare import learn_tokenizers, prepare, survey
from surd.data.prepare_text import prepare_text
from surd.data.survey import Survey
from surd.data.text import TextSurvey, survey_text
from surd.recipe import Draft, Recipe, Training, override, write
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
TEXT_ENDS = ["training.steps=6", "training.watch_every=0", "training.evaluate_every=50", "training.patience=0"]
ENDS = [*TEXT_ENDS, "data.held_out=4", "decode.extra=2", "decode.factor=0.5"]


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
