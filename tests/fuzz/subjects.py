"""Subjects of a check that are rubbish: files, folders and configurations, and modules that do what nobody expects."""

import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fuzz import odd_modules, rubbish
from fuzz.folders import HARM, SOURCE

import surd

ENDINGS = ("", ".safetensors", ".bin", ".pt", ".keras", ".json", ".py", ".h5", ".gguf", ".SAFETENSORS")
NAMES = ("config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json", "generation_config.json")
HUGE = 10**12
FILES_OF_CODE = {
    "modeling_gpt2.py": SOURCE,
    "configuration_gpt2.py": SOURCE,
    "__init__.py": SOURCE,
    "sitecustomize.py": SOURCE,
    "harm.pth": b"import os; os.mkdir('../outside/executed')\n",
    "pytorch_model.bin": HARM,
    "training_args.bin": HARM,
    "config.pkl": HARM,
}
CONFIG: dict[str, Any] = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 60,
    "n_positions": 16,
    "n_embd": 16,
    "n_layer": 1,
    "n_head": 2,
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@cache
def sound() -> Path:
    """A folder as the library writes it; made once in a process."""
    import transformers

    transformers.logging.set_verbosity_error()
    folder = Path(tempfile.mkdtemp(prefix="surd-fuzz-"))
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**CONFIG)).save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class Rubbish:
    """One subject, all of it drawn from a number."""

    seed: int

    def lay(self, folder: Path) -> Callable[[], object]:
        subject, options = self.laid(folder)
        return lambda: str(surd.check(subject, **options))

    def laid(self, folder: Path) -> tuple[Any, dict[str, Any]]:
        """The subject, and with what it is checked."""
        draw = random.Random(self.seed)
        if draw.random() < 0.5:
            return odd_modules.drawn(draw)
        return self.path(folder), {"static": True} if draw.random() < 0.3 else {}

    def path(self, folder: Path) -> Path:
        """A file or folder of rubbish."""
        draw = random.Random(self.seed + 1)
        return draw.choice((_file, _config, _config, _sizes, _weights, _weights, _header, _index, _links, _code))(
            draw, folder
        )


PATIENCE = 120
"""Seconds that a command may take."""


def command(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    """`surd check` in a process of its own, with this surd and not another one that is installed."""
    environment = {**os.environ, "PYTHONPATH": str(Path(surd.__file__).parents[1])}
    line = [sys.executable, "-m", "surd", "check", *map(str, words)]
    try:
        return subprocess.run(line, capture_output=True, cwd=cwd, env=environment, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"no end within {PATIENCE} s") from None  # without the folder, which is another each time


def through_the_command(seed: int, folder: Path) -> str:
    """A path of rubbish through the real command, with the same checks; how it ended."""
    inside, outside = folder / "inside", folder / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "precious").write_text("untouched\n")
    path = Rubbish(seed).path(inside)
    form = ("table", "json", "github")[seed % 3]
    done = command(path, "--format", form, cwd=inside)
    error = done.stderr.decode()
    assert "Traceback" not in error and "bug in surd" not in error, error[-3000:]
    assert done.returncode in (0, 1, 2), (done.returncode, error[-3000:])
    told = [line for line in error.splitlines() if line.startswith("error: ")]
    assert len(told) == (done.returncode == 2), (done.returncode, error[-3000:])
    assert bool(done.stdout.strip()) == (done.returncode != 2), "a report, or a message"
    assert sorted(os.listdir(outside)) == ["precious"], "something was executed"
    return "done" if done.returncode != 2 else "refused"


def _bytes(draw: random.Random) -> bytes:
    return draw.choice((
        b"", draw.randbytes(draw.choice((1, 7, 8, 9, 100, 5000))), b"{" * 10_000, b"[" * 10_000, b"{}", b"null",
        b'{"model_type": "gpt2"}', b"\xff\xfe", b"PK\x03\x04" + draw.randbytes(60), b"\x80\x04" + HARM, HARM,
        struct.pack("<Q", 2**63) + b"{}", struct.pack("<Q", 8) + b"{}      ", b"9" * 5000,
    ))  # fmt: skip


def _file(draw: random.Random, folder: Path) -> Path:
    """Any bytes under any ending, by themselves or as part of a folder."""
    if draw.random() < 0.5:
        path = folder / f"model{draw.choice(ENDINGS)}"
        path.write_bytes(_bytes(draw))
        return path
    for name in draw.sample(NAMES, draw.randint(1, 3)):
        (folder / name).write_bytes(_bytes(draw))
    return folder


