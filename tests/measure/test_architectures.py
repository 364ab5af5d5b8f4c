"""Every model type of the library most people use, built small from its configuration, reads as its code says.

What is expected where a family deviates from softmax(q·k / √d_k) and from rows that enter as they are stored comes from
its paper, its configuration or its source; the comments say which.
"""

import json
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import pytest
import torch
import transformers

from surd.measure.calling.building import build_inputs
from surd.measure.probe import probe

pytestmark = pytest.mark.heavy

# For each type: its kind, its class, how it tells positions apart (null where that cannot be observed: no table of
# tokens, no attention, or no multiple of the rows enters), whether it normalises queries and keys, and a small
# configuration.
TABLE = json.loads((Path(__file__).parent / "architectures.json").read_text())
WIDTH, HEAD = 48, 16
ROOT = sqrt(WIDTH)
CLOSE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a type reads; the defaults are the plain Transformer's."""

    relative: tuple[float, ...] = (1.0,)
    """c · √d_k, all values that occur; none where there is no softmax attention."""
    multiplier: float | None = 1.0
    """Of every table of tokens; None where rows are mixed before they enter."""
    head: float = 1.0
    cap: float | None = None
    """Of the scores."""
    last_cap: float | None = None
    """Of the logits."""
    unjudged: int = 0
    terms: int = 1


SCALED = Expected(multiplier=ROOT)
UNSCALED = Expected(relative=(sqrt(HEAD),), head=WIDTH**-0.5)
PER_SCALAR = sqrt(HEAD / 20)
MUP = Expected(relative=(0.1 * sqrt(12),), multiplier=12.0, head=1 / 6)
NOTHING = Expected(relative=())

EXPECTED = {
    # The scale is in the initialisation of the queries; tied heads read hidden states times 1/√d_model.
    **dict.fromkeys(("t5", "umt5", "longt5", "switch_transformers"), UNSCALED),
    "mt5": Expected(relative=(sqrt(HEAD),)),  # its class never scales the head, tied or not
    "gpt_neo": Expected(relative=(sqrt(12),)),  # no scale in code
    # Three terms, each at 1/√(3·d_k): He et al. 2021 (arXiv 2006.03654).
    **dict.fromkeys(("deberta", "deberta-v2"), Expected(relative=(3**-0.5,), terms=3)),
    **dict.fromkeys(("xlnet", "funnel", "lilt"), Expected(terms=2)),
    # query_pre_attn_scalar is 20 here, at d_k = 16.
    "gemma": SCALED,
    "gemma2": Expected(relative=(PER_SCALAR,), multiplier=ROOT, cap=50.0, last_cap=30.0),
    "gemma3_text": Expected(relative=(PER_SCALAR,), multiplier=ROOT),
    "t5gemma": Expected(relative=(PER_SCALAR,), multiplier=ROOT, cap=50.0, last_cap=30.0),
    "recurrent_gemma": Expected(multiplier=6.9375, last_cap=30.0),  # √48, rounded to bfloat16
    "ctrl": SCALED,
    # The configuration's multipliers, after Yang et al. 2022 (arXiv 2203.03466).
    **dict.fromkeys(("granite", "granitemoe"), MUP),
    "cohere": Expected(head=0.0625),
    "cohere2": Expected(head=0.25),
    # YaRN's magnitude enters through cosine and sine, on queries and keys: Peng et al. 2023 (arXiv 2309.00071).
    "gpt_oss": Expected(relative=((0.1 * 3.4657359 + 1) ** 2,)),
    **dict.fromkeys(("marian", "mbart", "pegasus", "m2m_100", "nllb-moe", "plbart"), SCALED),
    **dict.fromkeys(("bigbird_pegasus", "biogpt", "xglm", "fsmt", "speech_to_text"), SCALED),
    "pegasus_x": Expected(multiplier=ROOT, terms=2),  # global keys stand beside local ones
    # Cosine attention, times a learned factor that starts at 10: Liu et al. 2021 (arXiv 2111.09883).
    "swinv2": Expected(relative=(10 * sqrt(12),)),
    # The width of the stage where its head's size belongs: 1, 3 and 6 heads.
    "cvt": Expected(relative=(1.0, 3**-0.5, 6**-0.5)),
    "levit": Expected(unjudged=4),  # one visible key
    "yoso": Expected(relative=(), unjudged=2),  # hashing, in a kernel of its own
    **dict.fromkeys(("mamba", "mamba2", "rwkv", "fnet", "mra"), NOTHING),
    **dict.fromkeys(("mobilebert", "roc_bert", "canine"), Expected(multiplier=None)),
}
"""The types that deviate; all others are plain."""

PARTLY_NOT_OBSERVED = {"prophetnet": 1}
"""Look-ups without a multiplier, of several: the decoder's is mixed over n-grams."""
DECLARED_BUT_NOT_TIED = {"luke"}
"""The configuration says tied, and table and head are two parameters."""


