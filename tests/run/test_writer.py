"""The writer: what `surd.load` gives for a language model, alike alone and in a batch, and what it makes of a text."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from run.tiny import tiny_run
from run.tiny_text import LINES, tiny_text_run

import surd
from surd.data.tokenizer import BPE
from surd.errors import Faults, SurdError
from surd.nn.ragged import Ragged
from surd.nn.special import BOS, EOS
from surd.run import Run, use
from surd.run.writer import Writer

PROMPTS = ["the ", "", "a dog sings\nand the bird, the cat sees the", "dog", ""]


def loaded(run: Run) -> Writer:
    writer = surd.load(run.folder, device=torch.device("cpu"), precision="fp32")
    assert isinstance(writer, Writer)
    return writer


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    return loaded(tiny_text_run(tmp_path_factory.mktemp("runs") / "text"))


@pytest.fixture(scope="module")
def liner(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    return loaded(tiny_text_run(tmp_path_factory.mktemp("runs") / "lines", document="line"))


def test_a_prompt_is_gone_on_with_alike_alone_and_in_a_batch(writer: Writer) -> None:
    together = writer.generate(PROMPTS, seed=4)
    assert [writer.generate([prompt], seed=4)[0] for prompt in PROMPTS[:4]] == together[:4]
    assert writer.generate(PROMPTS[::-1], seed=4)[2] == together[2]
    assert together[4] != together[1], "the same prompt again is another sample"
    assert writer.generate(["", ""], seed=4) == [together[1], together[4]] == writer.generate([""], seed=4, samples=2)
    assert writer.generate(PROMPTS, seed=5) != together
    assert all(len(text) == 30 for text in together), "a whole text has no end"
    assert [len(text) for text in writer.generate(["the "] * 3, max_length=7)] == [7, 7, 7]


def test_greedy_takes_no_chances(writer: Writer) -> None:
    greedy = writer.generate(PROMPTS, greedy=True)
    assert greedy == writer.generate(PROMPTS, greedy=True, seed=9) == writer.generate(PROMPTS, top_k=1)
    assert greedy[1] == greedy[4]
    with pytest.raises(SurdError, match="it does not go with temperature, top_k"):
        writer.generate(["a"], greedy=True, temperature=0.5, top_k=3)
    with pytest.raises(Faults, match="top_p: expected a share above 0 and up to 1"):
        writer.generate(["a"], top_p=1.5)
    with pytest.raises(SurdError, match="samples: expected at least 1, found 0"):
        writer.generate(["a"], samples=0)
    with pytest.raises(SurdError, match=r"write generate\(\[text\]\)"):
        writer.generate("a")
    assert writer.generate([]) == []


def test_lines_come_to_an_end(liner: Writer) -> None:
    passages = liner.passages([""] * 40, liner.sampling(), seed=1)
    assert any(one.ended for one in passages) and all("\n" not in one.text for one in passages)
    with pytest.raises(SurdError, match="this model writes single lines"):
        liner.generate(["one\ntwo"])


def test_characters_that_were_never_seen_are_told(writer: Writer) -> None:
    with pytest.warns(
        UserWarning, match="prompt 2: 2 of its characters stand nowhere in what the model was trained on"
    ):
        writer.generate(["the", "Öe Ü"])


def test_subwords_go_on_within_the_text(tmp_path: Path) -> None:
    writer = loaded(tiny_text_run(tmp_path / "run", kind=BPE(size=290)))
    for prompt in ("the c", "the ", "  a\n\n", "\u2581\u2603"):
        (passage,) = writer.passages([prompt], writer.sampling(max_length=9))
        assert passage.prompt == prompt and passage.unknown == 0
    assert "⁇" not in "".join(writer.generate(["the "] * 20, seed=2))


@torch.no_grad()
def by_hand(writer: Writer, documents: list[list[int]], context: int) -> tuple[float, int]:
    """Sum of nll over windows of the documents, and how many tokens were predicted."""
    total, count = 0.0, 0
    for ids in documents:
        for start in range(0, len(ids) - 1, context):
            window = ids[start : start + context + 1]
            logits = writer.model.logits(writer.model(Ragged.from_lists([window[:-1]])))
            total += F.cross_entropy(logits, torch.tensor(window[1:]), reduction="sum").item()
            count += len(window) - 1
    return total, count


def test_a_text_is_scored_in_windows_of_which_none_overlap(writer: Writer, liner: Writer) -> None:
    text = "".join(f"{line}\n" for line in LINES)
    rows = writer.tokenizer.encode_all(LINES)
    whole = [EOS, *(token for row in rows for token in [*row, EOS])]
    by_line = [[BOS, *row, EOS] for row in rows if row]
    for one, documents, characters in ((writer, [whole], len(text)), (liner, by_line, len(text) - 1)):
        nll, count = by_hand(one, documents, 12)
        assert count == characters
        nats, bits, perplexity = one.score(text)
        assert nats.value == pytest.approx(nll / count, rel=1e-5)
        assert bits.value == pytest.approx(nll / count / math.log(2), rel=1e-5)
        assert perplexity.value == pytest.approx(math.exp(nll / count), rel=1e-5)
        assert f"denominator:tokens and line ends:{count}|windows:12, none overlapping" in nats.signature
        assert one.score(text.removesuffix("\n"))[0] == nats, "a last line without an end counts as ended"
        assert one.score(text.replace("\n", "\r\n"))[0] == nats


def test_unknown_characters_stand_in_the_signature(writer: Writer) -> None:
    nats, bits, _ = writer.score("the Ö\n")
    assert "|unknown:1|" in nats.signature
    assert "denominator:bytes and line ends:7|" in bits.signature
    for nothing in ("", []):
        with pytest.raises(SurdError, match="nothing to score"):
            writer.score("") if nothing == "" else writer.score_lines(nothing)


def test_each_command_refuses_a_run_of_another_task(writer: Writer, tmp_path: Path) -> None:
    with pytest.raises(SurdError, match=r"was trained for the task language, so what uses it is: surd generate"):
        use.translator(writer.run)
    with pytest.raises(SurdError, match=r"was trained for the task pronunciation, so what uses it is: surd translate"):
        use.writer(tiny_run(tmp_path / "run"))
