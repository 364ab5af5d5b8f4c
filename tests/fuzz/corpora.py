"""Corpora of rubbish: what `surd train --plan` reads of them, then tokenizers and ids, without the training."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fuzz import rubbish
from hypothesis import strategies as st

from surd.data.prepare import prepare
from surd.data.prepare_text import prepare_text
from surd.data.text import TextSurvey
from surd.recipe import Draft
from surd.training.start import learnt, plan

NAMES = ("source", "target", "dev_source", "dev_target", "text", "dev_text")
KINDS = ("characters", "words", "bpe", "unigram")


@dataclass(frozen=True)
class Files:
    """Files under names of settings of `data`, and how they are to be read."""

    contents: dict[str, bytes]
    plain: int
    """Sound lines that the training files begin with, so that rubbish also comes to those who have enough text."""
    columns: str | None
    kind: str | None

    def lay(self, folder: Path) -> Callable[[], object]:
        paths = {name: folder / name for name in self.contents}
        for name, content in self.contents.items():
            whole = self.plain if not name.startswith("dev") and content[:2] not in PACKED else 0
            paths[name].write_bytes(self._sound(name, whole) + content)
        values: dict[str, object] = {f"data.{name}": str(path) for name, path in paths.items()}
        values |= {"data.columns": self.columns} if self.columns is not None else {}
        if self.kind is not None:
            values |= {"tokenizer.joint": False, "tokenizer.target.kind": self.kind}
            values |= {} if "text" in self.contents else {"tokenizer.source.kind": self.kind}
        return lambda: self._act(Draft().with_values(values, "given in a test"), folder / "prepared")

    def _act(self, draft: Draft, folder: Path) -> None:
        planned = plan(draft)
        assert planned.survey.report.lines(), "what is taken is reported"
        tokenizers = learnt(planned)
        if isinstance(planned.survey, TextSurvey):
            prepare_text(planned.recipe.data, tokenizers.target, planned.survey, folder)
        else:
            prepare(planned.recipe.data, tokenizers, planned.survey, folder)

    def _sound(self, name: str, lines: int) -> bytes:
        two = name == "source" and "target" not in self.contents
        random_words = random.Random(name)
        told = []
        for number in range(lines):
            side = " ".join(random_words.choices(rubbish.WORDS, k=3))
            told.append(f"{number} {side}\t{side} {number}" if two else f"{number} {side}")
        return "".join(f"{line}\n" for line in told).encode()


PACKED = (b"\x1f\x8b", b"\xfd7", b"\x28\xb5")

PAIRS_OF_FILES = st.fixed_dictionaries({"source": rubbish.files(), "target": rubbish.files()})
ONE_FILE = st.fixed_dictionaries({"source": rubbish.files(2)})
HELD_OUT = st.fixed_dictionaries({"source": rubbish.files(2), "dev_source": rubbish.files(2)})
TEXT = st.fixed_dictionaries({"text": rubbish.files()}, optional={"dev_text": rubbish.files()})
COLUMNS = st.sampled_from((*[None] * 9, "1,2", "2+1,3", "source,target", "0,1", "a", "1,9" + "9" * 5000, ""))

cases: st.SearchStrategy[Files] = st.builds(
    Files,
    contents=st.one_of(PAIRS_OF_FILES, ONE_FILE, HELD_OUT, TEXT),
    plain=st.sampled_from((0, 20, 20, 300)),
    columns=COLUMNS,
    kind=st.sampled_from((None, None, *KINDS)),
)
