"""Alignment: which words of a source each word of an output was written from, read off the attention to the source.

The weights are those of the last decoder layer at the position that writes a token, averaged over its heads (and over
the models of an ensemble). The output is read again at once, so a search is no slower for what nobody asks for.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from surd.data.tokenizer import Symbols, Tokenizer
from surd.decode.decoding import evaluating
from surd.decode.ensemble import Ensemble
from surd.models.seq2seq import Seq2Seq
from surd.nn.attention import split_heads
from surd.nn.mask import Mask
from surd.nn.multihead import CrossAttention
from surd.nn.ragged import Layout, Ragged
from surd.nn.score import dot_scores, soft_cap
from surd.nn.special import BOS

Pairs = tuple[tuple[int, int], ...]
"""(word of the source, word of the output), each counted from 0."""


def source_weights(
    model: Seq2Seq | Ensemble, sources: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]
) -> list[Float[Tensor, "output source"]]:
    """For each pair the attention of every output token to every source token; sources with their end token.

    Outputs are without theirs, and one may be empty.
    """
    members = model.members if isinstance(model, Ensemble) else (model,)
    device = next(model.parameters()).device
    source = Ragged.from_lists(sources).to(device)
    target = Ragged.from_lists([[BOS, *tokens[:-1]] for tokens in outputs]).to(device)
    with evaluating(model):
        weights = torch.stack([_last_layer(member, source, target) for member in members]).mean(0).cpu()
    lengths = zip(map(len, sources), map(len, outputs), strict=True)
    return [own[:written, :read] for own, (read, written) in zip(weights, lengths, strict=True)]


def _last_layer(model: Seq2Seq, source: Ragged, target: Ragged) -> Float[Tensor, "batch outputs sources"]:
    seen: list[Tensor] = []
    attention = model.decoder.layers[-1].cross
    hook = attention.register_forward_pre_hook(lambda _, given: seen.append(weights_of(attention, *given)))
    try:
        model(source, target)
    finally:
        hook.remove()
    return seen[0].mean(1)


def weights_of(
    attention: CrossAttention,
    x: Float[Tensor, "total d_model"],
    layout: Layout,
    memory: Float[Tensor, "source_total d_model"],
    memory_layout: Layout,
    mask: Mask,
) -> Float[Tensor, "batch heads queries keys"]:
    """The attention weights of a layer for the arguments of its forward."""
    fit = attention.fit
    (query,) = split_heads(attention.query(x), layout, (attention.heads,))
    key, _ = attention.keys_values(memory, memory_layout)
    query, key = fit.queries(query, mask.keys).float(), key.repeat_interleave(fit.group, 1).float()
    scores = dot_scores(query, key, fit.constant) if fit.score is None else fit.score(query, key)
    scores = scores if fit.cap is None else soft_cap(scores, fit.cap)
    return (scores if mask.added is None else scores + mask.added).softmax(-1)


def places(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[int]:
    """The word that each token belongs to: words stand between white space.

    A token of its own, where a side is cut into words or characters already.
    """
    if isinstance(tokenizer, Symbols):
        return list(range(len(tokens)))
    beginnings = tokenizer.decode_all([tokens[:length] for length in range(1, len(tokens) + 1)])
    return [max(0, len(text.split()) - 1) for text in beginnings]


def aligned(weights: Float[Tensor, "output source"], source_words: Sequence[int], output_words: Sequence[int]) -> Pairs:
    """For each word of the output the word of the source that its tokens look at most, in the order of the output.

    `source_words` and `output_words` say which word each token belongs to; the end token of the source is no word.
    """
    if not source_words or not output_words:
        return ()
    by_word = weights.new_zeros(max(output_words) + 1, max(source_words) + 1)
    rows = torch.tensor(output_words)[:, None].expand(-1, len(source_words))
    columns = torch.tensor(source_words).expand(len(output_words), -1)
    by_word.index_put_((rows, columns), weights[:, : len(source_words)], accumulate=True)
    return tuple((int(word), place) for place, word in enumerate(by_word.argmax(1).tolist()))


def pharaoh(pairs: Pairs) -> str:
    """The pairs as `i-j` between blanks, i in the source and j in the output."""
    return " ".join(f"{i}-{j}" for i, j in pairs)
