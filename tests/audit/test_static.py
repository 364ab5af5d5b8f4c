"""Without running anything: no forward, names alone tell what a tensor is for, and no more than one is in memory."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import nn

from surd.api import check
from surd.audit.evidence import Evidence
from surd.audit.file_weights import FileWeights
from surd.audit.finding import Severity
from surd.audit.judge import judge
from surd.audit.parts import head, tables, uses
from surd.audit.rule import names
from surd.audit.specimen import VOCABULARY, LanguageModel, language_model
from surd.audit.subject import Subject, of_module
from surd.errors import SurdError
from surd.measure.use import Part

TABLE: dict[str, Any] = json.loads((Path(__file__).parents[1] / "measure" / "architectures.json").read_text())


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.logging.set_verbosity_error()


class Broken(LanguageModel):
    """Nobody may run it, or ask it for anything that it computes."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        raise AssertionError("it was run")

    def num_parameters(self) -> int:
        raise AssertionError("it was asked")


def broken() -> Broken:
    model = Broken()
    model.load_state_dict(language_model().state_dict())
    return model


def test_nothing_of_a_live_module_is_run() -> None:
    model = broken()
    for report in (check(model, static=True), judge(of_module(model), static=True)):
        assert report.clean and report.trace is None
        assert {"weight-tying", "tied-init-std", "cloned-layers"} <= set(report.passed)
        looked_in_vain = {one.rule for one in report.skipped if "nothing is run" not in one.reason}
        assert looked_in_vain <= {"parameter-count", "padding-row"}
        assert {*report.passed, *(one.rule for one in report.skipped)} == set(names())


def test_faults_are_seen_without_running_anything() -> None:
    """Table and head are told by their layers where no name tells them."""
    cut = broken()
    cut.head.weight = nn.Parameter(cut.head.weight.detach().clone())
    assert [one.rule for one in check(cut, static=True).failing] == ["weight-tying"]

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vocabulary, self.to_words = nn.Embedding(90, 32, padding_idx=0), nn.Linear(32, 90, bias=False)
            self.tie_weights = True

    report = check(Named(), static=True, trained=False)
    assert {one.rule: one.severity for one in report.failing} == {"weight-tying": Severity.FAULT}
    named = Named()
    named.to_words.weight = named.vocabulary.weight
    assert "tied-init-std" in [one.rule for one in check(named, static=True, trained=False).skipped]


def test_a_released_model_that_starts_too_large_is_seen_without_a_forward(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=96, n_embd=64, n_layer=1, n_head=4, n_positions=32))  # fmt: skip
    nn.init.normal_(model.transformer.wte.weight)
    model.save_pretrained(tmp_path)
    for what in (model, tmp_path):
        one = next(one for one in check(what, static=True, trained=False).failing if one.rule == "tied-init-std")
        assert one.measured == pytest.approx(8.0, rel=0.05)


FAMILIES = (
    "gpt2", "gpt_neo", "gptj", "gpt_neox", "opt", "bloom", "falcon", "llama", "mistral", "qwen2", "qwen3", "gemma",
    "gemma2", "phi", "stablelm", "starcoder2", "cohere", "granite", "olmo2", "bert", "roberta", "electra", "albert",
    "deberta-v2", "xlm-roberta", "mpnet", "distilbert", "t5", "mt5", "bart", "mbart", "marian", "pegasus", "m2m_100",
    "longt5", "whisper", "modernbert", "camembert",
)  # fmt: skip


def weights_of(name: str, path: Path) -> tuple[FileWeights, Any]:
    """The names and shapes of a family, in the header of a file whose numbers are zeros that nobody wrote."""
    entry = TABLE[name]
    kind = getattr(transformers, entry["model"], None)
    if kind is None or name not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    with torch.device("meta"):
        model = kind(transformers.AutoConfig.for_model(name, **entry["config"]))
    shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items() if tensor.is_floating_point()}
    return header(path, shapes), model


def header(path: Path, shapes: dict[str, tuple[int, ...]], dtype: str = "F32", size: int = 4) -> FileWeights:
    """A file with holes: it takes no room."""
    entries, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + torch.Size(shape).numel() * size
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return FileWeights(path)


def test_names_tell_tables_and_heads_of_most_families() -> None:
    """As many as are promised, and all of them in the table of architectures."""
    assert len(FAMILIES) >= 30 and set(FAMILIES) <= TABLE.keys()


@pytest.mark.parametrize("name", FAMILIES)
def test_names_tell_what_a_tensor_is_for(name: str, tmp_path: Path) -> None:
    weights, model = weights_of(name, tmp_path / "model.safetensors")
    evidence = Evidence(Subject(name=name, weights=weights))
    names = {id(parameter): key for key, parameter in model.named_parameters(remove_duplicate=False)}
    aliases = {key for key, parameter in model.named_parameters(remove_duplicate=False)
               if parameter is model.get_input_embeddings().weight}  # fmt: skip
    assert set(tables(evidence)) & (aliases | {names[id(model.get_input_embeddings().weight)]}), tables(evidence)
    positions = {use.name for use in uses(evidence) if use.part is Part.POSITIONS}
    assert not positions & set(tables(evidence)) and not any("position" in one for one in tables(evidence))
    output = model.get_output_embeddings()
    if output is not None:
        same = [key for key, one in model.named_parameters(remove_duplicate=False) if one is output.weight]
        assert head(evidence) in same
    parts = {use.part for use in uses(evidence)}
    assert {Part.QUERY, Part.KEY, Part.VALUE} <= parts, parts


# --- Files ----------------------------------------------------------------------------------------------------------


