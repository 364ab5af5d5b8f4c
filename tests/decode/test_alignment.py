"""Alignment: words from tokens, links from weights, and weights of every sort of attention."""

import pytest
import torch
from parity.small import sentences, small_model

from surd.data.tokenizer import BPE, Characters, Words, learn
from surd.decode.alignment import aligned, pharaoh, places, source_weights, weights_of
from surd.decode.ensemble import Ensemble
from surd.nn.attention import split_heads
from surd.nn.norm import LayerNorm
from surd.nn.ragged import Ragged
from surd.nn.scale import Learned
from surd.nn.score import Additive
from surd.nn.special import BOS, EOS

TEXTS = ["two dogs play in the snow", "a dog plays", "the snow, the  snow \N{SNOWMAN} \N{COFFIN}!", "  dogs"]


def test_every_piece_belongs_to_a_word() -> None:
    tokenizer = learn(BPE(size=300, coverage=1.0), TEXTS[:2], fit=True)
    for text in TEXTS:
        tokens = tokenizer.encode(text)
        found = places(tokenizer, tokens)
        assert found == sorted(found)
        words: dict[int, list[int]] = {}
        for token, place in zip(tokens, found, strict=True):
            words.setdefault(place, []).append(token)
        spelt = [tokenizer.decode(words[place]).strip() for place in sorted(words)]
        assert spelt == text.split()


def test_symbols_are_words_of_their_own() -> None:
    assert places(learn(Characters(), TEXTS), [4, 5, 6]) == [0, 1, 2]
    assert places(learn(Words(), TEXTS), [4, 4]) == [0, 1]


def test_a_word_goes_with_the_word_that_its_tokens_look_at_most() -> None:
    weights = torch.tensor(
        [
            [0.3, 0.3, 0.4, 0.0],  # word 0 looks at word 0 with both of its tokens
            [0.1, 0.2, 0.3, 0.4],  # word 1, and its second token: 0.3 + 0.6 against 0.4 + 0.3
            [0.1, 0.2, 0.6, 0.1],
            [0.1, 0.1, 0.0, 0.8],  # the end of the source is no word
        ]
    )
    pairs = aligned(weights, [0, 0, 1], [0, 1, 1, 2])
    assert pairs == ((0, 0), (1, 1), (0, 2))
    assert pharaoh(pairs) == "0-0 1-1 0-2"
    assert aligned(weights[:0], [0, 0, 1], []) == aligned(weights[:, :1], [], [0, 1, 1, 2]) == ()


CHOICES = {
    "plain": {},
    "shared keys": {"key_value_heads": 2},
    "capped": {"cap": 1.0},
    "normed": {"query_key_norm": LayerNorm()},
    "learned": {"scale": Learned()},
    "additive": {"score": Additive()},
}


@pytest.mark.parametrize("choice", CHOICES)
@torch.no_grad()
def test_the_weights_mix_the_values_as_the_layer_does(choice: str) -> None:
    torch.manual_seed(0)
    model = small_model(torch.float64, **CHOICES[choice]).eval()
    cross = model.decoder.layers[-1].cross
    source = Ragged.from_lists([[*tokens, EOS] for tokens in sentences((7, 2, 4))])
    target = Ragged.from_lists([[BOS, *tokens] for tokens in sentences((3, 8, 1))])
    met = []
    hook = cross.register_forward_hook(lambda _, given, mixed: met.append((given, mixed)))
    model(source, target)
    hook.remove()
    [(given, mixed)] = met
    weights = weights_of(cross, *given).double()
    _, value = split_heads(cross.key_value(given[2]), given[3], (cross.shared, cross.shared))
    by_hand = weights @ value.repeat_interleave(cross.fit.group, 1)
    rows = [row[:, :length].transpose(0, 1).flatten(1) for row, length in zip(by_hand, target.lengths, strict=True)]
    torch.testing.assert_close(cross.output(torch.cat(rows)), mixed, atol=1e-6, rtol=0)


def test_an_ensemble_looks_where_its_models_look_on_average() -> None:
    torch.manual_seed(0)
    models = [small_model().train(mode) for mode in (True, False)]
    sources, outputs = [[*tokens, EOS] for tokens in sentences((3, 5))], sentences((4, 1))
    first, second = (source_weights(model, sources, outputs) for model in models)
    for mean, one, other in zip(source_weights(Ensemble(models), sources, outputs), first, second, strict=True):
        torch.testing.assert_close(mean, (one + other) / 2)
        torch.testing.assert_close(mean.sum(1), torch.ones(len(mean), dtype=mean.dtype))
    assert models[0].training
