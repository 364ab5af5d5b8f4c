"""The same weights in CTranslate2: converted without a tokenizer, ids spelled as numbers."""

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path

import ctranslate2
import torch
from ctranslate2.converters.transformers import BartLoader
from transformers import MarianMTModel

from surd.decode.decoding import Decoding
from surd.nn.special import BOS, EOS, SPECIALS, UNK

Outputs = list[list[int]]


def engine(model: MarianMTModel, kind: str, settings: Decoding) -> Callable[[Outputs], Outputs]:
    """What decodes a batch of sources (ids with the end token) with the weights as `kind`."""
    names = [*SPECIALS, *map(str, range(len(SPECIALS), model.config.vocab_size))]
    ids = {name: number for number, name in enumerate(names)}
    with tempfile.TemporaryDirectory() as folder:
        # A copy: what the converter makes of the weights, it makes of them in place.
        convert(copy.deepcopy(model), names, Path(folder) / "model", kind)
        translator = ctranslate2.Translator(
            str(Path(folder) / "model"), compute_type=kind, intra_threads=torch.get_num_threads(), inter_threads=1
        )

    def decode(sources: Outputs) -> Outputs:
        found = translator.translate_batch(
            [[names[token] for token in source] for source in sources],
            beam_size=settings.beam,
            length_penalty=settings.length_penalty,
            max_decoding_length=settings.limit(max(map(len, sources))),
        )
        return [[ids[piece] for piece in one.hypotheses[0]] for one in found]

    return decode


def convert(model: MarianMTModel, names: list[str], folder: Path, kind: str) -> None:
    """Writes the model in CTranslate2's format.

    By the loader for BART: the one for Marian drops the last row of the vocabulary, where its own models have their
    padding, and begins a target with a zero vector in place of a begin token.
    """
    model.config.normalize_before = model.config.normalize_embedding = False
    spec = BartLoader().get_model_spec(model)
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = SPECIALS[BOS], SPECIALS[EOS], SPECIALS[UNK]
    spec.config.decoder_start_token = SPECIALS[BOS]
    spec.validate()
    spec.optimize(quantization=kind)
    folder.mkdir()
    spec.save(str(folder))
