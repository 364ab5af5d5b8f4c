"""Folders of Hugging Face's library: built, loaded or read; never fetched, never run; each fault is one message."""

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from surd.audit.file_weights import FileWeights
from surd.audit.judge import judge
from surd.errors import SurdError
from surd.interchange import huggingface
from surd.interchange.huggingface import tokens
from surd.interchange.opening import opened

GPT2 = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
SMALL = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **GPT2}


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody outside is asked for anything."""

    def refuse(*args: object) -> None:
        raise AssertionError("somebody was asked over the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def model() -> transformers.PreTrainedModel:
    torch.manual_seed(3)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2))


def folder(path: Path, config: Any = SMALL, **files: bytes) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    for name, content in files.items():
        (path / name.replace("__", ".")).write_bytes(content)
    return path


def test_a_configuration_alone_is_built_alike_each_time(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    first, second = (opened(folder(tmp_path)) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert isinstance(first.module, transformers.GPT2LMHeadModel) and not first.module.training
    assert all(torch.equal(x, y) for x, y in zip(first.module.parameters(), second.module.parameters(), strict=True))
    assert first.trained is False
    assert "built from config.json alone" in first.notes[-1]
    assert first.declared.tied is not None and first.declared.depth_scaled is not None


@pytest.mark.parametrize("shard", ["10GB", "20KB"])
def test_weights_are_loaded_in_one_piece_or_several(tmp_path: Path, shard: str) -> None:
    model().to(torch.bfloat16).save_pretrained(tmp_path, max_shard_size=shard)
    found = opened(tmp_path)
    assert found.module is not None and found.trained is None and found.notes == ()
    assert all(
        torch.equal(x, y) for x, y in zip(found.module.parameters(), model().bfloat16().parameters(), strict=True)
    )


def test_static_reads_the_file_and_builds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model().save_pretrained(tmp_path)
    monkeypatch.setattr(huggingface, "_loaded", None)
    found = opened(tmp_path, static=True)
    assert found.module is None and isinstance(found.weights, FileWeights)
    assert found.declared.vocabulary is not None and found.declared.vocabulary.value == 64


def test_a_model_too_large_for_the_memory_is_read_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model().save_pretrained(tmp_path / "weights")
    monkeypatch.setattr(huggingface, "available", lambda: 1e6)
    found = opened(tmp_path / "weights")
    assert found.module is None and "its tensors were read" in found.notes[-1]
    with pytest.raises(SurdError, match=r"28,544 parameters.*0\.0 GB are free"):
        opened(folder(tmp_path / "config"))


def test_what_was_not_in_the_files_is_told(tmp_path: Path) -> None:
    model().save_pretrained(tmp_path)
    kept = load_file(tmp_path / "model.safetensors")
    del kept["transformer.h.0.attn.c_attn.weight"]
    save_file({**kept, "strange": torch.zeros(2)}, tmp_path / "model.safetensors", {"format": "pt"})
    found = opened(tmp_path)
    assert found.unwritten == ("transformer.h.0.attn.c_attn.weight",)
    assert "1 tensors in the files, but unknown to it: strange" in " ".join(found.notes)
    (told,) = [one for one in judge(found, ["weight-tying"]).failing if one.measured == 1]
    assert (told.site, told.expected) == (found.unwritten[0], 0)


def test_a_class_is_found_where_none_is_named(tmp_path: Path) -> None:
    found = opened(folder(tmp_path, {**SMALL, "architectures": ["TFGPT2Model", 3, "os"]}))
    assert isinstance(found.module, transformers.GPT2LMHeadModel)


def test_code_of_the_folder_is_never_run(tmp_path: Path) -> None:
    code = b"import pathlib; pathlib.Path(__file__).with_name('ran').touch()\nclass C: pass\nclass M: pass\n"
    own = {**SMALL, "auto_map": {"AutoConfig": "modeling.C", "AutoModelForCausalLM": "modeling.M"}}
    own["attn_implementation"] = own["_attn_implementation"] = "somebody/kernel"
    found = opened(folder(tmp_path, own, modeling__py=code, configuration_own__py=code, __init____py=code))
    assert isinstance(found.module, transformers.GPT2LMHeadModel)
    assert "was not run" in found.notes[0]
    with pytest.raises(SurdError, match=r"auto_map.*check never runs.*package\.module:factory"):
        opened(folder(tmp_path, {**own, "model_type": "their_own"}))
    assert not (tmp_path / "ran").exists()


def test_an_adapter_beside_a_configuration_is_not_followed(tmp_path: Path) -> None:
    adapter = json.dumps({"base_model_name_or_path": "somebody/model", "peft_type": "LORA"}).encode()
    model().save_pretrained(tmp_path)
    (tmp_path / "adapter_config.json").write_bytes(adapter)
    assert isinstance(opened(tmp_path).module, transformers.GPT2LMHeadModel)


def cut(path: Path) -> None:
    model().save_pretrained(path)
    whole = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(whole[: len(whole) // 2])


def with_a_hole(path: Path) -> None:
    """As declared sizes without numbers are, and downloads that stopped: the file has its length and takes no room."""
    model().save_pretrained(path)
    text = json.dumps({"big": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}).encode()
    file = path / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(file, 8 + len(text) + 4 * 10**12)


def other_shape(path: Path) -> None:
    model().save_pretrained(path)
    folder(path, {**SMALL, "n_embd": 64})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: folder(path, {**SMALL, "model_type": "gtp2"}), r'unknown model_type "gtp2".*Did you mean "gpt2"'),
        (lambda path: folder(path, {}), "model_type is missing"),
        (lambda path: folder(path, {**SMALL, "model_type": 7}), "model_type is 7"),
        (lambda path: folder(path, {**SMALL, "n_embd": "wide"}), "refuses it as a gpt2.*n_embd"),
        (lambda path: folder(path, {**SMALL, "n_head": 5}), "GPT2LMHeadModel cannot be built from it"),
        (lambda path: folder(path, {**SMALL, "n_embd": 10**12}), "n_embd is 1,000,000,000,000"),
        (lambda path: folder(path, {**SMALL, "n_layer": 10**6}), "n_layer is 1,000,000; no model has more"),
        (lambda path: folder(path, {**SMALL, "n_embd": 200_000, "n_layer": 500}), r"parameters, which need .* GB"),
        (lambda path: folder(path, {**SMALL, "n_embd": -32}), "n_embd is -32; expected a number above 0"),
        (lambda path: folder(path, "[]"), "expected an object of settings, found a list"),
        (lambda path: folder(path, "{"), "not JSON"),
        (lambda path: folder(path, "[" * 100_000), "nested too deeply"),
        (lambda path: folder(path, SMALL, pytorch_model__bin=b"\x80\x04K\x01."), r"is a pickle.*save_pretrained"),
        (lambda path: folder(path, SMALL, model__safetensors=b"\xff" * 64), "not a safetensors file"),
        (cut, "truncated or damaged"),
        (with_a_hole, "truncated or damaged: .* bytes in a row were never written"),
        (other_shape, "do not fit a GPT2LMHeadModel"),
        (lambda path: folder(path, {**SMALL, "quantization_config": {"quant_method": "gptq"}}), ""),
    ],
)
def test_what_cannot_be_opened_is_one_message(tmp_path: Path, make: Callable[[Path], object], message: str) -> None:
    make(tmp_path)
    if not message:  # quantised weights are refused, a configuration that only says so is built
        assert opened(tmp_path).module is not None
        model().save_pretrained(tmp_path)
        make(tmp_path)
        message = "quantised \\(gptq\\)"
    with pytest.raises(SurdError, match=message):
        opened(tmp_path)


def test_links_that_lead_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "config.json").symlink_to(tmp_path / "config.json")
    for path in (tmp_path / "a", tmp_path):
        with pytest.raises(SurdError, match="symbolic links"):
            opened(path)


@pytest.mark.parametrize(
    ("content", "count"),
    [
        ({"model": {"vocab": {"a": 0, "b": 4}}, "added_tokens": [{"id": 9}]}, 10),
        ({"model": {"vocab": [["a", -1.0], ["b", -2.0]]}}, 2),
        ({"model": {}}, None),
        ([], None),
    ],
)
def test_the_tokenizer_tells_how_many_ids_there_are(tmp_path: Path, content: Any, count: int | None) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert tokens(tmp_path / "tokenizer.json") == count
    said = opened(folder(tmp_path)).declared.vocabulary
    assert said is not None and said.value == (count or 64)


def test_without_the_library_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surd.interchange.hub_config.installed", lambda package: None)
    with pytest.raises(SurdError, match="pip install transformers"):
        opened(folder(tmp_path))