def shards(folder: Path) -> Path:
    """Two files and their index, as Hugging Face's library writes them."""
    state = {name: tensor.clone() for name, tensor in language_model().state_dict().items()}
    names = sorted(state)
    files = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, some in files.items():
        save_file({name: state[name] for name in some}, folder / file)
    index = {"metadata": {}, "weight_map": {name: file for file, some in files.items() for name in some}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_files_with_an_index_are_one(tmp_path: Path) -> None:
    weights = FileWeights(shards(tmp_path))
    state = language_model().state_dict()
    assert set(weights.names()) == state.keys()
    assert all(torch.equal(weights.tensor(name), tensor) for name, tensor in state.items())
    assert torch.equal(weights.rows("table.weight", 3, 7), state["table.weight"][3:7])
    assert torch.equal(weights.rows("table.weight", VOCABULARY - 1, VOCABULARY + 9), state["table.weight"][-1:])
    assert torch.equal(torch.cat([*weights.blocks("table.weight")]), state["table.weight"])


def damage(which: str) -> Any:
    def missing_file(folder: Path) -> None:
        (folder / "model-00002-of-00002.safetensors").unlink()

    def missing_tensor(folder: Path) -> None:
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        index["weight_map"]["more.weight"] = "model-00001-of-00002.safetensors"
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    def absurd(folder: Path) -> None:
        entry = {"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 4 * 10**12]}
        text = json.dumps({"table.weight": entry}).encode()
        (folder / "model-00001-of-00002.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)

    def truncated(folder: Path) -> None:
        path = folder / "model-00001-of-00002.safetensors"
        path.write_bytes(path.read_bytes()[:-8])

    return {one.__name__: one for one in (missing_file, missing_tensor, absurd, truncated)}[which]


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("missing_file", r"names model-00002-of-00002\.safetensors, which is not in this folder"),
        ("missing_tensor", r"more\.weight is in the index and in none of its 2 files"),
        ("absurd", r"table\.weight is declared with 1,000,000,000,000 numbers, 4,000,000,000,000 bytes"),
        ("truncated", r"truncated or damaged"),
    ],
)
@pytest.mark.parametrize("static", [True, False])
def test_damaged_files_are_one_message(which: str, message: str, static: bool, tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 96, "n_embd": 32, "n_head": 4}
    (shards(tmp_path) / "config.json").write_text(json.dumps(config))
    damage(which)(tmp_path)
    with pytest.raises(SurdError, match=message) as raised:
        check(tmp_path, static=static)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("static", [True, False])
def test_the_first_tensor_without_numbers_is_named(static: bool, tmp_path: Path) -> None:
    """Of a file as of a module: the table before the layers, the second layer before the tenth."""
    for wrong, first in (
        (["blocks.1.feedforward.inner.bias", "table.weight"], "table.weight"),
        (["blocks.1.feedforward.inner.bias", "norm.weight"], "blocks.1.feedforward.inner.bias"),
        (["blocks.0.attention.out.weight", "blocks.1.attention.key.weight"], "blocks.0.attention.out.weight"),
    ):
        model = language_model()
        with torch.no_grad():
            for name in wrong:
                model.get_parameter(name).view(-1)[3:5] = float("nan")
        state = {name: tensor.clone() for name, tensor in model.state_dict().items() if name != "head.weight"}
        save_file(state, tmp_path / "some.safetensors")
        for what in (model, tmp_path / "some.safetensors"):
            with pytest.raises(SurdError, match=f"^{first}: 2 of its"):
                check(what, static=static)


def test_layers_of_a_file_are_met_in_order(tmp_path: Path) -> None:
    state = {f"h.{layer}.mlp.weight": torch.ones(4, 4) for layer in range(12)}
    state["h.10.mlp.weight"][0, 0] = state["h.2.mlp.weight"][0, 0] = float("inf")
    save_file(state, tmp_path / "some.safetensors")
    with pytest.raises(SurdError, match=r"^h\.2\.mlp\.weight: 1 of its 16"):
        check(tmp_path / "some.safetensors")


MIB = 2**20
LARGEST = 64 * MIB
"""Bytes of the table, and of the head."""
CHILD = """
import resource, sys
from pathlib import Path
from surd.audit.declared import Declared, Stated
from surd.audit.file_weights import FileWeights
from surd.audit.judge import judge
from surd.audit.refuse import refuse_numberless
from surd.audit.rule import named, names
from surd.audit.subject import Subject

for name in names():
    named(name)
lines = Path("/proc/self/status").read_text().splitlines()
limit = next(int(line.split()[1]) for line in lines if line.startswith("VmSize:")) * 1024 + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
weights = FileWeights(sys.argv[1])
refuse_numberless(weights)
declared = Declared(tied=Stated(True, "config.tied"), family="gpt2")
report = judge(Subject(name="large", weights=weights, declared=declared), static=True)
print(*(one.rule for one in report.findings), *report.passed)
"""


def test_a_file_larger_than_the_memory_is_read(tmp_path: Path) -> None:
    """There is room for its largest tensor and a quarter of a GiB more, which is well below the whole."""
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(
        ("model.embed_tokens.weight", "lm_head.weight"), (LARGEST // 2048, 1024))  # fmt: skip
    shapes |= {f"model.layers.{layer}.mlp.up_proj.weight": (8192, 1024) for layer in range(24)}
    path, room = tmp_path / "model.safetensors", LARGEST + 256 * MIB
    header(path, shapes, "BF16", 2)
    assert path.stat().st_size > 1.5 * room
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), str(room)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert {"padding-row", "cloned-layers"} <= set(done.stdout.split())
    whole = CHILD.replace("refuse_numberless(weights)", "held = [weights.tensor(name) for name in weights.names()]")
    done = subprocess.run(
        [sys.executable, "-c", whole, str(path), str(room)], capture_output=True, text=True, check=False
    )
    assert done.returncode and "MemoryError" in done.stderr, "the limit holds"
