"""From data to recipe: what the survey of the pairs decides, each value with its reason."""

from dataclasses import replace
from math import ceil, prod, sqrt

from surd.data.survey import Survey
from surd.data.tokenizer import BPE, TokenizerKind
from surd.decode.decoding import Decoding
from surd.errors import SurdError
from surd.nn.position import Position
from surd.optim.schedule import Schedule
from surd.recipe.contradictions import divisors
from surd.recipe.draft import Draft
from surd.recipe.file import find
from surd.recipe.plan import Plan
from surd.recipe.settings import Recipe
from surd.recipe.table import get
from surd.tasks import PairTask, guess, named

WORDS_A_PIECE = 40
"""Words of text that there should be for each subword piece: pieces that are seen less often are learnt badly."""
SMALLEST_VOCABULARY = 500
"""Pieces below which a derived vocabulary of subwords does not go: bytes and letters take more than half of them."""
STEPS_AN_EPOCH = 20
"""Steps that an epoch of few pairs is cut into at least, by smaller batches."""
SMALLEST_BATCH = 256
"""Tokens a side below which batches are not made smaller."""
LETTERS_A_WORD = 6
"""Characters that count as a word at least, for scripts without blanks between words."""
PIECES_A_WORD = 1.3
"""Subword pieces a word, as exactly as a batch size needs it."""
LONGER_THAN_USUAL = 2
"""An output may have so many times the tokens that its source lets expect."""
WARMUP_SHARE = 4
"""A warm-up takes at most one in so many of all updates."""
EVALUATIONS = (10, 100)
"""Fewest and most looks at the held-out score before the step limit."""

FEWEST_BETWEEN = 50
"""Updates between two looks at least, while it is not known how many updates there will be."""


def choose_task(survey: Survey, draft: Draft) -> tuple[PairTask, str]:
    """The task that the draft asks for, or else the one that the pairs look like, with the reason."""
    asked = get(draft.values, "task")
    if not asked:
        return guess(survey)
    task = named(asked)
    assert isinstance(task, PairTask), "a draft with pairs for another task was refused"
    return task, draft.reasons["task"]


def derive(survey: Survey, draft: Draft | None = None) -> tuple[Recipe, dict[str, str]]:
    """The recipe for the surveyed pairs, and the reason of each value by dotted path.

    What the draft asks for stands. Everything else comes from the shipped recipe for so many pairs of that task, bent
    to what the data allow and to what was asked for.
    """
    asked = draft or Draft()
    asked.check()
    task, reason = choose_task(survey, asked)
    size = task.size(survey.usable)
    plan = Plan(asked, Draft.read(find(size)))
    plan.put("task", task.name, reason)
    width = "model.d_model"
    plan.put(width, plan[width], f"{survey.usable:,} usable pairs ({size}): {plan.why(width)}")
    for side, (kind, why) in task.tokenizers.items():
        plan.put(f"tokenizer.{side}.kind", kind, why)
    _vocabulary(plan, survey)
    _model(plan)
    epoch = _batch(plan, survey)
    _positions(plan, survey)
    duration(plan, epoch)
    return plan.recipe(survey.settings)


