"""A Hugging Face folder as the subject of a check: built from its configuration, or loaded, or read tensor by tensor.

The class is the library's own. No code of the folder runs, nothing is unpickled, nothing is fetched.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from surd.audit.declared import Declared, Stated
from surd.audit.file_weights import INDEX, FileWeights
from surd.audit.subject import Subject, of_module
from surd.errors import SurdError
from surd.interchange.hub_config import NAME, configuration, first_line, quiet, read_config, transformers
from surd.interchange.hub_weights import most_common, reported, weights_in
from surd.interchange.memory import available
from surd.interchange.opening import listed
from surd.interchange.stated import declared, ties

SEED = 0
BESIDE = 1.5 * 2**30
"""Bytes that a probe needs besides the model."""
AUTO = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModel")
"""Where a configuration names no class: what has a head before what has none."""
TOKENIZER, LONGEST = "tokenizer.json", 128 * 2**20


@dataclass(frozen=True, kw_only=True)
class Size:
    """What a model would take, counted without building it."""

    numbers: int
    bytes: int
    shallow: int
    """Bytes of one layer of each stack, and of what stands outside of all."""


def of_folder(
    folder: Path, inputs: Any = None, loss: Any = None, trained: bool | None = None, static: bool = False
) -> Subject:
    """The subject; a model too large for the memory is an open file, and has static rules alone."""
    raw = read_config(folder)
    files = weights_in(folder)
    if files is not None and (method := _packed(raw)) and not static:
        raise SurdError(
            f"{folder}: its weights are quantised ({method}), and check runs plain ones; --static reads them"
            " as they lie"
        )
    config = configuration(raw, folder)
    kind = _class(config, raw, folder)
    said = _declared(config, kind.__name__, folder)
    notes = _notes(raw, kind.__name__)
    if static and files is not None:
        return _open_files(folder, files, said, trained, notes)
    dtype = (most_common(files) if files else None) or torch.float32
    size = _size(kind, config, dtype, folder)
    if (needed := size.bytes + BESIDE) > (memory := available()):
        if files is None:
            raise SurdError(
                f"{folder / NAME}: {size.numbers:,} parameters, which need {_gigabytes(needed)} to be built and run; "
                f"{_gigabytes(memory)} are free. {_smaller(size, memory)}"
            )
        beyond = f"{_gigabytes(needed)} would be needed to run it, {_gigabytes(memory)} are free: its tensors were read"
        return _open_files(folder, files, said, trained, (*notes, beyond))
    if files is None:
        model = _built(kind, config, folder)
        notes = (*notes, f"built from {NAME} alone, with first weights (seed {SEED})")
        trained = False if trained is None else trained
    else:
        model, unwritten, unknown = _loaded(kind, config, files, dtype)
        notes = (*notes, *unknown)
        subject = of_module(model, inputs, loss, ties(model, said), trained, str(folder))
        return replace(subject, notes=notes, unwritten=unwritten, discarded=tuple(_discarded(model, files)))
    subject = of_module(model, inputs, loss, ties(model, said), trained, str(folder))
    return replace(subject, notes=notes)


def _class(config: Any, raw: Mapping[str, Any], folder: Path) -> type[nn.Module]:
    """The library's class that the configuration names, else the first that fits its type."""
    library = transformers(folder)
    named = raw.get("architectures")
    with quiet():
        for name in named if isinstance(named, list) else ():
            found = getattr(library, name, None) if isinstance(name, str) and name.isidentifier() else None
            if isinstance(found, type) and issubclass(found, library.PreTrainedModel):
                fits = found.config_class is not None and isinstance(config, found.config_class)
                if fits:
                    return found
        for auto in AUTO:
            mapping = getattr(library, auto)._model_mapping
            if type(config) in mapping:
                found = mapping[type(config)]
                return found[0] if isinstance(found, tuple | list) else found
    raise SurdError(f'{folder / NAME}: transformers has no model for model_type "{config.model_type}"')


def _size(kind: type[nn.Module], config: Any, dtype: torch.dtype, folder: Path) -> Size:
    """Built where there are no numbers: nested parts often ignore the sizes that the outer configuration says."""
    with quiet(), torch.device("meta"):
        try:
            model = kind(config)
        except Exception as error:
            raise SurdError(f"{folder / NAME}: {kind.__name__} cannot be built from it: {first_line(error)}") from None
    numbers = sum(parameter.numel() for parameter in model.parameters())
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    layers: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        kind_of = re.sub(r"\.\d+\.", ".*.", name, count=1)
        layers[kind_of] = max(layers.get(kind_of, 0), parameter.numel())
    shallow = sum(layers.values()) * dtype.itemsize + buffers
    return Size(numbers=numbers, bytes=numbers * dtype.itemsize + buffers, shallow=shallow)


