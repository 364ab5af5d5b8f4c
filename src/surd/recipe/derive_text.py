"""From running text to recipe: what its survey decides for a language model, each value with its reason."""

from dataclasses import replace

from surd.data.text import TextSurvey
from surd.data.tokenizer import TokenizerKind
from surd.nn.position import Position
from surd.recipe.derive import LETTERS_A_WORD, duration, fit_vocabulary, steps_of_an_epoch, tokens, widths
from surd.recipe.draft import Draft
from surd.recipe.file import find
from surd.recipe.plan import Plan
from surd.recipe.settings import Recipe
from surd.recipe.table import get
from surd.tasks import TextTask, named, text_tasks


def derive_text(survey: TextSurvey, draft: Draft) -> tuple[Recipe, dict[str, str]]:
    """The recipe for the surveyed text, and the reason of each value by dotted path.

    What the draft asks for stands. Everything else comes from the shipped recipe for so much text.
    """
    draft.check()
    asked = get(draft.values, "task")
    task = named(asked) if asked else text_tasks()[0]
    assert isinstance(task, TextTask), "a draft with running text for another task was refused"
    size = task.size(survey.characters)
    plan = Plan(draft, Draft.read(find(size)))
    plan.put("task", task.name, draft.reasons["task"] if asked else "running text, not pairs")
    width = "model.d_model"
    plan.put(width, plan[width], f"{survey.characters:,} characters ({size}): {plan.why(width)}")
    path, words = "tokenizer.target", max(survey.words, survey.characters // LETTERS_A_WORD)
    if "size" in plan.choose(TokenizerKind, path):
        fit_vocabulary(plan, f"{path}.size", words)
    plan.put("model.tying", "output", "the only table is the pre-softmax too")
    if get(plan.asked.values, "model.score.kind") == "additive":
        plan.put("model.scale.kind", "none", "additive scores hold no product to scale")
    widths(plan)
    context = plan["data.context"]
    if plan["model.position.kind"] == "learned":
        plan.choose(Position, "model.position")
        plan.put("model.position.length", context, "one for each token of a window (data.context)")
    epoch = tokens(plan[f"{path}.kind"], survey.words, survey.characters)
    duration(plan, steps_of_an_epoch(plan, epoch, smallest=context))
    plan.put("data.context", context, plan.why("data.context"))
    if survey.settings.dev_text is None:
        plan.put("data.held_out", survey.settings.held_out, "its end: what stands before it tells nothing of it")
    return plan.recipe(replace(survey.settings, context=context))
