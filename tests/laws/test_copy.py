"""Every member of every family learns: two hundred updates, and words never seen are copied."""

import pytest
import torch
from laws.members import variants
from parity.small import pairs

from surd.models.architecture import Architecture
from surd.models.seq2seq import Seq2Seq
from surd.nn.embedding import FixedMultiplier

SHAPE = {"d_model": 64, "heads": 4, "d_k": 16, "d_ff": 128, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
VOCABULARY, STEPS, RATE = 24, 200, 4e-3
CANNOT = {
    "position=none": (0.4, "without positions an encoder sees a bag of tokens"),
    "position=rotary": (0.8, "a source position has no sign of its own in attention from the target"),
    "init=torch": (0.0, "tied tables of N(0, 1) make logits of √d_model: it starts tens of nats above guessing"),
    "init=small": (0.0, "of weights this small, 64 features make scores and logits of 0.02: it has hardly begun"),
}
"""Members that copy less in so few updates: the share that they reach, and why."""


def copies(count: int, generator: torch.Generator) -> tuple:
    lengths = torch.randint(2, 7, (count,), generator=generator).tolist()
    lines = [torch.randint(4, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
    return pairs(lines, lines)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", ["default", *variants()])
def test_it_copies(name: str) -> None:
    changes = variants().get(name, {})
    if name == "multiplier=fixed":
        changes = {"multiplier": FixedMultiplier(value=8.0)}  # √d_model; a small one would drown the tokens
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(2)
    model = Seq2Seq(Architecture(**{**SHAPE, **changes}), VOCABULARY, VOCABULARY)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    for step in range(1, STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(step / 20, 1.0, 2 * (1.05 - step / STEPS))
        sums = model.loss(*copies(48, generator))
        (sums.loss / sums.tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        found = model.loss(*copies(400, generator))
    share = found.correct.item() / found.tokens
    if name in CANNOT:
        assert CANNOT[name][0] <= share <= 0.99, "one that copies after all is no exception"
    else:
        assert share > 0.99
