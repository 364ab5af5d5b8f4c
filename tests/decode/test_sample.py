"""Sampling: what is drawn from, by which chances, and that a text goes on alike alone, in any batch, at any length."""

import pytest
import torch
from parity.small import VOCABULARY, sentences, small_language

from surd.decode.sample import UNWRITABLE, Continuation, Sampling, continue_texts, pick, window_start
from surd.errors import Faults, SurdError
from surd.models.language import Language
from surd.nn.norm import NormOrder
from surd.nn.position import LearnedPosition
from surd.nn.ragged import Ragged
from surd.nn.special import EOS

CONTEXT = 8
CHANCES = torch.tensor([0.0, 0.0, 0.1, 0.0, 0.3, 0.05, 0.4, 0.15])
"""Of tokens 0 to 7, of which 0, 1 and 3 are never written."""


def drawn(settings: Sampling, count: int = 20_000) -> torch.Tensor:
    """The shares of tokens, for draws evenly spread over [0, 1)."""
    draws = torch.arange(count, dtype=torch.float64) / count
    tokens = pick(CHANCES.log().clamp(min=-30).expand(count, -1).clone(), settings, draws)
    return tokens.bincount(minlength=len(CHANCES)) / count


def test_tokens_are_drawn_by_their_chances() -> None:
    assert drawn(Sampling()).tolist() == pytest.approx(CHANCES.tolist(), abs=1e-4)


def test_no_temperature_is_too_low() -> None:
    assert drawn(Sampling(temperature=1e-300)).tolist() == drawn(Sampling(temperature=0.0)).tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_is_a_power_of_the_chances(temperature: float) -> None:
    expected = CHANCES ** (1 / temperature)
    assert drawn(Sampling(temperature=temperature)).tolist() == pytest.approx(
        (expected / expected.sum()).tolist(), abs=1e-4
    )


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"temperature": 0.0}, [6]),
        ({"top_k": 1}, [6]),
        ({"top_k": 3}, [6, 4, 7]),
        ({"top_k": 99}, [6, 4, 7, 2, 5]),
        ({"top_p": 0.01}, [6]),
        ({"top_p": 0.39}, [6]),
        ({"top_p": 0.41}, [6, 4]),
        ({"top_p": 0.96}, [6, 4, 7, 2, 5]),
        ({"top_k": 3, "top_p": 0.8}, [6, 4]),  # of what is left of the three, 0.85 in all, 0.68 are asked for
    ],
    ids=str,
)
def test_only_what_is_asked_for_is_drawn_from(settings: dict, kept: list[int]) -> None:
    shares = drawn(Sampling(**settings))
    expected = torch.zeros_like(CHANCES)
    expected[kept] = CHANCES[kept] / CHANCES[kept].sum()
    assert shares.tolist() == pytest.approx(expected.tolist(), abs=1e-4)


def test_equal_tokens_go_to_the_lower_id_and_some_are_never_written() -> None:
    logits = torch.zeros(1, 9)
    assert pick(logits.clone(), Sampling(temperature=0.0), torch.zeros(1)).item() == EOS
    last = pick(logits.clone(), Sampling(), torch.full((1,), 1 - 1e-12, dtype=torch.float64))
    assert last.item() == 8
    logits[:, UNWRITABLE] = 50.0
    assert pick(logits, Sampling(top_k=1), torch.zeros(1)).item() == EOS


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1.0}, "temperature: expected a number of at least 0, found -1.0"),
        ({"temperature": float("nan")}, "temperature: expected a number of at least 0, found nan"),
        ({"top_k": 0}, "top_k: expected at least 1, found 0"),
        ({"top_p": 0.0}, "top_p: expected a share above 0 and up to 1, found 0.0"),
        ({"max_length": 0}, "max_length: expected at least 1, found 0"),
    ],
)
def test_settings_that_cannot_be_meant(settings: dict, message: str) -> None:
    with pytest.raises(Faults) as caught:
        Sampling(**settings)
    assert caught.value.lines == (message,)


def test_a_window_holds_more_than_half_a_context_and_never_more_than_one() -> None:
    for context in (2, 3, 8, 64):
        starts = [window_start(length, context) for length in range(1, 5 * context)]
        assert starts == sorted(starts)
        assert starts[:context] == [0] * context
        sizes = [length - start for length, start in enumerate(starts, start=1)]
        assert max(sizes) == context
        assert min(sizes[context:]) > context // 2 - (context == 2)


@pytest.fixture(params=list(NormOrder))
def model(request: pytest.FixtureRequest) -> Language:
    return small_language(norm_order=request.param, position=LearnedPosition(length=CONTEXT)).eval()


@torch.no_grad()
def plainly(model: Language, text: list[int], settings: Sampling, seed: int, ends: bool) -> Continuation:
    """The same, one text at a time, the whole window read anew for each token."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(settings.max_length, generator=generator, dtype=torch.float64)
    tokens = list(text)
    for place in range(settings.max_length):
        start = window_start(len(tokens), CONTEXT)
        logits = model.logits(model(Ragged.from_lists([tokens[start:]])))[-1:]
        tokens.append(pick(logits, settings, draws[place : place + 1]).item())
        if ends and tokens[-1] == EOS:
            return Continuation(tuple(tokens[len(text) : -1]), True)
    return Continuation(tuple(tokens[len(text) :]), False)


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize(
    "settings", [Sampling(max_length=20), Sampling(temperature=0.0, max_length=20)], ids=["drawn", "greedy"]
)
def test_it_equals_the_plain_way_alone_and_in_a_batch(model: Language, settings: Sampling, ends: bool) -> None:
    """Texts shorter than a context, of just one, and of several; outputs that outgrow it."""
    texts = sentences((1, 3, 8, 9, 3, 30, 17))
    seeds = list(range(len(texts)))
    expected = [plainly(model, text, settings, seed, ends) for text, seed in zip(texts, seeds, strict=True)]
    assert continue_texts(model, texts, settings, CONTEXT, seeds, ends) == expected
    for text, seed, one in zip(texts, seeds, expected, strict=True):
        assert continue_texts(model, [text], settings, CONTEXT, [seed], ends) == [one]
    if ends and settings.temperature:
        assert len({len(one.tokens) for one in expected}) > 1, "some end early"


def test_the_seed_decides(model: Language) -> None:
    text = sentences((4,)) * 3
    found = continue_texts(model, text, Sampling(max_length=12), CONTEXT, [1, 2, 1], ends=False)
    assert found[0] == found[2] != found[1]
    assert model.training is False
    model.train()
    continue_texts(model, text, Sampling(max_length=1), CONTEXT, [1, 2, 3], ends=False)
    assert model.training, "the model comes back in the mode it came in"


def test_no_text_has_no_continuation_and_a_damaged_model_is_told(model: Language) -> None:
    assert continue_texts(model, [], Sampling(), CONTEXT, [], ends=False) == []
    with torch.no_grad():
        model.text.table.fill_(float("nan"))
    with pytest.raises(SurdError, match="not numbers"):
        continue_texts(model, [[5]], Sampling(), CONTEXT, [0], ends=False)
    assert VOCABULARY > 9
