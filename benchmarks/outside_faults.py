"""Faults of scale in released packages, found in the packages themselves: an environment for each to be installed.

`--beneath FOLDER` is a site-packages folder whose packages (torch above all) the environments share instead of fetching
their own; without it pip installs everything. What needs only transformers and torch runs in this Python.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import report
from surd.api import check

SOURCE = Path(__file__).parent.parent / "src"
ROWS, LENGTH, WORDS = 6, 13, 400


@dataclass(frozen=True)
class Case:
    """A package's fault: what makes the model and its arguments, and which rule must find it."""

    name: str
    rule: str
    make: Callable[[], tuple[nn.Module, Any]]
    packages: tuple[str, ...] = ()
    """What pip installs; nothing where this Python has it."""
    alone: tuple[str, ...] = ()
    """What pip installs without its dependencies, which ask for another torch."""


def tokens(seed: int = 0, low: int = 4, *more: int) -> Tensor:
    """Random ids."""
    return torch.randint(low, WORDS, (ROWS, LENGTH, *more), generator=torch.Generator().manual_seed(seed))


def lengths() -> Tensor:
    """All rows are whole."""
    return torch.full((ROWS,), LENGTH)


def eole() -> tuple[nn.Module, Any]:
    """Transformer of base width, two layers, with the initialisation that no option changes."""
    from eole.config.models import TransformerModelConfig
    from eole.config.training import TrainingConfig
    from eole.constants import DefaultTokens
    from eole.models.model import get_model_class
    from pyonmttok import build_vocab_from_tokens

    special = [DefaultTokens.UNK, DefaultTokens.PAD, DefaultTokens.BOS, DefaultTokens.EOS]
    words = build_vocab_from_tokens([str(number) for number in range(WORDS)], special_tokens=special)
    names = {"pad_token": DefaultTokens.PAD, "unk_token": DefaultTokens.UNK}
    names |= {"bos_token": DefaultTokens.BOS, "eos_token": DefaultTokens.EOS}
    vocabularies = {"src": words, "tgt": words, "specials": names}
    config = TransformerModelConfig(layers=2, hidden_size=512, heads=8, transformer_ff=1024)
    training = TrainingConfig()
    model = get_model_class(config).build_blocks(config, vocabularies, running_config=training)
    model.build_generator(config, training, vocabularies)
    model.init_weights(training)
    return model, (tokens(), tokens(1), lengths())


def opennmt() -> tuple[nn.Module, Any]:
    """The same of OpenNMT-py."""
    import onmt.opts
    from onmt.constants import DefaultTokens
    from onmt.model_builder import build_model
    from onmt.utils.parse import ArgumentParser
    from pyonmttok import build_vocab_from_tokens

    parser = ArgumentParser()
    onmt.opts.train_opts(parser)
    words = (
        "--encoder_type transformer --decoder_type transformer --layers 2 --hidden_size 512 --heads 8 --transformer_ff"
    )
    chosen = parser.parse_args(
        ["-data", "none", "-src_vocab", "none", *words.split(), "1024", "--word_vec_size", "512"]
    )
    ArgumentParser.update_model_opts(chosen)
    special = [DefaultTokens.UNK, DefaultTokens.PAD, DefaultTokens.BOS, DefaultTokens.EOS]
    vocabulary = build_vocab_from_tokens([str(number) for number in range(WORDS)], special_tokens=special)
    model = build_model(chosen, chosen, {"src": vocabulary, "tgt": vocabulary}, None, torch.device("cpu"))
    return model, (tokens(0, 4, 1), tokens(1, 4, 1), lengths())


def joeynmt() -> tuple[nn.Module, Any]:
    """A Transformer whose configuration says nothing of norms."""
    from joeynmt.model import build_model
    from joeynmt.vocabulary import Vocabulary

    names = {"unk": "<unk>", "pad": "<pad>", "bos": "<s>", "eos": "</s>", "sep": None}
    special = {f"{name}_token": text for name, text in names.items()}
    special |= {f"{name}_id": number for number, name in enumerate(("unk", "pad", "bos", "eos"))}
    settings = SimpleNamespace(**special, sep_id=None, lang_tags=[])
    words = Vocabulary([str(number) for number in range(WORDS)], settings)
    sizes = {
        "type": "transformer",
        "num_layers": 6,
        "num_heads": 8,
        "hidden_size": 256,
        "ff_size": 1024,
        "dropout": 0.0,
    }
    embeddings = {"embedding_dim": 256, "scale": True}
    model = build_model({side: {**sizes, "embeddings": embeddings} for side in ("encoder", "decoder")}, words, words)
    model.loss_function = ("crossentropy", 0.0)

    class Called(nn.Module):
        """The model as its training calls it."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            seen = torch.ones(len(source), 1, source.shape[1], dtype=torch.bool)
            wanted = torch.ones(len(target), 1, target.shape[1], dtype=torch.bool)
            hidden, last = self.model._encode(source, torch.tensor([source.shape[1]] * len(source)), seen)
            return self.model._decode(hidden, last, seen, target, target.shape[1], trg_mask=wanted)[0]

    return Called(), (tokens(), tokens(1))


def keras() -> tuple[nn.Module, Any]:
    """A table and one MultiHeadAttention of width 512."""
    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    from keras import layers

    read = keras.Input((LENGTH,), dtype="int32")
    x = layers.LayerNormalization(epsilon=1e-6)(layers.Embedding(WORDS, 512)(read))
    x = x + layers.MultiHeadAttention(8, 64)(x, x)
    return keras.Model(read, layers.Dense(WORDS)(x)), None


def t5(kind: str) -> tuple[nn.Module, Any]:
    """Eight layers of width 512, with the true vocabulary."""
    import transformers

    sizes = {"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8, "num_heads": 8}
    if kind == "mt5":
        return transformers.MT5ForConditionalGeneration(transformers.MT5Config(**sizes, vocab_size=32128)), None
    config = transformers.T5Config(**sizes, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    return transformers.T5ForConditionalGeneration(config), None


def marian() -> tuple[nn.Module, Any]:
    """The configuration's own defaults, with fewer layers."""
    import transformers

    config = transformers.MarianConfig(encoder_layers=2, decoder_layers=2, vocab_size=4000, decoder_vocab_size=4000,
                                       pad_token_id=3999, decoder_start_token_id=3999)  # fmt: skip
    return transformers.MarianMTModel(config), None


