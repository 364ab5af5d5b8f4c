"""Training and decoding speed beside Hugging Face's MarianMTModel: same weights, same batches, same optimiser.

`train` times the arms in turn, each in its own process, and reports the ratio of real (unpadded) source and target
tokens a second, round by round, since a machine's speed drifts more than the arms differ. `losses` trains one arm of
each side on the same batches and compares the losses. `decode` translates with a trained run on both sides.
"""

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import decoding
import moses
import report
from arms import SMOOTHING, Arm, HuggingFace, Ours, Padded, named, set_rate
from corpus import length_sorted_batches
from marian import trainable
from rounds import alternate, faster, ratios, spelled
from surd.data.batch import Batch
from surd.device import default_device, default_precision
from surd.models.seq2seq import Architecture, Seq2Seq
from surd.nn.norm import NormOrder
from surd.nn.tying import Tying
from surd.optim.optimizer import AdamW
from surd.optim.schedule import InverseRootDecay
from surd.seed import seed_all
from workers import Worker

VOCABULARY = 9712
TINY = Architecture(
    d_model=128,
    heads=4,
    d_k=32,
    d_ff=256,
    encoder_layers=4,
    decoder_layers=4,
    dropout=0.3,
    attention_dropout=0.0,
    norm_order=NormOrder.POST,
    tying=Tying.ALL,
    output_bias=False,
)
"""Wu et al. 2021 (arXiv 2105.14462): Transformer-Tiny, post-norm, one matrix for both tables and the pre-softmax."""
OPTIMIZER = AdamW(beta1=0.9, beta2=0.98, epsilon=1e-8)
SCHEDULE = InverseRootDecay(rate=5e-3, warmup=2000)
MEMORY_KEPT = "HF fp32 eager, memory kept"
"""The peer with the one lever that is not in the model: what surd tells the C library."""
LOSS_TOLERANCE = 0.01
WINDOW = 10
"""Steps whose mean losses are compared: single steps differ by their dropout masks."""


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    seed_all(arguments.seed)
    {"train": train, "losses": losses, "decode": decode}[arguments.what](arguments)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("train", "losses", "decode"))
    parser.add_argument("data", type=Path, help="folder with train, val and test_2016_flickr, .en.gz and .de.gz")
    parser.add_argument("out", type=Path, help="folder for the prepared text")
    parser.add_argument("--run", type=Path, help="trained run (decode)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of all arms (train, decode)")
    parser.add_argument("--batches", type=int, default=4, help="batches a round (train)")
    parser.add_argument("--steps", type=int, default=100, help="updates (losses)")
    parser.add_argument("--sentences", type=int, default=256, help="sentences a round (decode)")
    parser.add_argument("--tokens", type=int, default=4096, help="padded tokens a side of a batch (train, losses)")
    parser.add_argument(
        "--bf16", action="store_true", help="time ours in bf16 also where that is not the default (train)"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, default=report.RESULTS, help="folder for the result files")
    return parser.parse_args()


