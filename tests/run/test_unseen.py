"""Characters that no model has seen come through by their bytes: a model that learnt to copy copies them too."""

import random

import pytest
import torch
from parity.small import pairs

from surd.data.tokenizer import BPE, TokenizerPair, learn
from surd.decode.decoding import Decoding
from surd.models.architecture import Architecture
from surd.models.seq2seq import Seq2Seq
from surd.nn.special import UNK
from surd.run.text import Scribe

STEPS, RATE = 350, 5e-3
DRAW = random.Random(3)
EMOJI = DRAW.sample([chr(code) for code in range(0x1F300, 0x1F600)], 600)
CYRILLIC = DRAW.sample([chr(code) for code in range(0x410, 0x450)], 64)
SEEN = EMOJI[:-100] + CYRILLIC[:-16]
UNSEEN = EMOJI[-100:], CYRILLIC[-16:]
LETTERS = "abcdefgh"


def lines(count: int, others: list[str], draw: random.Random) -> list[str]:
    """Letters with one other character among them."""
    found = []
    for _ in range(count):
        letters = draw.choices(LETTERS, k=draw.randint(1, 2))
        letters.insert(draw.randint(0, len(letters)), draw.choice(others))
        found.append("".join(letters))
    return found


@pytest.mark.usefixtures("compiled")
def test_unseen_characters_come_through_a_model_that_copies() -> None:
    tokenizer = learn(BPE(size=270), [*LETTERS, LETTERS], fit=True)
    assert all(tokenizer.encode(one).count(UNK) == 0 for part in UNSEEN for one in part)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    draw = random.Random(2)
    shape = {"d_model": 64, "heads": 4, "d_k": 16, "d_ff": 128, "encoder_layers": 1, "decoder_layers": 1}
    model = Seq2Seq(Architecture(**shape, dropout=0.0), tokenizer.size, tokenizer.size)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
    for step in range(1, STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(step / 20, 1.0, 2 * (1.05 - step / STEPS))
        ids = tokenizer.encode_all(lines(48, SEEN, draw))
        sums = model.loss(*pairs(ids, ids))
        (sums.loss / sums.tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    scribe = Scribe(model=model.eval(), tokenizers=TokenizerPair(tokenizer, tokenizer), longest=64)
    for others in UNSEEN:
        texts = lines(100, others, draw)
        answers = list(scribe.answer(texts, Decoding(beam=1), 16_384))
        share = sum(answer.text == text for answer, text in zip(answers, texts, strict=True)) / len(texts)
        assert share >= 0.95, share
        assert all(answer.unknown == 0 for answer in answers)