PRE_SCALED = ("opt", "esm", "whisper", "xlm", "flaubert", "longformer", "led", "pegasus_x", "prophetnet", "fsmt", "mvp")
PRE_SCALED += ("trocr", "xglm", "nystromformer", "funnel")
"""Types that divide the queries: what stands in or after the product is 1, √d_k too large if it is read alone."""


def build(name: str, **changes: object) -> tuple[transformers.PreTrainedModel, transformers.PretrainedConfig]:
    """A small model with random weights; skips what this version of the library lacks."""
    entry = TABLE[name]
    kind = getattr(transformers, entry["model"], None)
    if kind is None or name not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {name} or no {entry['model']}")
    config = transformers.AutoConfig.for_model(name, **entry["config"])
    for field, value in changes.items():
        setattr(config, field, value)
    torch.manual_seed(0)
    return kind(config), config


@pytest.fixture(scope="module", autouse=True)
def quiet() -> None:
    transformers.logging.set_verbosity_error()


@pytest.mark.parametrize("name", TABLE)
def test_a_type_reads_as_its_code_says(name: str) -> None:
    model, config = build(name)
    trace = probe(model)
    expected = EXPECTED.get(name, Expected())

    judged = [attention for attention in trace.attention if attention.judged]
    found = sorted({round(attention.relative or 0.0, 5) for attention in judged})
    assert found == pytest.approx(sorted(expected.relative), rel=CLOSE)
    assert len(trace.attention) - len(judged) == expected.unjudged
    assert all(attention.cap == (expected.cap and pytest.approx(expected.cap, rel=CLOSE)) for attention in judged)
    assert max((len(attention.terms) for attention in judged), default=1) == expected.terms
    assert any(attention.qk_norm for attention in trace.attention) == TABLE[name]["qk_norm"]
    assert all(attention.softmax_over_keys for attention in judged) or name == "xlnet"
    if not judged:
        assert trace.unseen

    multipliers = [embedding.multiplier for embedding in trace.embeddings]
    known = [multiplier for multiplier in multipliers if multiplier is not None]
    assert known == pytest.approx([expected.multiplier] * len(known), rel=CLOSE)
    lost = len(multipliers) if expected.multiplier is None else PARTLY_NOT_OBSERVED.get(name, 0)
    assert len(multipliers) - len(known) == lost

    if trace.head is not None:
        assert trace.head.multiplier == pytest.approx(expected.head, rel=CLOSE)
        assert trace.head.cap == (expected.last_cap and pytest.approx(expected.last_cap, rel=CLOSE))
        tied = [tie.same_parameter for tie in trace.ties if trace.head.weight == tie.second][-1:]
        assert tied in ([], [declared_tie(config) and name not in DECLARED_BUT_NOT_TIED])

    assert trace.positions == TABLE[name]["positions"]
    own = [flow for flow in trace.flows if flow.own]
    if own and name != "mra":  # without its kernel, it returns zeros
        looks_ahead = TABLE[name]["kind"] == "enc" or name == "siglip_text_model"
        assert [flow.sees_later for flow in own] == [looks_ahead]
        assert own[0].sees_earlier
    assert not any(flow.sees_other_rows for flow in trace.flows)
    assert len({reading.site.name for reading in trace.readings}) == len(trace.readings)


def declared_tie(config: transformers.PretrainedConfig) -> bool:
    """What the configuration says, or that of its text model."""
    return bool(getattr(config, "tie_word_embeddings", True))


@pytest.mark.parametrize("name", PRE_SCALED)
def test_a_scale_on_the_queries_is_not_missed(name: str) -> None:
    judged = [attention for attention in probe(build(name)[0]).attention if attention.judged]
    assert [attention.relative for attention in judged] == pytest.approx([1.0] * len(judged), rel=CLOSE)
    assert any(attention.slope == pytest.approx(1.0, rel=CLOSE) for attention in judged)


def loss(output: transformers.utils.ModelOutput) -> torch.Tensor:
    return output.logits.logsumexp(-1).square().sum()


@pytest.mark.parametrize("name", ["llama", "gpt2", "bart", "deepseek_v3", "qwen3"])
def test_eager_attention_reads_the_same(name: str) -> None:
    model, _ = build(name)
    fused, trace = (probe(x, None, loss) for x in (model, build(name, _attn_implementation="eager")[0]))
    sizes, others = ({x.site.name: (x.rms, x.gradient) for x in found.readings} for found in (trace, fused))
    assert sizes.keys() == others.keys()
    assert all(size == pytest.approx(others[site], rel=CLOSE) for site, size in sizes.items())
    assert {attention.backend for attention in trace.attention} == {"softmax"}
    assert [attention.relative for attention in trace.attention] == pytest.approx([1.0] * len(trace.attention))


def test_a_mask_that_is_only_made_without_a_cache_is_missed_with_it() -> None:
    model, _ = build("fsmt")
    given = build_inputs(model)
    sees_later = [
        [flow.sees_later for flow in probe(model, {**given, "use_cache": cached}).flows if flow.own]
        for cached in (False, True)
    ]
    assert sees_later == [[False], [True]]