def torch_encoder() -> tuple[nn.Module, Any]:
    """torch's encoder of six layers."""
    layer = nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Embedding(WORDS, 256), nn.TransformerEncoder(layer, 6)), (tokens(),)


def luke() -> tuple[nn.Module, Any]:
    """Its masked language model."""
    import transformers

    config = transformers.LukeConfig(vocab_size=2000, entity_vocab_size=100, num_hidden_layers=2)
    return transformers.LukeForMaskedLM(config), None


OURS = ("torch", "numpy", "safetensors", "jaxtyping", "cattrs", "cyclopts", "rich", "sentencepiece", "sacrebleu")
OURS += ("tomlkit", "zstandard")
"""What surd itself needs."""
BUILT = ("pyonmttok", "configargparse", "rapidfuzz", "pyahocorasick", "ctranslate2", "flask", "waitress", "six")
CASES = (
    Case("Eole", "norm-gain-convention", eole, (*BUILT, "pydantic", "pyyaml"), ("eole",)),
    Case("OpenNMT-py", "norm-gain-convention", opennmt, (*BUILT, "spacy", "tensorboard", "fasttext-wheel"),
         ("OpenNMT-py",)),
    Case("JoeyNMT", "residual-growth", joeynmt, ("tensorboard", "pyyaml", "sacrebleu", "pandas", "matplotlib",
         "sentencepiece", "subword-nmt", "datasets", "seaborn", "editdistance"), ("joeynmt",)),
    Case("Keras up to 3.14", "init-std", keras, ("keras<=3.14",)),
    Case("T5 v1.1 of transformers", "initial-loss", lambda: t5("t5")),
    Case("mT5 of transformers", "initial-loss", lambda: t5("mt5")),
    Case("Marian of transformers", "position-ratio", marian),
    Case("nn.TransformerEncoder of torch", "cloned-layers", torch_encoder),
    Case("LUKE of transformers", "weight-tying", luke),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--beneath", type=Path, help="a site-packages folder that the environments share")
    parser.add_argument("--environments", type=Path, help="keeps the environments there, for the next time")
    parser.add_argument("--only", choices=[case.name for case in CASES])
    parser.add_argument("--within", choices=[case.name for case in CASES], help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, default=report.RESULTS, help="folder for the result files")
    arguments = parser.parse_args()
    chosen = {case.name: case for case in CASES}
    if arguments.within:
        print(json.dumps(found(chosen[arguments.within])))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.environments or Path(temporary)
        cases = [case for case in CASES if arguments.only in (None, case.name)]
        told = [asked(case, folder.resolve(), arguments.beneath) for case in cases]
    heads = ("package", "rule", "quantity", "measured", "expected", "finding")
    rows = [tuple(one.get(head, "") for head in heads) for one in told]
    report.write(
        "outside_faults", "Faults in released packages", {"cases": told}, report.markdown_table(heads, rows),
        arguments.results,
    )  # fmt: skip
    return 0 if all(one["rule"] == case.rule for one, case in zip(told, cases, strict=True)) else 1


def asked(case: Case, folder: Path, beneath: Path | None) -> dict[str, Any]:
    """What a Python of its own says of a case, in the environment of the package."""
    python = Path(sys.executable)
    if case.packages:
        home = folder / case.name.split()[0]
        python = home / "bin" / "python"
        if not python.exists():
            venv.create(home, with_pip=True)
            if beneath is not None:
                (place,) = home.glob("lib/python3*/site-packages")
                (place / "beneath.pth").write_text(f"{beneath.resolve()}\n")
            install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            own = () if beneath is not None else OURS
            subprocess.run([*install, *own, *case.packages], check=True)
            if case.alone:
                subprocess.run([*install, "--no-deps", *case.alone], check=True)
    command = [str(python), str(Path(__file__).resolve()), "--within", case.name]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, cwd=folder, env={**os.environ, "PYTHONPATH": str(SOURCE)}
    )
    if done.returncode:
        return {"package": case.name, "rule": "", "finding": "the check did not run"}
    return {"package": case.name, **json.loads(done.stdout.splitlines()[-1])}


def found(case: Case) -> dict[str, Any]:
    """The finding of the expected rule, the first one or the consequence of another."""
    torch.manual_seed(0)
    model, inputs = case.make()
    told = check(model, inputs, trained=False)
    every = [one for first in told.failing for one in (first, *first.consequences)]
    fit = [one for one in every if one.rule == case.rule]
    if not fit:
        return {"rule": "", "finding": str(told)[:400]}
    one = fit[0]
    number = one.measured if not isinstance(one.measured, float) else float(f"{one.measured:.4g}")
    return {
        "rule": one.rule,
        "quantity": one.quantity,
        "measured": number,
        "expected": one.expected,
        "finding": one.message,
        "beside": [other.rule for other in told.failing if other is not one],
    }


if __name__ == "__main__":
    sys.exit(main())
