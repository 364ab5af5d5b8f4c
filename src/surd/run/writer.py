"""Writer: a trained language model in memory, which goes on with texts and measures them."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from surd.data.documents import Documents, first_token, write_documents
from surd.data.text import composed
from surd.data.tokenizer import Tokenizer
from surd.data.windows import all_windows
from surd.decode.sample import Continuation, Sampling, continue_texts, without_chance
from surd.errors import Faults, SurdError
from surd.metrics.perplexity import text_scores, windows_described
from surd.metrics.score import Score
from surd.models.language import Language
from surd.nn.special import EOS, UNK
from surd.recipe import Recipe
from surd.run.folder import Run
from surd.seed import derive

ROWS = 64
"""Texts that are gone on with together."""


@dataclass(frozen=True, kw_only=True)
class Passage:
    """What was written behind a prompt."""

    prompt: str
    text: str
    """What was added; a prompt that ends within a word is gone on with in that word."""
    ended: bool
    """Whether the line came to its end; a whole text has none."""
    unknown: int = 0
    """Characters of the prompt that the model has never seen."""


@dataclass(frozen=True, kw_only=True)
class Writer:
    """A trained language model with its tokenizer."""

    run: Run
    model: Language

    @property
    def recipe(self) -> Recipe:
        """Every setting that the model was trained with."""
        return self.run.recipe

    def generate(
        self,
        prompts: Sequence[str] = ("",),
        *,
        greedy: bool = False,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        max_length: int | None = None,
        seed: int = 0,
        samples: int = 1,
    ) -> list[str]:
        """What the model writes behind each prompt, `samples` times for each, in their order and without the prompt.

        An empty prompt begins a line. `greedy` takes the likeliest token each time; otherwise tokens are drawn, by the
        recipe's `temperature`, `top_k` and `top_p` unless given. Each sample of a prompt has random numbers of its own,
        which follow from `seed` and the prompt: it comes out the same alone or beside others. `max_length` counts
        tokens. Settings out of range raise `SurdError`.
        """
        sampling = self.sampling(greedy, temperature, top_k, top_p, max_length)
        passages = self.passages(prompts, sampling, seed, samples)
        for number, passage in enumerate(passages[::samples], start=1):
            if passage.unknown:
                warnings.warn(f"prompt {number:,}: {unknown_warning(passage.unknown)}", stacklevel=2)
        return [passage.text for passage in passages]

    def passages(self, prompts: Sequence[str], sampling: Sampling, seed: int = 0, samples: int = 1) -> list[Passage]:
        """The same, with what there is to know of each."""
        if isinstance(prompts, str):
            raise SurdError("generate: expected a list of prompts, found one text; write generate([text])")
        if samples < 1:
            raise SurdError(f"samples: expected at least 1, found {samples}")
        if samples > 1 and sampling.temperature == 0:
            raise Faults(without_chance({"samples": samples}))
        given = [composed(prompt) for prompt in prompts for _ in range(samples)]
        texts = [self._encoded(prompt) for prompt in given]
        met: dict[str, int] = {}
        seeds = []
        for prompt in given:
            met[prompt] = met.get(prompt, 0) + 1
            seeds.append(derive(seed, "sample", prompt, met[prompt]))
        found: list[Continuation | None] = [None] * len(texts)
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        ends = self.recipe.data.document == "line"
        for first in range(0, len(order), ROWS):
            part = order[first : first + ROWS]
            chosen, drawn = [texts[number] for number in part], [seeds[number] for number in part]
            outputs = continue_texts(self.model, chosen, sampling, self.recipe.data.context, drawn, ends)
            for number, output in zip(part, outputs, strict=True):
                found[number] = output
        return [
            self._passage(prompt, text, output)
            for prompt, text, output in zip(given, texts, found, strict=True)
            if output is not None
        ]

    def sampling(
        self,
        greedy: bool = False,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        max_length: int | None = None,
    ) -> Sampling:
        """The recipe's way to go on with a text, with what is given in its place."""
        given = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        if greedy and (wrong := [name for name, value in given.items() if value is not None]):
            raise SurdError(f"greedy takes the likeliest token each time: it does not go with {', '.join(wrong)}")
        usual = self.recipe.sample
        temperature = 0.0 if greedy else usual.temperature if temperature is None else temperature
        chance = temperature != 0
        if not chance and (faults := without_chance({"top_k": top_k, "top_p": top_p})):
            raise Faults(faults)
        return Sampling(
            temperature=temperature,
            top_k=usual.top_k if top_k is None and chance else top_k,
            top_p=(usual.top_p if chance else 1.0) if top_p is None else top_p,
            max_length=usual.max_length if max_length is None else max_length,
        )

    def score(self, text: str) -> list[Score]:
        """Nats a token, bits a byte and perplexity of a text: see `score_lines`."""
        lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n") if text else []
        return self.score_lines(map(composed, lines))

    def score_lines(self, lines: Iterable[str]) -> list[Score]:
        """Nats a token, bits a byte and perplexity of a text in lines, which need not fit in memory.

        The text is cut as held-out text is in training, into windows of the recipe's `data.context` of which none
        overlap: every token, line ends included, is predicted once, from those before it in its own window.
        """
        settings, unit = self.recipe.data, self.recipe.data.document
        if unit == "line":
            lines = (line for line in lines if line.strip())
        device = next(self.model.parameters()).device
        total = 0.0
        with TemporaryDirectory() as folder, torch.no_grad():
            about = write_documents(Path(folder), "text", lines, self.tokenizer, unit)
            if not about.tokens:
                raise SurdError("there is nothing to score: the text is empty")
            for batch in all_windows(Documents(Path(folder), "text", about), settings.context, self.recipe.batch):
                moved = batch.to(device)
                total += float(self.model.loss(*moved.inputs, moved.labels).nll)
        described = windows_described(settings.context, unit)
        return list(text_scores(total, about.tokens, about.bytes, described, about.unknown))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """What turns lines into ids."""
        return self.run.tokenizers.target

    def _encoded(self, prompt: str) -> list[int]:
        """The ids of a prompt, behind the token that documents begin with."""
        lines = prompt.replace("\r\n", "\n").split("\n")
        if len(lines) > 1 and self.recipe.data.document == "line":
            raise SurdError("prompt: this model writes single lines (data.document is line), found a line end within")
        ids = [first_token(self.recipe.data.document)]
        for number, row in enumerate(self.tokenizer.encode_all(lines)):
            ids += [EOS, *row] if number else row
        return ids

    def _decoded(self, ids: Sequence[int]) -> str:
        """Ids as text, EOS as the end of a line."""
        rows: list[list[int]] = [[]]
        for token in ids:
            if token == EOS:
                rows.append([])
            else:
                rows[-1].append(token)
        return "\n".join(self.tokenizer.decode_all(rows))

    def _passage(self, prompt: str, ids: Sequence[int], output: Continuation) -> Passage:
        # Pieces are not spelt one by one (a blank belongs to the piece behind it), so the prompt is spelt with them.
        before, whole = self._decoded(ids[1:]), self._decoded([*ids[1:], *output.tokens])
        unknown = sum(token == UNK for token in ids)
        return Passage(prompt=prompt, text=whole[len(before) :], ended=output.ended, unknown=unknown)


def unknown_warning(count: int) -> str:
    """What to say when a prompt holds what the model has never seen."""
    return f"{count:,} of its characters stand nowhere in what the model was trained on"
