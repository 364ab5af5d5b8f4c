"""A tiny language model with random weights, for whatever is tested about runs but not about quality."""

from pathlib import Path

import torch
from run.tiny import write_lines

from surd.data.batch import Batching
from surd.data.corpus import DataSettings
from surd.data.tokenizer import BPE, Characters, TokenizerPair, Tokenizers, learn
from surd.decode.sample import Sampling
from surd.models.architecture import Architecture
from surd.nn.tying import Tying
from surd.optim.schedule import Cosine
from surd.recipe import Recipe, Training, write
from surd.run import Run

LINES = ["the cat sees the dog", "", "  a dog sings", "and the bird, the cat"]


def tiny_text_run(path: Path, document: str = "text", kind: Characters | BPE | None = None) -> Run:
    """A finished run: characters unless told otherwise, one layer, windows of 12 tokens, never trained."""
    kind = kind or Characters()
    recipe = Recipe(
        task="language",
        data=DataSettings(text="text.txt", document=document, context=12),
        tokenizer=Tokenizers(joint=False, target=kind),
        model=Architecture(d_model=16, heads=2, d_k=8, d_ff=32, decoder_layers=1, dropout=0.0, tying=Tying.OUTPUT),
        batch=Batching(tokens=48),
        training=Training(steps=100, evaluate_every=50, schedule=Cosine(warmup=10)),
        sample=Sampling(max_length=30),
    )
    with Run.create(path, "language", ["text.txt"]) as run:
        tokenizer = learn(kind, LINES * 20, fit=True)
        TokenizerPair(tokenizer, tokenizer).save(run.tokenizer_folder)
        write(recipe, run.recipe_file)
    run = Run.open(path)
    torch.manual_seed(0)
    run.save_model(run.build_model(), {"step": 0})
    return run


def write_text(path: Path) -> Path:
    """A text of those lines."""
    return write_lines(path, LINES)
