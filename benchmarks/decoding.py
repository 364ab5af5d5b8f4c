"""Decoding speed of a trained run beside Hugging Face's beam search with the same weights, and CTranslate2 where it is.

All sides get the same test sentences as ids, sorted by length, in batches of 64, beam 4, length penalty 1, and the same
limit of length. Told are target tokens a second, the end token counted, and how often an output equals that of
Hugging Face; in fp32 nearly all must, in bf16 and int8 rounding moves some.
"""

import importlib.util
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import MarianMTModel

import report
import surd
from marian import copy_weights, marian
from rounds import alternate, ratios, spelled
from surd.decode.decoding import Decoding
from surd.decode.generate import generate
from surd.models.seq2seq import Seq2Seq
from surd.nn.ragged import Ragged
from surd.nn.special import EOS, PAD
from texts import read_lines

BEAM, SENTENCES = 4, 64
SETTINGS = Decoding(beam=BEAM, length_penalty=1.0, factor=2.0, extra=20)
EQUAL = 0.95
"""Share of outputs that must be the same on both sides in fp32: the rest are near ties, decided by rounding."""
Outputs = list[list[int]]


class Arm:
    """One engine: decodes all batches, keeps what came out."""

    def __init__(self, name: str, decode: Callable[[Outputs], Outputs]) -> None:
        self.name, self.decode = name, decode
        self.outputs: Outputs = []

    def run(self, batches: list[Outputs]) -> float:
        start = time.perf_counter()
        self.outputs = [output for batch in batches for output in self.decode(batch)]
        return time.perf_counter() - start

    @property
    def tokens(self) -> int:
        return sum(len(output) + 1 for output in self.outputs)


def compare(run: Path, text: Path, rounds: int, sentences: int, threads: int, results: Path) -> None:
    """Times all engines in turn on the first `sentences` lines of `text`, source text as the run was trained on."""
    translator = surd.load(run)
    model = translator.model
    lines = read_lines(text)[:sentences]
    sources = [[*ids, EOS] for ids in translator.run.tokenizers.source.encode_all(lines)]
    sources.sort(key=len)
    batches = [sources[start : start + SENTENCES] for start in range(0, len(sources), SENTENCES)]
    arms = engines(model)
    seconds = alternate(arms, lambda arm: arm.run(batches), rounds)
    base = arms[0]
    speeds = {arm.name: arm.tokens / statistics.median(seconds[arm.name]) for arm in arms}
    equal = {arm.name: statistics.mean(a == b for a, b in zip(arm.outputs, base.outputs, strict=True)) for arm in arms}
    # Engines may write outputs of different lengths: the ratio is that of tokens a second, not of seconds.
    share = {arm.name: arm.tokens / base.tokens for arm in arms}
    result: dict[str, Any] = {
        "sentences": len(sources),
        "threads": threads,
        "beam": BEAM,
        "seconds": seconds,
        "tokens_per_second": speeds,
        "ratios": ratios(seconds, base.name, share),
        "equal_outputs": equal,
    }
    if equal["ours fp32"] < EQUAL:
        raise SystemExit(f"only {equal['ours fp32']:.0%} of our outputs are those of {base.name}: nothing to compare")
    report.write("speed-decode", "Decoding speed", result, table(result), results)


def engines(model: Seq2Seq) -> list[Arm]:
    """Hugging Face first; ours in fp32 and in the precision that the run was loaded with; CTranslate2 where it is."""
    theirs = marian(model.architecture, model.vocabularies[1], longest=1024, attention="sdpa")
    copy_weights(model, theirs)
    theirs.eval()
    default = model.compute_dtype
    arms = [
        Arm("HF fp32", lambda batch: by_hugging_face(theirs, batch)),
        Arm("ours fp32", lambda batch: by_surd(model, torch.float32, batch)),
    ]
    if default is not torch.float32:
        arms.append(Arm("ours bf16", lambda batch: by_surd(model, default, batch)))
    if importlib.util.find_spec("ctranslate2"):
        from ctranslate import engine

        arms += [Arm(f"CTranslate2 {kind}", engine(theirs, kind, SETTINGS)) for kind in ("float32", "int8")]
    return arms


def by_surd(model: Seq2Seq, dtype: torch.dtype, sources: Outputs) -> Outputs:
    model.compute_dtype = dtype
    found = generate(model, sources, SETTINGS, batch_tokens=SENTENCES * BEAM * max(map(len, sources)))
    return [list(hypotheses[0].tokens) for hypotheses in found]


def by_hugging_face(model: MarianMTModel, sources: Outputs) -> Outputs:
    ids = Ragged.from_lists(sources)
    with torch.inference_mode():
        found = model.generate(
            input_ids=ids.padded(),
            attention_mask=ids.layout.real.long(),
            num_beams=BEAM,
            length_penalty=SETTINGS.length_penalty,
            early_stopping="never",
            max_new_tokens=SETTINGS.limit(max(map(len, sources))),
            bad_words_ids=[[PAD]],
        )
    return [upto_end(row[1:].tolist()) for row in found]


def upto_end(tokens: list[int]) -> list[int]:
    """What was written before the end token."""
    return tokens[: tokens.index(EOS)] if EOS in tokens else [token for token in tokens if token != PAD]


def table(result: dict[str, Any]) -> str:
    """The engines, and what they had in common."""
    rows = [
        (name, f"{speed:,.0f}", spelled(result["ratios"][name]), f"{result['equal_outputs'][name]:.1%}")
        for name, speed in result["tokens_per_second"].items()
    ]
    base = next(iter(result["seconds"]))
    told = (
        f"{result['sentences']} sentences in batches of {SENTENCES}, beam {BEAM}, {result['threads']} threads; "
        f"medians of {len(result['seconds'][base])} rounds, ratios within a round (smallest–largest).\n\n"
    )
    return told + report.markdown_table(
        ("engine", "target tokens a second", f"times {base}", f"outputs as {base}"), rows
    )
