"""A tiny run with random weights, for whatever is tested about runs but not about quality."""

from pathlib import Path

import torch

from surd.data.corpus import DataSettings
from surd.data.tokenizer import Characters, TokenizerPair, Tokenizers, Words, learn
from surd.decode.decoding import Decoding
from surd.models.seq2seq import Architecture
from surd.nn.position import Position, Sinusoidal
from surd.nn.tying import Tying
from surd.optim.schedule import InverseRootDecay
from surd.recipe import Recipe, Training, write
from surd.run import Run

WORDS = ["cat", "dog", "tomato", "read", "lead", "surd", "root", "a"]
PHONES = ["K AE T", "D AO G", "T AH M EY T OW", "R IY D", "L EH D", "S ER D", "R UW T", "AH"]


def tiny_run(
    path: Path,
    task: str = "pronunciation",
    seed: int = 0,
    columns: str | None = None,
    symbols: tuple[str, ...] = (),
    factor: float = 0.5,
    position: Position | None = None,
) -> Run:
    """A finished run: characters to phones, one layer each side, never trained."""
    recipe = Recipe(
        task=task,
        data=DataSettings(source="words.tsv", max_length=12, columns=columns),
        tokenizer=Tokenizers(joint=False, source=Characters(), target=Words(), symbols=symbols),
        model=Architecture(
            d_model=16,
            heads=2,
            d_k=8,
            d_ff=32,
            encoder_layers=1,
            decoder_layers=1,
            dropout=0.0,
            tying=Tying.OUTPUT,
            position=position or Sinusoidal(),
        ),
        training=Training(steps=100, evaluate_every=50, schedule=InverseRootDecay(warmup=10)),
        decode=Decoding(beam=3, length_penalty=1.0, factor=factor, extra=3),
    )
    with Run.create(path, task, ["words.tsv"]) as run:
        source = learn(Characters(), [*WORDS, " "], symbols=symbols)
        TokenizerPair(source, learn(Words(), PHONES)).save(run.tokenizer_folder)
        write(recipe, run.recipe_file)
    run = Run.open(path)
    torch.manual_seed(seed)
    run.save_model(run.build_model(), {"step": 0})
    return run


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return path
