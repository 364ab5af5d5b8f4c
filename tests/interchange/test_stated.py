"""What configurations and the table of families state, held against what the probe measures of the built models."""

import json
from dataclasses import fields
from math import log, sqrt
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers

from surd.audit.declared import Declared
from surd.interchange.quantities import head_width
from surd.interchange.stated import _table, declared, ties
from surd.measure.probe import probe

TABLE = json.loads((Path(__file__).parents[1] / "measure" / "architectures.json").read_text())
SIZES = {"vocab_size": 131, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 64, "max_position_embeddings": 256}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "original_max_position_embeddings": 64}


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.logging.set_verbosity_error()


def config(kind: str, **changes: object) -> transformers.PretrainedConfig:
    return transformers.AutoConfig.for_model(kind, **{**TABLE.get(kind, {"config": SIZES})["config"], **changes})


def model(kind: str, **changes: object) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    return getattr(transformers, TABLE[kind]["model"])(config(kind, **changes))


def values(said: Declared) -> dict[str, object]:
    """All that is stated, without who says it."""
    stated = {field.name: getattr(said, field.name) for field in fields(said)}
    return {name: one.value for name, one in stated.items() if hasattr(one, "by")}


@pytest.mark.parametrize(
    ("kind", "changes", "expected", "by"),
    [
        ("gpt2", {"scale_attn_weights": False}, {"attention": (1.0,)}, "config.scale_attn_weights"),
        ("gemma2", {}, {"attention": (20**-0.5,), "score_cap": 50.0, "logit_cap": 30.0}, "query_pre_attn_scalar"),
        ("granite", {}, {"attention": (0.1,), "embedding": 12.0, "head": 1 / 6, "residual": 0.22}, "multiplier"),
        ("cohere", {"logit_scale": 0.25}, {"head": 0.25}, "config.logit_scale"),
        ("marian", {}, {"embedding": sqrt(48)}, "config.scale_embedding"),
        ("marian", {"scale_embedding": False}, {"embedding": 1.0}, "config.scale_embedding"),
        ("t5", {}, {"attention": (1.0,), "head": 48**-0.5}, "2020"),
        ("t5", {"tie_word_embeddings": False}, {"head": 1.0}, "scale_decoder_outputs"),
        ("deberta", {"pos_att_type": ["c2p"]}, {"attention": ((12 * 2) ** -0.5,)}, "pos_att_type"),
        ("recurrent_gemma", {}, {"embedding": 6.9375, "logit_cap": 30.0, "gain_offset": True}, "bfloat16"),
        ("gpt_oss", {}, {"attention": (16**-0.5 * (0.1 * log(32) + 1) ** 2,)}, "config.rope_parameters"),
        ("qwen3", {}, {"qk_norm": True, "tied": False}, "config.tie_word_embeddings"),
        ("bert", {"layer_norm_eps": 1e-7, "pad_token_id": 5}, {"epsilon": 1e-7, "padding": 5}, "config.layer_norm_eps"),
    ],
)
def test_a_field_is_read(kind: str, changes: dict, expected: dict, by: str) -> None:
    said = declared(config(kind, **changes), TABLE[kind]["model"])
    found = values(said)
    for name, value in expected.items():
        assert found[name] == (pytest.approx(value) if not isinstance(value, bool) else value), name
    assert any(by in getattr(getattr(said, name), "by", "") for name in expected)


def test_each_layer_has_its_own_factor() -> None:
    said = declared(config("gpt2", scale_attn_by_inverse_layer_idx=True))
    assert said.attention_by_path is not None
    assert said.attention_by_path.value == pytest.approx({"h.0.": 12**-0.5, "h.1.": 12**-0.5 / 2})
    assert said.attention_by_path.by == "config.scale_attn_by_inverse_layer_idx"


class Guarded:
    """A configuration that refuses to be asked for what its layers have of their own, as Gemma 4's does."""

    model_type, hidden_size, num_attention_heads, query_pre_attn_scalar = "gemma4_text", 64, 4, None

    @property
    def head_dim(self) -> int:
        raise RuntimeError("ambiguous: ask a layer")

    @property
    def final_logit_softcapping(self) -> float:
        raise ValueError("nobody knows")

    def to_dict(self) -> dict[str, object]:
        return {}


def test_a_field_that_refuses_to_be_read_states_nothing() -> None:
    said = declared(Guarded())
    assert said.logit_cap is None and said.attention is not None and said.attention.value == (1.0,)
    assert head_width(Guarded()) is None, "64 over 4 is the width of no layer for certain"


