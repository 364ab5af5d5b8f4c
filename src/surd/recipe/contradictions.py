"""Contradictions: values that no training could do with, and settings that cannot both be meant; all found together."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite, isqrt

from surd.data.corpus import DataSettings
from surd.errors import unknown
from surd.nn.dropout import LEVELS
from surd.nn.position import LearnedPosition
from surd.nn.tying import Tying
from surd.optim.schedule import last_update
from surd.part import unstructure
from surd.recipe.settings import Recipe
from surd.recipe.table import get, leaves
from surd.tasks import names

LARGEST = 2**31 - 1
"""The largest whole number of a setting, as SentencePiece reads them; of a seed, any will do."""
LARGEST_NUMBER = 1e30
"""The largest number of a setting: fp32 holds it, and what is reckoned from it."""
MOST_LAYERS = 10_000
"""Ten times the deepest Transformer that was published (Wang et al. 2022, DeepNet)."""
MOST_BATCHES = 1000
"""Batches of one update, which are all in memory at once."""


@dataclass(frozen=True)
class Contradiction:
    """One line for the user, and the settings it is about."""

    settings: tuple[str, ...]
    message: str


def contradictions(recipe: Recipe) -> list[Contradiction]:
    """Everything that is wrong with a recipe whose single values have the right types."""
    numbers = list(_numbers(recipe))
    told = {path for found in numbers for path in found.settings}
    return numbers + [found for found in (*_single(recipe), *_between(recipe)) if told.isdisjoint(found.settings)]


def divisors(number: int) -> str:
    """What a number can be divided by, to be listed in a message."""
    small = [one for one in range(1, min(isqrt(max(number, 0)), 10_000) + 1) if number % one == 0]
    return ", ".join(map(str, sorted({*small, *(number // one for one in small)})))


def _numbers(recipe: Recipe) -> Iterator[Contradiction]:
    """Numbers that nobody means and nothing can be reckoned with."""
    values = unstructure(recipe)
    for path in leaves(values):
        value = get(values, path)
        if isinstance(value, float) and not (isfinite(value) and abs(value) <= LARGEST_NUMBER):
            yield _fault(path, f"expected a number up to {LARGEST_NUMBER:g}, found {value:g}")
        elif isinstance(value, int) and path != "seed" and abs(value) > LARGEST:
            yield _fault(path, f"expected a whole number up to {LARGEST:,}, found {_shortened(value)}")


def _single(recipe: Recipe) -> Iterator[Contradiction]:
    """Values outside the range of their setting."""
    model, training, optimizer = recipe.model, recipe.training, recipe.training.optimizer
    if recipe.task not in names():
        yield _fault("task", unknown("task", recipe.task, names()))
    counts = {
        "model.d_model": model.d_model,
        "model.heads": model.heads,
        "model.d_k": model.d_k,
        "model.d_ff": model.d_ff,
        "model.encoder_layers": model.encoder_layers,
        "model.decoder_layers": model.decoder_layers,
        "training.evaluate_every": training.evaluate_every,
        "training.accumulation": training.accumulation,
        "training.average": training.average,
        "training.keep": training.keep,
    }
    if training.steps is not None:
        counts["training.steps"] = training.steps
    for path, value in counts.items():
        if value < 1:
            yield _fault(path, f"expected at least 1, found {value}")
    most = {
        "model.encoder_layers": (model.encoder_layers, MOST_LAYERS),
        "model.decoder_layers": (model.decoder_layers, MOST_LAYERS),
        "training.accumulation": (training.accumulation, MOST_BATCHES),
    }
    for path, (value, limit) in most.items():
        if value > limit:
            yield _fault(path, f"expected at most {limit:,}, found {value:,}")
    from_zero = {
        "seed": recipe.seed,
        "training.patience": training.patience,
        "training.watch_every": training.watch_every,
    }
    for path, value in from_zero.items():
        if value < 0:
            yield _fault(path, f"expected at least 0, found {value}")
    # A mask is drawn in steps of 1 / LEVELS: what rounds to all of them would drop everything.
    highest = (LEVELS - 1) / LEVELS
    for path, value in {"model.dropout": model.dropout, "model.attention_dropout": model.attention_dropout}.items():
        if not 0 <= value <= highest:
            yield _fault(path, f"expected a share from 0 to below 1 ({highest:.3f} at most), found {value}")
    shares = {
        "training.smoothing": training.smoothing,
        "training.optimizer.beta1": optimizer.beta1,
        "training.optimizer.beta2": optimizer.beta2,
    }
    for path, value in shares.items():
        if not 0 <= value < 1:
            yield _fault(path, f"expected a share from 0 to below 1, found {value}")
    if not (training.clip >= 0 and isfinite(training.clip)):
        yield _fault("training.clip", f"expected a norm, or 0 to cut nothing, found {training.clip}")
    if not (training.terms.z >= 0 and isfinite(training.terms.z)):
        yield _fault("training.terms.z", f"expected a weight of at least 0, found {training.terms.z}")
    if training.minutes is not None and not (training.minutes > 0 and isfinite(training.minutes)):
        yield _fault("training.minutes", f"expected more than 0, found {training.minutes}")
    if model.cap is not None and not (model.cap > 0 and isfinite(model.cap)):
        yield _fault("model.cap", f"expected more than 0, found {model.cap}")
    if not (model.input_gradient >= 0 and isfinite(model.input_gradient)):
        yield _fault("model.input_gradient", f"expected a factor of at least 0, found {model.input_gradient}")
    if not (optimizer.epsilon > 0 and isfinite(optimizer.epsilon)):
        yield _fault("training.optimizer.epsilon", f"expected more than 0, found {optimizer.epsilon}")
    if not 0 <= optimizer.decay < 1:
        yield _fault("training.optimizer.decay", f"expected a share from 0 to below 1, found {optimizer.decay}")
    yield from _schedule(recipe)


def _schedule(recipe: Recipe) -> Iterator[Contradiction]:
    """Values outside the range of the schedule's settings; members of the family share the names."""
    schedule, path = recipe.training.schedule, "training.schedule"
    for name in ("rate", "factor"):
        value = getattr(schedule, name, 1.0)
        if not (value > 0 and isfinite(value)):
            yield _fault(f"{path}.{name}", f"expected more than 0, found {value}")
    if schedule.warmup < 0:
        yield _fault(f"{path}.warmup", f"expected at least 0, found {schedule.warmup}")
    floor, steps = getattr(schedule, "floor", 0.0), getattr(schedule, "steps", None)
    if not 0 <= floor <= 1:
        yield _fault(f"{path}.floor", f"expected a share from 0 to 1, found {floor}")
    if steps is not None and steps <= schedule.warmup:
        names = f"{path}.steps", f"{path}.warmup"
        yield _clash(names, f"the floor is reached at update {steps}, before the warm-up of {schedule.warmup} ends")


