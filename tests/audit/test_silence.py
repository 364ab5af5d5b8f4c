"""Public architectures, built from their configurations, give no fault and no warning, but for those that have one.

Small sizes and random weights; what is known to be wrong in a released class is named with its reason.
"""

import json
from pathlib import Path

import pytest
import torch
import transformers

from surd.api import check
from surd.audit.judge import Report

TABLE = json.loads((Path(__file__).parents[1] / "measure" / "architectures.json").read_text())

FAULTY = {
    "luke": ({"weight-tying"}, "its configuration ties the head of its masked LM, and its class makes two matrices"),
    "mt5": (
        {"initial-loss", "tied-init-std", "logit-scale"},
        "its head is tied to a table of std 1 and is not scaled by 1/√d_model, as T5's is",
    ),
}
"""Types that are wrong as they are released: the rules that may say so, and why they are right."""

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
"""Those that differ most: they run in every test; the others take minutes."""
PARTS = 4


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.logging.set_verbosity_error()


def report(name: str) -> Report:
    """The check of a small model with random weights; skips what this version of the library lacks."""
    entry = TABLE[name]
    kind = getattr(transformers, entry["model"], None)
    if kind is None or name not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {name} or no {entry['model']}")
    config = transformers.AutoConfig.for_model(name, **entry["config"])
    torch.manual_seed(0)
    return check(kind(config))


def told(name: str) -> list[str]:
    """What counts against a type beyond what is known of it."""
    known, _ = FAULTY.get(name, (set(), ""))
    return [f"{name}: {one.rule} at {one.site}: {one.message}" for one in report(name).failing if one.rule not in known]


@pytest.mark.parametrize("name", VARIED)
def test_a_healthy_type_gives_no_fault(name: str) -> None:
    assert told(name) == []


@pytest.mark.heavy
@pytest.mark.parametrize("part", range(PARTS))
def test_no_type_gives_a_fault(part: int) -> None:
    rest = [name for name in TABLE if name not in VARIED][part::PARTS]
    assert [line for name in rest for line in told(name)] == []


@pytest.mark.parametrize("name", FAULTY)
def test_a_type_that_is_wrong_is_found(name: str) -> None:
    assert {one.rule for one in report(name).failing} & FAULTY[name][0]
