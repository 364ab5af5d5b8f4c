"""The device check: is a GPU right and fast? Parity, a short training by `surd train`, a translation, tokens a second.

Needs no text preparation and no packages beyond surd's own and transformers. Where there is no GPU everything runs on
the processor at small size, so that the check itself can be checked.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import launch
import report
from marian import copy_weights, marian
from surd.device import default_device, default_precision
from surd.models.seq2seq import Architecture, Seq2Seq
from surd.nn.ragged import Ragged
from surd.nn.special import BOS, EOS
from surd.seed import seed_all
from texts import read_lines, write_lines

STEPS = 200
SHAPE = Architecture(d_model=128, heads=4, d_k=32, d_ff=256, encoder_layers=2, decoder_layers=2, dropout=0.0)
VOCABULARY = 1000
TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-5}
"""Largest difference as a share of the largest value, against Hugging Face's model on the same device."""
SMALL = ("batch.tokens=512", "tokenizer.source.size=2000", "tokenizer.target.size=2000")
"""Without a GPU: a sixteenth of the recipe's batch."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path, help="folder with train and val, .en.gz and .de.gz")
    parser.add_argument("out", type=Path, nargs="?", help="new folder for the run; a temporary one when left out")
    parser.add_argument("--results", type=Path, default=report.RESULTS, help="folder for the result files")
    arguments = parser.parse_args()
    device = default_device()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else report.processor()
    print(f"device: {device}, {name}, {default_precision(device)}")
    differences = {str(dtype): parity(device, dtype) for dtype in TOLERANCES}
    with tempfile.TemporaryDirectory() as temporary:
        out = arguments.out or Path(temporary)
        result = {"device": name, "precision": default_precision(device), "parity": differences}
        result |= train(arguments.data, out, small=device.type == "cpu")
    table = report.markdown_table(("what", "value"), flat(result))
    report.write(f"gpu-{device.type}", "Device check", result, table, arguments.results)


def parity(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Logits and gradient of the shared table against Hugging Face's model; decoding step by step against at once."""
    seed_all(0)
    ours = Seq2Seq(SHAPE, VOCABULARY, VOCABULARY)
    theirs = marian(SHAPE, VOCABULARY, longest=64)
    ours, theirs = ours.to(device, dtype).eval(), theirs.to(device, dtype).eval()
    ours.compute_dtype = dtype
    copy_weights(ours, theirs)
    draw = torch.Generator().manual_seed(0)
    source, target = (ragged(draw, first, last).to(device) for first, last in (((), (EOS,)), ((BOS,), ())))
    labels = torch.cat([target.tokens[1:], target.tokens[:1]])

    hidden = ours(source, target)
    logits = ours.logits(hidden)
    expected = theirs(
        input_ids=source.padded(),
        attention_mask=source.layout.real.long(),
        decoder_input_ids=target.padded(),
        use_cache=False,
    ).logits[target.layout.real]
    ours.loss(source, target, labels).loss.backward()
    F.cross_entropy(expected, labels, reduction="sum").backward()
    found = {
        "logits": off(logits, expected),
        "gradient": off(ours.target.table.grad, theirs.model.shared.weight.grad),
        "steps": off(stepped(ours, source, target), logits),
    }
    for what, difference in found.items():
        verdict = "ok" if difference <= TOLERANCES[dtype] else "TOO FAR"
        print(f"parity {dtype} {what}: {difference:.1e} ({verdict}, at most {TOLERANCES[dtype]:.0e})")
    if max(found.values()) > TOLERANCES[dtype]:
        raise SystemExit(1)
    return found


def ragged(draw: torch.Generator, first: tuple[int, ...], last: tuple[int, ...]) -> Ragged:
    """Eight random sequences of different lengths between fixed ends."""
    lengths = torch.randint(3, 20, (8,), generator=draw).tolist()
    return Ragged.from_lists(
        [[*first, *torch.randint(4, VOCABULARY, (length,), generator=draw).tolist(), *last] for length in lengths]
    )


@torch.no_grad()
def stepped(model: Seq2Seq, source: Ragged, target: Ragged) -> torch.Tensor:
    """The logits of the same targets, read one token at a time by the cache."""
    cache = model.start(model.encode(source))
    steps = [model.step(column, cache) for column in target.padded().T]
    return torch.stack(steps, dim=1)[target.layout.real]


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference as a share of the largest expected value."""
    found, expected = found.detach(), expected.detach()
    return float((found - expected).abs().max() / expected.abs().max())


def train(data: Path, out: Path, small: bool) -> dict[str, Any]:
    """200 updates of the shipped recipe and a translation, by the commands a user would type."""
    out.mkdir(parents=True, exist_ok=True)
    files = {}
    for part, theirs, count in (("train", "train", None), ("dev", "val", 100 if small else 1000)):
        for side in ("en", "de"):
            files[f"{part}.{side}"] = out / f"{part}.{side}"
            write_lines(files[f"{part}.{side}"], read_lines(data / f"{theirs}.{side}.gz")[:count])
    run = out / "run"
    call = [files["train.en"], files["train.de"], "--dev", files["dev.en"], files["dev.de"], "--recipe", "multi30k"]
    words = [f"training.evaluate_every={STEPS}", f"training.schedule.warmup={STEPS // 2}", *(SMALL if small else ())]
    spoken = launch.train(run, call, words, STEPS)
    began = time.perf_counter()
    launch.translate(run, files["dev.en"], out / "dev.hyp")
    seconds = time.perf_counter() - began
    losses = [record["nll"] for record in launch.journal(run, "update")]
    assert losses[-1] < losses[0], f"the loss did not fall: {losses[0]:.2f} to {losses[-1]:.2f}"
    return {
        "command": spoken,
        "updates": launch.ending(run)["step"],
        "nll": {"first": round(losses[0], 3), "last": round(losses[-1], 3)},
        "tokens_per_second": round(speed(run)),
        "translated": {"lines": len(read_lines(files["dev.en"])), "seconds_with_start": round(seconds, 1)},
    }


def speed(run: Path) -> float:
    """Real tokens a second, the median over the second half: the first updates meet their shapes for the first time."""
    rates = [record["rate"] for record in launch.journal(run, "update")]
    return statistics.median(rates[len(rates) // 2 :])


def flat(values: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """Nested values as one list with dotted names."""
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        found += flat(value, f"{before}{name}.") if isinstance(value, dict) else [(f"{before}{name}", value)]
    return found


if __name__ == "__main__":
    main()