def test_nested_configurations_tell_of_their_text() -> None:
    text = {**TABLE["gemma2"]["config"], "model_type": "gemma2"}
    vision = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    whole = transformers.AutoConfig.for_model("paligemma", text_config=text, vision_config=vision, projection_dim=32)
    said = declared(whole)
    assert said.attention is not None and said.embedding is not None
    assert said.attention.value == pytest.approx((20**-0.5, 16**-0.5))
    assert said.attention.by == "config.text_config.query_pre_attn_scalar"
    assert said.embedding.value == pytest.approx(sqrt(48))
    assert said.epsilon is not None or said.std is not None


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {"rope_parameters": YARN}),
        ("llama", {"rope_parameters": {**YARN, "attention_factor": 1.5}}),
        (
            "phi3",
            {"rope_parameters": {**YARN, "rope_type": "longrope", "long_factor": [1.0] * 6, "short_factor": [1.0] * 6}},
        ),
        ("glm", {"rope_parameters": {**YARN, "partial_rotary_factor": 0.5}}),
        ("deepseek_v3", {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.707}}),
        ("gpt_bigcode", {"scale_attn_weights": False}),
        ("granitemoe", {}),
        ("gemma3_text", {}),
        ("deberta-v2", {"pos_att_type": ["p2c"]}),
    ],
)
def test_what_is_stated_of_attention_is_what_is_measured(kind: str, changes: dict) -> None:
    built = model(kind, **changes)
    said = declared(built.config).attention
    assert said is not None
    found = [one.factor for one in probe(built).attention if one.factor is not None]
    assert found
    for factor in found:
        assert min(abs(factor / value - 1) for value in said.value) < 0.01, (found, said)


@pytest.mark.parametrize("kind", ["gemma", "ctrl", "xglm", "big_bird"])
def test_what_is_stated_of_tables_is_what_is_measured(kind: str) -> None:
    built = model(kind, **({"rescale_embeddings": True} if kind == "big_bird" else {}))
    said = declared(built.config).embedding
    assert said is not None
    assert [one.multiplier for one in probe(built).embeddings[:1]] == pytest.approx([said.value], rel=1e-3)


@pytest.mark.parametrize(
    ("kind", "architecture", "causal"),
    [
        ("gpt2", "GPT2LMHeadModel", True),
        ("gpt_neox", "GPTNeoXForCausalLM", True),
        ("bert", "BertLMHeadModel", False),  # without is_decoder its mask hides nothing
        ("bert", "BertForMaskedLM", False),
        ("xlm", "XLMWithLMHeadModel", False),
        ("xlnet", "XLNetLMHeadModel", False),
        ("vit", "ViTModel", None),
    ],
)
def test_causality_follows_from_class_and_configuration(kind: str, architecture: str, causal: bool | None) -> None:
    said = declared(config(kind), architecture).causal
    assert (said and said.value) is causal or (said is None and causal is None)


def test_the_class_of_a_live_model_names_its_ties() -> None:
    built = model("gpt2")
    said = ties(built, declared(built.config)).ties
    assert said is not None
    assert said.value == (("lm_head.weight", "transformer.wte.weight"),)


def test_a_decoder_that_is_a_model_of_its_own_states_its_own_scales() -> None:
    """ViT before GPT-2: the whole has defaults, and the part that holds table and head says that they are one."""
    vision = transformers.ViTConfig(hidden_size=48, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64)
    text = transformers.GPT2Config(vocab_size=131, n_embd=48, n_layer=1, n_head=4)
    for tied in (True, False):
        text.tie_word_embeddings = tied
        whole = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, text)
        said = declared(whole, "VisionEncoderDecoderModel")
        assert (
            said.tied is not None and said.tied.value is tied and said.tied.by == "config.decoder.tie_word_embeddings"
        )
        assert said.depth_scaled is not None and said.depth_scaled_in == "decoder."
    assert declared(text).depth_scaled_in == ""


def test_a_configuration_that_says_nothing_states_nothing() -> None:
    bare = SimpleNamespace(model_type="own", to_dict=dict)
    assert values(declared(bare)) == {}


def test_every_type_of_the_table_states_without_error() -> None:
    for kind, entry in TABLE.items():
        if kind in transformers.CONFIG_MAPPING:
            said = declared(config(kind), entry["model"])
            assert said.family == kind


def test_the_table_names_types_that_exist_and_says_who_says_so() -> None:
    known = set(transformers.CONFIG_MAPPING) | {"t5_gemma_module"}
    named = [kind for entry in _table()["family"] for kind in entry["types"]]
    assert all(entry["by"] for entry in _table()["family"])
    unknown = [
        kind for kind in named if kind not in known and f"{kind}_text" not in known and f"{kind}_mm_model" not in known
    ]
    assert unknown == []
