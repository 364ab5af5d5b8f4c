"""Public architectures at real widths: what a check has against each; none of it should be a fault or a warning.

    python benchmarks/silence.py            all of NAMES, hidden 512, two layers, a vocabulary of 2,000
    python benchmarks/silence.py gpt2 t5    some of them

Ends with 1 where anything counts against a type. The sizes grow from those of tests/measure/architectures.json.
"""

import json
import sys
import time
from pathlib import Path

import torch
import transformers

from surd.api import check

TABLE = json.loads((Path(__file__).parents[1] / "tests" / "measure" / "architectures.json").read_text())
# fmt: off
NAMES = [
    "bert", "roberta", "albert", "electra", "distilbert", "deberta", "deberta-v2", "mpnet", "xlm-roberta", "ernie",
    "roformer", "xlm", "esm", "modernbert", "megatron-bert", "gpt2", "gpt_neo", "gptj", "gpt_neox", "opt", "bloom",
    "falcon", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi", "stablelm", "cohere", "granite",
    "olmo2", "ctrl", "t5", "bart", "mbart", "marian", "pegasus", "m2m_100",
]
# fmt: on
WIDTH, HEADS, VOCABULARY = 512, 8, 2000
GROWN = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "word_embed_proj_dim"), WIDTH),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), HEADS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), HEADS),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "d_ff", "dff"), 4 * WIDTH),
    **dict.fromkeys(("hidden_dim", "n_inner"), 4 * WIDTH),
    **dict.fromkeys(("head_dim", "d_kv"), WIDTH // HEADS),
    "embedding_size": WIDTH // 2,
    "rotary_dim": 32,
    "num_key_value_heads": HEADS // 2,
    "query_pre_attn_scalar": 80,
    "vocab_size": VOCABULARY,
}
"""What takes the place of the small sizes, where a type has such a field."""


def grown(name: str) -> torch.nn.Module:
    """A model of that type, wide, with random weights."""
    entry = TABLE[name]
    config = {key: GROWN.get(key, value) for key, value in entry["config"].items()}
    torch.manual_seed(0)
    return getattr(transformers, entry["model"])(transformers.AutoConfig.for_model(name, **config))


def main(names: list[str]) -> int:
    transformers.logging.set_verbosity_error()
    wrong = 0
    for name in names:
        begun = time.perf_counter()
        model = grown(name)
        report = check(model)
        width = max(max(parameter.shape) for parameter in model.parameters())
        wrong += not report.clean
        verdict = "; ".join(f"{one.severity} {one.rule}: {one.message}" for one in report.failing) or "silent"
        looked = f"{len(report.passed)} rules passed, {len({one.rule for one in report.skipped})} could not look"
        print(f"{name:16} {looked}, {time.perf_counter() - begun:5.1f} s, longest axis {width}: {verdict}", flush=True)
    print(f"{len(names) - wrong} of {len(names)} silent")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or NAMES))
