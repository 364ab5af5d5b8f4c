"""The end of a training: averaged weights against the best single ones, the better kept for use with its scores."""

from collections.abc import Iterator
from dataclasses import asdict

from surd.files import load_tensors, verify, write_json
from surd.models.weights import set_weights
from surd.recipe.file import values
from surd.training.average import average
from surd.training.checkpoint import Evaluation, State
from surd.training.evaluate import Stop
from surd.training.events import Candidate, Event, Finished, Preparing
from surd.training.session import Session

SCORES = "scores.json"
HOW = ("decode", "sample")
"""Settings that stand beside the scores: how outputs are found."""


def finish(session: Session, state: State, why: str, seconds: float, stop: Stop) -> Iterator[Event]:
    """Scores the candidates at the full beam, writes the better one as the model for use, and tells it.

    A function of the checkpoints alone: done again, it gives the same model and the same scores.
    """
    yield Preparing(doing="the final scores")
    candidates: list[Candidate] = []
    chosen: dict = {}
    look = None
    for name, evaluations in _candidates(state):
        weights = _weights(session, evaluations)
        set_weights(session.model, weights, name)
        look = session.scorer.final(session.model, stop)
        candidate = Candidate(name=name, scores=look.scores)
        if not candidates or look.scores[0].better_than(chosen["candidate"].scores[0]):
            chosen = {"candidate": candidate, "weights": weights}
        candidates.append(candidate)
    best = chosen["candidate"]
    assert look is not None, "a training ends after an evaluation"
    set_weights(session.model, chosen["weights"], best.name)
    event = Finished(
        step=state.step,
        why=why,
        scores=best.scores,
        lines=look.lines,
        basis=look.basis,
        chosen=best.name,
        candidates=tuple(candidates),
        seconds=seconds,
        run=session.run.folder,
    )
    record = {key: value for key, value in asdict(event).items() if key != "run"}
    session.run.save_model(session.model, {"step": state.step, "weights_of": best.name, "finished": True})
    how = {name: value for name, value in values(session.recipe).items() if name in HOW}
    write_json(session.run.folder / SCORES, record | how)
    yield event


def _candidates(state: State) -> Iterator[tuple[str, tuple[Evaluation, ...]]]:
    """The averaged weights first, so that they win where both are equal: they are the less accidental ones."""
    if len(state.recent) > 1:
        steps = f"{state.recent[0].step:,} to {state.recent[-1].step:,}"
        yield f"average of {len(state.recent)} checkpoints (updates {steps})", state.recent
    assert state.best is not None, "a training ends after an evaluation"
    yield f"single checkpoint of update {state.best.step:,}", (state.best,)


def _weights(session: Session, evaluations: tuple[Evaluation, ...]) -> dict:
    """The mean of the weights after those evaluations, from files that are what they were."""
    paths = [session.checkpoints.weights(one.step) for one in evaluations]
    for path, one in zip(paths, evaluations, strict=True):
        verify(path, one.sha256)
    return average(paths) if len(paths) > 1 else load_tensors(paths[0])