def with_steps(recipe: Recipe, steps: int, reason: str) -> tuple[Recipe, dict[str, str]]:
    """A recipe of minutes once they are known to be `steps` updates; warm-up and evaluations shrink to fit them."""
    training, reasons = recipe.training, {"training.steps": reason}
    longest, seldom = max(1, steps // WARMUP_SHARE), max(1, steps // EVALUATIONS[0])
    if training.schedule.warmup > longest:
        reasons["training.schedule.warmup"] = f"a quarter of {steps:,} updates"
    if training.evaluate_every > seldom:
        reasons["training.evaluate_every"] = f"{EVALUATIONS[0]} looks at the held-out score in {steps:,} updates"
    schedule = replace(training.schedule, warmup=min(training.schedule.warmup, longest))
    evaluate_every = min(training.evaluate_every, seldom)
    shorter = replace(training, steps=steps, minutes=None, schedule=schedule, evaluate_every=evaluate_every)
    return replace(recipe, training=shorter), reasons


def _vocabulary(plan: Plan, survey: Survey) -> None:
    """Tokenizers: one vocabulary where both sides can share it, and no more pieces than the words allow."""
    sides = ("source", "target")
    usual = [get(plan.derived.values, f"tokenizer.{side}.kind") for side in sides]
    for here, there in (sides, sides[::-1]):
        if usual[0] == usual[1] and plan.open(f"tokenizer.{here}") and not plan.open(f"tokenizer.{there}"):
            plan.put(f"tokenizer.{here}.kind", plan[f"tokenizer.{there}.kind"], f"as on the {there} side")
    names = {side: plan.choose(TokenizerKind, f"tokenizer.{side}") for side in sides}
    joint, reason = _joint(plan, survey)
    plan.put("tokenizer.joint", joint, reason)
    words = {
        "source": max(survey.source_words, survey.source_characters // LETTERS_A_WORD),
        "target": max(survey.target_words, survey.target_characters // LETTERS_A_WORD),
    }
    for side in sides:
        if "size" in names[side]:
            path = f"tokenizer.{side}.size"
            fit_vocabulary(plan, path, sum(words.values()) if plan["tokenizer.joint"] else words[side])
    for here, there in (sides, sides[::-1]):
        if plan["tokenizer.joint"] and plan.open(f"tokenizer.{here}") and not plan.open(f"tokenizer.{there}"):
            for name, value in plan[f"tokenizer.{there}"].items():
                plan.put(f"tokenizer.{here}.{name}", value, f"as on the {there} side")


def fit_vocabulary(plan: Plan, path: str, words: int) -> None:
    """No more pieces than so many words allow."""
    wanted = get(plan.size.values, path) or BPE().size
    allowed = max(SMALLEST_VOCABULARY, words // WORDS_A_PIECE // 100 * 100)
    scarce = f"{words:,} words: {WORDS_A_PIECE} for each piece"
    why = scarce if allowed < wanted else plan.size.reasons.get(path, "the default")
    plan.put(path, min(wanted, allowed), why)


def _joint(plan: Plan, survey: Survey) -> tuple[bool, str]:
    """Whether one vocabulary serves both sides, and why."""
    kinds = [plan[f"tokenizer.{side}.kind"] for side in ("source", "target")]
    asked = [get(plan.asked.values, f"tokenizer.{side}") for side in ("source", "target")]
    if kinds[0] != kinds[1]:
        return False, f"the sides are cut differently: {kinds[0]} and {kinds[1]}"
    if all(asked) and asked[0] != asked[1]:
        return False, "the sides are asked to differ"
    if get(plan.asked.values, "model.tying") == "all":
        return True, "tying all three matrices needs it"
    if not survey.same_script:
        return False, "the sides are written in different scripts"
    return True, "both sides share one script: names, numbers and roots have one row of the table"


def _model(plan: Plan) -> None:
    """What follows from vocabulary and width."""
    joint = plan["tokenizer.joint"]
    plan.put("model.tying", "all" if joint else "output", _TYING[joint])
    if get(plan.asked.values, "model.score.kind") == "additive":
        plan.put("model.scale.kind", "none", "additive scores hold no product to scale")
    widths(plan)


def widths(plan: Plan) -> None:
    """What follows from the width."""
    wanted, width = get(plan.size.values, "model.d_model"), plan["model.d_model"]
    heads = plan["model.heads"]
    if get(plan.asked.values, "model.d_k") is None and width % heads:
        raise SurdError(
            f"model.heads: expected a divisor of model.d_model = {width} ({divisors(width)}), found {heads}; "
            "with model.d_k given as well, any number is right"
        )
    plan.put("model.d_k", width // heads, f"the width of {width} over {heads} heads")
    if width != wanted:
        ratio = get(plan.size.values, "model.d_ff") / wanted
        plan.put("model.d_ff", max(1, round(ratio * width)), f"{ratio:g} times the width")


def _batch(plan: Plan, survey: Survey) -> int:
    """Batches that leave an epoch its steps, and outputs their length; returns the steps of an epoch."""
    source = tokens(plan["tokenizer.source.kind"], survey.source_words, survey.source_characters)
    target = tokens(plan["tokenizer.target.kind"], survey.target_words, survey.target_characters)
    epoch = max(source, target) + survey.usable
    ratio = (target + survey.usable) / (source + survey.usable)
    if ratio > 1:
        factor = float(f"{LONGER_THAN_USUAL * ratio:.2g}")
        plan.put(
            "decode.factor", factor, f"targets have some {ratio:.1f} times the tokens of their sources: twice that"
        )
    return steps_of_an_epoch(plan, epoch)


def _positions(plan: Plan, survey: Survey) -> None:
    """Positions that are learnt: one for each token that may be read or written."""
    path = "model.position"
    if plan[f"{path}.kind"] == "learned":
        plan.choose(Position, path)
        most = survey.settings.max_length + 1
        longest = Decoding(**get(plan.all.values, "decode") or {}).limit(most)
        plan.put(f"{path}.length", max(most, longest), f"outputs may have {longest:,} tokens, sources {most:,}")


def steps_of_an_epoch(plan: Plan, epoch: int, smallest: int = SMALLEST_BATCH) -> int:
    """Batches of few data are made smaller, so that their epochs still have some steps; returns how many."""
    most = epoch // STEPS_AN_EPOCH // (plan["training.accumulation"] or 1)
    if most < plan["batch.tokens"]:
        fitting = max(smallest, 1 << max(most, 1).bit_length() - 1)
        why = f"some {STEPS_AN_EPOCH} steps an epoch" if fitting > smallest else "the smallest batch"
        plan.put("batch.tokens", fitting, f"{epoch:,} tokens a side: {why}")
    return ceil(epoch / plan["batch.tokens"] / (plan["training.accumulation"] or 1))


def tokens(kind: str, words: int, characters: int) -> int:
    """About how many tokens a text has."""
    subwords = round(PIECES_A_WORD * max(words, characters // LETTERS_A_WORD))
    return {"characters": characters, "words": words}.get(kind, subwords)


def duration(plan: Plan, epoch: int) -> None:
    """How often to look, how long to warm up, and how fast to go then."""
    steps, schedule = plan["training.steps"], "training.schedule"
    fewest, most = EVALUATIONS
    if steps:
        every = min(max(epoch, ceil(steps / most)), max(1, steps // fewest))
        plan.put("training.evaluate_every", every, _every(every, epoch, steps))
    else:
        why = "an epoch" if epoch >= FEWEST_BETWEEN else "an epoch has fewer updates than a look is worth"
        plan.put("training.evaluate_every", max(epoch, FEWEST_BETWEEN), why)
    names = plan.choose(Schedule, schedule)
    wanted = get(plan.size.values, f"{schedule}.warmup")
    warmup = min(wanted, max(1, steps // WARMUP_SHARE)) if steps else wanted
    short = f"a quarter of {steps} steps" if warmup < wanted else plan.size.reasons[f"{schedule}.warmup"]
    plan.put(f"{schedule}.warmup", warmup, short)
    if "rate" in names:
        _rate(plan)


def _every(every: int, epoch: int, steps: int) -> str:
    if every == epoch:
        return "an epoch"
    return f"{every / epoch:.1f} epochs: {ceil(steps / every)} looks at the held-out score in {steps:,} updates"


def _rate(plan: Plan) -> None:
    """The peak of the shipped recipe, lower for a wider model, smaller batches or a shorter warm-up."""
    path, size = "training.schedule.rate", plan.size.values
    batch = plan["batch.tokens"] * (plan["training.accumulation"] or 1)
    wanted = get(size, "batch.tokens") * (get(size, "training.accumulation") or 1)
    factors = {
        "a wider model": get(size, "model.d_model") / plan["model.d_model"],
        "smaller batches": sqrt(batch / wanted),
        "a shorter warm-up": sqrt(max(plan["training.schedule.warmup"], 1) / get(size, "training.schedule.warmup")),
    }
    lower = {name: factor for name, factor in factors.items() if factor < 1}
    peak = get(size, path)
    if not lower:
        plan.put(path, peak, plan.size.reasons[path])
        return
    plan.put(path, float(f"{peak * prod(lower.values()):.2g}"), f"{peak:g} at this size, less for {', '.join(lower)}")


_TYING = {
    True: "one vocabulary: source table, target table and pre-softmax can be one matrix",
    False: "two vocabularies: the target table is the pre-softmax, the source has its own",
}
