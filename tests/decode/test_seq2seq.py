"""Search with the real model: step by step as well as at once, and against Hugging Face's beam search."""

import jaxtyping
import pytest
import torch
import torch.nn.functional as F
from parity.marian import to_marian

from surd.decode.alignment import aligned, source_weights
from surd.decode.decoding import Decoding, Hypothesis
from surd.decode.generate import Wishes, generate, generate_unlooped
from surd.decode.loops import most_repeats
from surd.models.seq2seq import Architecture, Seq2Seq
from surd.nn.norm import NormOrder
from surd.nn.position import Sinusoidal
from surd.nn.ragged import Ragged
from surd.nn.special import BOS, EOS, PAD

VOCABULARY = 40
LIMIT = 24


def small(**changes) -> Seq2Seq:
    sizes = {"d_model": 64, "heads": 4, "d_k": 16, "d_ff": 128, "encoder_layers": 2, "decoder_layers": 2}
    position = Sinusoidal(layout="halves")
    return Seq2Seq(Architecture(**{**sizes, "position": position, **changes}), VOCABULARY, VOCABULARY)


def sentences(count: int, generator: torch.Generator, shortest: int = 1, longest: int = 12) -> list[list[int]]:
    lengths = torch.randint(shortest, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(4, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


def reversed_noisily(sentence: list[int], generator: torch.Generator) -> list[int]:
    """Backwards, every fifth token or so another one or left out: something a model can never be sure of."""
    backwards = []
    for token in reversed(sentence):
        luck = torch.rand((), generator=generator).item()
        if luck > 0.1:
            backwards.append(token if luck > 0.2 else 4 + (token - 3) % (VOCABULARY - 4))
    return backwards


@pytest.fixture(scope="module")
def trained() -> Seq2Seq:
    """A few seconds of training: far from sure of anything, so that its beams have something to decide."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, fused=True)
    jaxtyping.config.update("jaxtyping_disable", True)  # the checks would take as long as the training
    for _ in range(250):
        inputs = sentences(48, generator)
        outputs = [reversed_noisily(sentence, generator) for sentence in inputs]
        source = Ragged.from_lists([[*tokens, EOS] for tokens in inputs])
        target = Ragged.from_lists([[BOS, *tokens] for tokens in outputs])
        labels = Ragged.from_lists([[*tokens, EOS] for tokens in outputs]).tokens
        loss = F.cross_entropy(model.logits(model(source, target)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    jaxtyping.config.update("jaxtyping_disable", False)
    assert loss.item() < 2.5, "the model learnt nothing"
    return model.eval()


@pytest.mark.parametrize("order", list(NormOrder))
@torch.no_grad()
def test_step_by_step_equals_at_once(order: NormOrder):
    """Log-probabilities of given targets, each read by three rows of a beam, some sentences leaving on the way."""
    beam, generator = 3, torch.Generator().manual_seed(0)
    model = small(norm_order=order).eval()
    sources = [[*tokens, EOS] for tokens in sentences(6, generator)]
    outputs = [[BOS, *tokens] for tokens in sentences(6 * beam, generator, 20, 20)]
    each_source = Ragged.from_lists([source for source in sources for _ in range(beam)])
    expected = model.logits(model(each_source, Ragged.from_lists(outputs))).log_softmax(1).view(6, beam, 21, -1)
    outputs = torch.tensor(outputs).view(6, beam, 21)

    cache = model.start(model.encode(Ragged.from_lists(sources)), beam)
    alive = torch.arange(6)
    shuffled = torch.arange(beam).expand(6, -1)  # which output each row follows
    for length in range(21):
        tokens = outputs[alive, :, length].gather(1, shuffled)
        found = model.step(tokens.flatten(), cache).log_softmax(1).view(len(alive), beam, -1)
        rows = expected[alive, :, length].gather(1, shuffled[:, :, None].expand_as(found))
        torch.testing.assert_close(found, rows, atol=1e-5, rtol=0)
        if length in (3, 9, 15):
            kept = torch.tensor([n for n in range(len(alive)) if n != length % len(alive)])
            cache.keep(kept)
            alive, shuffled = alive[kept], shuffled[kept]
        order = torch.stack([torch.randperm(beam, generator=generator) for _ in alive])
        cache.reorder((torch.arange(len(alive))[:, None] * beam + order).flatten())
        shuffled = shuffled.gather(1, order)


@torch.no_grad()
def test_scores_are_those_of_the_model(trained: Seq2Seq):
    generator = torch.Generator().manual_seed(2)
    sources = [[*tokens, EOS] for tokens in sentences(40, generator)]
    for beam in (1, 4):
        settings = Decoding(beam=beam)
        for source, hypotheses in zip(sources, generate(trained, sources, settings, n_best=beam), strict=True):
            for hypothesis in hypotheses:
                assert hypothesis.log_probability == pytest.approx(
                    log_probability(trained, source, hypothesis), abs=1e-4
                )


def log_probability(model: Seq2Seq, source: list[int], hypothesis: Hypothesis) -> float:
    labels = [*hypothesis.tokens, EOS] if hypothesis.ended else list(hypothesis.tokens)
    target = Ragged.from_lists([[BOS, *labels[:-1]]])
    scores = model.logits(model(Ragged.from_lists([source]), target)).log_softmax(1)
    return scores.gather(1, torch.tensor(labels)[:, None]).sum().item()


@pytest.mark.parametrize("length_penalty", [1.0, 0.5])
@pytest.mark.parametrize("state", ["random", "trained"])
def test_against_hugging_face(trained: Seq2Seq, state: str, length_penalty: float):
    """The mean score is not lower, and hardly any sentence scores worse; the same rules make the same searches."""
    model = trained if state == "trained" else small(output_bias=True).eval()
    sources = [[*tokens, EOS] for tokens in sentences(200, torch.Generator().manual_seed(3))]
    settings = Decoding(beam=4, length_penalty=length_penalty, factor=0.0, extra=LIMIT)
    ours = [hypotheses[0] for hypotheses in generate(model, sources, settings)]
    theirs = marian_beam(to_marian(model), sources, length_penalty)

    worse = [
        f"source {source}: ours {our.tokens} {our.score:.6f}, theirs {tokens} {score:.6f}"
        for source, our, (tokens, score) in zip(sources, ours, theirs, strict=True)
        if our.score < score - 1e-4
    ]
    assert len(worse) <= len(sources) // 100, "\n".join(worse)
    mean = sum(our.score for our in ours) / len(ours)
    assert mean >= sum(score for _, score in theirs) / len(theirs) - 1e-6, "\n".join(worse)
    same = sum(our.tokens == tokens for our, (tokens, _) in zip(ours, theirs, strict=True))
    assert same >= 0.99 * len(sources)


@torch.no_grad()
def marian_beam(
    marian, sources: list[list[int]], length_penalty: float, prefixes: list[list[int]] | None = None
) -> list[tuple[tuple[int, ...], float]]:
    """Prefixes, where there are any, are of one length."""
    padded = Ragged.from_lists(sources).padded()
    begun = {} if prefixes is None else {"decoder_input_ids": torch.tensor([[BOS, *prefix] for prefix in prefixes])}
    found = marian.generate(
        input_ids=padded,
        attention_mask=(padded != PAD).long(),
        num_beams=4,
        do_sample=False,
        early_stopping="never",
        length_penalty=length_penalty,
        max_new_tokens=LIMIT if prefixes is None else LIMIT - len(prefixes[0]),
        **begun,
        suppress_tokens=[PAD, BOS],  # as ours: never generated, their probability kept
        output_scores=True,
        return_dict_in_generate=True,
    )
    tokens = [tuple(token for token in row[1:] if token not in (PAD, EOS)) for row in found.sequences.tolist()]
    return list(zip(tokens, found.sequences_scores.tolist(), strict=True))


@torch.no_grad()
def test_a_prefix_against_hugging_face(trained: Seq2Seq):
    """Without a length penalty, for theirs counts the length behind the prefix alone, and ours that of the output."""
    generator = torch.Generator().manual_seed(4)
    begun = sentences(100, generator, 3, 12)
    sources = [[*tokens, EOS] for tokens in begun]
    # What it expects, and something that it does not.
    prefixes = [[tokens[-1], tokens[-2]] if number % 2 else tokens[:2] for number, tokens in enumerate(begun)]
    settings = Decoding(beam=4, length_penalty=0.0, factor=0.0, extra=LIMIT)
    wishes = Wishes(prefixes=prefixes)
    ours = [hypotheses[0] for hypotheses in generate(trained, sources, settings, wishes=wishes)]
    theirs = marian_beam(to_marian(trained), sources, 0.0, prefixes)
    same = 0
    for source, prefix, our, (tokens, score) in zip(sources, prefixes, ours, theirs, strict=True):
        given = log_probability(trained, source, Hypothesis(tuple(prefix), 0.0, 0.0, ended=False))
        assert our.tokens[:2] == tuple(prefix) == tokens[:2]
        assert our.log_probability == pytest.approx(log_probability(trained, source, our), abs=1e-4)
        assert our.score >= given + score - 1e-4
        same += our.tokens == tokens
    assert same >= 99


def test_attention_is_that_of_hugging_face(trained: Seq2Seq):
    """And the alignment read off it is what the model was taught: the output is the source backwards."""
    generator = torch.Generator().manual_seed(5)
    inputs = sentences(60, generator, 1, 12)
    sources = [[*tokens, EOS] for tokens in inputs]
    outputs = [tokens[::-1] for tokens in inputs]
    found = source_weights(trained, sources, outputs)
    source, target = Ragged.from_lists(sources), Ragged.from_lists([[BOS, *tokens[:-1]] for tokens in outputs])
    attentions = to_marian(trained)(
        input_ids=source.padded(),
        attention_mask=source.layout.real.long(),
        decoder_input_ids=target.padded(),
        output_attentions=True,
    ).cross_attentions
    for number, (own, tokens) in enumerate(zip(found, inputs, strict=True)):
        assert own.shape == (len(tokens), len(tokens) + 1)
        theirs = attentions[-1][number].mean(0)[: len(tokens), : len(tokens) + 1]
        torch.testing.assert_close(own, theirs, atol=1e-5, rtol=0)
    right = total = 0
    for own, tokens in zip(found, inputs, strict=True):
        words = list(range(len(tokens)))
        right += sum(i + j == len(tokens) - 1 for i, j in aligned(own, words, words))
        total += len(tokens)
    assert right >= total / 3, f"{right} of {total}, after so little training; by chance one in seven"


def test_only_what_goes_in_circles_is_touched_by_the_guard(trained: Seq2Seq):
    sources = [[*tokens, EOS] for tokens in sentences(100, torch.Generator().manual_seed(6))]
    for settings in (Decoding(beam=1), Decoding(beam=4)):
        before = generate(trained, sources, settings)
        after, looped = generate_unlooped(trained, sources, settings)
        assert len(looped) <= 2, "it has learnt something"
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            if number in looped:
                assert most_repeats(old[0].tokens) > 8 > 3 > most_repeats(new[0].tokens)
            else:
                assert new == old
