"""Asked ties: options by which somebody's own module says whether its table is its head, and its tables are one."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from surd.audit.declared import Stated

TIED = (
    "tie_word_embeddings", "tie_weights", "tie_embeddings", "tie_embedding", "tied_embeddings", "tied_weights",
    "tie_embed", "tie_emb", "tie_token_embeddings", "tie_head", "tie_lm_head", "tie_output", "tie_softmax",
    "tie_input_output", "tie_input_output_embeddings", "tie_decoder_embeddings", "tied_decoder_embeddings_and_softmax",
    "weight_tying", "weights_tied", "use_tied_embeddings", "share_input_output_embed", "share_input_output_embeddings",
    "share_decoder_input_output_embed", "share_decoder_embeddings", "share_embeddings_and_output_weights",
    "share_all_embeddings", "enable_weight_tying", "trg_emb_prj_weight_sharing", "tied_embeddings_all",
)  # fmt: skip
UNTIED = ("untie_embeddings_and_output_weights", "untie_word_embeddings", "untie_embeddings", "untie_weights")
SHARED = (
    "share_embeddings", "share_all_embeddings", "share_source_target_embeddings", "share_src_tgt_embeddings",
    "share_encoder_decoder_embeddings", "tie_encoder_decoder_embeddings", "emb_src_trg_weight_sharing",
    "tied_embeddings_all", "tied_embeddings_src",
)  # fmt: skip
"""By which encoder and decoder look up tokens in one table; to have two is no statement, where sizes differ."""
HOLDERS = ("config", "cfg", "args", "hparams", "opt", "options", "params", "model_args")
"""Where a module keeps its options."""


def asked_tie(model: nn.Module) -> Stated[bool] | None:
    """What the first option of such a name says of table and head; that not all are one leaves open which are."""
    asked = (one for one in _asked(model, (*TIED, *UNTIED)) if one[1] or one[0] not in SHARED)
    return next((Stated(value is (name in TIED), by) for name, value, by in asked), None)


def asked_tables(model: nn.Module) -> Stated[bool] | None:
    """The same of tables alone, where some option says that they are one."""
    return next((Stated(True, by) for _, value, by in _asked(model, SHARED) if value), None)


def _asked(model: nn.Module, names: Sequence[str]) -> Iterator[tuple[str, bool, str]]:
    """Options of such a name that are yes or no, each with its path; nothing is called, and nothing computed."""
    for path, module in model.named_modules():
        for where, held in options(module):
            for name in names:
                value = held.get(name)
                if isinstance(value, bool):
                    yield name, value, ".".join(part for part in (path, where, name) if part)


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