def _between(recipe: Recipe) -> Iterator[Contradiction]:
    """Settings that are right by themselves and wrong together."""
    model, training = recipe.model, recipe.training
    yield from _of_text(recipe) if recipe.data.text is not None else _of_pairs(recipe)
    if model.position.kind == "sinusoidal" and model.d_model % 2:
        message = f"model.position = sinusoidal needs an even width (a sine and a cosine), found {model.d_model}"
        yield _fault("model.d_model", message)
    if model.position.kind == "rotary" and model.d_k % 2:
        yield _fault(
            "model.d_k", f"model.position = rotary turns pairs of features: expected an even d_k, found {model.d_k}"
        )
    shared = model.key_value_heads
    if shared is not None and (shared < 1 or model.heads % shared):
        told = divisors(model.heads)
        yield _fault("model.key_value_heads", f"expected a divisor of the {model.heads} heads ({told}), found {shared}")
    if model.score.kind == "additive" and model.scale.kind != "none":
        names = "model.score", "model.scale"
        yield _clash(names, f"additive scores hold no product to scale: set scale to none, found {model.scale.kind}")
    if training.steps is None and training.minutes is None:
        yield _clash(("training.steps", "training.minutes"), "nothing says when to stop: give one of the two")
    if training.steps is not None and training.minutes is not None:
        found = f"{training.steps} updates and {training.minutes:g} minutes"
        yield _clash(("training.steps", "training.minutes"), f"each is a limit, found {found}: give one of the two")
    if training.steps is not None and training.schedule.warmup > training.steps >= 1:
        names = "training.schedule.warmup", "training.steps"
        yield _clash(names, f"a warm-up of {training.schedule.warmup} does not end within {training.steps} updates")
    end = last_update(training.schedule)
    if end is not None and training.steps is not None and end < training.steps:
        names = "training.schedule.steps", "training.steps"
        yield _clash(names, f"the rate is 0 from update {end} on, so that the rest of {training.steps} changes nothing")