def train(arguments: argparse.Namespace) -> None:
    """Tokens a second of every arm, and the ratio to Hugging Face in fp32 as it comes, the faster of its attentions."""
    batches, longest = length_sorted_batches(arguments.data, arguments.out, VOCABULARY, arguments.tokens)
    # From short sentences to long ones, at equal distances: an epoch in small.
    chosen = [batches[(2 * n + 1) * len(batches) // (2 * arguments.batches)] for n in range(arguments.batches)]
    workers = training_workers(arguments, chosen, longest)
    check_equal_parameters({worker.name: worker.parameters for worker in workers})
    seconds = alternate(workers, Worker.pass_over, arguments.rounds)
    for worker in workers:
        worker.close()
    base = faster(seconds, ["HF fp32 eager", "HF fp32 sdpa"])
    tokens = sum(batch.tokens for batch in chosen)
    result = {
        "parameters": workers[0].parameters,
        "batches": len(chosen),
        "real_tokens_a_batch": tokens // len(chosen),
        "padding": padding(chosen),
        "threads": arguments.threads,
        "seconds": seconds,
        "tokens_per_second": {name: round(tokens / statistics.median(times)) for name, times in seconds.items()},
        "base": base,
        "default": named(default_dtype()),
        "ratios": ratios(seconds, base),
        "ratios_memory_kept": ratios(seconds, MEMORY_KEPT),
    }
    name = f"speed-train-{arguments.tokens}"
    report.write(name, "Training speed, tiny model", result, speed_table(result), arguments.results)


def decode(arguments: argparse.Namespace) -> None:
    """Target tokens a second of a trained run (of the published preparation) on both sides."""
    if arguments.run is None:
        raise SystemExit("decode needs a trained run: --run FOLDER")
    moses.prepare(arguments.data, arguments.out)
    text = arguments.out / "test.en"
    decoding.compare(
        arguments.run, text, arguments.rounds, arguments.sentences, arguments.threads, results=arguments.results
    )


def training_workers(arguments: argparse.Namespace, batches: list[Batch], longest: int) -> list[Worker]:
    """All arms, from the same weights; surd keeps freed memory, Hugging Face's loop does in one arm."""
    theirs = partial(peer, longest)
    arms: list[tuple[str, Callable[[], Arm], bool]] = [
        ("HF fp32 eager", partial(theirs, "eager"), False),
        ("HF fp32 sdpa", partial(theirs, "sdpa"), False),
        (MEMORY_KEPT, partial(theirs, "eager"), True),
        ("HF bf16 autocast", partial(theirs, "sdpa", autocast=True), False),
    ]
    dtypes = [torch.float32] + [torch.bfloat16] * (arguments.bf16 or default_dtype() is torch.bfloat16)
    arms += [(named(dtype), partial(own, dtype), True) for dtype in dtypes]
    rate = SCHEDULE(1, 1, TINY.d_model)
    return [
        Worker(name, build, batches, rate, arguments.threads, arguments.seed, keep_memory)
        for name, build, keep_memory in arms
    ]


def peer(longest: int, attention: str, autocast: bool = False) -> HuggingFace:
    start = Seq2Seq(TINY, VOCABULARY, VOCABULARY)
    return HuggingFace(f"HF {attention}", start, longest, attention, OPTIMIZER, autocast)


def own(dtype: torch.dtype) -> Ours:
    return Ours(Seq2Seq(TINY, VOCABULARY, VOCABULARY), dtype, OPTIMIZER)


def losses(arguments: argparse.Namespace) -> None:
    """Trains both sides from the same weights on the same batches, dropout on, and compares the mean losses."""
    batches, longest = length_sorted_batches(
        arguments.data, arguments.out, VOCABULARY, arguments.tokens, seed=arguments.seed
    )
    start = Seq2Seq(TINY, VOCABULARY, VOCABULARY)
    arms: list[Arm] = [
        HuggingFace("HF fp32 sdpa", start, longest, "sdpa", OPTIMIZER),
        Ours(start, default_dtype(), OPTIMIZER),
    ]
    check_equal_parameters({arm.name: trainable(arm.model) for arm in arms})
    curves: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for step in range(arguments.steps):
        batch = batches[step % len(batches)]
        cells = Padded.of(batch)
        for arm in arms:
            set_rate(arm, SCHEDULE(step + 1, arguments.steps, TINY.d_model))
            curves[arm.name].append(arm.step(batch, cells))
    theirs, ours = (windows(curve) for curve in curves.values())
    differences = [mine / other - 1 for mine, other in zip(ours, theirs, strict=True)]
    worst = max(map(abs, differences))
    rows = [
        (f"{WINDOW * n + 1}-{WINDOW * n + WINDOW}", f"{other:.4f}", f"{mine:.4f}", f"{off:+.2%}")
        for n, (other, mine, off) in enumerate(zip(theirs, ours, differences, strict=True))
    ]
    verdict = "agree" if worst <= LOSS_TOLERANCE else "DISAGREE"
    told = (
        f"Smoothed loss ({SMOOTHING}) a target token; windows of {WINDOW} steps {verdict}: at most {worst:.2%} off.\n\n"
    )
    result = {"steps": arguments.steps, "curves": curves, "worst": worst, "tolerance": LOSS_TOLERANCE}
    table = told + report.markdown_table(("steps", *curves, "difference"), rows)
    report.write("speed-losses", "Losses of both sides, dropout on", result, table, arguments.results)
    if worst > LOSS_TOLERANCE:
        raise SystemExit(1)


def speed_table(result: dict[str, Any]) -> str:
    """The arms, and what both sides had in common."""
    base = result["base"]
    rows = [
        (name, f"{speed:,}", spelled(result["ratios"][name])) for name, speed in result["tokens_per_second"].items()
    ]
    rounds = len(result["seconds"][base])
    told = (
        f"{result['parameters']:,} parameters on each side; {result['batches']} batches of about "
        f"{result['real_tokens_a_batch']:,} real tokens (source and target together, {result['padding']:.1%} padding); "
        f"{result['threads']} threads; medians of {rounds} rounds, ratios within a round (smallest–largest). "
        f"surd's default here: {result['default']}, "
        f"{spelled(result['ratios_memory_kept'][result['default']])} times {MEMORY_KEPT}.\n\n"
    )
    return told + report.markdown_table(("arm", "tokens a second", f"times {base}"), rows)


def check_equal_parameters(counts: dict[str, int]) -> None:
    """Both sides train the same number of numbers."""
    assert len(set(counts.values())) == 1, f"parameters differ: {counts}"


def default_dtype() -> torch.dtype:
    """The dtype that surd computes in when nothing is asked for."""
    return torch.bfloat16 if default_precision(default_device()) == "bf16" else torch.float32


def padding(batches: list[Batch]) -> float:
    """The share of padding in the padded views of both sides."""
    cells = sum(len(side) * max(side.lengths) for batch in batches for side in (batch.source, batch.target))
    return 1 - sum(batch.tokens for batch in batches) / cells


def windows(curve: list[float]) -> list[float]:
    return [statistics.mean(curve[start : start + WINDOW]) for start in range(0, len(curve) - WINDOW + 1, WINDOW)]


if __name__ == "__main__":
    main()
