"""Public architectures, built from their configurations, give no fault and no warning, but for those that have one.

Small sizes and random weights. A part of them runs here; `benchmarks/silence.py` checks all, and many wide ones too.
"""

import pytest
import transformers
from audit.architectures import FAULTY, TABLE, built, is_missing, training_batch

from surd.api import check
from surd.audit.judge import Report

VARIED = [
    "bert",
    "roberta",
    "albert",
    "deberta-v2",
    "xlm",
    "modernbert",
    "luke",
    "gpt2",
    "gpt_neo",
    "llama",
    "gemma2",
    "qwen3",
    "granite",
    "cohere",
    "gpt_oss",
    "mamba",
    "t5",
    "mt5",
    "bart",
    "marian",
    "pegasus_x",
    "fsmt",
    "prophetnet",
    "vit",
    "swin",
    "swinv2",
    "cvt",
    "whisper",
    "wav2vec2",
    "clip_text_model",
]
"""Those that differ most: they run in every test."""
PARTS = 2
OTHERS = [name for name in TABLE if name not in VARIED][::2]
"""Every second one of the others."""


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.logging.set_verbosity_error()


def report(name: str, trainer: bool = False) -> Report:
    """The check of a small model with random weights; skips what this version of the library lacks."""
    if is_missing(name):
        pytest.skip(f"transformers {transformers.__version__} has no {name} or no {TABLE[name]['model']}")
    model = built(name)
    return check(model, training_batch(model) if trainer else None)


def told(name: str, trainer: bool = False) -> list[str]:
    """What counts against a type beyond what is known of it."""
    known, _ = FAULTY.get(name, (set(), ""))
    found = [one for one in report(name, trainer).failing if one.rule not in known]
    return [f"{name}: {one.rule} at {one.site}: {one.message}" for one in found]


@pytest.mark.parametrize("name", VARIED)
def test_a_healthy_type_gives_no_fault(name: str) -> None:
    assert told(name) == []


@pytest.mark.parametrize("name", ["bert", "roberta", "luke", "gpt2", "opt", "llama", "t5", "bart", "fsmt", "whisper"])
def test_nor_with_what_a_trainer_gives_it(name: str) -> None:
    """Labels among the arguments, and rows of several lengths: some types number places by what is no padding."""
    assert told(name, trainer=True) == []


@pytest.mark.parametrize("name", ["gpt2", "t5", "bart", "bert", "vit"])
def test_nor_in_fp16(name: str) -> None:
    """Where two ways to the same sum differ by a thousandth."""
    assert [one.rule for one in check(built(name).half()).failing] == []


@pytest.mark.heavy
@pytest.mark.parametrize("part", range(PARTS))
def test_no_type_gives_a_fault(part: int) -> None:
    assert [line for name in OTHERS[part::PARTS] for line in told(name)] == []


@pytest.mark.parametrize("name", FAULTY)
def test_a_type_that_is_wrong_is_found(name: str) -> None:
    assert {one.rule for one in report(name).failing} & FAULTY[name][0]


def test_a_model_in_bf16_has_its_declared_factor_in_bf16() -> None:
    assert "constant-rounding" not in {one.rule for one in check(built("gemma2").bfloat16()).failing}