def _of_pairs(recipe: Recipe) -> Iterator[Contradiction]:
    """What sources, targets and their vocabularies ask for."""
    model, data = recipe.model, recipe.data
    if model.tying is Tying.ALL and not recipe.tokenizer.joint:
        names = "model.tying", "tokenizer.joint"
        yield _clash(names, "tying all three matrices needs one vocabulary: set joint to true, or tying to output")
    if isinstance(model.position, LearnedPosition) and model.position.length <= data.max_length:
        names = "model.position.length", "data.max_length"
        found = f"{model.position.length} positions for {data.max_length} tokens and their end"
        yield _clash(names, f"every sequence needs as many positions as it has tokens, found {found}")
    if data.dev_source is not None and data.held_out != DataSettings.held_out:
        found = f"{data.held_out:g} of the pairs beside held-out files"
        yield _clash(("data.held_out", "data.dev_source"), f"one of the two says what is held out, found {found}")


def _of_text(recipe: Recipe) -> Iterator[Contradiction]:
    """What running text and its windows ask for."""
    model, data = recipe.model, recipe.data
    if model.tying is Tying.ALL:
        yield _fault(
            "model.tying", "a language model has one table to tie to its pre-softmax: set it to output or none"
        )
    if isinstance(model.position, LearnedPosition) and model.position.length < data.context:
        names = "model.position.length", "data.context"
        found = f"{model.position.length} positions for windows of {data.context} tokens"
        yield _clash(names, f"every window needs as many positions as it has tokens, found {found}")
    sample = recipe.sample
    for name, value, whole in (("top_k", sample.top_k, None), ("top_p", sample.top_p, 1.0)):
        if sample.temperature == 0 and value != whole:
            names = "sample.temperature", f"sample.{name}"
            yield _clash(names, f"a temperature of 0 takes the likeliest token, so that {name} = {value} means nothing")
    if recipe.batch.tokens < data.context:
        found = f"{recipe.batch.tokens} tokens for windows of {data.context}"
        yield _clash(("batch.tokens", "data.context"), f"a batch holds at least one window, found {found}")
    if data.held_out >= 1:
        yield _fault("data.held_out", f"of running text a share below 1 is held out, found {data.held_out:g}")
    if data.dev_text is not None and data.held_out != DataSettings.held_out:
        found = f"{data.held_out:g} of the text beside a held-out file"
        yield _clash(("data.held_out", "data.dev_text"), f"one of the two says what is held out, found {found}")


def _shortened(number: int) -> str:
    """A number that may have thousands of digits."""
    return f"{number:,}" if abs(number) < 10**30 else "one of more than 30 digits"


def _fault(path: str, message: str) -> Contradiction:
    return Contradiction((path,), f"{path}: {message}")


def _clash(paths: tuple[str, ...], message: str) -> Contradiction:
    return Contradiction(paths, f"{' and '.join(paths)}: {message}")