def _smaller(size: Size, memory: float) -> str:
    """What to change so that it fits."""
    if size.shallow + BESIDE <= memory:
        return "Give it fewer layers: every scale but depth is the same"
    return "One layer alone is too large: give it a smaller width, or a smaller vocabulary"


def _built(kind: Any, config: Any, folder: Path) -> nn.Module:
    """With first weights, the same at each check, and whatever the global seed is left as it was."""
    with quiet(), torch.random.fork_rng([]):
        torch.manual_seed(SEED)
        try:
            return kind._from_config(config, dtype=torch.float32, attn_implementation=None).eval()
        except Exception as error:
            raise SurdError(f"{folder / NAME}: {kind.__name__} cannot be built from it: {first_line(error)}") from None


def _loaded(
    kind: Any, config: Any, files: FileWeights, dtype: torch.dtype
) -> tuple[nn.Module, tuple[str, ...], list[str]]:
    """With the folder's weights, which parameters these leave out, and remarks on what else did not fit.

    The loader is handed tensors, never a path.
    """
    tensors = {name: files.tensor(name) for name in files.names()}
    with quiet(), torch.random.fork_rng([]):
        torch.manual_seed(SEED)
        try:
            model, about = kind.from_pretrained(
                None,
                config=config,
                state_dict=tensors,
                dtype=dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # told below, all at once
            )
        except Exception as error:
            raise SurdError(
                f"{files.path}: its weights do not fit a {kind.__name__} of its {NAME}: {first_line(error)}"
            ) from None
    if odd := sorted(
        (str(key), tuple(found), tuple(meant)) for key, found, meant in about.get("mismatched_keys") or ()
    ):
        told = listed([f"{key} is {found}, expected {meant}" for key, found, meant in odd], 3)
        raise SurdError(f"{files.path}: {len(odd)} tensors do not fit a {kind.__name__} of its {NAME}: {told}")
    names = {name for name, _ in model.named_parameters()}
    unwritten = tuple(sorted(name for name in map(str, about.get("missing_keys") or ()) if name in names))
    unknown = sorted(map(str, about.get("unexpected_keys") or ()))
    told = [f"{len(unknown)} tensors in the files, but unknown to it: {listed(unknown, 3)}"] if unknown else []
    return model.eval(), unwritten, told


def _discarded(model: Any, files: FileWeights) -> Iterator[tuple[str, str, float]]:
    """Names that the class makes one, and that the files hold both: the loader takes one of them."""
    pairs = getattr(model, "all_tied_weights_keys", None)
    held = set(files.names())
    for other, kept in pairs.items() if isinstance(pairs, Mapping) else ():
        if {other, kept} <= held and files.shape(other) == files.shape(kept):
            apart = float((files.tensor(other).float() - files.tensor(kept).float()).abs().max())
            parameters = dict(model.named_parameters(remove_duplicate=False))
            if parameters.get(other) is parameters.get(kept):
                yield kept, other, apart


def _open_files(
    folder: Path, files: FileWeights, said: Declared, trained: bool | None, notes: tuple[str, ...]
) -> Subject:
    return Subject(name=str(folder), weights=files, declared=said, trained=trained, notes=notes)


def _declared(config: Any, name: str, folder: Path) -> Declared:
    """With what the tokenizer and the index of the weights say."""
    said = declared(config, name)
    if (known := tokens(folder / TOKENIZER)) is not None:
        said = replace(said, vocabulary=Stated(known, TOKENIZER))
    if (total := reported(folder)) is not None:
        said = replace(said, parameters=Stated(total, INDEX))
    return said


def tokens(path: Path) -> int | None:
    """How many ids a tokenizer's file knows; None where there is none, or none that can be read."""
    try:
        if not path.is_file() or path.stat().st_size > LONGEST:
            return None
        found = json.loads(path.read_bytes())
        entries = found["model"]["vocab"]
        added = [one["id"] for one in found.get("added_tokens") or ()]
        ids = entries.values() if isinstance(entries, dict) else range(len(entries))
        return max([*ids, *added]) + 1
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _packed(raw: Mapping[str, Any]) -> str | None:
    """The method of quantisation, if any."""
    about = raw.get("quantization_config")
    return str(about.get("quant_method", "unknown method")) if isinstance(about, Mapping) else None


def _notes(raw: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """What was left aside."""
    if "auto_map" in raw:
        return (f"code of the folder's own (auto_map) was not run; {name} of transformers stands for it",)
    return ()


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB"
