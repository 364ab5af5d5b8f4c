"""Asked ties: options by which somebody's own module says whether its table is its head."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from surd.audit.declared import Stated

TIED = (
    "tie_word_embeddings", "tie_weights", "tie_embeddings", "tie_embedding", "tied_embeddings", "tied_weights",
    "tie_embed", "tie_emb", "tie_token_embeddings", "tie_head", "tie_lm_head", "tie_output", "tie_softmax",
    "tie_input_output", "tie_input_output_embeddings", "tie_decoder_embeddings", "tied_decoder_embeddings_and_softmax",
    "weight_tying", "weights_tied", "use_tied_embeddings", "share_input_output_embed", "share_input_output_embeddings",
    "share_decoder_input_output_embed", "share_decoder_embeddings", "share_embeddings_and_output_weights",
    "share_all_embeddings", "enable_weight_tying",
)  # fmt: skip
UNTIED = ("untie_embeddings_and_output_weights", "untie_word_embeddings", "untie_embeddings", "untie_weights")
HOLDERS = ("config", "cfg", "args", "hparams", "opt", "options", "params", "model_args")
"""Where a module keeps its options."""


def asked_tie(model: nn.Module) -> Stated[bool] | None:
    """The first option of such a name that is yes or no; nothing is called, and nothing computed."""
    for path, module in model.named_modules():
        for where, held in options(module):
            for name in (*TIED, *UNTIED):
                value = held.get(name)
                if isinstance(value, bool):
                    return Stated(value is (name in TIED), ".".join(part for part in (path, where, name) if part))
    return None


def options(module: nn.Module) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    """Its own attributes, and what its configurations hold."""
    own = vars(module)
    yield "", own
    for name in HOLDERS:
        held = own.get(name)
        if isinstance(held, Mapping):
            yield name, held
        elif held is not None and not isinstance(held, nn.Module):
            yield name, {**vars(type(held)), **getattr(held, "__dict__", {})}