def _config(draw: random.Random, folder: Path) -> Path:
    """Values of wrong types, or none, beside weights or alone."""
    config = dict(CONFIG)
    for name in draw.sample(sorted(config), draw.randint(1, 3)):
        if draw.random() < 0.2:
            del config[name]
        else:
            config[name] = draw.choice(rubbish.VALUES)
    if draw.random() < 0.3:
        config[draw.choice(("rope_scaling", "torch_dtype", "quantization_config", "auto_map", "text_config"))] = (
            draw.choice(rubbish.VALUES)
        )
    if draw.random() < 0.5:
        shutil.copy(sound() / "model.safetensors", folder)
    (folder / "config.json").write_text(as_json(config))
    return folder


def as_json(value: Any) -> str:
    """The text of a file; what JSON cannot hold becomes a broken one."""
    try:
        return json.dumps(value)
    except (ValueError, RecursionError):
        return "{"


def _sizes(draw: random.Random, folder: Path) -> Path:
    """A configuration of a million million parameters, or of sizes that go together nowhere."""
    config = dict(CONFIG)
    for name in draw.sample(("vocab_size", "n_embd", "n_layer", "n_positions", "n_head"), draw.randint(1, 2)):
        config[name] = draw.choice((0, -1, 7, 10**6, 10**9, HUGE, 2**63, 10**30))
    if draw.random() < 0.3:
        shutil.copy(sound() / "model.safetensors", folder)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _weights(draw: random.Random, folder: Path) -> Path:
    """Weights that are cut, flipped, or of another model."""
    shutil.copy(sound() / "config.json", folder)
    data = bytearray((sound() / "model.safetensors").read_bytes())
    match draw.randrange(4):
        case 0:
            data = data[: draw.randrange(len(data))]
        case 1:
            for _ in range(draw.choice((1, 20))):
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        case 2:
            data[draw.randrange(8) : 8] = draw.randbytes(4)
        case 3:
            length = struct.unpack("<Q", data[:8])[0]
            header = json.loads(bytes(data[8 : 8 + length]))
            name = draw.choice([name for name in header if name != "__metadata__"])
            header[name][draw.choice(("dtype", "shape", "data_offsets"))] = draw.choice(
                ("F64", "F8_E4M3", "X", [], [HUGE], [2, -3], [0, 0], [0, HUGE], [HUGE, HUGE], None)
            )
            text = json.dumps(header).encode()
            data = bytearray(struct.pack("<Q", len(text)) + text + bytes(data[8 + length :]))
    (folder / "model.safetensors").write_bytes(bytes(data))
    return folder if draw.random() < 0.7 else folder / "model.safetensors"


def _header(draw: random.Random, folder: Path) -> Path:
    """A header that declares a million million numbers, of which the file holds none."""
    shape = draw.choice(([HUGE], [10**6, 10**6], [0, HUGE], [1] * 60, [2**62, 4]))
    size = 4
    for one in shape:
        size *= one
    text = json.dumps({"transformer.wte.weight": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}).encode()
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    if draw.random() < 0.5:
        os.truncate(path, 8 + len(text) + min(size, 10**13))  # a hole, which takes no room
    if draw.random() < 0.5:
        shutil.copy(sound() / "config.json", folder)
        return folder
    return path


def _index(draw: random.Random, folder: Path) -> Path:
    """An index of files that lie elsewhere, are missing or are no weights."""
    shutil.copy(sound() / "config.json", folder)
    places = ("../outside/precious", "/etc/passwd", "nowhere.safetensors", "config.json", ".", "", "a\x00b", 7, None)
    entry = {"lm_head.weight": draw.choice(places), "transformer.wte.weight": draw.choice(places)}
    index = draw.choice(
        ({"weight_map": entry}, {"weight_map": []}, [], {"weight_map": entry, "metadata": {"total_size": -1}})
    )
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def _links(draw: random.Random, folder: Path) -> Path:
    """Links in a circle, to devices and out of the folder, pipes, and folders where files belong."""
    name = draw.choice(NAMES[:4])
    for other in NAMES[:2]:
        if other != name:
            shutil.copy(sound() / other, folder)
    path = folder / name
    match draw.randrange(5):
        case 0:
            path.symlink_to(name)
        case 1:
            path.symlink_to(draw.choice(("/dev/zero", "/dev/null", "/dev/random", "/etc", "..", "nowhere")))
        case 2:
            os.mkfifo(path)
        case 3:
            path.mkdir()
        case 4:
            path.symlink_to("../outside/precious")
    return folder if draw.random() < 0.7 else path


def _code(draw: random.Random, folder: Path) -> Path:
    """Code and pickles beside a model, and a configuration that asks for them."""
    config = {**CONFIG, "auto_map": {"AutoConfig": "configuration_gpt2.C", "AutoModel": "modeling_gpt2.M"}}
    if draw.random() < 0.3:
        config["model_type"] = "mine"
    (folder / "config.json").write_text(json.dumps(config))
    for name in draw.sample(sorted(FILES_OF_CODE), 4):
        (folder / name).write_bytes(FILES_OF_CODE[name])
    if draw.random() < 0.5:
        shutil.copy(sound() / "model.safetensors", folder)
    return folder
